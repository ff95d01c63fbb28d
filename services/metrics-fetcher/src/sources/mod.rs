//! Where numbers come from.

pub mod apart;
pub mod cgroup;
pub mod cgroupstats;
mod fold;
#[cfg(test)]
mod fuzz;
pub mod health;
pub mod http;
pub mod kubelet;
pub mod malachite;
pub mod perf;
pub mod proc;
mod remote;
pub mod resctrl;

pub use remote::{Remote, follow};
