//! The kubelet's `/stats/summary`.

use jiff::Timestamp;
use serde_json::Value;

use super::fold::{Block, Fold};
use super::http::{Client, FetchError};
use crate::catalogue::Scope;
use crate::names::Known;
use crate::store::{Id, Instance};

/// Passes after which a pod that the kubelet tells no more is forgotten.
const FORGET: u64 = 10;

/// One pass: the summary is asked for and folded. A failure leaves everything as it was, ageing.
pub(super) async fn pass(client: &Client, fold: &mut Fold, known: &Known) -> Result<(), FetchError> {
    let summary = client.get("/stats/summary").await?;
    take(&summary, fold, known);
    // Without a list of pods it says nothing of who is there.
    if summary.get("pods").is_some_and(Value::is_array) {
        fold.bury();
    }
    fold.forget(FORGET);
    Ok(())
}

/// Folds a summary. What is unknown or missing in it does not matter.
pub(super) fn take(summary: &Value, fold: &mut Fold, known: &Known) {
    if let Some(node) = summary.get("node") {
        let mut blocks: Vec<Block<'_>> = block(node, "fs").into_iter().collect();
        if let Some(image) = node.pointer("/runtime/imageFs") {
            blocks.push(Block { name: "imageFs", value: image, unix_ns: time(image) });
        }
        fold.take(Scope::Node, Id::default(), false, &blocks);
    }
    for pod in list(summary, "pods") {
        let Some(uid) = pod.pointer("/podRef/uid").and_then(Value::as_str) else { continue };
        for volume in list(pod, "volume") {
            let Some(name) = volume.get("name").and_then(Value::as_str) else { continue };
            let instance = Instance::Name(name.into());
            let id = Id { pod_uid: uid.to_owned(), instance, ..Id::default() };
            fold.take(
                Scope::Volume,
                id,
                false,
                &[Block { name: "volume", value: volume, unix_ns: time(volume) }],
            );
        }
        for container in list(pod, "containers") {
            let name = container.get("name").and_then(Value::as_str);
            // The kubelet tells names, not ids: without the meta-server nobody can say which container it means.
            let Some(container_id) = name.and_then(|name| known.container_id(uid, name)) else { continue };
            let id = Id { container_id: container_id.to_owned(), pod_uid: uid.to_owned(), ..Id::default() };
            let blocks =
                ["cpu", "memory", "rootfs", "logs"].into_iter().filter_map(|name| block(container, name));
            fold.take(Scope::Container, id, false, &blocks.collect::<Vec<_>>());
        }
    }
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value.get(key).and_then(Value::as_array).into_iter().flatten()
}

fn block<'a>(value: &'a Value, name: &'static str) -> Option<Block<'a>> {
    let value = value.get(name)?;
    Some(Block { name, value, unix_ns: time(value) })
}

