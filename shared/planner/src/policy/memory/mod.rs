//! Memory and huge pages: on which NUMA nodes there is enough, who has taken how much of which, and what `cpuset.mems` follows.
//!
//! Bound pods are confined to NUMA nodes and their bytes are accounted by node, and so are those of dedicated pods on the nodes that they
//! are given; everybody else may use every node with memory but those that an exclusive pod has for itself.

mod hints;
mod place;
mod state;
mod supply;

pub use hints::hints;
pub(crate) use place::unbound_entry;
pub use place::{Placed, place, remove, settle};
pub use state::{Changes, Container, Options, Request, State};
pub use supply::{NodeSupply, Resource, Supply};
