//! Who runs where: derived from the state and the machine.

use super::{DecidedBy, Flag, NumaFree, Placement, PodEntry, PoolName, RequestSource, State};
use oxalyst_qos::QosLevel;
use oxalyst_topology::{CpuSet, Machine, NumaMask};
use oxalyst_units::MilliCpu;
use std::collections::{BTreeMap, BTreeSet};

/// Where a pod runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodPlacement {
    /// Pod uid.
    pub uid: String,
    /// Its current sandbox.
    pub sandbox_id: String,
    /// Pod namespace.
    pub namespace: String,
    /// Pod name.
    pub name: String,
    /// The level that it is served at.
    pub qos: QosLevel,
    /// The pool whose CPUs it runs on; `None` for an exclusive set and for node agents.
    pub pool: Option<PoolName>,
    /// Its CPUs: online, never empty while any CPU is.
    pub cpus: CpuSet,
    /// Its NUMA nodes for memory; never empty.
    pub mems: NumaMask,
    /// Whether the CPUs are its own.
    pub exclusive: bool,
    /// Whether this is final. If not, its `cpus` are provisional and each container is to be asked for.
    pub settled: bool,
    /// Deviations from what was asked.
    pub flags: BTreeSet<Flag>,
    /// CPUs that it asked for.
    pub request: Option<MilliCpu>,
    /// When it was first decided, milliseconds since the Unix epoch.
    pub since_unix_ms: i64,
    /// Who told the request.
    pub request_source: RequestSource,
    /// On what occasion it was decided.
    pub decided_by: DecidedBy,
}

/// A pool and who runs there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Its name.
    pub name: PoolName,
    /// Its online CPUs; may be empty where no pod runs there.
    pub cpus: CpuSet,
    /// NUMA nodes for its pods' memory.
    pub mems: NumaMask,
    /// Pods that run there, those not settled yet included.
    pub pods: usize,
}

/// CPUs, and whether they are borrowed because there are none of the kind's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ground {
    pub(super) cpus: CpuSet,
    pub(super) borrowed: bool,
}

/// The machine as it is divided among these pods.
pub(super) struct Layout<'a> {
    machine: &'a Machine,
    reserved: &'a CpuSet,
    /// CPUs that could be given exclusively: of the share and reclaim pools, neither reserved nor isolated.
    pub(super) free: CpuSet,
    /// CPUs that are neither exclusive nor isolated: `free`, and the reserved ones.
    pub(super) open: CpuSet,
    /// Pods that run in the share or the reclaim pool or may come to, by pool.
    pub(super) pooled: BTreeMap<PoolName, usize>,
    /// Node agents.
    pub(super) agents: usize,
    pub(super) share: Ground,
    pub(super) reserve: Ground,
    pub(super) system: Ground,
    pub(super) agent: Ground,
    /// Memory of all but the dedicated pods.
    pub(super) mems: NumaMask,
}

// === impl Layout ===

