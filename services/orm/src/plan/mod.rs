//! Decisions as pure functions.

mod balance;
mod take;

pub use balance::{End, Spread, take_by_numa_balance};
pub use take::{L3, take_by_topology};

/// Fewer CPUs are available than are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{need} CPUs are needed, {available} are available")]
pub struct NotEnoughCpus {
    /// CPUs that are needed.
    pub need: usize,
    /// CPUs that are available.
    pub available: usize,
}
