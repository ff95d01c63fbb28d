//! Retry delays: exponential growth with full jitter, back to the start after a stable time.
//!
//! Full jitter (a delay drawn evenly from nothing to the current ceiling) spreads many clients that lost the same
//! peer at the same moment. See "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.

use std::time::Duration;

/// A growing, jittered delay between attempts.
#[derive(Debug, Clone)]
pub struct Backoff {
    min: Duration,
    max: Duration,
    ceiling: Duration,
    rng: fastrand::Rng,
}

// === impl Backoff ===

impl Backoff {
    /// Delays from `min` (the first ceiling) doubling up to `max`.
    pub fn new(min: Duration, max: Duration) -> Self {
        Self::with_rng(min, max, fastrand::Rng::new())
    }

    /// As [`Backoff::new`] with the randomness given, for tests.
    pub fn with_rng(min: Duration, max: Duration, rng: fastrand::Rng) -> Self {
        Self { min, max: max.max(min), ceiling: min, rng }
    }

    /// The delay before the next attempt: between half of `min` and the current ceiling, which doubles.
    ///
    /// The floor keeps an unlucky draw from becoming a busy loop.
    pub fn next_delay(&mut self) -> Duration {
        let ceiling = self.ceiling;
        self.ceiling = (ceiling * 2).min(self.max);
        let floor = self.min / 2;
        floor + (ceiling - floor).mul_f64(self.rng.f64())
    }

    /// Tells that an attempt succeeded and lasted `stable`; the delay starts anew if that is longer than `max`.
    pub fn succeeded_for(&mut self, stable: Duration) {
        if stable >= self.max {
            self.reset();
        }
    }

    /// Starts anew from `min`.
    pub fn reset(&mut self) {
        self.ceiling = self.min;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN: Duration = Duration::from_millis(100);
    const MAX: Duration = Duration::from_secs(5);

    fn backoff() -> Backoff {
        Backoff::with_rng(MIN, MAX, fastrand::Rng::with_seed(7))
    }

    #[test]
    fn delays_stay_between_half_min_and_max() {
        let mut b = backoff();
        for _ in 0..1000 {
            let d = b.next_delay();
            assert!(d >= MIN / 2 && d <= MAX, "{d:?}");
        }
    }

    #[test]
    fn the_first_delay_is_at_most_min() {
        for seed in 0..100 {
            let mut b = Backoff::with_rng(MIN, MAX, fastrand::Rng::with_seed(seed));
            assert!(b.next_delay() <= MIN);
        }
    }

    #[test]
    fn a_short_success_does_not_reset_and_a_long_one_does() {
        let mut b = backoff();
        for _ in 0..10 {
            b.next_delay();
        }
        b.succeeded_for(Duration::from_secs(1));
        assert_eq!(b.ceiling, MAX);
        b.succeeded_for(MAX);
        assert_eq!(b.ceiling, MIN);
    }
}
