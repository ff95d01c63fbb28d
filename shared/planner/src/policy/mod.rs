//! The dynamic policy, container by container: where a container could run, and where it then does. Pure.
//!
//! * [`State`] says who runs where, [`Options`] what is configured or advised, [`Request`] what a container asks for.
//! * [`hints`] says on which NUMA nodes there is room, as good as it gets; the topology manager makes one [`Hint`](crate::topology_manager::Hint)
//!   of it; [`place`] then gives the container its CPUs and moves others where that is needed, as [`Changes`].
//! * [`remove`] and [`end_ramp_up`] are the other ways in which a state changes, [`recompute`] the one for a changed machine.
//! * [`memory`] does for memory what this does for CPUs.
//!
//! Quantities are compared in thousandths of a CPU; every tie is broken by id.

mod hints;
pub mod memory;
mod of_pod;
mod options;
mod place;
mod pools;
mod refusal;
mod request;
mod state;
mod subsets;
mod view;
mod wishes;

pub use hints::{Lack, hints, lacking};
pub use options::{Options, Preference};
pub use place::{Placed, end_ramp_up, place, remove};
pub(crate) use place::{place_in, pooled_entry};
pub use pools::{Recomputed, recompute};
pub use refusal::{Kind, Refusal};
pub use request::Request;
pub use state::{
    Changes, Container, ContainerId, ContainerKind, DEDICATED, INTERRUPT, RECLAIM, RESERVE, Remembered,
    SHARE, State, node_of_pool,
};
pub use wishes::Wishes;
