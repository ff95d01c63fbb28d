//! Decisions as pure functions: no clock, no I/O, no randomness; the same state, machine and request give the same plan.
//!
//! * [`State`] is what is held, [`Machine`](oxalyst_topology::Machine) where it is, [`Request`] what is asked.
//! * [`admit`], [`release`], [`adopt`] and [`replan`] answer with a [`Plan`], which is made durable and then [applied](State::apply).
//! * [`placements`], [`pools`] and [`free_per_node`] say what follows from a state: pools are never stored.
//!
//! What holds of every state that these functions lead to on an unchanged machine: exclusive sets are disjoint from each other
//! and from every pool but `system`, no pod is without CPUs, and `share`, the reserved, the isolated and the exclusive CPUs make
//! up the online ones. CPUs that go offline, and pods that ran before they were known, can break it; the placements concerned
//! then carry a [`Flag`].

mod admit;
mod adopt;
mod balance;
mod layout;
mod native;
mod outcome;
mod promote;
mod quantity;
mod release;
mod request;
mod room;
mod state;
mod take;
pub(crate) mod words;

pub use admit::admit;
pub use adopt::{adopt, replan};
pub use balance::{End, Spread, take_by_numa_balance};
pub use layout::{PodPlacement, Pool, free_per_node, placement_of, placements, placements_of, pools};
pub use native::{
    NativeOption, SplitsCore, exclusive_cpus, fills_cores, in_full_cores, native_hints, place_native,
    take_native,
};
pub use outcome::{NumaFree, Plan, PodChange, Reason, Refusal, Rule};
pub use promote::promote;
pub use quantity::{
    BOUND_POOL_RATIO, Demand, PoolFault, PoolSizes, Proportional, pool_sizes, proportional, suffices,
    whole_cpus,
};
pub use release::release;
pub use request::{Request, Running, Stage};
pub use state::{DecidedBy, Flag, Placement, PodEntry, PoolName, Released, RequestSource, State};
pub use take::{L3, take_by_topology};
pub use words::UnknownWord;

/// Fewer CPUs are available than are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{need} CPUs are needed, {available} are available")]
pub struct NotEnoughCpus {
    /// CPUs that are needed.
    pub need: usize,
    /// CPUs that are available.
    pub available: usize,
}
