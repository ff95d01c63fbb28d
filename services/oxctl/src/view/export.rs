//! Current values as OpenTelemetry's JSON (an ExportMetricsServiceRequest), under the names of its conventions.

use std::collections::{BTreeMap, HashMap};

use oxalyst_proto::metrics::v1::{MetricInfo, Quality, QueryReply, QueryRequest, Sample, Scope};
use serde_json::{Value, json};

/// What to ask for: every metric that has a name there.
pub(crate) fn query(metrics: &[MetricInfo]) -> QueryRequest {
    let named = metrics.iter().filter(|m| !m.otel_name.is_empty());
    QueryRequest { metrics: named.map(|m| m.name.clone()).collect(), ..QueryRequest::default() }
}

/// One request, to be posted to a collector, of the node of that name. A value that is stale or missing is not in it.
pub(crate) fn request(metrics: &[MetricInfo], reply: QueryReply, node: &str) -> Value {
    let names: HashMap<&str, &MetricInfo> = metrics.iter().map(|m| (m.name.as_str(), m)).collect();
    let mut resources: BTreeMap<[String; 6], Vec<Value>> = BTreeMap::new();
    for sample in reply.samples {
        let Some(info) = names.get(sample.metric.as_str()) else { continue };
        let current = matches!(sample.quality(), Quality::Fresh | Quality::Clamped | Quality::Fallback);
        let Some(value) = sample.value.filter(|_| current) else { continue };
        // 64-bit integers are strings in this form.
        let point = json!({"timeUnixNano": sample.time_unix_ns.to_string(), "asDouble": value,
            "attributes": attributes([("oxalyst.source", sample.source.as_str())])});
        let metric = json!({"name": info.otel_name, "unit": info.otel_unit, "description": info.help,
            "gauge": {"dataPoints": [point]}});
        resources.entry(owner(sample)).or_default().push(metric);
    }
    let resource = |(owner, metrics): ([String; 6], Vec<Value>)| {
        let keys = [
            "k8s.namespace.name",
            "k8s.pod.name",
            "k8s.pod.uid",
            "k8s.container.name",
            "container.id",
            "k8s.volume.name",
        ];
        let own = keys.into_iter().zip(owner.iter().map(String::as_str));
        let attributes = attributes(std::iter::once(("k8s.node.name", node)).chain(own));
        json!({"resource": {"attributes": attributes},
            "scopeMetrics": [{"scope": {"name": "oxalyst"}, "metrics": metrics}]})
    };
    json!({"resourceMetrics": resources.into_iter().map(resource).collect::<Vec<_>>()})
}

fn owner(sample: Sample) -> [String; 6] {
    let volume = if sample.scope() == Scope::Volume { sample.instance } else { String::new() };
    [sample.namespace, sample.pod, sample.pod_uid, sample.container, sample.container_id, volume]
}

/// What is not known is left out.
fn attributes<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Value {
    let known = pairs.into_iter().filter(|(_, value)| !value.is_empty());
    known.map(|(key, value)| json!({"key": key, "value": {"stringValue": value}})).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn current_values_stand_under_their_conventional_names_and_owners() {
        let info = |name: &str, otel: &str, unit: &str| MetricInfo {
            name: name.into(),
            otel_name: otel.into(),
            otel_unit: unit.into(),
            ..MetricInfo::default()
        };
        let metrics = [
            info("cpu.usage.container", "container.cpu.usage", "{cpu}"),
            info("mem.rss.container", "container.memory.rss", "By"),
            info("pids.container", "", ""),
        ];
        assert_eq!(query(&metrics).metrics, ["cpu.usage.container", "mem.rss.container"]);
        let sample = |metric: &str, value, quality: Quality| Sample {
            metric: metric.into(),
            container_id: "c1".into(),
            pod: "web".into(),
            value,
            time_unix_ns: 5,
            source: "cgroup-v2".into(),
            quality: quality.into(),
            ..Sample::default()
        };
        let samples = vec![
            sample("cpu.usage.container", Some(1.5), Quality::Fresh),
            sample("mem.rss.container", Some(1.0), Quality::Stale),
            sample("mem.rss.container", None, Quality::Missing),
        ];
        let point = json!({"timeUnixNano": "5", "asDouble": 1.5,
            "attributes": [{"key": "oxalyst.source", "value": {"stringValue": "cgroup-v2"}}]});
        let metric = json!({"name": "container.cpu.usage", "unit": "{cpu}", "description": "", "gauge": {"dataPoints": [point]}});
        let attributes = json!([{"key": "k8s.node.name", "value": {"stringValue": "n1"}},
            {"key": "k8s.pod.name", "value": {"stringValue": "web"}},
            {"key": "container.id", "value": {"stringValue": "c1"}}]);
        assert_eq!(
            request(&metrics, QueryReply { samples, now_unix_ms: 1 }, "n1"),
            json!({"resourceMetrics": [{"resource": {"attributes": attributes},
                "scopeMetrics": [{"scope": {"name": "oxalyst"}, "metrics": [metric]}]}]})
        );
    }
}
