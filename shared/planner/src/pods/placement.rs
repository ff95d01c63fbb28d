//! Who runs where: derived from the state and the machine.

use super::{Pod, Role, State, deviations, pool::SYSTEM};
use crate::{
    plan::{Flag, NumaFree},
    policy::{Container, ContainerId, ContainerKind, INTERRUPT, RESERVE},
};
use oxalyst_qos::QosLevel;
use oxalyst_topology::{CpuSet, Machine, NumaMask};
use std::collections::{BTreeMap, BTreeSet};

/// Where the containers of a pod run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodPlacement {
    /// Pod uid.
    pub uid: String,
    /// Its containers in the order in which they were told.
    pub containers: Vec<ContainerPlacement>,
}

/// Where one container runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerPlacement {
    /// Its name.
    pub name: String,
    /// What it is to its pod.
    pub role: Role,
    /// The pool whose CPUs it runs on; `None` for an exclusive set and for node agents.
    pub pool: Option<String>,
    /// Its CPUs: online, never empty while any CPU is.
    pub cpus: CpuSet,
    /// Its NUMA nodes for memory; never empty.
    pub mems: NumaMask,
    /// Whether the CPUs are its pod's own.
    pub exclusive: bool,
    /// Deviations from what was asked, those of its pod included.
    pub flags: BTreeSet<Flag>,
}

/// A state on a machine, as placements see it.
pub(super) struct Seen<'a> {
    state: &'a State,
    machine: &'a Machine,
    exclusive: CpuSet,
    /// For node agents, and whether they run on CPUs of others.
    agent: (CpuSet, bool),
    /// For those whose own CPUs are gone.
    refuge: CpuSet,
    mems: NumaMask,
    /// The nodes that have memory.
    with_memory: NumaMask,
}

// === impl Seen ===

impl<'a> Seen<'a> {
    pub(super) fn of(state: &'a State, machine: &'a Machine) -> Self {
        let exclusive = state.cpus.exclusive();
        let schedulable = first([machine.online() - machine.isolated(), machine.online().clone()]);
        let open = machine.online() - machine.isolated() - &exclusive;
        let reserved = machine.online() & &state.cpus.reserved;
        let agent = if open.is_empty() {
            (first([reserved, schedulable.clone()]), true)
        } else {
            (open.clone(), false)
        };
        let refuge = first([&open - &state.cpus.reserved, open, schedulable]);
        let mems = state.memory.common_mems(machine);
        Self { state, machine, exclusive, agent, refuge, mems, with_memory: machine.memory_nodes() }
    }

    /// Whether all of what follows for a pod from others than itself is the same.
    pub(super) fn is_same_ground(&self, other: &Self) -> bool {
        let pools = |seen: &Self| -> Vec<(String, bool)> {
            let pools = seen.state.cpus.pools.iter();
            pools.map(|(name, cpus)| (name.clone(), cpus.is_empty())).collect()
        };
        self.agent == other.agent
            && self.refuge == other.refuge
            && self.mems == other.mems
            && self.kept() == other.kept()
            && pools(self) == pools(other)
    }

    pub(super) fn pod(&self, pod: &Pod) -> PodPlacement {
        let deviations = deviations::of_pod(pod, self.state, self.machine);
        let containers = pod.containers.iter().map(|container| {
            let mut placed = self.container(pod, &container.name, container.role);
            placed.flags.extend(deviations.iter().map(|deviation| deviation.flag));
            placed
        });
        PodPlacement { uid: pod.uid.clone(), containers: containers.collect() }
    }

