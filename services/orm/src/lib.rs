//! The allocator: which CPUs and which NUMA memory each pod gets.
//!
//! The crate `oxalyst_planner` decides and is pure; [`allocations`] owns the state and makes it durable; [`allocator`] is its gRPC face; [`decisions`]
//! keeps why it was decided so.

pub mod allocations;
pub mod allocator;
pub mod clock;
pub mod decisions;
pub mod katalyst;
pub mod metrics;
pub mod plugins;
pub mod record;
pub mod refusals;
pub mod reservation;
pub mod resize;
pub mod settings;
pub mod specs;
pub mod start;
pub mod uid;
pub mod wire;
