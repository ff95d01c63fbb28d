//! What Katalyst's agents remembered, so that a node can move over without being drained. Pure.
//!
//! Three JSON files are understood: `cpu_plugin_state`, which says what each pod has, and `memory_plugin_state` and
//! `kubelet_qrm_checkpoint`, which are compared with it. Their checksums are those of a dump of Go's memory and are not looked at:
//! what is read is checked by what it means. Each pod stands by itself; one that cannot be understood costs no other.

mod cpu_state;
mod entry;
mod fields;
mod folder;
mod memory_state;
mod orm_checkpoint;
mod timestamp;

pub use cpu_state::cpu_state;
pub use entry::{Import, Taken, import};
pub use folder::{Files, read};
pub use memory_state::memory_state;
pub use orm_checkpoint::orm_checkpoint;

use oxalyst_qos::{Attributes, QosLevel};
use oxalyst_topology::{CpuSet, NumaMask};
use oxalyst_units::MilliCpu;

/// Name of the CPU plugin's file.
pub const CPU_STATE: &str = "cpu_plugin_state";
/// Name of the memory plugin's file.
pub const MEMORY_STATE: &str = "memory_plugin_state";
/// Name of the resource manager's file.
pub const ORM_CHECKPOINT: &str = "kubelet_qrm_checkpoint";

/// A pod as the CPU plugin remembered it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Pod uid.
    pub uid: String,
    /// Pod namespace.
    pub namespace: String,
    /// Pod name.
    pub name: String,
    /// Its level.
    pub qos: QosLevel,
    /// The pod's labels, as far as they were kept.
    pub labels: Attributes,
    /// The pod's annotations, the enhancements' keys among them.
    pub annotations: Attributes,
    /// Its containers, ascending by name; at least one.
    pub containers: Vec<Container>,
    /// When the first of them was placed, milliseconds since the Unix epoch; `None`: not said.
    pub since_unix_ms: Option<i64>,
}

/// A container as the CPU plugin remembered it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// Its name.
    pub name: String,
    /// "MAIN", "SIDECAR", "INIT" or "EPHEMERAL".
    pub kind: String,
    /// The pool that it ran in; "dedicated" where it had CPUs of its own.
    pub pool: String,
    /// The CPUs that it had; `None`: not settled.
    pub cpus: Option<CpuSet>,
    /// What it asked for; `None`: nothing, or not said.
    pub request: Option<MilliCpu>,
}

/// Sets of a pod by container name; what was not settled is absent.
pub type Sets<T> = std::collections::BTreeMap<String, std::collections::BTreeMap<String, T>>;

/// What the resource manager had cached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cached {
    /// CPUs by pod uid and container.
    pub cpus: Sets<CpuSet>,
    /// Memory nodes by pod uid and container.
    pub mems: Sets<NumaMask>,
}

/// Something that could not be taken over, or is doubtful.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The file is not there.
    #[error("{file} is not there")]
    Missing {
        /// Its name.
        file: &'static str,
    },
    /// The file cannot be read.
    #[error("{file} cannot be read: {why}")]
    Unreadable {
        /// Its name.
        file: &'static str,
        /// What the system said.
        why: String,
    },
    /// The file as a whole cannot be understood.
    #[error("{file} cannot be understood: {why}")]
    NotUnderstood {
        /// Its name.
        file: &'static str,
        /// What is wrong.
        why: String,
    },
    /// A part of the file cannot be understood; the pod is passed over.
    #[error("{file}: pod {uid}: {why}: passed over, the runtime's list will tell")]
    Entry {
        /// The file's name.
        file: &'static str,
        /// Pod uid, or what stood in its place.
        uid: String,
        /// What is wrong.
        why: String,
    },
    /// Two pods have one CPU exclusively; the second is passed over.
    #[error(
        "pods {first} and {second} both have the CPUs {cpus} exclusively: {second} is passed over, the runtime's list will tell"
    )]
    Overlap {
        /// Uid of the one that is taken in.
        first: String,
        /// Uid of the other.
        second: String,
        /// The CPUs.
        cpus: CpuSet,
    },
    /// A file knows a pod that the CPU plugin does not.
    #[error("{file} knows pod {uid}, {CPU_STATE} does not: passed over, the runtime's list will tell")]
    Unknown {
        /// The file's name.
        file: &'static str,
        /// Pod uid.
        uid: String,
    },
    /// A file says otherwise than the CPU plugin, whose word counts.
    #[error("{file}: pod {uid} has {theirs}, {CPU_STATE} says {ours}, which counts")]
    Disagrees {
        /// The file's name.
        file: &'static str,
        /// Pod uid.
        uid: String,
        /// What the file says.
        theirs: String,
        /// What counts.
        ours: String,
    },
    /// CPUs of a pod that the machine does not have.
    #[error(
        "{CPU_STATE}: pod {uid} has the CPUs {cpus}, of which the machine does not have {absent}: {outcome}"
    )]
    Absent {
        /// Pod uid.
        uid: String,
        /// What the file says.
        cpus: CpuSet,
        /// What of it is not there.
        absent: CpuSet,
        /// What becomes of the pod.
        outcome: &'static str,
    },
}
