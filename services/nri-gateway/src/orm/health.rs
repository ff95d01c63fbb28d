//! When to stop asking: hooks are serial on the whole node, and each missed deadline is paid by every pod behind it.

use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::Orm;
use crate::policy::MISSES;

/// Between two probes of an orm that is not asked.
const PROBE_PERIOD: Duration = Duration::from_millis(200);

/// How long a probe waits: one that stood still answers it the moment that it goes on, and one whose process ends breaks it off.
/// Probes that are given up pile up before it instead, and it ends a connection on which it finds too many of them.
const PROBE_PATIENCE: Duration = Duration::from_secs(10);

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
    let ask = |patience| {
        let orm = orm.clone();
        async move { orm.probe(patience).await }
    };
    awake(ask, deadline).await;
    orm.health.answered();
    orm.recovered.send_modify(|times| *times = times.wrapping_add(1));
    tracing::info!("the orm answers again");
}

/// Returns once it answers at all, and then again within a hook's deadline.
async fn awake<F: Future<Output = bool>>(mut ask: impl FnMut(Duration) -> F, deadline: Duration) {
    while !(ask(PROBE_PATIENCE).await && ask(deadline).await) {
        tokio::time::sleep(PROBE_PERIOD).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

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

    /// Answers from `after` on, each time after `each`; counts what it was asked in vain.
    async fn heard(after: Duration, each: Duration, deadline: Duration) -> (Duration, u32) {
        let start = Instant::now();
        let in_vain = AtomicU32::new(0);
        let ask = |patience| {
            let in_vain = &in_vain;
            async move {
                let answer = async {
                    tokio::time::sleep_until(start + after).await;
                    tokio::time::sleep(each).await;
                };
                let answered = tokio::time::timeout(patience, answer).await.is_ok();
                in_vain.fetch_add(u32::from(!answered), Ordering::Relaxed);
                answered
            }
        };
        awake(ask, deadline).await;
        (start.elapsed(), in_vain.into_inner())
    }

    #[tokio::test(start_paused = true)]
    async fn n01_one_that_stood_still_is_heard_the_moment_that_it_goes_on() {
        let (ms, frozen) = (Duration::from_millis, Duration::from_millis(34_567));
        let (took, in_vain) = heard(frozen, ms(1), ms(300)).await;
        assert_eq!(took, frozen + ms(2));
        assert!(in_vain <= 3, "{in_vain} questions wait for it when it goes on");
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_slow_is_not_asked_yet() {
        let ms = Duration::from_millis;
        let slow = tokio::time::timeout(Duration::from_secs(60), heard(ms(0), ms(400), ms(300))).await;
        assert!(slow.is_err());
    }
}
