//! The allocator's metrics, all in one place.

use std::time::Instant;

use oxalyst_telemetry::Registry;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use oxalyst_planner::plan::Reason;

/// Counters and gauges of the service `orm`.
#[derive(Debug, Clone)]
pub struct Metrics {
    admitted: Counter,
    refused: Family<ReasonLabel, Counter>,
    refusal_wait: Gauge,
    pods: Gauge,
    commit_seconds: Histogram,
    commit_failures: Counter,
    damage: Counter,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

/// Runs from its creation to [`CommitTimer::observe`].
#[derive(Debug)]
pub struct CommitTimer {
    started: Instant,
    histogram: Histogram,
}

// === impl Metrics ===

impl Metrics {
    /// Registers all of them.
    pub fn new(registry: &Registry) -> Self {
        Self {
            admitted: registry.register("orm_admissions", "Requests that were placed", Counter::default()),
            refused: registry.register(
                "orm_refusals",
                "Requests that were refused, by reason",
                Family::default(),
            ),
            refusal_wait: registry.register(
                "orm_refusal_wait_seconds",
                "Wait that is advised before the next attempt, after many refusals; 0: none",
                Gauge::default(),
            ),
            pods: registry.register("orm_pods", "Pods in the ledger", Gauge::default()),
            commit_seconds: registry.register(
                "orm_commit_seconds",
                "Time of a durable commit",
                Histogram::new(exponential_buckets(0.0001, 2.0, 14)),
            ),
            commit_failures: registry.register(
                "orm_commit_failures",
                "Commits that the disk refused",
                Counter::default(),
            ),
            damage: registry.register(
                "orm_ledger_damage",
                "Damaged parts of the ledger that were found and put aside",
                Counter::default(),
            ),
        }
    }

    /// A request was placed.
    pub fn admitted(&self) {
        self.admitted.inc();
    }

    /// A request was refused.
    pub fn refused(&self, reason: Reason) {
        self.refused.get_or_create(&ReasonLabel { reason: reason.as_str() }).inc();
    }

    /// So many seconds of waiting are advised.
    pub fn refusal_wait(&self, seconds: u64) {
        self.refusal_wait.set(i64::try_from(seconds).unwrap_or(i64::MAX));
    }

    /// So many pods are in the ledger.
    pub fn pods(&self, count: usize) {
        self.pods.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Starts to time a commit.
    pub fn commit_timer(&self) -> CommitTimer {
        CommitTimer { started: Instant::now(), histogram: self.commit_seconds.clone() }
    }

    /// The disk refused a commit.
    pub fn commit_failed(&self) {
        self.commit_failures.inc();
    }

    /// A part of the ledger was damaged.
    pub fn damage_found(&self) {
        self.damage.inc();
    }
}

// === impl CommitTimer ===

impl CommitTimer {
    /// The commit is durable.
    pub fn observe(self) {
        self.histogram.observe(self.started.elapsed().as_secs_f64());
    }
}
