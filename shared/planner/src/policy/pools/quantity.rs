//! What the containers of a pool need.

use super::super::{Container, ContainerId, ContainerKind, State, request::whole, state::node_of_pool};
use crate::grouped::at_most;
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
const BOUND: u128 = 2;

/// How the container that is being placed counts.
#[derive(Clone, Copy)]
pub(super) enum Placed<'a> {
    /// As all others do.
    Counted,
    /// It joins its pool without making it grow.
    Joins(&'a ContainerId),
    /// Its pool grows by what it asks for, rounded up by itself.
    Grows(&'a ContainerId),
}

/// What the containers of a pool ask for.
#[derive(Default)]
struct Sum {
    node: Option<u32>,
    containers: usize,
    milli: u128,
    /// CPUs for the one that is being placed, where those are counted by themselves.
    apart: usize,
}

/// What each pool needs: the main shared containers in it together, and those that will join it once they have ramped up.
/// `least` is what a pool needs at the least.
pub(super) fn needs(state: &State, placed: Placed<'_>, least: usize) -> BTreeMap<String, Need> {
    let mut sums: BTreeMap<&str, Sum> = BTreeMap::new();
    let counts =
        |container: &Container| container.qos == QosLevel::Shared && container.kind == ContainerKind::Main;
    for group in state.containers.groups().filter(|group| counts(&group.example)) {
        let pool = group.example.pool();
        let bound = group.example.is_bound_shared();
        let node = group.example.numa_hint.or_else(|| node_of_pool(pool)).filter(|_| bound);
        let sum = sums.entry(pool).or_default();
        sum.node = sum.node.or(node);
        sum.containers += group.count;
        sum.milli += group.amount * ratio(&group.example);
    }
    let id = match placed {
        Placed::Counted => None,
        Placed::Joins(id) | Placed::Grows(id) => state.containers.get(id),
    };
    let of = id.filter(|container| counts(container));
    if let Some((container, sum)) =
        of.and_then(|container| Some((container, sums.get_mut(container.pool())?)))
    {
        let milli = u128::from(container.request.0) * ratio(container);
        sum.milli -= milli;
        match placed {
            Placed::Grows(_) => sum.apart = whole(MilliCpu(at_most(milli))),
            Placed::Counted | Placed::Joins(_) => sum.containers -= 1,
        }
    }
    sums.retain(|_, sum| sum.containers > 0);
    // A bound pool has its node's CPUs to itself, and so must exist even if nobody in it asks for anything.
    let needs = sums.into_iter().map(|(pool, Sum { node, milli, apart, .. })| {
        let cpus = whole(MilliCpu(at_most(milli))).saturating_add(apart);
        let cpus = cpus.max(least).max(usize::from(node.is_some()));
        (pool.to_owned(), Need { node, cpus })
    });
    needs.filter(|(_, need)| need.cpus > 0).collect()
}

/// How many times what it asks for a container is given.
fn ratio(container: &Container) -> u128 {
    if container.is_bound_shared() { BOUND } else { 1 }
}
