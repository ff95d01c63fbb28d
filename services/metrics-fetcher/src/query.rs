//! From what is known to what was asked for. Pure: snapshot, names and time are given.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use oxalyst_proto::metrics::v1 as proto;

use crate::catalogue::{self, Metric, Scope};
use crate::clock::Now;
use crate::names::{Known, Name};
use crate::otel;
use crate::pushed::{Label, Told};
use crate::rank::{Ranking, available, ranked};
use crate::sample::{Ages, Cell, Judged, Quality};
use crate::settings::SetUp;
use crate::sources::cgroup::Schedule;
use crate::store::{Layer, Snapshot, Source, Subject, View};

/// A question about what there is not.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    /// A name that is in no catalogue.
    #[error("there is no metric {0:?}: `oxctl metrics` without a name shows those that are")]
    Metric(String),
    /// A number that is no scope.
    #[error("there is no scope {0}: it must be one of 1..=10, as the contract names them")]
    Scope(i32),
}

/// What holds for every answer.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Ages of what cgroups and `/proc` tell, where a request names none.
    pub ages: Ages,
    /// Which source is the best.
    pub ranking: Ranking,
}

/// What an answer is made of.
#[derive(Debug)]
struct Asked<'a> {
    view: &'a View,
    known: &'a Known,
    /// By scope. Found once for all subjects: a container has a hundred rows, and a question is for three of them.
    rows: BTreeMap<Scope, Vec<Row>>,
    max_age: Option<Duration>,
    terms: Terms,
    now: Now,
}

/// A row of the catalogue that is asked for.
#[derive(Debug)]
struct Row {
    place: usize,
    metric: &'static Metric,
    /// Its sources on this machine, best first.
    ranked: [Option<Source>; 7],
}

/// Whom samples are about, and what of it is the same for all of them.
struct About<'a> {
    subject: &'a Subject,
    gone: bool,
    /// The sources beside cgroups and `/proc` that know it.
    layers: Vec<(&'a Layer, &'a Subject)>,
    /// It stands in one of these itself, so cgroups and `/proc` do not know it.
    foreign: bool,
    name: Option<&'a Name>,
    instance: String,
}

/// Who is there, as cgroups tell: of containers and cgroups no other source is to be believed longer.
struct There<'a> {
    /// By id; whether it was removed.
    containers: BTreeMap<&'a str, bool>,
    cgroups: BTreeSet<&'a str>,
}

/// A judged value and where it comes from.
struct Chosen<'a> {
    judged: Judged,
    source: Source,
    subject: &'a Subject,
}

