//! How CPUs are chosen, counted and divided, and in which words a decision is told. Pure functions of sets: nothing here knows a pod.
//!
//! * [`take_by_topology`], [`take_by_numa_balance`] and the functions of the native policy choose CPUs out of a set.
//! * [`pool_sizes`] and [`proportional`] say how large pools are.
//! * [`Refusal`], [`Reason`], [`Flag`] and the other closed sets are what records, the wire and metrics are written in.

mod balance;
mod native;
mod quantity;
mod refusal;
mod remarks;
mod take;
pub(crate) mod words;

pub use balance::{End, Spread, take_by_numa_balance};
pub use native::{
    NativeOption, SplitsCore, exclusive_cpus, fills_cores, in_full_cores, native_hints, place_native,
    take_native,
};
pub use quantity::{
    BOUND_POOL_RATIO, Demand, PoolFault, PoolSizes, Proportional, pool_sizes, proportional, suffices,
    whole_cpus,
};
pub use refusal::{NumaFree, Reason, Refusal, Rule};
pub use remarks::{DecidedBy, Flag, RequestSource, Stage};
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
