//! Who runs on which pool.

use super::{
    super::{
        Container, ContainerId, RECLAIM, State, Wishes,
        view::{View, blocked},
    },
    reclaim::part,
};
use oxalyst_qos::QosLevel;
use oxalyst_topology::{CpuSet, Machine, NumaMask};
use std::collections::BTreeMap;

/// Puts every container that has no CPUs of its own on those of its pool. Names bound reclaimed containers that lose their
/// binding.
pub(super) fn place_all(state: &mut State, machine: &Machine, ramp_up: &CpuSet) -> Vec<ContainerId> {
    let mut containers = std::mem::take(&mut state.containers);
    for container in containers.values_mut() {
        match container.qos {
            QosLevel::Dedicated | QosLevel::Reclaimed => {}
            QosLevel::Shared => container.cpus = shared_cpus(state, container, ramp_up),
            QosLevel::System => {}
        }
    }
    state.containers = containers;
    let unbound = place_reclaimed(state, machine);
    let mut system: BTreeMap<ContainerId, CpuSet> = BTreeMap::new();
    for (id, container) in &state.containers {
        if container.qos == QosLevel::System {
            system.insert(id.clone(), system_cpus(state, machine, &container.wishes));
        }
    }
    for (id, cpus) in system {
        if let Some(container) = state.containers.get_mut(&id) {
            container.cpus = cpus;
        }
    }
    unbound
}

fn shared_cpus(state: &State, container: &Container, ramp_up: &CpuSet) -> CpuSet {
    match &container.owner {
        Some(pool) => state.pool(pool),
        None => ramp_up.clone(),
    }
}

/// Puts reclaimed containers on the reclaim pool: bound ones on its part on their NUMA node, others where no bound one is. One
/// whose node has no CPU for it loses its binding; those are named.
fn place_reclaimed(state: &mut State, machine: &Machine) -> Vec<ContainerId> {
    let pool = state.pool(RECLAIM);
    let lost: Vec<ContainerId> = {
        let view = View::of(state, machine);
        let has_none = |node: u32| part(&pool, &view, &NumaMask::only(node)).is_empty();
        let bound = state.containers.iter().filter(|(_, container)| container.is_bound_reclaimed());
        bound
            .filter(|(_, container)| container.numa_hint.is_some_and(has_none))
            .map(|(id, _)| id.clone())
            .collect()
    };
    for id in &lost {
        if let Some(container) = state.containers.get_mut(id) {
            container.numa_hint = None;
        }
    }
    let cpus = ReclaimCpus::of(state, machine);
    for container in state.containers.values_mut().filter(|container| container.qos == QosLevel::Reclaimed) {
        container.cpus = cpus.for_container(container);
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
        let view = View::of(state, machine);
        let unbound = part(&pool, &view, &view.without_bound_reclaimed());
        let nodes = view.nodes.iter().filter(|node| node.bound_reclaimed);
        let bound = nodes.map(|node| (node.id, node.cpus & &pool)).collect();
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
    let named = wishes.cpuset_pool().map(|prefix| {
        let pools = state.pools.iter().filter(|(name, _)| name.starts_with(prefix));
        pools.fold(CpuSet::new(), |union, (_, cpus)| union | cpus)
    });
    let free = || machine.online() - &blocked(state, machine) - &state.exclusive();
    let free = wishes.numa_binding().then(free);
    let found = named.filter(|cpus| !cpus.is_empty()).or(free).filter(|cpus| !cpus.is_empty());
    found.unwrap_or_else(|| machine.online().clone())
}
