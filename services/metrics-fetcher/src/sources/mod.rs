//! Where numbers come from.

mod ailments;
pub mod apart;
pub mod cgroup;
pub mod cgroupstats;
mod dates;
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
