//! The planner: which CPUs and which NUMA memory each pod gets. Pure: no clock, no I/O, no randomness.
//!
//! [`pods`] decides for whole pods, by [`policy`] container for container and by [`topology_manager`] among resources, under [`rules`]
//! made from settings. [`plan`] chooses CPUs out of sets and holds the words in which decisions are told.

pub mod decision;
pub mod grouped;
pub mod plan;
pub mod pods;
pub mod policy;
pub mod rules;
pub mod topology_manager;
