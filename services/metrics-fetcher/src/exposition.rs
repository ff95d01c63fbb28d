//! What `/metrics` shows: the node's own numbers, and how the fetcher is. Containers are never labels.

use std::fmt;
use std::sync::Arc;

use oxalyst_telemetry::Registry;
use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;

use crate::catalogue;
use crate::clock::Clock;
use crate::sample::{Ages, Quality};
use crate::store::{PassReport, Snapshot, Store, Subject};

/// Seconds: from a hundred containers to a machine that is stuck.
const BUCKETS: [f64; 10] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0];

/// What passes count.
#[derive(Debug, Clone)]
pub struct PassMetrics {
    passes: Family<PassLabels, Counter>,
    seconds: Histogram,
    /// Of the node's gauges, those that were stale after a pass, all passes together.
    stale: Counter,
    clock: Arc<dyn Clock>,
    ages: Ages,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PassLabels {
    result: &'static str,
}

/// A family of gauges that is computed from the newest snapshot when it is asked for.
#[derive(Clone)]
struct AtScrape {
    store: Arc<Store>,
    clock: Arc<dyn Clock>,
    ages: Ages,
    of: MetricType,
    write: Write,
}

type Write = Arc<dyn Fn(&Scrape<'_>, &mut MetricEncoder<'_>) -> fmt::Result + Send + Sync>;

struct Scrape<'a> {
    snapshot: &'a Snapshot,
    at: &'a AtScrape,
}

// === impl PassMetrics ===

impl PassMetrics {
    /// Registers everything that the service shows.
    pub fn register(registry: &Registry, store: &Arc<Store>, clock: &Arc<dyn Clock>, ages: Ages) -> Self {
        let as_type = |of, write: Write| {
            let (store, clock) = (Arc::clone(store), Arc::clone(clock));
            AtScrape { store, clock, ages, of, write }
        };
        let computed = |write: Write| as_type(MetricType::Gauge, write);
        let stale = Counter::default();
        for (place, metric) in catalogue::NODE.iter().enumerate() {
            if let Some(name) = metric.exposed {
                registry.register(name, metric.help, computed(Arc::new(move |s, e| s.node_value(place, e))));
            }
        }
        let write: Write = Arc::new(|s, e| s.values(e));
        registry.register("metric_values", "Values by source and quality", computed(write));
        let write: Write = Arc::new(|s, e| s.oldest(e));
        registry.register(
            "metric_age_seconds",
            "Age of the oldest value that is told of what is still there",
            computed(write),
        );
        let of_node = stale.clone();
        let write: Write = Arc::new(move |s, e| s.stale(of_node.get(), e));
        let help = "Values that came older than their source may deliver; of proc, the node's gauges that were left out after a pass";
        registry.register("metric_stale", help, as_type(MetricType::Counter, write));
        let write: Write = Arc::new(|s, e| gauge(e, s.snapshot.pass.open_files));
        registry.register("collect_open_files", "Descriptors kept open", computed(write));
        let write: Write = Arc::new(|s, e| gauge(e, s.snapshot.pass.failed_files));
        registry.register(
            "collect_failed_files",
            "Files that the newest pass could not read",
            computed(write),
        );
        let write: Write =
            Arc::new(|s, e| gauge(e, usize::try_from(s.snapshot.pass.late).unwrap_or(usize::MAX)));
        let help = "Reads that were given up because they hung, so far";
        registry.register("collect_late_reads", help, computed(write));
        let write: Write = Arc::new(|s, e| gauge(e, s.snapshot.containers.len()));
        registry.register("collect_containers", "Containers known, removed ones included", computed(write));
        Self {
            passes: registry.register("collect_passes", "Passes over all files", Family::default()),
            seconds: registry.register("collect_pass_seconds", "Duration of a pass", Histogram::new(BUCKETS)),
            stale,
            clock: Arc::clone(clock),
            ages,
        }
    }

    /// Counts one pass, and which of the node's gauges it leaves out.
    pub fn observe(&self, snapshot: &Snapshot) {
        let (pass, node, now) = (&snapshot.pass, &snapshot.node, self.clock.now());
        let stale = catalogue::NODE.iter().enumerate().filter(|(place, metric)| {
            let cell = node.cells.get(*place).filter(|_| metric.exposed.is_some());
            cell.is_some_and(|c| c.judge(now, self.ages.of(c), false, None).quality == Quality::Stale)
        });
        self.stale.inc_by(u64::try_from(stale.count()).unwrap_or(u64::MAX));
        let result = match pass {
            PassReport { trouble: Some(_), .. } => "failed",
            PassReport { failed_files: 1.., .. } => "partial",
            _ => "ok",
        };
        self.passes.get_or_create(&PassLabels { result }).inc();
        self.seconds.observe(pass.took.as_secs_f64());
    }
}

// === impl Scrape ===

