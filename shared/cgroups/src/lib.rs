//! Control groups of Linux, version 1, version 2 and both side by side.
//!
//! * [`Hierarchy`]: which version a machine runs and where each controller is mounted, under an injectable root.
//! * [`CgroupPath`]: from what a container runtime calls a cgroup to where it lies, for both drivers.
//! * [`walk`]: pods and containers found by their directory names, without asking anybody.
//! * [`parse`]: contents of the files, as bytes, without allocating.
//! * [`read_into`]: one whole file through a descriptor that stays open.
//! * [`CpusetFiles`]: the cpuset of one cgroup, written and read back.
//! * [`set_cpuset`]: the same among the cgroups above and below it, in the order that the kernel asks for ([`nested`]).
//! * [`bandwidth`]: quota, period and burst, likewise.
//! * [`Attainable`]: the CPUs and the CPU time that a cgroup can have at most.
//! * [`is_frozen`]: whether its processes are stopped.
//! * [`Confined`]: why that is less than its own cpuset file says.
//!
//! Absent is not zero: what a version does not tell is `None`. "max" is a type, not a number.

mod attainable;
pub mod bandwidth;
mod confined;
mod cpuset;
mod cpuset_tree;
mod discover;
mod error;
#[cfg(any(test, feature = "fixture"))]
pub mod fixture;
mod frozen;
mod hierarchy;
mod kept;
mod knob;
pub mod nested;
pub mod parse;
mod path;

pub use attainable::Attainable;
pub use confined::{Confined, offline};
pub use cpuset::{CpusetFiles, CpusetState};
pub use cpuset_tree::{CpusetFile, set_cpuset};
pub use discover::{Found, FoundPod, Listed, Stamp, Walk, pod_roots, walk, walk_telling};
pub use error::Error;
pub use frozen::is_frozen;
pub use hierarchy::{Controller, Hierarchy, Version};
pub use kept::{is_dead, read_into};
pub use knob::{is_writable, read_text, write_text, write_verified};
pub use path::{CgroupPath, Driver, PathError};
