//! More NUMA nodes than can be merged: the set of nodes that the resources have in common, without intersecting any.

use super::{
    hint::{Hint, Offered, Provider},
    nodes::by_bits,
};
use oxalyst_topology::NumaMask;

/// Of the sets that the first choosy resource offers the one that the fewest of the others cannot have, then the one that most of
/// them prefer, then the narrowest, then the one of lower ids. `None`: nobody minds. Preferred if all of them prefer it.
pub(super) fn best(providers: &[Provider]) -> Option<Hint> {
    let lists: Vec<Offered<'_>> =
        providers.iter().flat_map(Provider::values).flatten().map(|hints| Offered::of(hints)).collect();
    let own = lists.iter().find(|list| !list.sets.is_empty())?;
    let cost = |mask: &NumaMask| {
        let said = lists.iter().map(|list| list.prefers(mask));
        let (lack, dislike): (Vec<bool>, Vec<bool>) = said.map(|of| (of.is_none(), of != Some(true))).unzip();
        let count = |all: Vec<bool>| all.into_iter().filter(|one| *one).count();
        (count(lack), count(dislike), mask.len())
    };
    let costs = own.sets.keys().map(|mask| (cost(mask), *mask));
    let ((_, dislike, _), mask) =
        costs.min_by(|(a, one), (b, other)| a.cmp(b).then_with(|| by_bits(one, other)))?;
    Some(Hint::on(mask.clone(), dislike == 0))
}
