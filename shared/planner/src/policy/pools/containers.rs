//! Who runs on which pool.

use super::super::{
    Container, ContainerId, RECLAIM, State, Wishes,
    state::exclusive,
    view::{blocked, bound_reclaimed, cpus_on},
};
use oxalyst_qos::QosLevel;
use oxalyst_topology::{CpuSet, Machine, NumaMask};
use std::{collections::BTreeMap, sync::Arc};

/// Puts every container that has no CPUs of its own on those of its pool. Names bound reclaimed containers that lose their
/// binding.
pub(super) fn place_all(state: &mut State, machine: &Machine, ramp_up: &CpuSet) -> Vec<ContainerId> {
    let unbound = unbind(state, machine);
    let reclaim = ReclaimCpus::of(state, machine);
    let mut containers = std::mem::take(&mut state.containers);
    // What system containers run on follows from who has CPUs of its own.
    let exclusive = exclusive(containers.values());
    for container in containers.values_mut() {
        let cpus = match container.qos {
            QosLevel::Dedicated => continue,
            QosLevel::Shared => shared_cpus(state, container, ramp_up),
            QosLevel::Reclaimed => reclaim.for_container(container),
            QosLevel::System => among(state, machine, &container.wishes, &exclusive),
        };
        if container.cpus != cpus {
            Arc::make_mut(container).cpus = cpus;
        }
    }
    state.containers = containers;
    unbound
}

/// Those of its pool; while it ramps up, or where nobody in its pool asks for anything so that there is none, wherever shared
/// containers may be.
fn shared_cpus(state: &State, container: &Container, ramp_up: &CpuSet) -> CpuSet {
    let pool = container.owner.as_ref().and_then(|pool| state.pools.get(pool));
    pool.filter(|_| !container.ramp_up).unwrap_or(ramp_up).clone()
}

/// Bound reclaimed containers whose node has no CPU for them lose their binding; those are named.
fn unbind(state: &mut State, machine: &Machine) -> Vec<ContainerId> {
    let pool = state.pool(RECLAIM);
    let has_none = |node: u32| machine.node(node).is_none_or(|node| node.cpus.is_disjoint(&pool));
    let mut lost = Vec::new();
    for (id, container) in &mut state.containers {
        if container.is_bound_reclaimed() && container.numa_hint.is_some_and(has_none) {
            Arc::make_mut(container).numa_hint = None;
            lost.push(id.clone());
        }
    }
    lost
}

/// Where this reclaimed container runs.
pub(in super::super) fn reclaim_cpus(state: &State, machine: &Machine, id: &ContainerId) -> CpuSet {
    let cpus = ReclaimCpus::of(state, machine);
    state.containers.get(id).map(|container| cpus.for_container(container)).unwrap_or_default()
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

    fn for_container(&self, container: &Container) -> CpuSet {
        let own = container.numa_hint.and_then(|node| self.bound.get(&node));
        own.unwrap_or(&self.unbound).clone()
    }
}

/// The CPUs of a system container: those of every pool whose name begins with the one it names; where there are none, all free
/// ones for a bound container; else all CPUs, exclusive ones included.
pub(in super::super) fn system_cpus(state: &State, machine: &Machine, wishes: &Wishes) -> CpuSet {
    among(state, machine, wishes, &state.exclusive())
}

fn among(state: &State, machine: &Machine, wishes: &Wishes, exclusive: &CpuSet) -> CpuSet {
    let named = wishes.cpuset_pool().map(|prefix| {
        let pools = state.pools.iter().filter(|(name, _)| name.starts_with(prefix));
        pools.fold(CpuSet::new(), |union, (_, cpus)| union | cpus)
    });
    let free = || machine.online() - &blocked(state, machine) - exclusive;
    let free = wishes.numa_binding().then(free);
    let found = named.filter(|cpus| !cpus.is_empty()).or(free).filter(|cpus| !cpus.is_empty());
    let all = || Some(machine.online() - machine.isolated()).filter(|cpus| !cpus.is_empty());
    found.or_else(all).unwrap_or_else(|| machine.online().clone())
}