/// A date before 1970 is one that was never set.
fn time(block: &Value) -> Option<i64> {
    let stamp: Timestamp = block.get("time")?.as_str()?.parse().ok()?;
    i64::try_from(stamp.as_nanosecond()).ok().filter(|ns| *ns > 0)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::catalogue;
    use crate::clock::Now;
    use crate::names::Name;
    use crate::sample::{Absent, Cell};
    use crate::store::Source;

    fn known() -> Known {
        let mut known = Known::default();
        let name =
            Name { pod_uid: "u1".into(), namespace: "ns".into(), pod: "p".into(), container: "app".into() };
        known.by_container.insert("c1".into(), name);
        known
    }

    fn cell(fold: &Fold, scope: Scope, metric: &str) -> Cell {
        let subjects = fold.subjects();
        let subject = subjects.iter().find(|s| s.scope == scope).unwrap();
        subject.cells.get(catalogue::find(metric).unwrap().0).unwrap().clone()
    }

    fn at(seconds: u64) -> Now {
        Now {
            monotonic_ns: seconds * 1_000_000_000,
            unix_ns: 1_767_225_600_000_000_000 + (seconds * 1_000_000_000) as i64,
        }
    }

    #[test]
    fn t30_a_volume_tells_what_is_there_and_logs_never_their_used_bytes() {
        let mut fold = Fold::new(Source::Kubelet, Duration::from_secs(15));
        fold.begin(at(100));
        let time = "2026-01-01T00:01:39Z";
        let summary = json!({"pods": [{"podRef": {"uid": "u1"},
            "volume": [{"name": "v", "time": time, "availableBytes": 10, "capacityBytes": 20, "usedBytes": 10, "inodesFree": null}],
            "containers": [{"name": "app", "logs": {"time": time, "usedBytes": 5, "availableBytes": 7}}]}]});
        take(&summary, &mut fold, &known());
        let value = |metric| cell(&fold, Scope::Volume, metric).last.map(|r| r.value);
        assert_eq!(value("available.volume.pod.container"), Some(10.0));
        assert_eq!(
            (value("capacity.volume.pod.container"), value("used.volume.pod.container")),
            (Some(20.0), Some(10.0))
        );
        assert_eq!(value("free.inodes.volume.pod.container"), None);
        let logs = cell(&fold, Scope::Container, "available.logs.container").last.unwrap();
        assert_eq!(
            (logs.value, at(100).since(logs.at)),
            (7.0, Duration::from_secs(1)),
            "as old as the source says"
        );
        assert!(catalogue::find("used.logs.container").is_none());
    }

    #[test]
    fn m08_a_volume_that_is_told_no_more_is_gone_and_one_that_comes_back_is_there() {
        let mut fold = Fold::new(Source::Kubelet, Duration::from_secs(15));
        let mut gone = |seconds, pods: Value| {
            fold.begin(at(seconds));
            take(&json!({"pods": pods}), &mut fold, &known());
            fold.bury();
            fold.subjects().iter().filter(|s| s.scope == Scope::Volume).map(|s| s.removed).collect::<Vec<_>>()
        };
        let pod = json!([{"podRef": {"uid": "u1"}, "volume": [{"name": "v", "time": "2026-01-01T00:01:39Z", "usedBytes": 10}]}]);
        assert_eq!(gone(100, pod.clone()), [None]);
        assert_eq!(gone(110, json!([])), [Some(at(110))]);
        assert_eq!(gone(120, json!([])), [Some(at(110))]);
        assert_eq!(gone(130, pod), [None]);
    }

    #[test]
    fn m05_a_date_that_was_never_set_gives_no_value_and_no_rate() {
        let mut fold = Fold::new(Source::Kubelet, Duration::from_secs(15));
        for (seconds, ns) in [(100, 1_000_000_000u64), (105, 99_000_000_000)] {
            fold.begin(at(seconds));
            let cpu = json!({"time": "0001-01-01T00:00:00Z", "usageCoreNanoSeconds": ns});
            take(
                &json!({"pods": [{"podRef": {"uid": "u1"}, "containers": [{"name": "app", "cpu": cpu}]}]}),
                &mut fold,
                &known(),
            );
        }
        let cell = cell(&fold, Scope::Container, "cpu.usage.container");
        assert_eq!((cell.last, cell.absent), (None, Some(Absent::NoSourceTime)));
    }

    #[test]
    fn m12_a_counter_has_no_rate_at_first_and_then_that_of_the_sources_own_time() {
        let mut fold = Fold::new(Source::Kubelet, Duration::from_secs(15));
        let mut pass = |seconds, time: &str, ns: u64| {
            fold.begin(at(seconds));
            let cpu = json!({"time": time, "usageCoreNanoSeconds": ns});
            take(
                &json!({"pods": [{"podRef": {"uid": "u1"}, "containers": [{"name": "app", "cpu": cpu}]}]}),
                &mut fold,
                &known(),
            );
            cell(&fold, Scope::Container, "cpu.usage.container")
        };
        let first = pass(100, "2026-01-01T00:01:30Z", 1_000_000_000);
        assert_eq!((first.last, first.absent), (None, Some(Absent::FirstReading)));
        // Read five seconds later, and ten seconds of the source.
        let second = pass(105, "2026-01-01T00:01:40Z", 6_000_000_000).last.unwrap();
        assert_eq!((second.value, second.interval()), (0.5, Duration::from_secs(10)));
        let same = pass(110, "2026-01-01T00:01:40Z", 6_000_000_000).last.unwrap();
        assert_eq!(same, second, "the source did not advance");
    }
}
