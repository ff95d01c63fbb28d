//! Durations, and what is said of many.

use std::time::Duration;

/// Durations of one kind.
#[derive(Clone, Debug, Default)]
pub(super) struct Samples(Vec<Duration>);

// === impl Samples ===

impl Samples {
    pub(super) fn push(&mut self, sample: Duration) {
        self.0.push(sample);
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The least sample that `share` (0 to 1) of all do not exceed, in milliseconds; 0 of none.
    pub(super) fn quantile_ms(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let rank = (share * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.saturating_sub(1)).map_or(0.0, |d| d.as_secs_f64() * 1e3)
    }

    pub(super) fn max_ms(&self) -> f64 {
        self.quantile_ms(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_samples() {
        let mut samples = Samples::default();
        for n in (1..=100).rev() {
            samples.push(Duration::from_millis(n));
        }
        assert_eq!(samples.quantile_ms(0.5), 50.0);
        assert_eq!(samples.quantile_ms(0.99), 99.0);
        assert_eq!(samples.max_ms(), 100.0);
        assert_eq!(Samples::default().quantile_ms(0.5), 0.0);
    }
}
