//! Who runs where.

use super::Wishes;
use crate::grouped::{Alike, Grouped};
use oxalyst_qos::QosLevel;
use oxalyst_topology::{CpuSet, Machine, NumaMask};
use oxalyst_units::MilliCpu;
use std::{collections::BTreeMap, sync::Arc};

/// CPUs kept for the system.
pub const RESERVE: &str = "reserve";
/// CPUs of reclaimed pods.
pub const RECLAIM: &str = "reclaim";
/// CPUs that serve interrupts: nobody else runs there.
pub const INTERRUPT: &str = "interrupt";
/// The pool of shared pods that name none.
pub const SHARE: &str = "share";
/// Owner of dedicated pods; not a pool of its own.
pub const DEDICATED: &str = "dedicated";
/// Pools that exist whether or not a container runs in them.
pub(super) const RESIDENT: [&str; 3] = [RECLAIM, RESERVE, INTERRUPT];
/// Prefix of pools that an advisor makes for single shared pods.
pub(super) const ISOLATION: &str = "isolation";

/// A container within a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContainerId {
    /// The pod's uid.
    pub pod: Arc<str>,
    /// The container's name.
    pub container: Arc<str>,
}

/// What a container is to its pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ContainerKind {
    /// The container that the pod is about.
    #[default]
    Main,
    /// Runs to its end before the others.
    Init,
    /// Runs beside the main container.
    Sidecar,
}

/// One container and its CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// Namespace and name of its pod, by which a pod that is made anew is recognised.
    pub pod_name: String,
    /// What it is to its pod.
    pub kind: ContainerKind,
    /// Its pod's level.
    pub qos: QosLevel,
    /// Its wishes.
    pub wishes: Wishes,
    /// The pool it runs in, or [`DEDICATED`]; `None` while a shared container ramps up, and for system containers that name none.
    pub owner: Option<String>,
    /// Whether it has started so lately that what it needs is not known: shared ones run on all CPUs that are not taken.
    pub ramp_up: bool,
    /// Its CPUs.
    pub cpus: CpuSet,
    /// A dedicated container's CPUs at first admission, which a resize keeps longest; empty for all others.
    pub baseline: CpuSet,
    /// What the container asks for.
    pub request: MilliCpu,
    /// What its whole pod asks for, where that is declared on the main container.
    pub pod_request: Option<MilliCpu>,
    /// The one NUMA node that it was bound to.
    pub numa_hint: Option<u32>,
}

/// A pod that had NUMA nodes for itself and is gone: one of the same name gets them again, others avoid them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remembered {
    /// Namespace and name of the pod.
    pub pod_name: String,
    /// The container's name.
    pub container: String,
    /// Its NUMA nodes.
    pub nodes: NumaMask,
}

/// The policy's whole state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// CPUs kept for the system.
    pub reserved: CpuSet,
    /// Pools by name, [`RESERVE`] and [`RECLAIM`] among them.
    pub pools: BTreeMap<String, CpuSet>,
    /// Containers; shared between states, since most of them are the same from one to the next.
    pub containers: Grouped<ContainerId, Container>,
    /// Pods that are gone, the newest last.
    pub remembered: Vec<Remembered>,
}

/// What differs between two states. `None`: is no more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Pools by name.
    pub pools: BTreeMap<String, Option<CpuSet>>,
    /// Containers.
    pub containers: BTreeMap<ContainerId, Option<Arc<Container>>>,
    /// The whole memory of pods that are gone, where it has changed.
    pub remembered: Option<Vec<Remembered>>,
}

// === impl ContainerId ===

impl ContainerId {
    /// The container of this name in the pod of this uid.
    pub fn new(pod: impl Into<Arc<str>>, container: impl Into<Arc<str>>) -> Self {
        Self { pod: pod.into(), container: container.into() }
    }
}

// === impl ContainerKind ===

impl ContainerKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Main, Self::Init, Self::Sidecar];

    /// The word for it in records.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Main => "main",
            Self::Init => "init",
            Self::Sidecar => "sidecar",
        }
    }
}

// === impl Container ===

impl Container {
    /// Shared and bound to a NUMA node.
    pub fn is_bound_shared(&self) -> bool {
        self.qos == QosLevel::Shared && self.wishes.numa_binding()
    }

    /// Shared and not bound.
    pub fn is_unbound_shared(&self) -> bool {
        self.qos == QosLevel::Shared && !self.wishes.numa_binding()
    }

    /// Dedicated and bound to NUMA nodes.
    pub fn is_bound_dedicated(&self) -> bool {
        self.qos == QosLevel::Dedicated && self.wishes.numa_binding()
    }

    /// Dedicated, and its NUMA nodes are its own.
    pub fn is_exclusive(&self) -> bool {
        self.qos == QosLevel::Dedicated && self.wishes.numa_exclusive()
    }

    /// Reclaimed and actually bound to a NUMA node.
    pub fn is_bound_reclaimed(&self) -> bool {
        self.qos == QosLevel::Reclaimed && self.numa_hint.is_some()
    }

    /// Reclaimed and on whatever NUMA nodes no bound one is on.
    pub fn is_unbound_reclaimed(&self) -> bool {
        self.qos == QosLevel::Reclaimed && self.numa_hint.is_none()
    }

    /// The pool that it runs in, or will run in once it has ramped up.
    pub fn pool(&self) -> &str {
        self.owner.as_deref().unwrap_or_else(|| self.specified_pool())
    }

