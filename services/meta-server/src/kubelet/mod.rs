//! The kubelet's list of pods: fetched over HTTP(S), read tolerantly.

mod client;
mod document;
mod list;
mod reserved;

pub use client::{Client, ClientError, ListError};
pub use list::{Asked, KubeletContainer, KubeletPod, parse};
pub use reserved::{Reservation, Reserved};

use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use oxalyst_backoff::Backoff;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::{KubeletListed, PodTable};

/// The kubelet is asked for a list at most once in this time, whatever happens on the node.
pub const LEAST_SPACING: Duration = Duration::from_secs(1);

/// Asks for the list every `period`, sooner when `wanted` (an unknown pod) or after a failure, and tells `table`.
///
/// Ends with the table.
pub async fn poll(client: Client, period: Duration, wanted: Arc<Notify>, table: Addr<PodTable>) {
    let mut backoff = Backoff::new(LEAST_SPACING * 2, period.max(LEAST_SPACING * 2));
    loop {
        let started = Instant::now();
        let listed = client.list().await.map_err(|e| e.to_string());
        let next = match listed {
            Ok(_) => {
                backoff.reset();
                period
            }
            Err(_) => backoff.next_delay(),
        };
        if table.send(KubeletListed { at_unix_ms: crate::table::unix_ms(), listed }).await.is_err() {
            return;
        }
        // Answers about an unknown pod may come late by one spacing, never more often.
        let _ = tokio::time::timeout_at(started + next.max(LEAST_SPACING), wanted.notified()).await;
        tokio::time::sleep_until(started + LEAST_SPACING).await;
    }
}
