//! Memory and huge pages: on which NUMA nodes there is enough, who has taken how much of which, and what `cpuset.mems` follows.
//!
//! Only bound pods are confined to NUMA nodes and only their bytes are accounted by node; everybody else may use every node
//! with memory but those that an exclusive pod has for itself.

mod hints;
mod place;
mod state;
mod supply;

pub use hints::hints;
pub(crate) use place::unbound_entry;
pub use place::{Placed, place, remove, settle};
pub use state::{Changes, Container, Options, Request, State};
pub use supply::{NodeSupply, Resource, Supply};
