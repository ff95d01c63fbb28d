//! The Node Resource Interface on the wire, both ends of it: one unix socket, two multiplexed connections, ttrpc in each.
//!
//! Layers, lowest first: [`frame`] (the 8-byte mux header), [`message`] (the 10-byte ttrpc header and its bodies), [`trunk`]
//! (the tasks that read and write one socket), [`client`] and [`server`] (ttrpc calls), [`plugin`] and [`runtime`] (the two
//! ends of NRI with typed messages). Why this is not the `ttrpc` crate: `docs/nri.md`.
//!
//! What holds at both ends: every queue is bounded, the reader waits for no handler, every call has a deadline, nothing is
//! allocated from a length that was not checked, and the end of the trunk ends every call with the reason.

pub mod client;
pub mod demux;
pub mod events;
pub mod frame;
pub mod message;
pub mod plugin;
pub mod runtime;
pub mod runtime_config;
pub mod server;
pub mod status;
pub mod sync_chunks;
pub mod trunk;

pub use client::{CallError, Client};
pub use oxalyst_proto::nri::v1alpha1 as api;
pub use status::{Code, Status};
pub use trunk::{Trunk, TrunkError};
