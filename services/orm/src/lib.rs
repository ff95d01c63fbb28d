//! The allocator: which CPUs and which NUMA memory each pod gets.

pub mod plan;
