//! The allocator: which CPUs and which NUMA memory each pod gets.
//!
//! [`plan`] decides and is pure, by [`policy`] container for container and by [`topology_manager`] among resources; [`allocations`] owns the state and makes it durable; [`allocator`] is its gRPC face.

pub mod allocations;
pub mod allocator;
pub mod clock;
pub mod katalyst;
pub mod metrics;
pub mod plan;
pub mod pods;
pub mod policy;
pub mod record;
pub mod settings;
pub mod start;
pub mod topology_manager;
pub mod wire;
