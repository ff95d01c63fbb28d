//! The busiest pods or containers: a table to keep open.

use std::collections::{BTreeMap, BTreeSet};

use oxalyst_proto::metrics::v1::{Quality, QueryReply, QueryRequest, Sample, Scope};
use serde::Serialize;

use crate::duration;
use crate::table::Table;

const CPU: &str = "cpu.usage.container";
const MEMORY: &str = "mem.workingset.container";
const THROTTLED: &str = "cpu.throttled.time.container.rate";
const CPU_PRESSURE: &str = "cpu.psi.some.avg10.container";
const MEMORY_PRESSURE: &str = "mem.psi.some.avg10.container";

/// What the table needs.
pub(crate) fn query() -> QueryRequest {
    let metrics = [CPU, MEMORY, THROTTLED, CPU_PRESSURE, MEMORY_PRESSURE].map(str::to_owned).to_vec();
    QueryRequest { metrics, scopes: vec![Scope::Container as i32], ..QueryRequest::default() }
}

/// A row each, the one that uses most CPU first.
#[derive(Debug, Serialize)]
pub(crate) struct TopView {
    pub(crate) rows: Vec<RowView>,
    #[serde(skip)]
    by_container: bool,
}

#[derive(Debug, Serialize, Default)]
pub(crate) struct RowView {
    pub(crate) name: String,
    /// Containers, the pod's sandbox among them.
    pub(crate) containers: usize,
    pub(crate) cpu_cores: Value,
    pub(crate) working_set_bytes: Value,
    pub(crate) throttled_us_per_second: Value,
    pub(crate) cpu_pressure: Value,
    pub(crate) memory_pressure: Value,
    /// Of its values, joined by commas.
    pub(crate) source: String,
    /// Of the oldest of its values.
    pub(crate) age_ms: u64,
    /// Some of its values are older than they should be.
    pub(crate) stale: bool,
}

/// A number out of those of one or several containers.
#[derive(Debug, Serialize, Default, Clone, Copy, PartialEq)]
pub(crate) struct Value {
    /// `None`: none of them has one.
    pub(crate) value: Option<f64>,
    /// Containers without one: the sum of the others is a lower bound.
    pub(crate) missing: usize,
}

// === impl Value ===

impl Value {
    fn take(&mut self, value: Option<f64>, join: fn(f64, f64) -> f64) {
        match value {
            Some(value) => self.value = Some(self.value.map_or(value, |before| join(before, value))),
            None => self.missing += 1,
        }
    }

    fn told(self, text: impl Fn(f64) -> String) -> String {
        let bound = if self.missing > 0 { ">" } else { "" };
        self.value.map(|value| format!("{bound}{}", text(value))).unwrap_or_default()
    }
}

// === impl TopView ===

impl TopView {
    /// By pod, or by container.
    pub(crate) fn new(reply: QueryReply, by_container: bool) -> Self {
        let mut rows: BTreeMap<String, (RowView, BTreeSet<String>, BTreeSet<String>)> = BTreeMap::new();
        for sample in reply.samples {
            let pod = by_container || sample.pod_uid.is_empty();
            let key = if pod { sample.container_id.clone() } else { sample.pod_uid.clone() };
            let (row, containers, sources) = rows.entry(key).or_default();
            if row.name.is_empty() || !sample.pod.is_empty() {
                row.name = name(&sample, by_container);
            }
            if sample.value.is_some() {
                row.age_ms = row.age_ms.max(sample.age_ms);
                row.stale |= sample.quality() == Quality::Stale;
                sources.insert(sample.source.clone());
            }
            containers.insert(sample.container_id.clone());
            // Time waited by some task of one container and of another may be the same time: no sum.
            let sum = |a, b| a + b;
            match sample.metric.as_str() {
                CPU => row.cpu_cores.take(sample.value, sum),
                MEMORY => row.working_set_bytes.take(sample.value, sum),
                THROTTLED => row.throttled_us_per_second.take(sample.value, sum),
                CPU_PRESSURE => row.cpu_pressure.take(sample.value, f64::max),
                MEMORY_PRESSURE => row.memory_pressure.take(sample.value, f64::max),
                _ => {}
            }
        }
        let row = |(mut row, containers, sources): (RowView, BTreeSet<String>, BTreeSet<String>)| {
            row.containers = containers.len();
            row.source = sources.into_iter().collect::<Vec<_>>().join(",");
            row
        };
        let mut rows: Vec<RowView> = rows.into_values().map(row).collect();
        let used = |row: &RowView| row.cpu_cores.value.unwrap_or(-1.0);
        rows.sort_by(|a, b| used(b).total_cmp(&used(a)).then_with(|| a.name.cmp(&b.name)));
        Self { rows, by_container }
    }

