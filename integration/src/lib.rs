//! Black-box suites: they drive the real service binaries over their sockets, against a private containerd and against an
//! imitated runtime, by the same scenarios.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout
)]

pub mod adjustments;
pub mod bench;
pub mod containerd;
pub mod cri;
pub mod crio;
pub mod image;
pub mod imitation;
pub mod kubernetes;
pub mod lab;
pub mod lateness;
pub mod machine;
pub mod mesh;
pub mod pages;
pub mod plugin;
pub mod process;
pub mod remains;
pub mod runtime;
pub mod scenarios;
