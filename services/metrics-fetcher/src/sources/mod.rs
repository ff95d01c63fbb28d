//! Where numbers come from.

pub mod cgroup;
mod fold;
#[cfg(test)]
mod fuzz;
pub mod http;
pub mod kubelet;
pub mod malachite;
pub mod proc;
mod remote;
pub mod resctrl;

pub use remote::{Remote, follow};
