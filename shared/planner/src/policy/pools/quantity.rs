//! What the containers of a pool need.

use super::super::{ContainerId, ContainerKind, State, request::whole, state::node_of_pool};
use oxalyst_qos::QosLevel;
use oxalyst_units::MilliCpu;
use std::collections::BTreeMap;

/// CPUs that a pool needs, and the NUMA node that it is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Need {
    pub(super) node: Option<u32>,
    pub(super) cpus: usize,
}

/// A bound shared container is given this many times what it asks for.
const BOUND: u64 = 2;

/// What each pool needs: the main shared containers in it together, and those that will join it once they have ramped up. One
/// that joins it just now is not counted yet. `least` is what a pool needs at the least.
pub(super) fn needs(state: &State, joining: Option<&ContainerId>, least: usize) -> BTreeMap<String, Need> {
    let mut sums: BTreeMap<&str, (Option<u32>, MilliCpu)> = BTreeMap::new();
    for (id, container) in &state.containers {
        let counts = container.qos == QosLevel::Shared && container.kind == ContainerKind::Main;
        if !counts || Some(id) == joining {
            continue;
        }
        let pool = container.pool();
        let bound = container.is_bound_shared();
        let node = container.numa_hint.filter(|_| bound).or_else(|| node_of_pool(pool).filter(|_| bound));
        let (known, sum) = sums.entry(pool).or_default();
        *known = known.or(node);
        let counted = container.request.0.saturating_mul(if bound { BOUND } else { 1 });
        sum.0 = sum.0.saturating_add(counted);
    }
    // A bound pool has its node's CPUs to itself, and so must exist even if nobody in it asks for anything.
    let needs = sums.into_iter().map(|(pool, (node, sum))| {
        let cpus = whole(sum).max(least).max(usize::from(node.is_some()));
        (pool.to_owned(), Need { node, cpus })
    });
    needs.filter(|(_, need)| need.cpus > 0).collect()
}
