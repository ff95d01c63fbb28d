//! Whether a source is well: one log line for each change, and the process's readiness where it is required.

use std::time::Duration;

use oxalyst_mesh::{Condition, Readiness};

use crate::clock::Now;
use crate::sample::Ages;
use crate::store::Source;

/// Health of one source beside cgroups and `/proc`.
#[derive(Debug)]
pub struct Health {
    source: Source,
    /// How long it may fail before the process is not ready.
    patience: Duration,
    condition: Option<Condition>,
    ailing: Option<bool>,
    /// When the newest of what it told was true.
    well: Option<Now>,
}

// === impl Health ===

impl Health {
    /// `required`: the process is not ready before the source has told something, nor while it has failed for longer than
    /// its values stay fresh.
    pub fn new(source: Source, ages: Ages, required: Option<&Readiness>) -> Self {
        let condition =
            required.map(|readiness| readiness.condition(name(source), "it has not told anything yet"));
        Self { source, patience: ages.max_age, condition, ailing: None, well: None }
    }

    /// What came of a pass. `newest` is when the newest of what it told was true; nothing if none of it is newer than what was
    /// told before.
    pub fn told(&mut self, trouble: Option<&str>, newest: Option<Now>, now: Now) {
        let source = self.source.name();
        match trouble {
            None if self.ailing != Some(false) => tracing::info!(source, "it is read"),
            Some(error) if self.ailing != Some(true) => {
                tracing::warn!(source, %error, "it cannot be read; what it told ages");
            }
            _ => {}
        }
        self.ailing = Some(trouble.is_some());
        if trouble.is_none() {
            self.well = self.well.max(newest);
        }
        let current = self.well.is_some_and(|well| now.since(well) <= self.patience);
        match (&self.condition, trouble) {
            (Some(condition), None) if current => condition.fulfilled(),
            (Some(condition), trouble) if !current => condition.pending(trouble.unwrap_or(OLD)),
            _ => {}
        }
    }
}

/// Said of a source that answers, and whose newest value is stale.
const OLD: &str = "it answers, and all that it tells is stale";

/// Name of the condition.
const fn name(source: Source) -> &'static str {
    match source {
        Source::Kernel => "source-cgroup",
        Source::Malachite => "source-malachite",
        Source::Kubelet => "source-kubelet",
        Source::Realtime => "source-malachite-realtime",
        Source::Resctrl => "source-resctrl",
        Source::Perf => "source-perf",
        Source::Tasks => "source-cgroupstats",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGES: Ages = Ages { max_age: Duration::from_secs(15), withdrawal: Duration::from_secs(50) };

    fn at(seconds: u64) -> Now {
        Now { monotonic_ns: seconds * 1_000_000_000, unix_ns: 0 }
    }

    #[test]
    fn a_required_source_that_is_away_for_longer_than_its_values_are_fresh_makes_the_process_not_ready() {
        let readiness = Readiness::default();
        let mut health = Health::new(Source::Kubelet, AGES, Some(&readiness));
        assert_eq!(readiness.pending()[0].0, "source-kubelet");
        health.told(Some("connection refused"), Some(at(1)), at(1));
        assert_eq!(readiness.pending()[0].1, "connection refused");
        health.told(None, Some(at(2)), at(2));
        assert!(readiness.is_ready());
        health.told(Some("503"), Some(at(17)), at(17));
        assert!(readiness.is_ready(), "a short absence is none");
        health.told(Some("503"), Some(at(18)), at(18));
        assert_eq!(readiness.pending(), [("source-kubelet", "503".to_owned())]);
        health.told(None, Some(at(19)), at(19));
        assert!(readiness.is_ready());
    }

    #[test]
    fn a_required_source_that_answers_and_tells_nothing_current_is_as_one_that_is_away() {
        let readiness = Readiness::default();
        let mut health = Health::new(Source::Malachite, AGES, Some(&readiness));
        health.told(None, Some(at(1)), at(1));
        assert!(readiness.is_ready());
        health.told(None, None, at(16));
        assert!(readiness.is_ready(), "what it told before is fresh");
        health.told(None, Some(at(1)), at(17));
        assert_eq!(readiness.pending(), [("source-malachite", OLD.to_owned())]);
        health.told(None, Some(at(18)), at(19));
        assert!(readiness.is_ready());
    }

    #[test]
    fn a_source_that_is_not_required_may_fail() {
        let mut health = Health::new(Source::Malachite, AGES, None);
        health.told(Some("hangs"), Some(at(1)), at(1));
        health.told(Some("hangs"), Some(at(1000)), at(1000));
        assert_eq!(health.ailing, Some(true));
    }
}
