//! Who runs on which pool.

use super::super::{
    Container, ContainerId, RECLAIM, State, Wishes,
    state::exclusive,
    view::{blocked, bound_reclaimed, cpus_on},
};
use oxalyst_qos::QosLevel;
use oxalyst_topology::{CpuSet, Machine, NumaMask};
use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

/// Puts every container that has no CPUs of its own on those of its pool. Names bound reclaimed containers that lose their
/// binding.
pub(super) fn place_all(state: &mut State, machine: &Machine, ramp_up: &CpuSet) -> Vec<ContainerId> {
    let unbound = unbind(state, machine);
    let reclaim = ReclaimCpus::of(state, machine);
    // What system containers run on follows from who has CPUs of its own.
    let exclusive = exclusive(&state.containers);
    let cpus = |container: &Container| match container.qos {
        QosLevel::Dedicated => None,
        QosLevel::Shared => Some(Cow::Borrowed(shared_cpus(state, container, ramp_up))),
        QosLevel::Reclaimed => Some(Cow::Borrowed(reclaim.for_container(container))),
        QosLevel::System => Some(Cow::Owned(among(state, machine, &container.wishes, &exclusive))),
    };
    let moves = |container: &Container| cpus(container).filter(|cpus| **cpus != container.cpus);
    let mut containers = state.containers.clone();
    containers.update(moves, |container, cpus| container.cpus.clone_from(&cpus));
    state.containers = containers;
    unbound
}

/// Those of its pool; while it ramps up, or where nobody in its pool asks for anything so that there is none, wherever shared
/// containers may be.
fn shared_cpus<'s>(state: &'s State, container: &Container, ramp_up: &'s CpuSet) -> &'s CpuSet {
    let pool = container.owner.as_ref().and_then(|pool| state.pools.get(pool));
    pool.filter(|_| !container.ramp_up).unwrap_or(ramp_up)
}

/// Bound reclaimed containers whose node has no CPU for them lose their binding; those are named.
fn unbind(state: &mut State, machine: &Machine) -> Vec<ContainerId> {
    let pool = state.pool(RECLAIM);
    let has_none = |node: u32| machine.node(node).is_none_or(|node| node.cpus.is_disjoint(&pool));
    let without =
        |container: &Container| container.is_bound_reclaimed() && container.numa_hint.is_some_and(has_none);
    let lost = state.containers.of_kind(without);
    let lost: Vec<ContainerId> = lost.map(|(id, _)| id.clone()).collect();
    for id in &lost {
        if let Some(container) = state.containers.get_mut(id) {
            Arc::make_mut(container).numa_hint = None;
        }
    }
    lost
}

/// Where this reclaimed container runs.
pub(in super::super) fn reclaim_cpus(state: &State, machine: &Machine, id: &ContainerId) -> CpuSet {
    let cpus = ReclaimCpus::of(state, machine);
    state.containers.get(id).map(|container| cpus.for_container(container).clone()).unwrap_or_default()
}

/// The reclaim pool's parts.
struct ReclaimCpus {
    /// By NUMA node, where bound ones are.
    bound: BTreeMap<u32, CpuSet>,
    unbound: CpuSet,
}

// === impl ReclaimCpus ===

impl ReclaimCpus {
    fn of(state: &State, machine: &Machine) -> Self {
        let pool = state.pool(RECLAIM);
        let nodes = bound_reclaimed(state);
        let unbound = &pool - &cpus_on(machine, &nodes);
        let bound =
            nodes.iter().map(|node| (node, &pool & &cpus_on(machine, &NumaMask::only(node)))).collect();
        // Nobody is left without CPUs for the sake of a binding.
        Self { bound, unbound: if unbound.is_empty() { pool } else { unbound } }
    }

    fn for_container(&self, container: &Container) -> &CpuSet {
        let own = container.numa_hint.and_then(|node| self.bound.get(&node));
        own.unwrap_or(&self.unbound)
    }
}

/// The CPUs of a system container: those of every pool whose name begins with the one it names; where there are none, all free
/// ones for a bound container; else all CPUs, exclusive ones included.
pub(in super::super) fn system_cpus(state: &State, machine: &Machine, wishes: &Wishes) -> CpuSet {
    among(state, machine, wishes, &state.exclusive())
}

fn among(state: &State, machine: &Machine, wishes: &Wishes, exclusive: &CpuSet) -> CpuSet {
    let named = wishes.cpuset_pool().map(|prefix| state.named(prefix, exclusive));
    let free = || machine.online() - &blocked(state, machine) - exclusive;
    let free = wishes.numa_binding().then(free);
    let found = named.filter(|cpus| !cpus.is_empty()).or(free).filter(|cpus| !cpus.is_empty());
    let all = || Some(machine.online() - machine.isolated()).filter(|cpus| !cpus.is_empty());
    found.or_else(all).unwrap_or_else(|| machine.online().clone())
}