    fn container(&self, pod: &Pod, name: &str, role: Role) -> ContainerPlacement {
        let mut flags = pod.flags.clone();
        let own = ContainerId::new(pod.uid.as_str(), name);
        let main = (*own.container != *pod.main)
            .then(|| ContainerId { pod: own.pod.clone(), container: pod.main.as_str().into() });
        let cpus = &self.state.cpus.containers;
        let entry = cpus.get(&own).or_else(|| main.as_ref().and_then(|main| cpus.get(main)));
        let memory = &self.state.memory.containers;
        let memory = memory.get(&own).or_else(|| main.as_ref().and_then(|main| memory.get(main)));
        let told = memory.map(|memory| &memory.mems & &self.with_memory).filter(|told| !told.is_empty());
        let all = || self.machine.nodes().iter().map(|node| node.id).collect();
        let usual = || [&self.mems, &self.with_memory].into_iter().find(|mask| !mask.is_empty()).cloned();
        let mems = told.or_else(usual);
        let mut placement = ContainerPlacement {
            name: name.to_owned(),
            role,
            pool: None,
            cpus: CpuSet::new(),
            mems: mems.unwrap_or_else(all),
            exclusive: false,
            flags: BTreeSet::new(),
        };
        if let Some(entry) = entry {
            placement.cpus = &entry.cpus & self.machine.online();
            let own = entry.qos == QosLevel::Dedicated;
            if own && !entry.cpus.is_subset(self.machine.online()) {
                flags.insert(Flag::CpuOffline);
            }
            if own && !entry.cpus.is_disjoint(&self.kept()) {
                flags.insert(Flag::OnReserved);
            }
            if own && self.spans(entry, &placement.cpus) {
                flags.insert(Flag::NumaBindingSpans);
            }
            placement.exclusive = own && !placement.cpus.is_empty();
            if !own {
                placement.pool = Some(self.pool_of(entry, &mut flags).to_owned());
            }
            if placement.cpus.is_empty() {
                placement.cpus.clone_from(&self.refuge);
                flags.insert(Flag::PoolEmpty);
            }
        } else {
            let (cpus, overlaps) = &self.agent;
            placement.cpus.clone_from(cpus);
            if *overlaps {
                flags.insert(Flag::NodeAgentOverlaps);
            }
        }
        placement.flags = flags;
        placement
    }

    /// Whether a bound container's own CPUs are on other NUMA nodes than it may have: on more than one, unless it has asked for more, or
    /// on another one than it was bound to. Whoever placed it: an earlier version or another allocator may have had it otherwise.
    fn spans(&self, entry: &Container, cpus: &CpuSet) -> bool {
        let nodes = self.machine.nodes_of(cpus);
        let wishes = &entry.wishes;
        let ids = wishes.numa_ids(self.machine).ok().flatten().filter(|_| wishes.numa_binding());
        if ids.is_some_and(|ids| !nodes.is_subset(&ids)) {
            return true;
        }
        if let Some(home) = entry.numa_hint {
            return !nodes.is_empty() && nodes != NumaMask::only(home);
        }
        let number = wishes.numa_number(self.machine).ok().flatten().unwrap_or(1);
        wishes.numa_binding() && !wishes.numa_exclusive() && nodes.len() > number
    }

    /// A system container that names no pool, or one that there is not or that has no CPU, runs on all CPUs; a shared one that names
    /// what cannot be a pool of its own, in `share`.
    fn pool_of<'c>(&self, entry: &'c Container, flags: &mut BTreeSet<Flag>) -> &'c str {
        if entry.qos != QosLevel::System {
            let named = entry.qos == QosLevel::Shared && entry.wishes.cpuset_pool().is_some();
            if named && entry.wishes.shared_pool().is_none() {
                flags.insert(Flag::PoolUnknown);
            }
            return entry.pool();
        }
        match entry.wishes.cpuset_pool() {
            Some(named) if !self.state.cpus.named(named, &self.exclusive).is_empty() => named,
            named => {
                if named.is_some() {
                    flags.insert(Flag::PoolUnknown);
                }
                SYSTEM
            }
        }
    }

    /// CPUs that are kept for the system or for interrupts: what of them is in a set already stays there.
    fn kept(&self) -> CpuSet {
        &self.state.cpus.reserved | &self.state.cpus.pool(INTERRUPT)
    }

    /// CPUs that could be given exclusively.
    fn free(&self) -> CpuSet {
        self.machine.online() - self.machine.isolated() - &self.exclusive - &self.kept()
    }
}

fn first<const N: usize>(sets: [CpuSet; N]) -> CpuSet {
    sets.into_iter().find(|set| !set.is_empty()).unwrap_or_default()
}

/// Where every pod runs, by uid.
pub fn placements(state: &State, machine: &Machine) -> BTreeMap<String, PodPlacement> {
    let seen = Seen::of(state, machine);
    state.pods.iter().map(|(uid, pod)| (uid.clone(), seen.pod(pod))).collect()
}

