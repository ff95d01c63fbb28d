//! Where numbers come from.

pub mod cgroup;
pub mod proc;
