//! The busiest containers: a table to keep open.

use std::collections::BTreeMap;

use oxalyst_proto::metrics::v1::{QueryReply, QueryRequest, Sample, Scope};
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
}

#[derive(Debug, Serialize, Default)]
pub(crate) struct RowView {
    pub(crate) name: String,
    pub(crate) cpu_cores: Option<f64>,
    pub(crate) working_set_bytes: Option<f64>,
    pub(crate) throttled_us_per_second: Option<f64>,
    pub(crate) cpu_pressure: Option<f64>,
    pub(crate) memory_pressure: Option<f64>,
    pub(crate) source: String,
    /// Of the oldest of its values.
    pub(crate) age_ms: u64,
}

// === impl TopView ===

impl TopView {
    pub(crate) fn new(reply: QueryReply) -> Self {
        let mut rows: BTreeMap<String, RowView> = BTreeMap::new();
        for sample in reply.samples {
            let row = rows.entry(sample.container_id.clone()).or_default();
            row.name = name(&sample);
            if sample.value.is_some() {
                row.age_ms = row.age_ms.max(sample.age_ms);
                row.source.clone_from(&sample.source);
            }
            match sample.metric.as_str() {
                CPU => row.cpu_cores = sample.value,
                MEMORY => row.working_set_bytes = sample.value,
                THROTTLED => row.throttled_us_per_second = sample.value,
                CPU_PRESSURE => row.cpu_pressure = sample.value,
                MEMORY_PRESSURE => row.memory_pressure = sample.value,
                _ => {}
            }
        }
        let mut rows: Vec<RowView> = rows.into_values().collect();
        let used = |row: &RowView| row.cpu_cores.unwrap_or(-1.0);
        rows.sort_by(|a, b| used(b).total_cmp(&used(a)).then_with(|| a.name.cmp(&b.name)));
        Self { rows }
    }

    pub(crate) fn render(&self) -> String {
        let mut table =
            Table::new(&["CONTAINER", "CPU", "MEMORY", "THROTTLED", "CPU-PSI", "MEM-PSI", "SOURCE", "AGE"]);
        let percent =
            |v: Option<f64>, whole: f64| v.map(|v| format!("{:.1}%", v / whole * 100.0)).unwrap_or_default();
        for row in &self.rows {
            table.row(vec![
                row.name.clone(),
                row.cpu_cores.map(|v| format!("{v:.3}")).unwrap_or_default(),
                row.working_set_bytes.map(|v| format!("{:.1}Mi", v / 1_048_576.0)).unwrap_or_default(),
                percent(row.throttled_us_per_second, 1e6),
                percent(row.cpu_pressure, 1.0),
                percent(row.memory_pressure, 1.0),
                row.source.clone(),
                duration::short(row.age_ms),
            ]);
        }
        if table.is_empty() { "no containers\n".to_owned() } else { table.render() }
    }
}

/// namespace/pod/container as far as names are known, else the container's id.
fn name(sample: &Sample) -> String {
    if sample.pod.is_empty() {
        return sample.container_id.chars().take(13).collect();
    }
    format!("{}/{}/{}", sample.namespace, sample.pod, sample.container)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_comes_first_and_what_is_missing_is_no_zero() {
        let sample = |id: &str, metric: &str, value: Option<f64>, age_ms| Sample {
            container_id: id.into(),
            metric: metric.into(),
            value,
            age_ms,
            source: "cgroup-v1".into(),
            ..Sample::default()
        };
        let samples = vec![
            sample("idle", CPU, Some(0.01), 100),
            sample("idle", MEMORY, Some(1_048_576.0), 400),
            sample("busy", CPU, Some(1.5), 100),
            sample("busy", THROTTLED, Some(250_000.0), 100),
            sample("busy", CPU_PRESSURE, None, 0),
            sample("new", CPU, None, 0),
        ];
        let view = TopView::new(QueryReply { samples, now_unix_ms: 1 });
        assert_eq!(
            view.render(),
            "CONTAINER  CPU    MEMORY  THROTTLED  CPU-PSI  MEM-PSI  SOURCE     AGE\n\
             busy       1.500  -       25.0%      -        -        cgroup-v1  100ms\n\
             idle       0.010  1.0Mi   -          -        -        cgroup-v1  400ms\n\
             new        -      -       -          -        -        -          0ms\n"
        );
    }
}