/// Where these pods run, as far as they are known, in the order given.
pub fn placements_of<'u>(
    state: &State,
    machine: &Machine,
    uids: impl IntoIterator<Item = &'u String>,
) -> Vec<PodPlacement> {
    let seen = Seen::of(state, machine);
    uids.into_iter().filter_map(|uid| state.pods.get(uid)).map(|pod| seen.pod(pod)).collect()
}

/// Pods by the pool that a container of theirs runs in: all of them in the same, unless some have CPUs of their own.
pub(super) fn pods_by_pool(state: &State, machine: &Machine) -> BTreeMap<String, usize> {
    let seen = Seen::of(state, machine);
    let mut pods: BTreeMap<String, usize> = BTreeMap::new();
    let mut count = |entry: &Container, more: usize| {
        let pool = seen.pool_of(entry, &mut BTreeSet::new());
        match pods.get_mut(pool) {
            Some(count) => *count += more,
            None => drop(pods.insert(pool.to_owned(), more)),
        }
    };
    let (pooled, main) = (
        |entry: &Container| entry.qos != QosLevel::Dedicated,
        |entry: &Container| entry.kind == ContainerKind::Main,
    );
    let containers = &state.cpus.containers;
    for group in containers.groups().filter(|group| pooled(&group.example) && main(&group.example)) {
        count(&group.example, group.count);
    }
    // The others of a pod count where its main container does not.
    let mut counted: Option<&str> = None;
    for (id, entry) in containers.of_kind(|entry| pooled(entry) && !main(entry)) {
        let again = counted.replace(&id.pod) == Some(&*id.pod);
        if !again && !state.cpus.main_of(&id.pod).is_some_and(pooled) {
            count(entry, 1);
        }
    }
    pods
}

/// Where this pod runs; `None` for a pod that is not known.
pub fn placement_of(state: &State, machine: &Machine, uid: &str) -> Option<PodPlacement> {
    state.pods.get(uid).map(|pod| Seen::of(state, machine).pod(pod))
}

/// The online CPUs of every pool, by name. A pool whose containers all ramp up is where they run meanwhile.
pub fn pools(state: &State, machine: &Machine) -> BTreeMap<String, CpuSet> {
    let pools = state.cpus.pools.iter();
    let mut pools: BTreeMap<_, _> =
        pools.map(|(name, cpus)| (name.clone(), cpus & machine.online())).collect();
    // CPUs that are kept for something else since stay with the set that has them.
    let exclusive = state.cpus.exclusive();
    for kept in [RESERVE, INTERRUPT] {
        if let Some(kept) = pools.get_mut(kept) {
            *kept -= &exclusive;
        }
    }
    let rising = state.cpus.containers.kinds().filter(|own| own.qos == QosLevel::Shared && own.ramp_up);
    for own in rising {
        pools.entry(own.pool().to_owned()).or_insert_with(|| &own.cpus & machine.online());
    }
    pools
}

/// CPUs that could be given exclusively, for each NUMA node that has CPUs.
pub fn free_per_node(state: &State, machine: &Machine) -> Vec<NumaFree> {
    free(state, machine)
}

pub(super) fn free(state: &State, machine: &Machine) -> Vec<NumaFree> {
    let free = Seen::of(state, machine).free();
    let nodes = machine.nodes().iter().filter(|node| !node.cpus.is_empty());
    nodes.map(|node| NumaFree { node: node.id, cpus: &node.cpus & &free }).collect()
}

/// CPUs that are neither exclusive nor isolated.
pub(super) fn open(state: &State, machine: &Machine) -> CpuSet {
    machine.online() - machine.isolated() - &state.cpus.exclusive()
}

/// Where a shared pod would run if one came; nowhere, if all that there is belongs to others.
pub(super) fn unclaimed(state: &State, machine: &Machine) -> CpuSet {
    let seen = Seen::of(state, machine);
    let bound = state.cpus.containers.kinds().filter(|own| own.is_bound_shared() || own.is_exclusive());
    let nodes = bound.fold(NumaMask::new(), |union, own| union | &machine.nodes_of(&own.cpus));
    let kept = machine.nodes().iter().filter(|node| nodes.contains(node.id));
    let kept = kept.fold(CpuSet::new(), |union, node| union | &node.cpus);
    seen.free() - &kept
}

/// All CPUs but the isolated ones.
pub(super) fn everywhere(machine: &Machine) -> CpuSet {
    first([machine.online() - machine.isolated(), machine.online().clone()])
}
