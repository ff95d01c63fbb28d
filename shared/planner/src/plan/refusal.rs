//! Why something is not served.

use super::words::closed_set;
use oxalyst_topology::CpuSet;
use oxalyst_units::MilliCpu;

/// Why a request is not served. Nothing changes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// The kind of reason.
    pub reason: Reason,
    /// The rule that decided.
    pub rule: Rule,
    /// One sentence with numbers, for people.
    pub message: String,
    /// CPUs asked for; `None` where unknown.
    pub asked: Option<MilliCpu>,
    /// CPUs that could be given exclusively, per NUMA node.
    pub free: Vec<NumaFree>,
}

/// CPUs of one NUMA node that could be given exclusively.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumaFree {
    /// NUMA node id.
    pub node: u32,
    /// The CPUs; may be empty.
    pub cpus: CpuSet,
}

closed_set! {
    /// Kind of reason of a refusal.
    Reason {
        /// There are not enough CPUs.
        Insufficient = "insufficient",
        /// There are enough, but not as the topology policy wants them.
        Affinity = "affinity",
        /// The request contradicts itself or lacks what names it.
        Invalid = "invalid",
        /// The policy does not do this.
        Unsupported = "unsupported",
        /// The sandbox has ended already.
        Expired = "expired",
        /// The decision cannot be made durable.
        Storage = "storage",
        /// A resource plugin does not answer, or does not give what it had offered.
        Unavailable = "unavailable",
    }
}

closed_set! {
    /// The rule that decided on a refusal.
    Rule {
        /// The request names what it is about.
        Named = "named",
        /// What it asks for can be understood: one amount for each container and resource, and wishes that the machine can have.
        Understood = "understood",
        /// A sandbox that has ended is not admitted any more.
        Ended = "ended",
        /// There are CPUs for it, as its level and its wishes have them.
        CpuRoom = "cpu-room",
        /// There is memory for it on NUMA nodes.
        MemoryRoom = "memory-room",
        /// The topology policy: its resources agree on NUMA nodes.
        Alignment = "alignment",
        /// What was agreed on can be taken.
        Placement = "placement",
        /// Everybody else keeps a CPU, and shared pods that are not bound have room on NUMA nodes without bound pods.
        OthersKeepCpus = "others-keep-cpus",
        /// A running container keeps its NUMA nodes, and its having a set of its own or not.
        RunningStays = "running-stays",
        /// A resource plugin has what is asked of it, and says so in time.
        Plugin = "plugin",
        /// Nobody waits for the answer any more.
        Deadline = "deadline",
        /// Exclusive CPUs are given only when that is durable.
        Durable = "durable",
    }
}
