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

    /// As they were taken, so many at a time; what is left over at the end is no block.
    pub(super) fn blocks(&self, of: usize) -> impl Iterator<Item = Self> {
        self.0.chunks_exact(of).map(|block| Self(block.to_vec()))
    }
}

/// The one in the middle, the greater of two; 0 of none.
pub(super) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
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

    #[test]
    fn one_slow_block_does_not_move_the_median_of_blocks() {
        let mut samples = Samples::default();
        for n in 0..350 {
            samples.push(Duration::from_millis(if n / 100 == 1 { 500 } else { 2 }));
        }
        assert_eq!(samples.blocks(100).count(), 3);
        assert_eq!(median(samples.blocks(100).map(|block| block.quantile_ms(0.99))), 2.0);
        assert_eq!(median([3.0, 1.0].into_iter()), 3.0);
    }
}
