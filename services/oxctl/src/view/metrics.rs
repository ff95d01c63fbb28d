//! Measurements.

use oxalyst_proto::metrics::v1::{Quality, QueryReply, Sample, Scope};
use serde::Serialize;

use super::told;
use crate::duration;
use crate::table::Table;

/// Samples: the node's first, then by pod, container and name.
#[derive(Debug, Serialize)]
pub(crate) struct MetricsView {
    pub(crate) now_unix_ms: i64,
    pub(crate) samples: Vec<SampleView>,
}

#[derive(Debug, Serialize)]
pub(crate) struct SampleView {
    pub(crate) metric: String,
    /// "node" or "container".
    pub(crate) scope: &'static str,
    pub(crate) namespace: Option<String>,
    pub(crate) pod: Option<String>,
    pub(crate) container: Option<String>,
    pub(crate) pod_uid: Option<String>,
    pub(crate) container_id: Option<String>,
    /// Which CPU, NUMA node, device, interface or volume.
    pub(crate) instance: Option<String>,
    pub(crate) cgroup: Option<String>,
    pub(crate) value: Option<f64>,
    pub(crate) unit: String,
    pub(crate) source: String,
    /// When the value was true; `None`: never read.
    pub(crate) time_unix_ns: Option<i64>,
    pub(crate) age_ms: Option<u64>,
    pub(crate) interval_ms: Option<u64>,
    /// When its source was read; `None`: never.
    pub(crate) read_time_unix_ns: Option<i64>,
    /// The pass of its source that read it; samples of one source with the same number belong together.
    pub(crate) cycle: Option<u64>,
    /// The smallest difference that the source can show, where that is coarse.
    pub(crate) resolution: Option<f64>,
    /// Whom it is about is gone.
    pub(crate) removed: bool,
    /// "fresh", "stale", "missing".
    pub(crate) quality: &'static str,
    pub(crate) reason: Option<String>,
}

// === impl MetricsView ===

impl MetricsView {
    pub(crate) fn new(reply: QueryReply) -> Self {
        let mut samples: Vec<SampleView> = reply.samples.into_iter().map(SampleView::from).collect();
        samples.sort_by(|a, b| a.order().cmp(&b.order()));
        Self { now_unix_ms: reply.now_unix_ms, samples }
    }

    /// What to tell of those of `ids` that nothing was measured for, a line each.
    pub(crate) fn without_samples(&self, ids: &[String]) -> Vec<String> {
        let known = |id: &str| {
            self.samples
                .iter()
                .any(|s| s.container_id.as_deref() == Some(id) || s.pod_uid.as_deref() == Some(id))
        };
        let unknown = ids.iter().filter(|id| !known(id));
        unknown
            .map(|id| format!("nothing is measured for {id}: give a pod UID or container id, `oxctl pods -o wide` shows them"))
            .collect()
    }

    pub(crate) fn render(&self, wide: bool) -> String {
        let mut header = vec!["SUBJECT", "METRIC", "VALUE", "UNIT", "SOURCE", "AGE", "QUALITY", "REASON"];
        if wide {
            header.extend(["OVER", "POD-UID", "CONTAINER-ID"]);
        }
        let mut table = Table::new(&header);
        for s in &self.samples {
            let mut cells = vec![
                s.subject(),
                s.metric.clone(),
                s.value.map(|v| number(v, &s.unit)).unwrap_or_default(),
                s.unit.clone(),
                s.source.clone(),
                s.age_ms.map(duration::short).unwrap_or_default(),
                s.quality.to_owned(),
                s.reason.clone().unwrap_or_default(),
            ];
            if wide {
                cells.push(s.interval_ms.map(duration::short).unwrap_or_default());
                cells.push(s.pod_uid.clone().unwrap_or_default());
                cells.push(s.container_id.clone().unwrap_or_default());
            }
            table.row(cells);
        }
        if table.is_empty() {
            return "no measurements\n".to_owned();
        }
        table.render()
    }
}

// === impl SampleView ===

impl SampleView {
    fn order(&self) -> impl Ord + '_ {
        let node_first = self.scope != "node";
        let part = self.instance.as_ref().map(|i| (i.len(), i));
        (
            node_first,
            &self.namespace,
            &self.pod,
            &self.container,
            &self.container_id,
            &self.cgroup,
            part,
            &self.metric,
        )
    }

    /// "node", or namespace/pod/container as far as names are known, else the container's id.
    fn subject(&self) -> String {
        let whole = self.whole();
        self.instance.as_ref().map_or(whole.clone(), |part| format!("{whole}[{part}]"))
    }

    fn whole(&self) -> String {
        if self.pod.is_none() && self.container_id.is_none() && self.pod_uid.is_none() {
            return self.cgroup.clone().unwrap_or_else(|| self.scope.to_owned());
        }
        let names = [&self.namespace, &self.pod, &self.container].map(|n| n.as_deref().unwrap_or("?"));
        match (&self.pod, &self.container_id) {
            (None, Some(id)) => id.chars().take(13).collect(),
            (None, None) => self.pod_uid.clone().unwrap_or_default(),
            _ => names.join("/"),
        }
    }
}

