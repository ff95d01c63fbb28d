//! When to stop asking: hooks are serial on the whole node, and each missed deadline is paid by every pod behind it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::Orm;
use crate::policy::MISSES;

/// Between two probes of an orm that is not asked.
const PROBE_PERIOD: Duration = Duration::from_millis(200);

/// Deadlines missed in a row.
#[derive(Debug, Default)]
pub(super) struct Health {
    missed: AtomicU32,
}

// === impl Health ===

impl Health {
    pub(super) fn is_suspended(&self) -> bool {
        self.missed.load(Ordering::Relaxed) >= MISSES
    }

    /// True for the miss that suspends.
    pub(super) fn missed(&self) -> bool {
        self.missed.fetch_add(1, Ordering::Relaxed) + 1 == MISSES
    }

    pub(super) fn answered(&self) {
        self.missed.store(0, Ordering::Relaxed);
    }
}

/// Probes until the orm answers.
pub(super) async fn probe(orm: Orm, deadline: Duration) {
    loop {
        tokio::time::sleep(PROBE_PERIOD).await;
        if orm.probe(deadline).await {
            orm.health.answered();
            orm.recovered.send_modify(|times| *times = times.wrapping_add(1));
            tracing::info!("the orm answers again");
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_misses_in_a_row_suspend_and_an_answer_between_them_does_not() {
        let health = Health::default();
        assert!(!health.missed());
        health.answered();
        assert!(!health.missed());
        assert!(!health.is_suspended());
        assert!(health.missed());
        assert!(health.is_suspended());
        assert!(!health.missed(), "only one probe is started");
        health.answered();
        assert!(!health.is_suspended());
    }
}
