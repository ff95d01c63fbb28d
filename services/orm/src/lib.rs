//! The allocator: which CPUs and which NUMA memory each pod gets.
//!
//! [`plan`] decides and is pure; [`allocations`] owns the state and makes it durable; [`allocator`] is its gRPC face.
//!
//! [`pods`] decides for whole pods, by [`policy`] container for container and by [`topology_manager`] among resources, under [`rules`]
//! made from settings. It is to take the place of [`plan`]'s decisions; the service does not call it yet.

pub mod allocations;
pub mod allocator;
pub mod clock;
pub mod katalyst;
pub mod metrics;
pub mod plan;
pub mod pods;
pub mod policy;
pub mod record;
pub mod rules;
pub mod settings;
pub mod start;
pub mod topology_manager;
pub mod wire;
