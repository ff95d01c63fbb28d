//! Containers from cgroup files of either version, the node from `/proc`.
//!
//! [`Pass`] does the work and blocks; [`Reader`] gives it a thread of its own and an actor that keeps time.

mod descriptors;
mod discovery;
mod driver;
mod errand;
mod floor;
mod news;
mod part;
mod pass;
mod reader;
mod scout;
mod tops;
mod tracked;

pub use descriptors::raise_file_limit;
pub use floor::Floor;
pub use pass::{Pass, PassSettings};
pub use reader::{Reader, Schedule, Wiring};
pub use scout::Named;
pub use tops::top_cgroups;
pub(crate) use tracked::{growth, level};
