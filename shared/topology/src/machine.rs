//! The checked picture of a machine.

use crate::{CpuSet, Cpus, IdKind, NumaMask, NumaNodes};
use oxalyst_units::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// One online logical CPU and where it sits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cpu {
    /// Logical CPU id. Ids may have gaps.
    pub id: u32,
    /// Lowest online CPU of its core, which names the core machine-wide.
    pub core: u32,
    /// Physical package.
    pub socket: u32,
    /// NUMA node.
    pub numa: u32,
    /// L3 cache; `None` where unknown or where there is none.
    pub l3: Option<u32>,
}

/// One NUMA node. It may lack CPUs or memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumaNode {
    /// Node id. Ids may have gaps.
    pub id: u32,
    /// Physical package of its lowest CPU; `None` for a node without CPUs.
    pub socket: Option<u32>,
    /// Its online CPUs.
    pub cpus: CpuSet,
    /// Its memory in total; `None` where unknown.
    pub memory: Option<Bytes>,
    /// Whether pages can be allocated there.
    pub has_memory: bool,
    /// Distance to every node of the machine, in ascending order of node id, 10 being local; empty where unknown.
    pub distances: Vec<u32>,
    /// What of its memory is set aside as huge pages, in bytes by the bytes of a page; sizes of which there is none are left out.
    pub huge_pages: BTreeMap<Bytes, Bytes>,
}

/// A machine: its online CPUs, its NUMA nodes, what is offline, what the kernel keeps isolated. Immutable, rows ascend by id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    cpus: Vec<Cpu>,
    nodes: Vec<NumaNode>,
    online: CpuSet,
    offline: CpuSet,
    isolated: CpuSet,
}

/// Rows that describe no possible machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MachineError {
    /// The same CPU twice.
    #[error("CPU {0} is described twice")]
    DuplicateCpu(u32),
    /// The same NUMA node twice.
    #[error("NUMA node {0} is described twice")]
    DuplicateNode(u32),
    /// An id beyond what the kernel can have.
    #[error("{kind} {id} passes the highest possible id")]
    IdBeyondLimit {
        /// "CPU" or "NUMA node".
        kind: &'static str,
        /// The id.
        id: u32,
    },
    /// A CPU on a node that is not described.
    #[error("CPU {cpu} is on NUMA node {node}, which the machine does not have")]
    UnknownNode {
        /// The CPU.
        cpu: u32,
        /// The node it names.
        node: u32,
    },
    /// A node with distances to more or fewer nodes than there are.
    #[error("NUMA node {node} has {got} distances, but the machine has {want} nodes")]
    Distances {
        /// The node.
        node: u32,
        /// Distances given.
        got: usize,
        /// Nodes of the machine.
        want: usize,
    },
}

// === impl NumaNode ===

impl NumaNode {
    /// A node of which only the id is known; its CPUs follow from the CPUs' rows.
    pub fn new(id: u32) -> Self {
        Self {
            id,
            socket: None,
            cpus: CpuSet::new(),
            memory: None,
            has_memory: true,
            distances: Vec::new(),
            huge_pages: BTreeMap::new(),
        }
    }
}

// === impl Machine ===

impl Machine {
    /// A machine of these online CPUs and nodes. The nodes' `cpus` and `socket` are taken from the CPUs' rows.
    ///
    /// # Errors
    /// Rows that contradict each other.
    pub fn new(mut cpus: Vec<Cpu>, mut nodes: Vec<NumaNode>) -> Result<Self, MachineError> {
        cpus.sort_unstable();
        nodes.sort_unstable_by_key(|node| node.id);
        let known: BTreeSet<u32> = nodes.iter().map(|node| node.id).collect();
        let mut online = CpuSet::new();
        for cpu in &cpus {
            bounded::<Cpus>(cpu.id)?;
            if !online.insert(cpu.id) {
                return Err(MachineError::DuplicateCpu(cpu.id));
            }
            if !known.contains(&cpu.numa) {
                return Err(MachineError::UnknownNode { cpu: cpu.id, node: cpu.numa });
            }
        }
        let want = nodes.len();
        let mut before = None;
        for node in &mut nodes {
            bounded::<NumaNodes>(node.id)?;
            if before.replace(node.id) == Some(node.id) {
                return Err(MachineError::DuplicateNode(node.id));
            }
            if !node.distances.is_empty() && node.distances.len() != want {
                return Err(MachineError::Distances { node: node.id, got: node.distances.len(), want });
            }
            node.cpus = cpus.iter().filter(|cpu| cpu.numa == node.id).map(|cpu| cpu.id).collect();
            node.socket = cpus.iter().find(|cpu| cpu.numa == node.id).map(|cpu| cpu.socket);
        }
        Ok(Self { cpus, nodes, online, offline: CpuSet::new(), isolated: CpuSet::new() })
    }

