//! best-effort, restricted and single-numa-node: one hint for all resources.
//!
//! The specification folds over the whole product of the lists. What it selects is the least element of a total order, and that
//! needs two smaller sets only: the masks on which every resource can be *preferred* (all of them name that mask, or any node),
//! and, if there are none, the masks that can be reached by intersecting one hint of each.

use super::{
    mask_set::MaskSet,
    nodes::Nodes,
    pack::{Numbering, Packed},
};
use std::cmp::Reverse;

/// The best hint for all of these lists; all nodes, not preferred, where nothing is possible.
pub(super) fn best(nodes: &Nodes, numbering: &Numbering, lists: &[Vec<Packed>]) -> Packed {
    let order = Order { nodes, numbering, wanted: widest_minimum(lists) };
    let all = numbering.pack(nodes.all());
    let (mask, preferred) = match order.best_preferred(preferred(numbering.len(), all, lists)) {
        Some(mask) => (mask, true),
        None => (order.best_other(reachable(numbering.len(), all, lists)).unwrap_or(all), false),
    };
    Packed { mask: Some(mask), preferred }
}

/// How wide a mask has to be for every resource to have what it needs at the least: the widest of the narrowest masks.
fn widest_minimum(lists: &[Vec<Packed>]) -> u32 {
    let narrowest = |list: &Vec<Packed>| list.iter().filter_map(|hint| hint.mask).map(u64::count_ones).min();
    lists.iter().filter_map(narrowest).max().unwrap_or(0)
}

/// Masks that every resource prefers, cut to the machine's nodes.
fn preferred(bits: usize, all: u64, lists: &[Vec<Packed>]) -> Vec<u64> {
    let anywhere = |list: &&Vec<Packed>| list.contains(&Packed { mask: None, preferred: true });
    let masks = |list: &Vec<Packed>| {
        MaskSet::of(bits, list.iter().filter(|hint| hint.preferred).filter_map(|hint| hint.mask))
    };
    let choosy = lists.iter().filter(|list| !anywhere(list)).map(masks);
    let of_all = choosy.reduce(|some, more| some.in_both(&more));
    let masks = of_all.map(|set| set.to_vec()).unwrap_or_else(|| {
        // Nobody minds: all nodes will do, and so will what any single resource likes.
        lists.iter().flat_map(|list| masks(list).to_vec()).chain([all]).collect()
    });
    masks.into_iter().map(|mask| mask & all).filter(|mask| *mask != 0).collect()
}

/// Masks that come out when one hint of each list is taken and all are intersected with the machine's nodes.
fn reachable(bits: usize, all: u64, lists: &[Vec<Packed>]) -> Vec<u64> {
    let masks =
        |list: &Vec<Packed>| MaskSet::of(bits, list.iter().map(|hint| hint.mask.unwrap_or(all) & all));
    let machine = MaskSet::of(bits, [all]);
    lists.iter().fold(machine, |reached, list| reached.intersections(&masks(list))).to_vec()
}

/// Which of two merged masks is better.
struct Order<'a> {
    nodes: &'a Nodes,
    numbering: &'a Numbering,
    /// The size that a mask nobody prefers should have.
    wanted: u32,
}

// === impl Order ===

impl Order<'_> {
    /// The narrowest.
    fn best_preferred(&self, masks: Vec<u64>) -> Option<u64> {
        self.least(masks, u64::count_ones)
    }

    /// The size wanted, else the widest below, else the narrowest above.
    fn best_other(&self, masks: Vec<u64>) -> Option<u64> {
        self.least(masks, |mask| self.size(mask))
    }

    fn size(&self, mask: u64) -> (bool, Reverse<u32>, u32) {
        let size = mask.count_ones();
        if size <= self.wanted { (false, Reverse(size), 0) } else { (true, Reverse(0), size) }
    }

    /// The mask of the least size; of several of one size the closest if that is asked for, else and then the smaller number. How far
    /// apart the nodes of a mask lie is summed up for these alone: there can be very many.
    fn least<S: Ord>(&self, masks: Vec<u64>, size: impl Fn(u64) -> S) -> Option<u64> {
        let least = masks.iter().map(|mask| size(*mask)).min()?;
        let of_it = masks.into_iter().filter(|mask| size(*mask) == least);
        if !self.nodes.prefers_closest() {
            return of_it.min();
        }
        of_it.min_by_key(|mask| (self.nodes.distance(&self.numbering.unpack(*mask)), *mask))
    }
}
