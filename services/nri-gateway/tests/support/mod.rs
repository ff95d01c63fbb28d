//! A gateway of this process between an imitated runtime, an imitated orm and an imitated cgroup tree of four CPUs.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    dead_code
)]

pub mod bypass;
pub mod node;
pub mod orm;

use std::time::Duration;

use tokio::time::Instant;

/// Long for a test, short for a person.
pub const SOON: Duration = Duration::from_secs(10);

/// Polls until `holds`; panics with `what` after [`SOON`].
pub async fn until<T>(what: &str, mut holds: impl AsyncFnMut() -> Option<T>) -> T {
    let end = Instant::now() + SOON;
    loop {
        if let Some(it) = holds().await {
            return it;
        }
        assert!(Instant::now() < end, "not within {SOON:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