/// Answers a query. The node comes first, then its parts and cgroups, then containers in the order of their cgroups,
/// then their parts; metrics in the catalogue's order.
///
/// With `ids` the node and its parts are in the answer only if their scope is asked for by name.
///
/// # Errors
/// [`Unknown`] for a name that is in no catalogue, and for what is no scope.
pub fn samples(
    view: &View,
    known: &Known,
    request: &proto::QueryRequest,
    now: Now,
    terms: Terms,
) -> Result<Vec<proto::Sample>, Unknown> {
    // A name with a slash is one that somebody may push.
    let known_name = |name: &String| name.contains('/') || catalogue::find(name).is_some();
    if let Some(unknown) = request.metrics.iter().find(|name| !known_name(name)) {
        return Err(Unknown::Metric(unknown.clone()));
    }
    if let Some(given) = request.scopes.iter().find(|given| !names_scope(**given)) {
        return Err(Unknown::Scope(*given));
    }
    let names: BTreeSet<&str> = request.metrics.iter().map(String::as_str).collect();
    let ids: BTreeSet<&str> = request.ids.iter().map(String::as_str).collect();
    let max_age = request.max_age_ms.map(Duration::from_millis);
    let row = |(place, metric): (usize, &'static Metric)| Row {
        place,
        metric,
        ranked: ranked(metric, (view.kernel.unified, view.kernel.hybrid), terms.ranking),
    };
    let rows_of = |scope: Scope| {
        let rows = catalogue::of(scope).iter().enumerate();
        (scope, rows.filter(|(_, m)| names.is_empty() || names.contains(m.name)).map(row).collect())
    };
    let asked_scopes = Scope::ALL
        .into_iter()
        .filter(|s| request.scopes.is_empty() || request.scopes.contains(&(scope(*s) as i32)));
    let rows: BTreeMap<Scope, Vec<Row>> =
        asked_scopes.map(rows_of).filter(|(_, rows): &(_, Vec<_>)| !rows.is_empty()).collect();
    let asked = Asked { view, known, rows, max_age, terms, now };
    let wanted = |subject: &Subject| {
        if !asked.rows.contains_key(&subject.scope) {
            return false;
        }
        let named = request.scopes.contains(&(scope(subject.scope) as i32));
        if subject.id.container_id.is_empty() && subject.id.pod_uid.is_empty() {
            return named || (request.scopes.is_empty() && ids.is_empty());
        }
        let fits = ids.is_empty()
            || ids.contains(subject.id.container_id.as_str())
            || ids.contains(pod_uid(subject, known));
        fits && (named || request.scopes.is_empty())
    };
    let mut samples = Vec::new();
    for subject in view.kernel.subjects().filter(|s| wanted(s)) {
        asked.tell(subject, subject.removed.is_some(), &mut samples);
    }
    // Whom cgroups and /proc do not know: volumes, and containers that only another source sees.
    let of_layers: Vec<&Arc<Subject>> =
        view.layers.iter().flat_map(|l| &l.subjects).filter(|s| wanted(s)).collect();
    if !of_layers.is_empty() {
        let kernel = view.kernel.subjects().filter(|s| asked.rows.contains_key(&s.scope));
        let mut told: HashSet<_> = kernel.map(|s| s.key()).collect();
        let mut there = None;
        for subject in of_layers {
            if told.insert(subject.key()) {
                let there = there.get_or_insert_with(|| There::of(&view.kernel));
                let mut tellers = view.layers.iter().filter_map(|l| Some((l.source, l.find(subject.key())?)));
                let gone = tellers.all(|(source, subject)| there.is_gone(source, subject));
                asked.tell(subject, gone, &mut samples);
            }
        }
    }
    Ok(samples)
}

// === impl There ===

impl<'a> There<'a> {
    fn of(kernel: &'a Snapshot) -> Self {
        let containers = kernel.containers.iter().map(|s| (s.id.container_id.as_str(), s.removed.is_some()));
        let cgroups = kernel.parts.iter().filter(|s| s.scope == Scope::Cgroup);
        Self { containers: containers.collect(), cgroups: cgroups.map(|s| s.id.cgroup.as_str()).collect() }
    }

    /// Whether what a source tells is of somebody who is gone. Only the kubelet knows containers by itself; all others
    /// are asked about those that cgroups have told of.
    fn is_gone(&self, source: Source, subject: &Subject) -> bool {
        match subject.scope {
            Scope::Container | Scope::ContainerNuma => {
                let removed = self.containers.get(subject.id.container_id.as_str()).copied();
                removed.unwrap_or(source != Source::Kubelet || subject.removed.is_some())
            }
            Scope::Cgroup | Scope::CgroupNuma => !self.cgroups.contains(subject.id.cgroup.as_str()),
            _ => subject.removed.is_some(),
        }
    }
}

// === impl Asked ===

impl<'a> Asked<'a> {
    fn tell(&self, subject: &'a Subject, gone: bool, samples: &mut Vec<proto::Sample>) {
        let key = subject.key();
        let layers = self.view.layers.iter().filter_map(|l| Some((&**l, &**l.find(key)?)));
        let layers: Vec<_> = layers.collect();
        let about = About {
            subject,
            gone,
            foreign: layers.iter().any(|(_, s)| std::ptr::eq(*s, subject)),
            layers,
            name: self.known.by_container.get(&subject.id.container_id),
            instance: subject.id.instance.to_string(),
        };
        for row in self.rows.get(&subject.scope).into_iter().flatten() {
            let chosen = self.choose(&about, row);
            samples.push(self.sample(&about, row.metric, chosen));
        }
    }

