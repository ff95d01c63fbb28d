//! The gateway's metrics, all in one place.

use std::time::{Duration, Instant};

use oxalyst_telemetry::Registry;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

/// From half a millisecond to the runtime's own limit.
const HOOK_BUCKETS: [f64; 12] = [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 1.0, 2.0];

/// Every metric of the gateway. Clones count together.
#[derive(Clone, Debug)]
pub struct Metrics {
    hooks: Family<Hook, Histogram, fn() -> Histogram>,
    policy: Family<Reason, Counter>,
    drift: Family<File, Counter>,
    updates: Family<Outcome, Counter>,
    contended: Counter,
    mode: Family<Mode, Gauge>,
    foreign_cpusets: Counter,
    /// 1 while a session with the runtime is synchronised.
    pub connected: Gauge,
    /// Sessions that ended.
    pub reconnects: Counter,
    /// Containers created without a cpuset.
    pub unpinned_starts: Counter,
    /// Releases that the orm has not taken yet.
    pub releases_waiting: Gauge,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Hook {
    method: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct File {
    file: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Mode {
    mode: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    result: &'static str,
}

// === impl Metrics ===

impl Metrics {
    /// Registers all of them.
    pub fn new(registry: &Registry) -> Self {
        let metrics = Self {
            hooks: registry.register(
                "hook_duration_seconds",
                "Time to answer a call of the container runtime",
                Family::new_with_constructor(|| Histogram::new(HOOK_BUCKETS)),
            ),
            policy: registry.register(
                "hook_default_answers",
                "Answers given by policy because the orm was not heard",
                Family::default(),
            ),
            drift: registry.register(
                "cpuset_drift",
                "Cpuset files that somebody else changed",
                Family::default(),
            ),
            updates: registry.register(
                "container_updates",
                "Updates of containers outside of a call of the runtime",
                Family::default(),
            ),
            contended: registry.register(
                "contended_containers",
                "Containers whose cpuset somebody else kept changing",
                Counter::default(),
            ),
            mode: registry.register(
                "mode",
                "1 for the way in which decisions are applied now",
                Family::default(),
            ),
            foreign_cpusets: registry.register(
                "foreign_cpusets",
                "Requests of somebody else for other CPUs, answered with ours",
                Counter::default(),
            ),
            connected: registry.register(
                "nri_connected",
                "1 while a session with the container runtime is synchronised",
                Gauge::default(),
            ),
            reconnects: registry.register(
                "nri_reconnects",
                "Sessions with the container runtime that ended",
                Counter::default(),
            ),
            unpinned_starts: registry.register(
                "unpinned_starts",
                "Containers created without a cpuset",
                Counter::default(),
            ),
            releases_waiting: registry.register(
                "releases_waiting",
                "Releases of pods that the orm has not taken yet",
                Gauge::default(),
            ),
        };
        // From the beginning: a counter that comes with its first event has not increased, and alerts nobody.
        for reason in ["absent", "failed", "late", "suspended"] {
            drop(metrics.policy.get_or_create(&Reason { reason }));
        }
        for file in ["cpuset.cpus", "cpuset.mems"] {
            drop(metrics.drift.get_or_create(&File { file }));
        }
        for result in ["applied", "failed", "rewritten"] {
            drop(metrics.updates.get_or_create(&Outcome { result }));
        }
        metrics
    }

    /// A call of the runtime was answered.
    pub fn hook(&self, method: &'static str, ok: bool, since: Instant) {
        let result = if ok { "ok" } else { "refused" };
        self.hooks.get_or_create(&Hook { method, result }).observe(seconds(since.elapsed()));
    }

    /// An answer was given by policy. `reason` is of a closed set: "absent", "failed", "late", "suspended".
    pub fn by_policy(&self, reason: &'static str) {
        self.policy.get_or_create(&Reason { reason }).inc();
    }

    /// A file was changed by somebody else.
    pub fn drift(&self, file: &'static str) {
        self.drift.get_or_create(&File { file }).inc();
    }

    /// A container's cpuset is changed by somebody else again and again.
    pub fn contended(&self) {
        self.contended.inc();
    }

    /// Somebody else asked for other CPUs.
    pub fn foreign_cpuset(&self) {
        self.foreign_cpusets.inc();
    }

    /// Decisions are applied in this way now. Of a closed set: "nri", "bypass", "none".
    pub fn mode(&self, now: &'static str) {
        for mode in ["nri", "bypass", "none"] {
            self.mode.get_or_create(&Mode { mode }).set(i64::from(mode == now));
        }
    }

    /// Updates were sent. `result` is of a closed set: "applied", "failed", "rewritten".
    pub fn updated(&self, result: &'static str, count: usize) {
        self.updates.get_or_create(&Outcome { result }).inc_by(u64::try_from(count).unwrap_or(u64::MAX));
    }
}

fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_not_happened_is_told_as_none() {
        let registry = Registry::default();
        let _metrics = Metrics::new(&registry);
        let text = oxalyst_telemetry::encode(&registry);
        for series in
            ["hook_default_answers_total{reason=\"late\"} 0", "cpuset_drift_total{file=\"cpuset.mems\"} 0"]
        {
            assert!(text.contains(series), "{series}: {text}");
        }
    }

    #[test]
    fn these_are_all_the_metrics() {
        let registry = Registry::default();
        let metrics = Metrics::new(&registry);
        metrics.hook("RunPodSandbox", true, Instant::now());
        metrics.by_policy("late");
        metrics.drift("cpuset.cpus");
        metrics.updated("applied", 1);
        metrics.mode("none");
        let text = oxalyst_telemetry::encode(&registry);
        let names: Vec<_> = text
            .lines()
            .filter_map(|l| l.strip_prefix("# TYPE oxalyst_"))
            .filter_map(|l| l.split(' ').next())
            .collect();
        assert_eq!(
            names,
            [
                "hook_duration_seconds",
                "hook_default_answers",
                "cpuset_drift",
                "container_updates",
                "contended_containers",
                "mode",
                "foreign_cpusets",
                "nri_connected",
                "nri_reconnects",
                "unpinned_starts",
                "releases_waiting",
            ]
        );
    }
}
