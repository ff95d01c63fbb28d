//! Sets of NUMA nodes of machines that have too many nodes to try every set: those that have enough, the best ones first, and
//! never more than a bounded number of them.

use super::nodes::by_bits;
use oxalyst_topology::{Machine, NumaMask};
use std::ops::RangeInclusive;

/// Machines with more NUMA nodes than this have too many sets of them to try them all.
pub(crate) const EVERY_SET_NODES: usize = 16;

/// Sets that a resource is offered at the most on machines with more than `EVERY_SET_NODES` (16) nodes, the set of all of them aside.
pub const OFFERED_SETS: usize = 1 << 12;

/// Nodes that are tried as the next one of a set, at the most, for one resource.
const STEPS: usize = OFFERED_SETS * 64;

/// What sets of nodes must have: amounts that are needed, and what each node has of each of them.
///
/// Nodes are known by their place. Sets come in the lexical order of places, so that what should come first stands first.
pub(crate) struct Enough {
    needs: Vec<u64>,
    /// A row a node.
    rooms: Vec<Vec<u64>>,
    /// By amount, by place, by count: what so many of the nodes from this place on have at the most.
    tops: Vec<Vec<Vec<u64>>>,
}

/// What is left to be looked at.
pub(crate) struct Budget {
    sets: usize,
    steps: usize,
    /// Whether sets were left out.
    pub(crate) cut: bool,
}

/// One walk over the sets of a size.
struct Walk<'a> {
    enough: &'a Enough,
    size: usize,
    budget: &'a mut Budget,
    visit: &'a mut dyn FnMut(&[usize]),
    chosen: Vec<usize>,
}

/// Where a node stands among those that are tried: those with room first, then by socket, then by id.
pub(crate) fn place_in_order(machine: &Machine, id: u32, has_room: bool) -> (bool, bool, u32, u32) {
    let socket = machine.node(id).and_then(|node| node.socket);
    (!has_room, socket.is_none(), socket.unwrap_or_default(), id)
}

// === impl Enough ===

impl Enough {
    pub(crate) fn new(needs: Vec<u64>, rooms: Vec<Vec<u64>>) -> Self {
        let top = |amount: usize, from: usize| {
            let mut of: Vec<u64> =
                rooms.iter().skip(from).map(|room| room.get(amount).copied().unwrap_or(0)).collect();
            of.sort_unstable_by(|a, b| b.cmp(a));
            let sums = of.iter().scan(0u64, |sum, more| {
                *sum = sum.saturating_add(*more);
                Some(*sum)
            });
            std::iter::once(0).chain(sums).collect()
        };
        let tops = (0..needs.len())
            .map(|amount| (0..=rooms.len()).map(|from| top(amount, from)).collect())
            .collect();
        Self { needs, rooms, tops }
    }

    /// On no fewer nodes is there enough of each amount; of one amount alone there is on so many. `None`: not on all of them.
    pub(crate) fn fewest(&self) -> Option<usize> {
        let of = |(need, tops): (&u64, &Vec<Vec<u64>>)| tops.first()?.iter().position(|top| top >= need);
        self.needs.iter().zip(&self.tops).try_fold(1, |fewest, amount| Some(fewest.max(of(amount)?)))
    }

    /// Shows `visit` the sets of these sizes that have enough, the smaller first. Each size is left its part of the budget, and
    /// what smaller ones did not need of theirs.
    pub(crate) fn each(
        &self,
        sizes: RangeInclusive<usize>,
        budget: &mut Budget,
        visit: &mut dyn FnMut(&[usize]),
    ) {
        let sizes = *sizes.start().max(&1)..=(*sizes.end()).min(self.rooms.len());
        for size in sizes.clone() {
            let parts = sizes.end() - size + 1;
            let mut part = budget.part(parts);
            let mut walk =
                Walk { enough: self, size, budget: &mut part, visit, chosen: Vec::with_capacity(size) };
            walk.descend(0, &vec![0; self.needs.len()]);
            budget.spend(&part, parts);
        }
    }
}

impl Enough {
    /// The masks that have enough of the smallest size that does, and is not below `least`, and of the next; then `all`, which the
    /// list holds however it was cut. The smaller first, among those of one size in ascending order of their bits.
    pub(crate) fn masks(
        &self,
        ids: &[u32],
        least: usize,
        all: NumaMask,
        budget: &mut Budget,
    ) -> Vec<NumaMask> {
        let Some(fewest) = self.fewest() else { return Vec::new() };
        let smallest = fewest.max(least);
        let mut masks: Vec<NumaMask> = Vec::new();
        self.each(smallest..=smallest + 1, budget, &mut |set| {
            masks.push(set.iter().filter_map(|at| ids.get(*at)).copied().collect());
        });
        if all.len() > smallest + 1 || masks.is_empty() {
            masks.push(all);
        }
        masks.sort_by(|a, b| a.len().cmp(&b.len()).then_with(|| by_bits(a, b)));
        masks
    }
}

// === impl Budget ===

impl Budget {
    pub(crate) const fn new() -> Self {
        Self { sets: OFFERED_SETS, steps: STEPS, cut: false }
    }

