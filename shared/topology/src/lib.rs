//! The machine: sets of CPUs and NUMA nodes, which CPU sits on which core, cache, node and socket, and how sysfs says so.
//!
//! * [`CpuSet`] and [`NumaMask`] are sets of ids in the Linux list format (`0-3,8`).
//! * [`Machine`] is a checked, immutable picture of the online CPUs and the NUMA nodes.
//! * [`discover`] reads it from `<host root>/sys/devices/system/{cpu,node}`; calling it again is the way to see a change.

mod id_set;
mod machine;
mod sysfs;

pub use id_set::{CpuSet, Cpus, IdKind, IdSet, NumaMask, NumaNodes, ParseFault, ParseSetError};
pub use machine::{Cpu, Machine, MachineError, NumaNode};
pub use sysfs::{DiscoveryError, discover, huge_pages};