    /// The value of the best source that has a current one; else the least bad. Every source makes its own rates, so
    /// that none spans two of them. Of one that is gone nobody has a current one, whoever still tells it.
    fn choose(&self, about: &About<'a>, row: &Row) -> Chosen<'a> {
        let mut best: Option<Chosen<'a>> = None;
        let mut better_could = false;
        for source in row.ranked.into_iter().flatten() {
            let Some(mut chosen) = self.judged(source, about, row.place) else {
                better_could = true;
                continue;
            };
            if chosen.judged.quality == Quality::Fresh && better_could {
                chosen.judged.quality = Quality::Fallback;
            }
            better_could = true;
            let current = chosen.judged.quality.is_current();
            if best.as_ref().is_none_or(|b| rank(chosen.judged.quality) < rank(b.judged.quality)) {
                best = Some(chosen);
            }
            if current {
                break;
            }
        }
        best.or_else(|| self.judged(Source::Kernel, about, row.place)).unwrap_or_else(|| {
            let why = Some("no source tells it here");
            let missing = Cell::default().judge(self.now, self.terms.ages, about.gone, why);
            Chosen { judged: missing, source: Source::Kernel, subject: about.subject }
        })
    }

    /// What one source tells; `None` if it does not know the subject.
    fn judged(&self, source: Source, about: &About<'a>, place: usize) -> Option<Chosen<'a>> {
        let (subject, ages, trouble) = match source {
            Source::Kernel if about.foreign => return None,
            Source::Kernel => {
                let node = matches!(about.subject.scope, Scope::Node);
                let trouble = self.view.kernel.pass.trouble.as_deref().filter(|_| !node);
                (about.subject, self.terms.ages, trouble)
            }
            _ => {
                let (layer, subject) = about.layers.iter().find(|(layer, _)| layer.source == source)?;
                (*subject, layer.ages, layer.pass.trouble.as_deref())
            }
        };
        let cell = subject.cells.get(place)?;
        let ages = if source == Source::Kernel { ages.of(cell) } else { ages };
        let ages = Ages { max_age: self.max_age.unwrap_or(ages.max_age), ..ages };
        let judged = cell.judge(self.now, ages, about.gone, trouble);
        Some(Chosen { judged, source, subject })
    }

    fn sample(&self, about: &About<'a>, metric: &Metric, chosen: Chosen<'_>) -> proto::Sample {
        let Chosen { judged, source, subject } = chosen;
        let name = about.name;
        let exact = source != Source::Kernel || judged.value.is_none();
        proto::Sample {
            metric: metric.name.to_owned(),
            scope: scope(metric.scope).into(),
            container_id: subject.id.container_id.clone(),
            pod_uid: name.map_or(&subject.id.pod_uid, |n| &n.pod_uid).clone(),
            namespace: name.map(|n| n.namespace.clone()).unwrap_or_default(),
            pod: name.map(|n| n.pod.clone()).unwrap_or_default(),
            container: name.map(|n| n.container.clone()).unwrap_or_default(),
            value: judged.value,
            unit: metric.unit.name().to_owned(),
            source: source_name(source, metric.scope, &self.view.kernel).to_owned(),
            time_unix_ns: judged.at.map_or(0, |at| at.unix_ns),
            age_ms: millis(judged.age),
            quality: quality(judged.quality).into(),
            reason: judged.reason,
            interval_ms: millis(judged.interval),
            instance: about.instance.clone(),
            cgroup: subject.id.cgroup.clone(),
            read_time_unix_ns: subject.read.map_or(0, |at| at.unix_ns),
            cycle: subject.cycle,
            resolution: if exact { None } else { metric.resolution(judged.interval) },
            removed: about.gone,
        }
    }
}

/// Those of the pushed values that a query asks for.
pub fn pushed<'a>(
    told: &'a [Told],
    known: &'a Known,
    request: &'a proto::QueryRequest,
    now: Now,
) -> impl Iterator<Item = proto::Sample> + 'a {
    let wanted = |label: &Label| {
        let owned = !label.container_id.is_empty() || !label.pod_uid.is_empty();
        let ids = &request.ids;
        (request.metrics.is_empty() || request.metrics.contains(&label.metric))
            && (request.scopes.is_empty() || request.scopes.contains(&label.scope))
            && (ids.is_empty()
                || owned && (ids.contains(&label.container_id) || ids.contains(&label.pod_uid)))
    };
    told.iter().flat_map(move |source| {
        let ages = source.ages();
        let max_age = request.max_age_ms.map_or(ages.max_age, Duration::from_millis);
        source.values.iter().filter(move |(label, _)| wanted(label)).map(move |(label, held)| {
            let judged = held.cell.judge(now, Ages { max_age, ..ages }, false, None);
            let name = known.by_container.get(&label.container_id);
            proto::Sample {
                metric: label.metric.clone(),
                scope: label.scope,
                container_id: label.container_id.clone(),
                pod_uid: name.map_or(&label.pod_uid, |n| &n.pod_uid).clone(),
                namespace: name.map(|n| n.namespace.clone()).unwrap_or_default(),
                pod: name.map(|n| n.pod.clone()).unwrap_or_default(),
                container: name.map(|n| n.container.clone()).unwrap_or_default(),
                value: judged.value,
                unit: held.unit.clone(),
                source: source.source.clone(),
                time_unix_ns: judged.at.map_or(0, |at| at.unix_ns),
                age_ms: millis(judged.age),
                quality: quality(judged.quality).into(),
                reason: judged.reason,
                instance: label.instance.clone(),
                cgroup: label.cgroup.clone(),
                read_time_unix_ns: held.read.unix_ns,
                cycle: held.cycle,
                ..proto::Sample::default()
            }
        })
    })
}