impl<'a> Layout<'a> {
    pub(super) fn new<'e>(
        reserved: &'a CpuSet,
        machine: &'a Machine,
        entries: impl Iterator<Item = &'e PodEntry>,
    ) -> Self {
        let online = machine.online();
        let (mut exclusive, mut bound) = (CpuSet::new(), CpuSet::new());
        let (mut pooled, mut agents) = (BTreeMap::<_, usize>::new(), 0);
        for entry in entries {
            match &entry.placement {
                Placement::Exclusive { cpus, numa_bound } => {
                    exclusive |= cpus;
                    if *numa_bound {
                        bound |= cpus;
                    }
                }
                Placement::NodeAgent => agents += 1,
                Placement::Pool(_) | Placement::Unsettled => {}
            }
            if let Some(pool) = pool_of(entry, online) {
                *pooled.entry(pool).or_default() += 1;
            }
        }

        let schedulable = first_non_empty([online - machine.isolated(), online.clone()]);
        let open = online - machine.isolated() - &exclusive;
        let reserve = &open & reserved;
        let free = &open - reserved;
        let needed = pooled.contains_key(&PoolName::Share) || pooled.contains_key(&PoolName::Reclaim);
        let share = if needed {
            Ground::borrowing(&free, [reserve.clone(), schedulable.clone()])
        } else {
            Ground { cpus: free.clone(), borrowed: false }
        };
        let reserve = if pooled.contains_key(&PoolName::Reserve) {
            Ground::borrowing(&reserve, [schedulable.clone()])
        } else {
            Ground { cpus: reserve, borrowed: false }
        };
        let agent = Ground::borrowing(&open, [online & reserved, schedulable.clone()]);
        let system = Ground { cpus: schedulable, borrowed: false };

        let with_memory = machine.memory_nodes();
        let unbound = &with_memory - &machine.nodes_of(&bound);
        let all = || machine.nodes().iter().map(|node| node.id).collect();
        let mems = first_non_empty_mask([unbound, with_memory, all()]);
        Self { machine, reserved, free, open, pooled, agents, share, reserve, system, agent, mems }
    }

    pub(super) fn of(state: &'a State, machine: &'a Machine) -> Self {
        Self::new(&state.reserved, machine, state.pods.values())
    }

    /// Without this pod.
    pub(super) fn without(state: &'a State, machine: &'a Machine, uid: &str) -> Self {
        Self::new(&state.reserved, machine, state.pods.values().filter(|entry| entry.uid != uid))
    }

    /// Pods of the share and the reclaim pool.
    pub(super) fn sharing(&self) -> usize {
        [PoolName::Share, PoolName::Reclaim].iter().filter_map(|pool| self.pooled.get(pool)).sum()
    }

    pub(super) fn ground(&self, pool: PoolName) -> &Ground {
        match pool {
            PoolName::Share | PoolName::Reclaim => &self.share,
            PoolName::Reserve => &self.reserve,
            PoolName::System => &self.system,
        }
    }

    pub(super) fn free_per_node(&self) -> Vec<NumaFree> {
        let nodes = self.machine.nodes().iter().filter(|node| !node.cpus.is_empty());
        nodes.map(|node| NumaFree { node: node.id, cpus: &node.cpus & &self.free }).collect()
    }

    fn pool(&self, name: PoolName) -> Pool {
        Pool {
            name,
            cpus: self.ground(name).cpus.clone(),
            mems: self.mems.clone(),
            pods: self.pooled.get(&name).copied().unwrap_or(0),
        }
    }

    /// Whether the pod of this record runs on other CPUs or memory under the other layout.
    pub(super) fn differs_for(&self, other: &Self, entry: &PodEntry) -> bool {
        let online = self.machine.online();
        match (&entry.placement, pool_of(entry, online)) {
            (_, Some(pool)) => self.ground(pool) != other.ground(pool) || self.mems != other.mems,
            (Placement::NodeAgent, None) => self.agent != other.agent || self.mems != other.mems,
            (_, None) => false,
        }
    }

    pub(super) fn placement(&self, entry: &PodEntry) -> PodPlacement {
        let online = self.machine.online();
        let mut flags = entry.flags.clone();
        if let Placement::Exclusive { cpus, .. } = &entry.placement {
            if !cpus.is_subset(online) {
                flags.insert(Flag::CpuOffline);
            }
            if !cpus.is_disjoint(self.reserved) {
                flags.insert(Flag::OnReserved);
            }
        }
        let pool = pool_of(entry, online);
        let (cpus, mems) = match (&entry.placement, pool) {
            (_, Some(pool)) => {
                let ground = self.ground(pool);
                if ground.borrowed {
                    flags.insert(Flag::PoolEmpty);
                }
                (ground.cpus.clone(), self.mems.clone())
            }
            (Placement::Exclusive { cpus, .. }, None) => {
                let cpus = cpus & online;
                let mems = local_memory(self.machine, &cpus);
                (cpus, mems)
            }
            (_, None) => {
                if self.agent.borrowed {
                    flags.insert(Flag::NodeAgentOverlaps);
                }
                (self.agent.cpus.clone(), self.mems.clone())
            }
        };
        PodPlacement {
            uid: entry.uid.clone(),
            sandbox_id: entry.sandbox_id.clone(),
            namespace: entry.namespace.clone(),
            name: entry.name.clone(),
            qos: entry.qos,
            pool,
            exclusive: pool.is_none() && entry.placement != Placement::NodeAgent,
            cpus,
            mems,
            settled: !entry.is_open(),
            flags,
            request: entry.request,
            since_unix_ms: entry.since_unix_ms,
            request_source: entry.request_source,
            decided_by: entry.decided_by,
        }
    }
}

