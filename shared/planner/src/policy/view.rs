//! A state seen by NUMA node.

use super::{Container, State, state::INTERRUPT};
use crate::grouped::at_most;
use oxalyst_qos::QosLevel;
use oxalyst_topology::{CpuSet, Machine, NumaMask};
use oxalyst_units::MilliCpu;
use std::collections::BTreeMap;

/// What follows from a state on a machine.
pub(super) struct View<'a> {
    pub(super) state: &'a State,
    pub(super) machine: &'a Machine,
    /// Ascending by id; nodes without CPUs are left out.
    pub(super) nodes: Vec<Node<'a>>,
    /// What shared pods may ask for beyond the CPUs that are there for them.
    pub(super) spare: MilliCpu,
}

/// One NUMA node.
pub(super) struct Node<'a> {
    pub(super) id: u32,
    pub(super) socket: u32,
    pub(super) cpus: &'a CpuSet,
    /// Its CPUs that are neither exclusive nor reserved nor kept for interrupts or isolated.
    pub(super) free: CpuSet,
    /// Some CPUs are exclusive.
    pub(super) allocated: bool,
    pub(super) bound_shared: bool,
    pub(super) bound_dedicated: bool,
    pub(super) exclusive: bool,
    pub(super) bound_reclaimed: bool,
    /// What bound shared pods here ask for.
    pub(super) bound_shared_request: MilliCpu,
    /// What bound reclaimed containers here ask for.
    pub(super) bound_reclaimed_request: MilliCpu,
}

// === impl View ===

impl<'a> View<'a> {
    pub(super) fn of(state: &'a State, machine: &'a Machine) -> Self {
        let exclusive = state.exclusive();
        let blocked = blocked(state, machine) | &exclusive;
        let mut nodes: Vec<_> = machine
            .nodes()
            .iter()
            .filter_map(|node| node.socket.map(|socket| (node, socket)))
            .map(|(node, socket)| Node {
                id: node.id,
                socket,
                cpus: &node.cpus,
                free: &node.cpus - &blocked,
                allocated: false,
                bound_shared: false,
                bound_dedicated: false,
                exclusive: false,
                bound_reclaimed: false,
                bound_shared_request: MilliCpu(0),
                bound_reclaimed_request: MilliCpu(0),
            })
            .collect();
        let leaves_a_mark =
            |container: &Container| container.qos == QosLevel::Dedicated || container.is_bound_shared();
        for container in state.containers.kinds().filter(|container| leaves_a_mark(container)) {
            for node in nodes.iter_mut().filter(|node| !node.cpus.is_disjoint(&container.cpus)) {
                node.take_in(container);
            }
        }
        let mut view = Self { state, machine, nodes, spare: MilliCpu(0) };
        view.add_up();
        view
    }

    fn add_up(&mut self) {
        for (node, request) in bound_shared_requests(self.state, self.machine) {
            if let Some(node) = self.nodes.iter_mut().find(|known| known.id == node) {
                let MilliCpu(asked) = &mut node.bound_shared_request;
                *asked = asked.saturating_add(request.0);
            }
        }
        for group in self.state.containers.groups().filter(|group| group.example.is_bound_reclaimed()) {
            if let Some(node) = self.nodes.iter_mut().find(|known| Some(known.id) == group.example.numa_hint)
            {
                node.bound_reclaimed = true;
                let MilliCpu(asked) = &mut node.bound_reclaimed_request;
                *asked = at_most(u128::from(*asked) + group.amount);
            }
        }
    }