    pub(crate) fn render(&self) -> String {
        let first = if self.by_container { "CONTAINER" } else { "POD" };
        let mut table =
            Table::new(&[first, "CPU", "MEMORY", "THROTTLED", "CPU-PSI", "MEM-PSI", "SOURCE", "AGE"]);
        let percent = |value: Value, whole: f64| value.told(|v| format!("{:.1}%", v / whole * 100.0));
        for row in &self.rows {
            let stale = if row.stale { " stale" } else { "" };
            table.row(vec![
                row.name.clone(),
                row.cpu_cores.told(|v| format!("{v:.3}")),
                row.working_set_bytes.told(|v| format!("{:.1}Mi", v / 1_048_576.0)),
                percent(row.throttled_us_per_second, 1e6),
                percent(row.cpu_pressure, 1.0),
                percent(row.memory_pressure, 1.0),
                row.source.clone(),
                format!("{}{stale}", duration::short(row.age_ms)),
            ]);
        }
        if table.is_empty() { "no containers\n".to_owned() } else { table.render() }
    }
}

/// namespace/pod and, of a container, its name, as far as names are known, else the container's id or the pod's UID.
fn name(sample: &Sample, by_container: bool) -> String {
    match (sample.pod.is_empty(), by_container || sample.pod_uid.is_empty()) {
        (true, true) => sample.container_id.chars().take(13).collect(),
        (true, false) => sample.pod_uid.clone(),
        (false, true) => format!("{}/{}/{}", sample.namespace, sample.pod, sample.container),
        (false, false) => format!("{}/{}", sample.namespace, sample.pod),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(id: &str, metric: &str, value: Option<f64>, age_ms: u64) -> Sample {
        Sample {
            container_id: id.into(),
            metric: metric.into(),
            value,
            age_ms,
            source: "cgroup-v1".into(),
            ..Sample::default()
        }
    }

    #[test]
    fn the_busiest_comes_first_and_what_is_missing_is_no_zero() {
        let samples = vec![
            sample("idle", CPU, Some(0.01), 100),
            sample("idle", MEMORY, Some(1_048_576.0), 400),
            sample("busy", CPU, Some(1.5), 100),
            sample("busy", THROTTLED, Some(250_000.0), 100),
            sample("busy", CPU_PRESSURE, None, 0),
            sample("new", CPU, None, 0),
        ];
        let view = TopView::new(QueryReply { samples, now_unix_ms: 1 }, true);
        assert_eq!(
            view.render(),
            "CONTAINER  CPU    MEMORY  THROTTLED  CPU-PSI  MEM-PSI  SOURCE     AGE\n\
             busy       1.500  -       25.0%      -        -        cgroup-v1  100ms\n\
             idle       0.010  1.0Mi   -          -        -        cgroup-v1  400ms\n\
             new        -      -       -          -        -        -          0ms\n"
        );
    }

    #[test]
    fn m07_a_pod_is_the_sum_of_its_containers_in_cores_and_says_what_is_missing_or_old() {
        let of = |pod: &str, id: &str, metric: &str, value, age_ms| Sample {
            pod_uid: format!("uid-{pod}"),
            pod: pod.into(),
            namespace: "ns".into(),
            ..sample(id, metric, value, age_ms)
        };
        let samples = vec![
            of("web", "a", CPU, Some(1.5), 100),
            of("web", "b", CPU, Some(0.25), 2000),
            of("web", "a", CPU_PRESSURE, Some(0.25), 100),
            of("web", "b", CPU_PRESSURE, Some(0.5), 100),
            of("half", "c", CPU, Some(0.5), 100),
            of("half", "d", CPU, None, 0),
            Sample { quality: Quality::Stale.into(), ..of("half", "c", MEMORY, Some(2_097_152.0), 20_000) },
        ];
        let view = TopView::new(QueryReply { samples, now_unix_ms: 1 }, false);
        assert_eq!(
            view.render(),
            "POD      CPU     MEMORY  THROTTLED  CPU-PSI  MEM-PSI  SOURCE     AGE\n\
             ns/web   1.750   -       -          50.0%    -        cgroup-v1  2s\n\
             ns/half  >0.500  2.0Mi   -          -        -        cgroup-v1  20s stale\n"
        );
    }
}
