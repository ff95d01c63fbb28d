//! Control groups of Linux, version 1, version 2 and both side by side.
//!
//! * [`Hierarchy`]: which version a machine runs and where each controller is mounted, under an injectable root.
//! * [`CgroupPath`]: from what a container runtime calls a cgroup to where it lies, for both drivers.
//! * [`walk`]: pods and containers found by their directory names, without asking anybody.
//! * [`parse`]: contents of the files, as bytes, without allocating.
//! * [`read_into`]: one whole file through a descriptor that stays open.
//! * [`CpusetFiles`]: the cpuset of one cgroup, written and read back.
//!
//! Absent is not zero: what a version does not tell is `None`. "max" is a type, not a number.

mod cpuset;
mod discover;
mod error;
#[cfg(any(test, feature = "fixture"))]
pub mod fixture;
mod hierarchy;
mod kept;
pub mod parse;
mod path;

pub use cpuset::{CpusetFiles, CpusetState};
pub use discover::{Found, Listed, Stamp, Walk, walk};
pub use error::Error;
pub use hierarchy::{Controller, Hierarchy, Version};
pub use kept::{is_dead, read_into};
pub use path::{CgroupPath, Driver, PathError};