    /// The pool that it is meant for by level and wishes, whether bound or not.
    pub(super) fn specified_pool(&self) -> &str {
        specified_pool(self.qos, &self.wishes)
    }
}

impl Alike for Container {
    /// In all that decides where others may run, and where the container itself does.
    fn is_like(&self, other: &Self) -> bool {
        self.qos == other.qos
            && self.kind == other.kind
            && self.ramp_up == other.ramp_up
            && self.numa_hint == other.numa_hint
            && self.cpus == other.cpus
            && self.owner == other.owner
            && self.wishes == other.wishes
    }

    /// What it asks for, in thousandths of a CPU.
    fn amount(&self) -> u64 {
        self.request.0
    }
}

/// The pool that a container of this level and these wishes is meant for.
pub(super) fn specified_pool(qos: QosLevel, wishes: &Wishes) -> &str {
    match qos {
        QosLevel::Shared => wishes.shared_pool().unwrap_or(SHARE),
        QosLevel::Dedicated => DEDICATED,
        QosLevel::Reclaimed => RECLAIM,
        QosLevel::System => wishes.cpuset_pool().unwrap_or_default(),
    }
}

/// The name of a pool's part on one NUMA node, where bound shared pods run.
pub(super) fn bound_pool(pool: &str, node: u32) -> String {
    format!("{pool}-NUMA{node}")
}

/// The NUMA node of a pool's part on one, by its name: `share-NUMA0`.
pub fn node_of_pool(pool: &str) -> Option<u32> {
    pool.rsplit_once("-NUMA").and_then(|(_, node)| node.parse().ok())
}

// === impl State ===

impl State {
    /// A machine on which nothing runs yet: the reserved CPUs, and those that the reclaim pool always has.
    pub fn new(machine: &Machine, reserved: CpuSet) -> Self {
        let mut state = Self { reserved: reserved.clone(), ..Self::default() };
        state.pools.insert(RESERVE.to_owned(), reserved);
        state.settle_reclaim(machine);
        state
    }

    /// Gives the reclaim pool the CPUs that it always has, if there is no such pool.
    pub fn settle_reclaim(&mut self, machine: &Machine) {
        if !self.pools.contains_key(RECLAIM) {
            let cpus = super::pools::reserved_reclaim(self, machine);
            self.pools.insert(RECLAIM.to_owned(), cpus);
        }
    }

    /// The CPUs of a pool; none where there is no such pool.
    pub fn pool(&self, name: &str) -> CpuSet {
        self.pools.get(name).cloned().unwrap_or_default()
    }

    /// The CPUs of all pools whose names begin so, but those that are somebody's own: what is kept for a pool now may be in a set of
    /// before.
    pub(crate) fn named(&self, prefix: &str, exclusive: &CpuSet) -> CpuSet {
        let pools = self.pools.iter().filter(|(name, _)| name.starts_with(prefix));
        pools.fold(CpuSet::new(), |union, (_, cpus)| union | cpus) - exclusive
    }

    /// Every CPU that a dedicated container has for itself.
    pub fn exclusive(&self) -> CpuSet {
        exclusive(&self.containers)
    }

    /// The main container of a pod.
    pub fn main_of(&self, pod: &str) -> Option<&Container> {
        self.of_pod(pod).find(|(_, container)| container.kind == ContainerKind::Main).map(|(_, main)| main)
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
        for (name, cpus) in &changes.pools {
            match cpus {
                Some(cpus) => self.pools.insert(name.clone(), cpus.clone()),
                None => self.pools.remove(name),
            };
        }
        for (id, container) in &changes.containers {
            match container {
                Some(container) => self.containers.insert(id.clone(), container.clone()),
                None => self.containers.remove(id),
            };
        }
        if let Some(remembered) = &changes.remembered {
            self.remembered.clone_from(remembered);
        }
    }

    /// What makes this state out of `before`.
    pub fn changes_since(&self, before: &Self) -> Changes {
        Changes {
            pools: differing(&before.pools, &self.pools),
            containers: self.containers.changes_since(&before.containers),
            remembered: (self.remembered != before.remembered).then(|| self.remembered.clone()),
        }
    }
}

pub(super) fn exclusive(containers: &Grouped<ContainerId, Container>) -> CpuSet {
    let dedicated = containers.kinds().filter(|container| container.qos == QosLevel::Dedicated);
    dedicated.fold(CpuSet::new(), |union, container| union | &container.cpus)
}

/// What makes one map out of another. `None`: is no more.
fn differing<K: Ord + Clone, V: PartialEq + Clone>(
    before: &BTreeMap<K, V>,
    after: &BTreeMap<K, V>,
) -> BTreeMap<K, Option<V>> {
    let mut differing = BTreeMap::new();
    // Side by side: both ascend by key.
    let mut old = before.iter().peekable();
    for (key, value) in after {
        while let Some((gone, _)) = old.next_if(|(other, _)| *other < key) {
            differing.insert(gone.clone(), None);
        }
        let same = old.next_if(|(other, _)| *other == key).is_some_and(|(_, was)| was == value);
        if !same {
            differing.insert(key.clone(), Some(value.clone()));
        }
    }
    differing.extend(old.map(|(gone, _)| (gone.clone(), None)));
    differing
}

// === impl Changes ===

impl Changes {
    /// Whether nothing differs.
    pub fn is_empty(&self) -> bool {
        self.pools.is_empty() && self.containers.is_empty() && self.remembered.is_none()
    }
}