/// The health of a source that pushes.
pub fn pushing(told: &Told) -> proto::SourceInfo {
    proto::SourceInfo {
        name: told.source.clone(),
        period_ms: millis(told.period),
        last_pass_unix_ms: told.last.unix_ms(),
        subjects: told.values.len() as u64,
        ..proto::SourceInfo::default()
    }
}

fn quality(quality: Quality) -> proto::Quality {
    match quality {
        Quality::Fresh => proto::Quality::Fresh,
        Quality::Clamped => proto::Quality::Clamped,
        Quality::Fallback => proto::Quality::Fallback,
        Quality::Stale => proto::Quality::Stale,
        Quality::Missing => proto::Quality::Missing,
        Quality::Reset => proto::Quality::Reset,
    }
}

/// What is better comes first.
fn rank(quality: Quality) -> u8 {
    match quality {
        Quality::Fresh => 0,
        Quality::Clamped => 1,
        Quality::Fallback => 2,
        Quality::Stale => 3,
        Quality::Reset => 4,
        Quality::Missing => 5,
    }
}

/// What the runtime told of a pod's UID outweighs what a directory's name suggests.
fn pod_uid<'a>(subject: &'a Subject, known: &'a Known) -> &'a str {
    known.by_container.get(&subject.id.container_id).map_or(&subject.id.pod_uid, |n| &n.pod_uid)
}

fn scope(scope: Scope) -> proto::Scope {
    match scope {
        Scope::Node => proto::Scope::Node,
        Scope::Numa => proto::Scope::Numa,
        Scope::Cpu => proto::Scope::Cpu,
        Scope::Device => proto::Scope::Device,
        Scope::Network => proto::Scope::Network,
        Scope::Cgroup => proto::Scope::Cgroup,
        Scope::CgroupNuma => proto::Scope::CgroupNuma,
        Scope::Container => proto::Scope::Container,
        Scope::ContainerNuma => proto::Scope::ContainerNuma,
        Scope::Volume => proto::Scope::Volume,
    }
}

/// Whether a number is a scope of the contract.
pub fn names_scope(given: i32) -> bool {
    proto::Scope::try_from(given).is_ok_and(|scope| scope != proto::Scope::Unspecified)
}

/// Whether the kernel's files of a scope are those of cgroups.
fn of_cgroups(scope: Scope) -> bool {
    matches!(scope, Scope::Container | Scope::ContainerNuma | Scope::Cgroup | Scope::CgroupNuma)
}