    /// One of so many equal parts.
    pub(crate) fn part(&self, parts: usize) -> Self {
        Self { sets: self.sets / parts.max(1), steps: self.steps / parts.max(1), cut: false }
    }

    /// Takes off what was used of one of so many equal parts.
    pub(crate) fn spend(&mut self, part: &Self, parts: usize) {
        let given = self.part(parts);
        self.sets -= given.sets - part.sets;
        self.steps -= given.steps - part.steps;
        self.cut |= part.cut;
    }

    /// Whether anything is left.
    pub(crate) const fn is_spent(&self) -> bool {
        self.sets == 0 || self.steps == 0
    }
}

// === impl Walk ===

impl Walk<'_> {
    fn descend(&mut self, from: usize, held: &[u64]) {
        let lacks = self.size - self.chosen.len();
        if lacks == 0 {
            self.budget.sets -= 1;
            (self.visit)(&self.chosen);
            return;
        }
        let enough = self.enough;
        for (place, room) in enough.rooms.iter().enumerate().skip(from) {
            if enough.rooms.len() - place < lacks {
                return;
            }
            if self.budget.is_spent() {
                self.budget.cut = true;
                return;
            }
            self.budget.steps -= 1;
            let held: Vec<u64> =
                held.iter().zip(room).map(|(held, more)| held.saturating_add(*more)).collect();
            if enough.could_do(&held, place + 1, lacks - 1) {
                self.chosen.push(place);
                self.descend(place + 1, &held);
                self.chosen.pop();
            }
        }
    }
}

impl Enough {
    /// Whether so much, and so many more nodes from this place on, could have enough.
    fn could_do(&self, held: &[u64], from: usize, more: usize) -> bool {
        let tops =
            self.tops.iter().map(|tops| tops.get(from).and_then(|of| of.get(more)).copied().unwrap_or(0));
        self.needs.iter().zip(held).zip(tops).all(|((need, held), top)| held.saturating_add(top) >= *need)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn found(enough: &Enough, sizes: RangeInclusive<usize>) -> (Vec<Vec<usize>>, bool) {
        let (mut budget, mut sets) = (Budget::new(), Vec::new());
        enough.each(sizes, &mut budget, &mut |set| sets.push(set.to_vec()));
        (sets, budget.cut)
    }

    proptest! {
        #[test]
        fn what_is_not_cut_is_every_set_that_has_enough(
            rooms in prop::collection::vec((0u64..9, 0u64..9), 1..9),
            (cpus, cores) in (0u64..40, 0u64..20),
        ) {
            let rows: Vec<Vec<u64>> = rooms.iter().map(|(a, b)| vec![*a, *b]).collect();
            let enough = Enough::new(vec![cpus, cores], rows.clone());
            let sum = |set: &[usize], amount: usize| set.iter().map(|at| rows[*at][amount]).sum::<u64>();
            let mut expected: Vec<Vec<usize>> = (1u32..1 << rows.len())
                .map(|bits| (0..rows.len()).filter(|at| bits >> at & 1 == 1).collect::<Vec<_>>())
                .filter(|set| sum(set, 0) >= cpus && sum(set, 1) >= cores)
                .collect();
            expected.sort_by_key(|set| (set.len(), set.clone()));
            let least = expected.first().map(Vec::len);
            prop_assert!(enough.fewest().is_none_or(|fewest| least.is_none_or(|least| fewest <= least)));
            prop_assert_eq!(found(&enough, 1..=rows.len()), (expected, false));
        }
    }

    #[test]
    fn however_many_nodes_there_are_no_more_than_the_limit_is_shown_and_each_has_enough() {
        for nodes in [17usize, 20, 24, 32, 64, 200] {
            // The first half has nothing: sets of it are not even looked at.
            let rooms: Vec<Vec<u64>> =
                (0..nodes).map(|at| vec![if at < nodes / 4 { 0 } else { 4 }]).collect();
            let enough = Enough::new(vec![nodes as u64 * 2], rooms);
            assert_eq!(enough.fewest(), Some(nodes.div_ceil(2)));
            let (sets, cut) = found(&enough, nodes.div_ceil(2)..=nodes.div_ceil(2) + 1);
            assert!(sets.len() <= OFFERED_SETS && !sets.is_empty(), "{nodes}: {}", sets.len());
            assert_eq!(cut, nodes > 17, "{nodes}");
            assert!(sets.iter().any(|set| set.len() > nodes.div_ceil(2)), "the next size has its part");
            assert_eq!(sets[0], (nodes / 4..nodes / 4 + nodes.div_ceil(2)).collect::<Vec<_>>());
        }
    }

    #[test]
    fn two_amounts_that_no_set_has_together_end_too() {
        // Alternating nodes have one of them each: sums never tell early that both cannot be had on half of them.
        let rooms: Vec<Vec<u64>> =
            (0..64).map(|at| if at % 2 == 0 { vec![1, 0] } else { vec![0, 1] }).collect();
        let enough = Enough::new(vec![20, 20], rooms);
        let (sets, cut) = found(&enough, 20..=39);
        assert_eq!((sets.len(), cut), (0, true));
    }
}
