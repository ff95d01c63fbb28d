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
    }
}