impl From<Sample> for SampleView {
    fn from(sample: Sample) -> Self {
        Self {
            scope: match sample.scope() {
                Scope::Node => "node",
                Scope::Container => "container",
                Scope::Numa => "numa",
                Scope::Cpu => "cpu",
                Scope::Device => "device",
                Scope::Network => "network",
                Scope::ContainerNuma => "container-numa",
                Scope::Volume => "volume",
                Scope::Cgroup => "cgroup",
                Scope::CgroupNuma => "cgroup-numa",
                Scope::Unspecified => "unknown",
            },
            quality: match sample.quality() {
                Quality::Fresh => "fresh",
                Quality::Stale => "stale",
                Quality::Missing => "missing",
                Quality::Clamped => "clamped",
                Quality::Fallback => "fallback",
                Quality::Reset => "reset",
                Quality::Unspecified => "unknown",
            },
            metric: sample.metric,
            namespace: told(&sample.namespace),
            pod: told(&sample.pod),
            container: told(&sample.container),
            pod_uid: told(&sample.pod_uid),
            container_id: told(&sample.container_id),
            instance: told(&sample.instance),
            cgroup: told(&sample.cgroup),
            value: sample.value,
            unit: sample.unit,
            source: sample.source,
            time_unix_ns: (sample.time_unix_ns > 0).then_some(sample.time_unix_ns),
            age_ms: (sample.time_unix_ns > 0).then_some(sample.age_ms),
            interval_ms: (sample.interval_ms > 0).then_some(sample.interval_ms),
            read_time_unix_ns: (sample.read_time_unix_ns > 0).then_some(sample.read_time_unix_ns),
            cycle: (sample.cycle > 0).then_some(sample.cycle),
            resolution: sample.resolution,
            removed: sample.removed,
            reason: told(&sample.reason),
        }
    }
}

/// Bytes and whole counts have no decimals (a load average is a count that is not whole); all else has three.
fn number(value: f64, unit: &str) -> String {
    match unit {
        "bytes" => format!("{value:.0}"),
        "count" if value.fract() == 0.0 => format!("{value:.0}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(metric: &str, pod: &str, value: Option<f64>) -> Sample {
        Sample {
            metric: metric.into(),
            scope: if pod.is_empty() { Scope::Node } else { Scope::Container } as i32,
            container_id: if pod.is_empty() { "" } else { "0123456789abcdef" }.into(),
            namespace: "ns".into(),
            pod: pod.into(),
            container: "app".into(),
            value,
            unit: if metric.contains("mem") { "bytes" } else { "cores" }.into(),
            source: "cgroup-v2".into(),
            time_unix_ns: value.map_or(0, |_| 1_000),
            age_ms: 400,
            quality: if value.is_some() { Quality::Fresh } else { Quality::Missing } as i32,
            reason: if value.is_some() { "" } else { "the cgroup is gone" }.into(),
            ..Sample::default()
        }
    }

    #[test]
    fn the_node_comes_first_and_a_missing_value_has_a_reason_and_no_age() {
        let samples = vec![
            sample("cpu_usage", "b", None),
            sample("mem_usage", "a", Some(1.5e9)),
            sample("cpu_usage", "", Some(0.25)),
        ];
        let view = MetricsView::new(QueryReply { samples, now_unix_ms: 1 });
        assert_eq!(
            view.render(false),
            "SUBJECT   METRIC     VALUE       UNIT   SOURCE     AGE    QUALITY  REASON\n\
             node      cpu_usage  0.250       cores  cgroup-v2  400ms  fresh    -\n\
             ns/a/app  mem_usage  1500000000  bytes  cgroup-v2  400ms  fresh    -\n\
             ns/b/app  cpu_usage  -           cores  cgroup-v2  -      missing  the cgroup is gone\n"
        );
    }

    #[test]
    fn a_container_without_names_is_shown_by_its_id() {
        let nameless =
            Sample { namespace: String::new(), pod: String::new(), ..sample("cpu_usage", "x", Some(1.0)) };
        let view = MetricsView::new(QueryReply { samples: vec![nameless], now_unix_ms: 1 });
        assert!(view.render(true).contains("\n0123456789abc  cpu_usage"), "{}", view.render(true));
    }

    #[test]
    fn a_load_average_keeps_its_decimals() {
        let shown = [(2.0, "count"), (0.25, "count"), (1.0, "cores"), (7.0, "bytes")]
            .map(|(v, unit)| number(v, unit));
        assert_eq!(shown, ["2", "0.250", "1.000", "7"]);
    }
}