// === impl Ground ===

impl Ground {
    /// The kind's own CPUs, else the first of these that are any.
    fn borrowing<const N: usize>(own: &CpuSet, others: [CpuSet; N]) -> Self {
        if own.is_empty() {
            Self { cpus: first_non_empty(others), borrowed: true }
        } else {
            Self { cpus: own.clone(), borrowed: false }
        }
    }
}

fn first_non_empty<const N: usize>(sets: [CpuSet; N]) -> CpuSet {
    sets.into_iter().find(|set| !set.is_empty()).unwrap_or_default()
}

fn first_non_empty_mask<const N: usize>(masks: [NumaMask; N]) -> NumaMask {
    masks.into_iter().find(|mask| !mask.is_empty()).unwrap_or_default()
}

/// The pool whose CPUs a pod runs on. A dedicated pod all of whose CPUs are offline runs in the shared pool.
fn pool_of(entry: &PodEntry, online: &CpuSet) -> Option<PoolName> {
    match &entry.placement {
        Placement::Pool(pool) => Some(*pool),
        Placement::Unsettled => Some(PoolName::Share),
        Placement::Exclusive { cpus, .. } if cpus.is_disjoint(online) => Some(PoolName::Share),
        Placement::Exclusive { .. } | Placement::NodeAgent => None,
    }
}

/// The nodes of these CPUs; in place of one without memory, the nearest that has some.
fn local_memory(machine: &Machine, cpus: &CpuSet) -> NumaMask {
    let nodes = machine.nodes_of(cpus);
    let with_memory = nodes.iter().filter_map(|node| machine.nearest_memory(node)).collect();
    first_non_empty_mask([with_memory, nodes])
}

/// The four pools.
pub fn pools(state: &State, machine: &Machine) -> Vec<Pool> {
    let layout = Layout::of(state, machine);
    PoolName::ALL.iter().map(|name| layout.pool(*name)).collect()
}

/// Where this pod runs; `None` for a pod that is not known.
pub fn placement_of(state: &State, machine: &Machine, uid: &str) -> Option<PodPlacement> {
    state.pods.get(uid).map(|entry| Layout::of(state, machine).placement(entry))
}

/// Where these pods run, as far as they are known, in the order given.
pub fn placements_of<'u>(
    state: &State,
    machine: &Machine,
    uids: impl IntoIterator<Item = &'u String>,
) -> Vec<PodPlacement> {
    let layout = Layout::of(state, machine);
    uids.into_iter().filter_map(|uid| state.pods.get(uid)).map(|entry| layout.placement(entry)).collect()
}

/// Where every pod runs, in ascending order of uid.
pub fn placements(state: &State, machine: &Machine) -> Vec<PodPlacement> {
    placements_of(state, machine, state.pods.keys())
}

/// CPUs that could be given exclusively, for each NUMA node that has CPUs. One of them at least must stay free as long as a pod
/// runs in the share or the reclaim pool.
pub fn free_per_node(state: &State, machine: &Machine) -> Vec<NumaFree> {
    Layout::of(state, machine).free_per_node()
}