fn source_name(source: Source, scope: Scope, kernel: &Snapshot) -> &'static str {
    match source {
        Source::Kernel if of_cgroups(scope) => kernel.cgroup_source(),
        Source::Kernel => "proc",
        other => other.name(),
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// What can be measured.
pub fn metrics() -> Vec<proto::MetricInfo> {
    let info = |metric: &Metric| {
        let availability: Vec<_> = available(metric)
            .into_iter()
            .filter(|(source, _)| of_cgroups(metric.scope) || !source.starts_with("cgroup-"))
            .filter(|(source, _)| !of_cgroups(metric.scope) || *source != "proc")
            .map(|(source, told)| proto::Availability {
                source: source.to_owned(),
                available: told.is_ok(),
                reason: told.err().unwrap_or_default().to_owned(),
            })
            .collect();
        let mut sources: Vec<String> = Vec::new();
        for told in availability.iter().filter(|a| a.available) {
            let name = if told.source.starts_with("malachite-v") { "malachite" } else { &told.source };
            if !sources.iter().any(|s| s == name) {
                sources.push(name.to_owned());
            }
        }
        proto::MetricInfo {
            name: metric.name.to_owned(),
            unit: metric.unit.name().to_owned(),
            scope: scope(metric.scope).into(),
            help: metric.help.to_owned(),
            sources,
            availability,
            history: metric.history,
            otel_name: otel::name(metric.name).map(|(name, _)| name.to_owned()).unwrap_or_default(),
            otel_unit: otel::name(metric.name).map(|(_, unit)| unit.to_owned()).unwrap_or_default(),
        }
    };
    catalogue::all().map(info).collect()
}

/// The health of the sources. cgroups and `/proc` are read in one pass.
pub fn sources(view: &View, schedule: Schedule, set_up: &[SetUp]) -> Vec<proto::SourceInfo> {
    let pass = &view.kernel.pass;
    let base = proto::SourceInfo {
        period_ms: millis(schedule.period),
        deadline_ms: millis(schedule.read_deadline),
        required: true,
        last_pass_unix_ms: pass.finished.map_or(0, Now::unix_ms),
        last_pass_us: u64::try_from(pass.took.as_micros()).unwrap_or(u64::MAX),
        last_pass_cpu_us: pass.cpu.map_or(0, |cpu| u64::try_from(cpu.as_micros()).unwrap_or(u64::MAX)),
        ..proto::SourceInfo::default()
    };
    let mut all = vec![
        proto::SourceInfo {
            name: view.kernel.cgroup_source().to_owned(),
            subjects: view.kernel.containers.len() as u64,
            open_files: pass.open_files as u64,
            error: pass.trouble.as_deref().or(pass.failure.as_deref()).unwrap_or_default().to_owned(),
            removed_total: pass.removed,
            late_reads_total: pass.late,
            ..base.clone()
        },
        proto::SourceInfo {
            name: "proc".to_owned(),
            subjects: 1,
            error: pass.node_failure.as_deref().unwrap_or_default().to_owned(),
            ..base
        },
    ];
    let of = |source| set_up.iter().find(|s| s.source == source);
    all.extend(view.layers.iter().map(|layer| proto::SourceInfo {
        name: layer.source.name().to_owned(),
        deadline_ms: of(layer.source).map_or(0, |s| millis(s.deadline)),
        required: of(layer.source).is_some_and(|s| s.required),
        period_ms: millis(layer.period),
        last_pass_unix_ms: layer.pass.finished.map_or(0, Now::unix_ms),
        last_pass_us: u64::try_from(layer.pass.took.as_micros()).unwrap_or(u64::MAX),
        subjects: layer.subjects.len() as u64,
        error: layer.pass.trouble.as_deref().or(layer.pass.failure.as_deref()).unwrap_or_default().to_owned(),
        stale_total: layer.stale_total,
        ..proto::SourceInfo::default()
    }));
    let awaited = |s: &&SetUp| s.expected && !view.layers.iter().any(|layer| layer.source == s.source);
    all.extend(set_up.iter().filter(awaited).map(|s| proto::SourceInfo {
        name: s.source.name().to_owned(),
        period_ms: millis(s.period),
        deadline_ms: millis(s.deadline),
        required: s.required,
        error: "it has not told anything yet".to_owned(),
        ..proto::SourceInfo::default()
    }));
    all
}