impl Scrape<'_> {
    /// A missing value is no line at all, nor is a stale one: a line would pass for current.
    fn node_value(&self, place: usize, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
        let judged = self.snapshot.node.cells.get(place).map(|cell| self.judge(cell, &self.snapshot.node));
        let current = judged.filter(|judged| judged.quality.is_current());
        current.and_then(|judged| judged.value).map_or(Ok(()), |value| encoder.encode_gauge(&value))
    }

    fn values(&self, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
        for (source, subjects) in self.sources() {
            let mut counts = [("fresh", 0i64), ("stale", 0), ("missing", 0), ("clamped", 0), ("reset", 0)];
            for judged in subjects.iter().flat_map(|s| s.cells.iter().map(|c| self.judge(c, s))) {
                let place = match judged.quality {
                    Quality::Fresh | Quality::Fallback => 0,
                    Quality::Stale => 1,
                    Quality::Missing => 2,
                    Quality::Clamped => 3,
                    Quality::Reset => 4,
                };
                if let Some((_, count)) = counts.get_mut(place) {
                    *count += 1;
                }
            }
            for (quality, count) in counts {
                let labels = [("source", source), ("quality", quality)];
                encoder.encode_family(&labels)?.encode_gauge(&count)?;
            }
        }
        Ok(())
    }

    fn stale(&self, of_node: u64, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
        let layers = self.at.store.view().layers;
        let layers = layers.iter().map(|layer| (layer.source.name(), layer.stale_total));
        for (source, total) in std::iter::once(("proc", of_node)).chain(layers) {
            encoder
                .encode_family(&[("source", source)])?
                .encode_counter::<NoLabelSet, _, u64>(&total, None)?;
        }
        Ok(())
    }

    fn oldest(&self, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
        for (source, subjects) in self.sources() {
            // Whoever is gone has no newer value, and never will.
            let live = subjects.iter().filter(|s| s.removed.is_none());
            let judged = live.flat_map(|s| s.cells.iter().map(|c| self.judge(c, s)));
            if let Some(age) = judged.filter(|j| j.value.is_some()).map(|j| j.age).max() {
                encoder.encode_family(&[("source", source)])?.encode_gauge(&age.as_secs_f64())?;
            }
        }
        Ok(())
    }

    fn sources(&self) -> [(&'static str, &[Arc<Subject>]); 2] {
        [
            ("proc", std::slice::from_ref(&self.snapshot.node)),
            (self.snapshot.cgroup_source(), self.snapshot.containers.as_slice()),
        ]
    }

    fn judge(&self, cell: &crate::sample::Cell, subject: &Subject) -> crate::sample::Judged {
        cell.judge(self.at.clock.now(), self.at.ages.of(cell), subject.removed.is_some(), None)
    }
}

// === impl AtScrape ===

impl EncodeMetric for AtScrape {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let snapshot = self.store.load();
        (self.write)(&Scrape { snapshot: &snapshot, at: self }, &mut encoder)
    }

    fn metric_type(&self) -> MetricType {
        self.of
    }
}

impl fmt::Debug for AtScrape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AtScrape").finish_non_exhaustive()
    }
}

fn gauge(encoder: &mut MetricEncoder<'_>, count: usize) -> fmt::Result {
    encoder.encode_gauge(&i64::try_from(count).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::catalogue::Scope;
    use crate::clock::{ManualClock, Now};
    use crate::sample::{Cell, Reading};
    use crate::store::Id;

    fn container(id: &str, at: Now, removed: Option<Now>) -> Arc<Subject> {
        let mut subject =
            Subject::unknown(Scope::Container, Id { container_id: id.to_owned(), ..Id::default() });
        let (place, _) = catalogue::find("mem.rss.container").unwrap();
        *subject.cells.get_mut(place).unwrap() = Cell::default().after(Ok(Reading::level(1.0, at)));
        subject.removed = removed;
        Arc::new(subject)
    }

    #[test]
    fn a_stale_gauge_of_the_node_is_no_line_and_is_counted() {
        let clock = ManualClock::default();
        let ages = Ages { max_age: Duration::from_secs(15), withdrawal: Duration::from_secs(900) };
        let (place, metric) = catalogue::find("mem.free.system").unwrap();
        let name = format!("\noxalyst_{} ", metric.exposed.unwrap());
        let mut node = Subject::unknown(Scope::Node, Id::default());
        *node.cells.get_mut(place).unwrap() = Cell::default().after(Ok(Reading::level(7.0, clock.now())));
        let store = Arc::new(Store::default());
        store.publish(Snapshot { node: Arc::new(node), ..Snapshot::default() });
        let registry = Registry::default();
        let now: Arc<dyn Clock> = Arc::new(clock.clone());
        let metrics = PassMetrics::register(&registry, &store, &now, ages);
        let stale = |total| format!("\noxalyst_metric_stale_total{{source=\"proc\"}} {total}\n");
        let scrape = || {
            metrics.observe(&store.load());
            oxalyst_telemetry::encode(&registry)
        };
        let text = scrape();
        assert!(text.contains(&name) && text.contains(&stale(0)), "{text}");
        assert!(text.contains("# TYPE oxalyst_metric_stale counter"), "{text}");
        clock.advance(Duration::from_secs(16));
        let text = scrape();
        assert!(!text.contains(&name) && text.contains(&stale(1)), "{text}");
    }

    #[test]
    fn the_oldest_age_is_that_of_what_is_still_there() {
        let clock = ManualClock::default();
        let start = clock.now();
        clock.advance(Duration::from_secs(7));
        let newer = clock.now();
        clock.advance(Duration::from_secs(3));
        let ages = Ages { max_age: Duration::from_secs(15), withdrawal: Duration::from_secs(900) };
        let shown = |removed| {
            let store = Arc::new(Store::default());
            store.publish(Snapshot {
                unified: Some(true),
                containers: vec![container("old", start, removed), container("new", newer, None)],
                ..Snapshot::default()
            });
            let registry = Registry::default();
            let clock: Arc<dyn Clock> = Arc::new(clock.clone());
            PassMetrics::register(&registry, &store, &clock, ages);
            let text = oxalyst_telemetry::encode(&registry);
            let line = text.lines().find(|l| l.starts_with("oxalyst_metric_age_seconds{")).map(str::to_owned);
            line.unwrap_or_else(|| panic!("{text}"))
        };
        assert!(shown(None).ends_with(" 10.0"), "{}", shown(None));
        assert!(shown(Some(newer)).ends_with(" 3.0"), "whoever is gone gets no newer value");
    }
}
