//! From what is known to what was asked for. Pure: snapshot, names and time are given.

use std::collections::BTreeSet;
use std::time::Duration;

use oxalyst_proto::metrics::v1 as proto;

use crate::catalogue::{self, Metric, Scope};
use crate::clock::Now;
use crate::names::Known;
use crate::sample::{Ages, Quality};
use crate::store::{Snapshot, Subject};

/// A name that is in no catalogue.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no metric {0:?}: `oxctl metrics` without a name shows those that are")]
pub struct UnknownMetric(pub String);

/// Answers a query. Containers come in the order of their cgroups, the node first, metrics in the catalogue's order.
///
/// With `ids` the node is part of the answer only if its scope is asked for by name.
///
/// # Errors
/// [`UnknownMetric`] for a name that is in no catalogue.
pub fn samples(
    snapshot: &Snapshot,
    known: &Known,
    request: &proto::QueryRequest,
    now: Now,
    default: Ages,
) -> Result<Vec<proto::Sample>, UnknownMetric> {
    if let Some(unknown) = request.metrics.iter().find(|name| catalogue::find(name).is_none()) {
        return Err(UnknownMetric(unknown.clone()));
    }
    let names: BTreeSet<&str> = request.metrics.iter().map(String::as_str).collect();
    let ids: BTreeSet<&str> = request.ids.iter().map(String::as_str).collect();
    let asked = |scope: proto::Scope| request.scopes.contains(&(scope as i32));
    let ages = Ages { max_age: request.max_age_ms.map_or(default.max_age, Duration::from_millis), ..default };
    let mut samples = Vec::new();
    let mut tell = |subject: &Subject, scope: Scope, trouble: Option<&str>| {
        for (metric, cell) in catalogue::of(scope).iter().zip(&subject.cells) {
            if names.is_empty() || names.contains(metric.name) {
                let judged = cell.judge(now, ages, subject.removed.is_some(), trouble);
                samples.push(sample(snapshot, known, subject, metric, judged));
            }
        }
    };
    if asked(proto::Scope::Node) || (request.scopes.is_empty() && ids.is_empty()) {
        tell(&snapshot.node, Scope::Node, None);
    }
    if asked(proto::Scope::Container) || request.scopes.is_empty() {
        for subject in &snapshot.containers {
            let uid = pod_uid(subject, known);
            if ids.is_empty() || ids.contains(subject.id.container_id.as_str()) || ids.contains(uid) {
                tell(subject, Scope::Container, snapshot.pass.trouble.as_deref());
            }
        }
    }
    Ok(samples)
}

/// What the runtime told of a pod's UID outweighs what a directory's name suggests.
fn pod_uid<'a>(subject: &'a Subject, known: &'a Known) -> &'a str {
    known.by_container.get(&subject.id.container_id).map_or(&subject.id.pod_uid, |n| &n.pod_uid)
}

fn sample(
    snapshot: &Snapshot,
    known: &Known,
    subject: &Subject,
    metric: &Metric,
    judged: crate::sample::Judged,
) -> proto::Sample {
    let name = known.by_container.get(&subject.id.container_id);
    let (scope, source) = match metric.scope {
        Scope::Node => (proto::Scope::Node, "proc"),
        Scope::Container => (proto::Scope::Container, snapshot.cgroup_source()),
    };
    let quality = match judged.quality {
        Quality::Fresh => proto::Quality::Fresh,
        Quality::Stale => proto::Quality::Stale,
        Quality::Missing => proto::Quality::Missing,
    };
    proto::Sample {
        metric: metric.name.to_owned(),
        scope: scope.into(),
        container_id: subject.id.container_id.clone(),
        pod_uid: pod_uid(subject, known).to_owned(),
        namespace: name.map(|n| n.namespace.clone()).unwrap_or_default(),
        pod: name.map(|n| n.pod.clone()).unwrap_or_default(),
        container: name.map(|n| n.container.clone()).unwrap_or_default(),
        value: judged.value,
        unit: metric.unit.name().to_owned(),
        source: source.to_owned(),
        time_unix_ns: judged.at.map_or(0, |at| at.unix_ns),
        age_ms: millis(judged.age),
        quality: quality.into(),
        reason: judged.reason,
        interval_ms: millis(judged.interval),
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// What can be measured.
pub fn metrics() -> Vec<proto::MetricInfo> {
    let info = |metric: &Metric| {
        let told = |origin| matches!(origin, catalogue::Origin::From(_));
        let sources: Vec<String> = match metric.scope {
            Scope::Node => vec!["proc".to_owned()],
            Scope::Container => [("cgroup-v2", metric.v2), ("cgroup-v1", metric.v1)]
                .into_iter()
                .filter(|(_, origin)| told(*origin))
                .map(|(source, _)| source.to_owned())
                .collect(),
        };
        let scope = match metric.scope {
            Scope::Node => proto::Scope::Node,
            Scope::Container => proto::Scope::Container,
        };
        proto::MetricInfo {
            name: metric.name.to_owned(),
            unit: metric.unit.name().to_owned(),
            scope: scope.into(),
            help: metric.help.to_owned(),
            sources,
        }
    };
    catalogue::NODE.iter().chain(catalogue::CONTAINER).map(info).collect()
}

/// The health of the sources. Both are read in one pass.
pub fn sources(snapshot: &Snapshot, period: Duration) -> Vec<proto::SourceInfo> {
    let pass = &snapshot.pass;
    let info = |name: &str, subjects: usize, open_files: usize, error: String| proto::SourceInfo {
        name: name.to_owned(),
        period_ms: millis(period),
        last_pass_unix_ms: pass.finished.map_or(0, Now::unix_ms),
        last_pass_us: u64::try_from(pass.took.as_micros()).unwrap_or(u64::MAX),
        subjects: subjects as u64,
        open_files: open_files as u64,
        error,
    };
    let error = pass.trouble.as_deref().or(pass.failure.as_deref()).unwrap_or_default().to_owned();
    vec![
        info(snapshot.cgroup_source(), snapshot.containers.len(), pass.open_files, error),
        info("proc", 1, 0, String::new()),
    ]
}
