//! Who has taken how much memory of which NUMA node.

use super::{
    super::{ContainerId, ContainerKind, Wishes},
    Resource, Supply,
};
use crate::grouped::{Alike, Grouped, at_most};
use oxalyst_qos::QosLevel;
use oxalyst_topology::{Machine, NumaMask};
use oxalyst_units::Bytes;
use std::{collections::BTreeMap, sync::Arc};

/// A container as far as memory goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// What it is to its pod.
    pub kind: ContainerKind,
    /// Its pod's level.
    pub qos: QosLevel,
    /// Its wishes.
    pub wishes: Wishes,
    /// What it asks for.
    pub request: BTreeMap<Resource, Bytes>,
    /// What is accounted to it, by NUMA node: main containers that are bound or dedicated alone have anything here.
    pub taken: BTreeMap<Resource, BTreeMap<u32, Bytes>>,
    /// The NUMA nodes that it is bound to; `None` for one that follows what others leave.
    pub bound_to: Option<NumaMask>,
    /// Its `cpuset.mems`.
    pub mems: NumaMask,
}

/// Everybody's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Containers.
    pub containers: Grouped<ContainerId, Container>,
}

/// What differs between two states. `None`: is no more.
pub type Changes = BTreeMap<ContainerId, Option<Arc<Container>>>;

/// A container that is about to start, or to be resized.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The container.
    pub id: ContainerId,
    /// What it is to its pod.
    pub kind: ContainerKind,
    /// Its pod's level.
    pub qos: QosLevel,
    /// Its wishes.
    pub wishes: Wishes,
    /// What is to be found for it: on a main container its whole pod's request where that is declared. Absent: none.
    pub bytes: BTreeMap<Resource, Bytes>,
    /// Whether a running container is to have more or less than it has.
    pub resize: bool,
    /// Whether the pod is there to debug: nothing is set aside for it.
    pub debug: bool,
}

/// What the operator, or an advisor, has set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Whether shared pods that are not bound are refused where they would ask for more than there is for them.
    pub check_shared: bool,
    /// Whether reclaimed pods that ask for it are bound to a NUMA node.
    pub reclaim_numa_binding: bool,
    /// Bytes a NUMA node that reclaimed pods may use, by advice. Without an entry there are none.
    pub numa_headroom: BTreeMap<u32, Bytes>,
}

// === impl Options ===

impl Default for Options {
    fn default() -> Self {
        Self { check_shared: true, reclaim_numa_binding: false, numa_headroom: BTreeMap::new() }
    }
}

// === impl Container ===

impl Container {
    /// Whether its NUMA nodes are its pod's own.
    pub fn is_exclusive(&self) -> bool {
        self.qos == QosLevel::Dedicated && self.wishes.numa_exclusive()
    }

    /// Shared or dedicated, and bound to NUMA nodes.
    pub fn is_bound(&self) -> bool {
        matches!(self.qos, QosLevel::Dedicated | QosLevel::Shared) && self.wishes.numa_binding()
    }

    pub(super) fn asked(&self, resource: Resource) -> u64 {
        self.request.get(&resource).map_or(0, |bytes| bytes.0)
    }
}

impl Alike for Container {
    /// In all but what it asks for.
    fn is_like(&self, other: &Self) -> bool {
        self.qos == other.qos
            && self.kind == other.kind
            && self.bound_to == other.bound_to
            && self.mems == other.mems
            && self.taken == other.taken
            && self.wishes == other.wishes
    }

    /// What it asks for of [`Resource::Memory`].
    fn amount(&self) -> u64 {
        self.asked(Resource::Memory)
    }
}

// === impl Request ===

impl Request {
    pub(super) fn asked(&self, resource: Resource) -> u64 {
        self.bytes.get(&resource).map_or(0, |bytes| bytes.0)
    }
}

// === impl State ===

impl State {
    /// What of this node is taken.
    pub fn taken(&self, node: u32, resource: Resource) -> Bytes {
        let taken = self.containers.groups().filter_map(|group| {
            let bytes = group.example.taken.get(&resource)?.get(&node)?;
            Some(u128::from(bytes.0) * group.count as u128)
        });
        Bytes(at_most(taken.sum()))
    }

    /// What is taken of each node, in bytes; nodes of which nothing is taken are left out.
    pub(super) fn taken_by_node(&self, resource: Resource) -> BTreeMap<u32, u64> {
        let mut taken: BTreeMap<u32, u64> = BTreeMap::new();
        for group in self.containers.groups() {
            for (node, bytes) in group.example.taken.get(&resource).into_iter().flatten() {
                let sum = taken.entry(*node).or_default();
                *sum = sum.saturating_add(bytes.0.saturating_mul(group.count as u64));
            }
        }
        taken
    }

    /// What of this node is free: nothing where more is taken than there is, as after a node has lost memory.
    pub fn free(&self, supply: &Supply, node: u32, resource: Resource) -> Bytes {
        Bytes(supply.allocatable(node, resource).0.saturating_sub(self.taken(node, resource).0))
    }

    /// The nodes that exclusive pods have for themselves.
    pub fn exclusive(&self) -> NumaMask {
        let own = self.containers.kinds().filter(|container| container.is_exclusive());
        own.filter_map(|container| container.bound_to.as_ref())
            .fold(NumaMask::new(), |union, nodes| union | nodes)
    }

    /// The nodes that bound shared and dedicated pods are on.
    pub fn bound(&self) -> NumaMask {
        let bound = self.containers.kinds().filter(|container| container.is_bound());
        bound
            .filter_map(|container| container.bound_to.as_ref())
            .fold(NumaMask::new(), |union, nodes| union | nodes)
    }

    /// `cpuset.mems` of those who are bound to no node: the nodes with memory that are nobody's own, or all if there are none.
    pub fn common_mems(&self, machine: &Machine) -> NumaMask {
        let all = machine.memory_nodes();
        let common = &all - &self.exclusive();
        if common.is_empty() { all } else { common }
    }

    /// The containers of a pod, ascending by name.
    pub fn of_pod<'p>(&self, pod: &'p str) -> impl Iterator<Item = (&ContainerId, &Container)> + use<'_, 'p> {
        self.containers.of_pod(pod)
    }

    /// Changes the containers of a pod for which this is true.
    pub fn change_of_pod(
        &mut self,
        pod: &str,
        which: impl Fn(&ContainerId, &Container) -> bool,
        change: impl Fn(&mut Container),
    ) {
        self.containers.change_of_pod(pod, which, change);
    }

    /// Takes the containers of a pod out for which this is true.
    pub fn drop_of_pod(&mut self, pod: &str, which: impl Fn(&ContainerId) -> bool) {
        self.containers.drop_of_pod(pod, which);
    }

    /// The state once the changes hold.
    pub fn apply(&mut self, changes: &Changes) {
        for (id, container) in changes {
            match container {
                Some(container) => self.containers.insert(id.clone(), container.clone()),
                None => self.containers.remove(id),
            };
        }
    }
}