    pub(super) fn node(&self, id: u32) -> Option<&Node<'a>> {
        self.nodes.iter().find(|node| node.id == id)
    }

    /// The free CPUs of the nodes that satisfy this.
    pub(super) fn free_where(&self, which: impl Fn(&Node<'_>) -> bool) -> CpuSet {
        self.nodes.iter().filter(|node| which(node)).fold(CpuSet::new(), |union, node| union | &node.free)
    }

    /// The free CPUs on these nodes.
    pub(super) fn free_on(&self, mask: &NumaMask) -> CpuSet {
        self.free_where(|node| mask.contains(node.id))
    }

    /// Where shared pods that are not bound may start: free CPUs of nodes that host no bound pod.
    pub(super) fn pooled(&self) -> CpuSet {
        self.free_where(|node| !node.is_bound())
    }

    /// Whether unbound shared pods that ask for this much together have room on so many CPUs.
    pub(super) fn holds_shared(&self, asked: MilliCpu, cpus: usize) -> bool {
        asked.0 <= MilliCpu::cpus(cpus as u64).0.saturating_add(self.spare.0)
    }

    /// What shared containers that are not bound ask for, those of `except` left out.
    pub(super) fn unbound_shared_request(&self, except: &str) -> MilliCpu {
        let unbound = self.state.containers.groups().filter(|group| group.example.is_unbound_shared());
        let all: u128 = unbound.map(|group| group.amount).sum();
        let own = self.state.of_pod(except).filter(|(_, container)| container.is_unbound_shared());
        let own: u128 = own.map(|(_, container)| u128::from(container.request.0)).sum();
        MilliCpu(at_most(all.saturating_sub(own)))
    }
}

/// The CPUs on these nodes.
pub(super) fn cpus_on(machine: &Machine, mask: &NumaMask) -> CpuSet {
    let on = machine.nodes().iter().filter(|node| mask.contains(node.id));
    on.fold(CpuSet::new(), |union, node| union | &node.cpus)
}

/// The nodes that bound reclaimed containers are on.
pub(super) fn bound_reclaimed(state: &State) -> NumaMask {
    let bound = state.containers.kinds().filter(|container| container.is_bound_reclaimed());
    bound.filter_map(|container| container.numa_hint).collect()
}

/// CPUs that nobody is given: reserved ones, those that serve interrupts, isolated ones.
pub(super) fn blocked(state: &State, machine: &Machine) -> CpuSet {
    &state.reserved | &state.pool(INTERRUPT) | machine.isolated()
}

/// What the bound shared pods on a node ask for: by pod its declared total, else its containers together.
fn bound_shared_requests(state: &State, machine: &Machine) -> Vec<(u32, MilliCpu)> {
    let mut pods: BTreeMap<&str, (Option<u32>, MilliCpu, Option<MilliCpu>)> = BTreeMap::new();
    for (id, container) in state.containers.of_kind(Container::is_bound_shared) {
        let (node, sum, declared) = pods.entry(&id.pod).or_default();
        *node = node.or_else(|| node_of(container, machine));
        sum.0 = sum.0.saturating_add(container.request.0);
        *declared = declared.or(container.pod_request);
    }
    let known = pods.into_values().filter_map(|(node, sum, declared)| Some((node?, declared.unwrap_or(sum))));
    known.collect()
}

/// The node of a container that is bound to one.
pub(super) fn node_of(container: &Container, machine: &Machine) -> Option<u32> {
    let by_owner = || container.owner.as_deref().and_then(super::state::node_of_pool);
    container.numa_hint.or_else(by_owner).or_else(|| machine.nodes_of(&container.cpus).first())
}

// === impl Node ===

impl Node<'_> {
    fn take_in(&mut self, container: &Container) {
        self.allocated |= container.qos == QosLevel::Dedicated;
        self.bound_shared |= container.is_bound_shared();
        self.bound_dedicated |= container.is_bound_dedicated();
        self.exclusive |= container.is_exclusive();
    }

    /// Free and not asked for by bound shared pods, in thousandths of a CPU.
    pub(super) fn unasked(&self) -> u64 {
        (self.free.len() as u64 * 1000).saturating_sub(self.bound_shared_request.0)
    }

    /// Whether it hosts bound pods, so that shared ones that are not bound keep off it.
    pub(super) fn is_bound(&self) -> bool {
        self.bound_shared || self.bound_dedicated
    }
}
