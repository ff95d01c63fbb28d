//! Measures the node and its containers.
//!
//! Every number carries its own truth: value, unit, source, the time when it was read, and a quality judged against
//! the age that the asker accepts. A failed poll wipes nothing; what cannot be had is `Missing` with a reason, never 0.
//!
//! * [`catalogue`]: what can be measured, in one table.
//! * [`sources`]: where it comes from (cgroup files, `/proc` and sysfs, malachite, the kubelet).
//! * [`sample`] and [`rate`]: pure rules of quality and of rates; time is given.
//! * [`store`]: the newest snapshot, immutable; readers never wait for a pass.
//! * [`query`]: a snapshot, names and a request become samples.

pub mod aggregate;
pub mod bandwidth;
pub mod catalogue;
pub mod cells;
pub mod clock;
pub mod contents;
pub mod derive;
pub mod exposition;
pub mod face;
pub mod history;
pub mod machine;
pub mod names;
pub mod otel;
pub mod parts;
pub mod pushed;
pub mod query;
pub mod rank;
pub mod rate;
pub mod sample;
pub mod settings;
pub mod sources;
pub mod store;
pub mod trees;
pub mod watchers;

/// Name of the service and of its socket.
pub const SERVICE: &str = "metrics-fetcher";