    /// A machine of these online CPUs, with the nodes that they name, all with memory of unknown size.
    /// `distances` is empty, or has one row a node in ascending order of node id.
    ///
    /// # Errors
    /// Rows that contradict each other.
    pub fn from_rows(cpus: Vec<Cpu>, distances: &[Vec<u32>]) -> Result<Self, MachineError> {
        let ids: BTreeSet<u32> = cpus.iter().map(|cpu| cpu.numa).collect();
        let mut rows = distances.iter();
        let nodes = ids
            .into_iter()
            .map(|id| NumaNode { distances: rows.next().cloned().unwrap_or_default(), ..NumaNode::new(id) })
            .collect();
        Self::new(cpus, nodes)
    }

    /// The same machine with these CPUs known to be offline; rows of CPUs among them go.
    #[must_use]
    pub fn with_offline(mut self, offline: &CpuSet) -> Self {
        self.offline |= offline;
        self.online -= offline;
        self.cpus.retain(|cpu| !offline.contains(cpu.id));
        // A core is named by its lowest *online* CPU.
        let mut names = BTreeMap::new();
        for cpu in &mut self.cpus {
            cpu.core = *names.entry(cpu.core).or_insert(cpu.id);
        }
        for node in &mut self.nodes {
            node.cpus -= offline;
            if node.cpus.is_empty() {
                node.socket = None;
            }
        }
        self.isolated -= offline;
        self
    }

    /// The same machine with these CPUs isolated, as far as they are online.
    #[must_use]
    pub fn with_isolated(mut self, isolated: &CpuSet) -> Self {
        self.isolated = isolated & &self.online;
        self
    }

    /// The online CPUs, ascending by id.
    pub fn cpus(&self) -> &[Cpu] {
        &self.cpus
    }

    /// The NUMA nodes, ascending by id.
    pub fn nodes(&self) -> &[NumaNode] {
        &self.nodes
    }

    /// The online CPUs as a set.
    pub fn online(&self) -> &CpuSet {
        &self.online
    }

    /// CPUs that are present and offline.
    pub fn offline(&self) -> &CpuSet {
        &self.offline
    }

    /// Online CPUs that the kernel keeps out of its scheduling domains (`isolcpus=`).
    pub fn isolated(&self) -> &CpuSet {
        &self.isolated
    }

    /// The row of an online CPU.
    pub fn cpu(&self, id: u32) -> Option<&Cpu> {
        self.cpus.binary_search_by_key(&id, |cpu| cpu.id).ok().and_then(|index| self.cpus.get(index))
    }

    /// A NUMA node.
    pub fn node(&self, id: u32) -> Option<&NumaNode> {
        self.nodes.binary_search_by_key(&id, |node| node.id).ok().and_then(|index| self.nodes.get(index))
    }

    /// The NUMA nodes that these CPUs are on.
    pub fn nodes_of(&self, cpus: &CpuSet) -> NumaMask {
        self.nodes.iter().filter(|node| !node.cpus.is_disjoint(cpus)).map(|node| node.id).collect()
    }

    /// The NUMA nodes that have memory.
    pub fn memory_nodes(&self) -> NumaMask {
        self.nodes.iter().filter(|node| node.has_memory).map(|node| node.id).collect()
    }

    /// The node with memory that is nearest to `node`: itself where it has memory, else the one at the smallest distance, the
    /// lowest id on a tie or where distances are unknown. `None` where no node has memory.
    pub fn nearest_memory(&self, node: u32) -> Option<u32> {
        let from = self.node(node);
        if from.is_some_and(|from| from.has_memory) {
            return Some(node);
        }
        let distances = from.map(|from| from.distances.as_slice()).unwrap_or_default();
        self.nodes
            .iter()
            .enumerate()
            .filter(|(_, to)| to.has_memory)
            .min_by_key(|&(index, to)| (distances.get(index).copied().unwrap_or(u32::MAX), to.id))
            .map(|(_, to)| to.id)
    }
}

fn bounded<K: IdKind>(id: u32) -> Result<(), MachineError> {
    if id < K::LIMIT { Ok(()) } else { Err(MachineError::IdBeyondLimit { kind: K::NAME, id }) }
}
