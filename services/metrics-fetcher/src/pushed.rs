//! Values that others have measured and push: told beside the catalogue, never in its place, judged by the same ages.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use oxalyst_proto::metrics::v1 as proto;

use crate::clock::Now;
use crate::query::names_scope;
use crate::sample::{Absent, Ages, Cell, Reading};
use crate::store;

/// Sources that push, at most.
pub const SOURCES: usize = 16;
/// Values of one source, at most.
pub const VALUES: usize = 4096;
/// Periods after which a value is told no more, as of the other sources.
const WITHDRAW: u32 = 180;
/// A date is earlier than the one before if it is so by more than this: so much the date here may have been corrected by.
const BACK: Duration = Duration::from_millis(500);
/// What names one value may be as long as this, all together, in bytes.
const NAMED: usize = 1024;
/// What `/proc` and both versions of cgroups are called.
const KERNEL: [&str; 3] = ["cgroup-v1", "cgroup-v2", "proc"];

/// A push that is not taken; nothing of it is.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PushError {
    /// A name.
    #[error("{what} {given:?}: it must be {must}")]
    Name {
        /// Of what.
        what: &'static str,
        /// As given.
        given: String,
        /// The rule.
        must: &'static str,
    },
    /// A period out of its range.
    #[error("period_ms is {0}: it must be within 100..=600000")]
    Period(u64),
    /// No scope.
    #[error("{metric} has scope {given}: it must be one of 1..=10, as the contract names them")]
    Scope {
        /// The metric.
        metric: String,
        /// As given.
        given: i32,
    },
    /// Nobody whom it is about.
    #[error("{metric} has {scope} and no {needs}: it must say whom it is about")]
    Nobody {
        /// The metric.
        metric: String,
        /// Its scope.
        scope: &'static str,
        /// What is empty.
        needs: &'static str,
    },
    /// NaN, or infinity.
    #[error("{metric} is {value}: a value is a finite number")]
    Value {
        /// The metric.
        metric: String,
        /// As given.
        value: f64,
    },
    /// Too many.
    #[error("{held} {what} are held: at most {most}")]
    Full {
        /// Values or sources.
        what: &'static str,
        /// With this push.
        held: usize,
        /// The bound.
        most: usize,
    },
}

/// Whom a value is about, and what it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Label {
    /// `<source>/<metric>`.
    pub metric: String,
    /// As the push says.
    pub scope: i32,
    /// Empty for all but containers.
    pub container_id: String,
    /// Empty where there is none.
    pub pod_uid: String,
    /// Empty where there is none.
    pub cgroup: String,
    /// Which part.
    pub instance: String,
}

/// One value.
#[derive(Clone, Debug)]
pub struct Held {
    /// The value.
    pub cell: Cell,
    /// As the push says.
    pub unit: String,
    /// The date that it was pushed with; 0: none.
    pub dated_unix_ns: i64,
    /// When it was pushed.
    pub read: Now,
    /// The push that brought it.
    pub cycle: u64,
}

#[derive(Debug, Default)]
struct Source {
    period: Duration,
    pushes: u64,
    last: Now,
    values: BTreeMap<Label, Held>,
}

/// What one source has pushed, at one moment.
#[derive(Clone, Debug)]
pub struct Told {
    /// Who.
    pub source: String,
    /// It pushes about so often.
    pub period: Duration,
    /// Its newest push.
    pub last: Now,
    /// Its values.
    pub values: Vec<(Label, Held)>,
}

/// Everything that was pushed.
#[derive(Debug, Default)]
pub struct Pushed {
    sources: Mutex<BTreeMap<String, Source>>,
}

// === impl Told ===

impl Told {
    /// Ages that hold where a request names none.
    pub fn ages(&self) -> Ages {
        Ages { max_age: self.period * 3, withdrawal: self.period * WITHDRAW }
    }
}

// === impl Held ===

impl Held {
    /// The same time again is no new reading, however often it is pushed; an earlier one does not replace a later one.
    fn follow(&mut self, before: &Self) {
        let (Some(old), Some(new)) = (before.cell.last, self.cell.last) else { return };
        if before.dated_unix_ns == self.dated_unix_ns {
            self.cell = Cell { last: Some(old), absent: None };
        } else if old.at.since(new.at) > BACK {
            (self.cell, self.dated_unix_ns) =
                (before.cell.after(Err(Absent::WentBack)), before.dated_unix_ns);
        }
    }
}

// === impl Pushed ===

impl Pushed {
    /// Takes a push as a whole; how many values are held of its source afterwards.
    ///
    /// # Errors
    /// [`PushError`]; then nothing of it was taken.
    pub fn take(&self, push: proto::PushRequest, now: Now) -> Result<usize, PushError> {
        let proto::PushRequest { source, period_ms, values } = push;
        name("source", &source, 63, |b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-.".contains(&b))?;
        if is_own(&source) {
            return Err(PushError::Name { what: "source", given: source, must: "none of the fetcher's own" });
        }
        if !(100..=600_000).contains(&period_ms) {
            return Err(PushError::Period(period_ms));
        }
        let taken = values.into_iter().map(|v| held(&source, v, now)).collect::<Result<Vec<_>, _>>()?;
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        forget(&mut sources, now);
        if !sources.contains_key(&source) && sources.len() >= SOURCES {
            return Err(PushError::Full { what: "sources", held: sources.len() + 1, most: SOURCES });
        }
        let known = sources.get(&source);
        let new =
            taken.iter().filter(|(label, _)| !known.is_some_and(|s| s.values.contains_key(label))).count();
        let count = known.map_or(0, |s| s.values.len()) + new;
        if count > VALUES {
            return Err(PushError::Full { what: "values", held: count, most: VALUES });
        }
        let into = sources.entry(source).or_default();
        (into.period, into.last, into.pushes) = (Duration::from_millis(period_ms), now, into.pushes + 1);
        let cycle = into.pushes;
        for (label, mut value) in taken {
            value.cycle = cycle;
            if let Some(before) = into.values.get(&label) {
                value.follow(before);
            }
            into.values.insert(label, value);
        }
        Ok(into.values.len())
    }

    /// What is held now; what is older than twenty periods is forgotten.
    pub fn told(&self, now: Now) -> Vec<Told> {
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        forget(&mut sources, now);
        let told = |(source, of): (&String, &Source)| Told {
            source: source.clone(),
            period: of.period,
            last: of.last,
            values: of.values.iter().map(|(label, held)| (label.clone(), held.clone())).collect(),
        };
        sources.iter().map(told).collect()
    }
}

/// Whether a source that pushes would be mistaken for one of the fetcher's.
fn is_own(source: &str) -> bool {
    let kernel = KERNEL.into_iter().chain([store::Source::Kernel.name()]);
    kernel.chain(store::Source::LAYERS.map(store::Source::name)).any(|own| own == source)
}

fn forget(sources: &mut BTreeMap<String, Source>, now: Now) {
    for source in sources.values_mut() {
        let most = source.period * 20;
        source.values.retain(|_, held| now.since(held.read) <= most);
    }
    sources.retain(|_, source| !source.values.is_empty());
}

fn held(source: &str, value: proto::PushedValue, now: Now) -> Result<(Label, Held), PushError> {
    let proto::PushedValue {
        metric,
        scope,
        container_id,
        pod_uid,
        cgroup,
        instance,
        value,
        unit,
        time_unix_ns,
    } = value;
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_.".contains(&b);
    name("metric", &metric, 128, plain)?;
    let Some(of) = proto::Scope::try_from(scope).ok().filter(|_| names_scope(scope)) else {
        return Err(PushError::Scope { metric, given: scope });
    };
    let owner = match of {
        proto::Scope::Container | proto::Scope::ContainerNuma => Some((&container_id, "container_id")),
        proto::Scope::Volume => Some((&pod_uid, "pod_uid")),
        proto::Scope::Cgroup | proto::Scope::CgroupNuma => Some((&cgroup, "cgroup")),
        _ => None,
    };
    if let Some((_, needs)) = owner.filter(|(owner, _)| owner.is_empty()) {
        return Err(PushError::Nobody { metric, scope: of.as_str_name(), needs });
    }
    let length = [&container_id, &pod_uid, &cgroup, &instance, &unit].iter().map(|s| s.len()).sum::<usize>();
    if length > NAMED {
        let must = "1024 bytes at most with all that names its subject";
        return Err(PushError::Name { what: "metric", given: metric, must });
    }
    if !value.is_finite() {
        return Err(PushError::Value { metric, value });
    }
    let attempt = if time_unix_ns > 0 {
        // By the monotonic clock from here on: a date that is set later makes nothing younger. One that is ahead counts from
        // now on.
        let age = u64::try_from(now.unix_ns.saturating_sub(time_unix_ns)).unwrap_or(0);
        Ok(Reading::level(value, now.earlier_by(Duration::from_nanos(age))))
    } else {
        Err(Absent::NoSourceTime)
    };
    let label =
        Label { metric: format!("{source}/{metric}"), scope, container_id, pod_uid, cgroup, instance };
    let cell = Cell::default().after(attempt);
    Ok((label, Held { cell, unit, dated_unix_ns: time_unix_ns, read: now, cycle: 0 }))
}

fn name(what: &'static str, given: &str, most: usize, fits: impl Fn(u8) -> bool) -> Result<(), PushError> {
    if (1..=most).contains(&given.len()) && given.bytes().all(fits) {
        return Ok(());
    }
    let must =
        if what == "source" { "1 to 63 of a-z, 0-9, - and ." } else { "1 to 128 of a-z, 0-9, -, _ and ." };
    Err(PushError::Name { what, given: given.chars().take(80).collect(), must })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Quality;

    fn at(seconds: u64) -> Now {
        Now { monotonic_ns: seconds * 1_000_000_000, unix_ns: (1_000 + seconds as i64) * 1_000_000_000 }
    }

    fn value(metric: &str, value: f64, seconds: i64) -> proto::PushedValue {
        let time_unix_ns = if seconds < 0 { 0 } else { (1_000 + seconds) * 1_000_000_000 };
        let scope = proto::Scope::Node.into();
        proto::PushedValue {
            metric: metric.into(),
            scope,
            value,
            time_unix_ns,
            ..proto::PushedValue::default()
        }
    }

    fn push(source: &str, values: Vec<proto::PushedValue>) -> proto::PushRequest {
        proto::PushRequest { source: source.into(), period_ms: 1000, values }
    }

    fn quality(pushed: &Pushed, metric: &str, now: Now) -> Option<Quality> {
        let told = pushed.told(now);
        let (of, (_, held)) = told
            .iter()
            .flat_map(|t| t.values.iter().map(move |v| (t, v)))
            .find(|(_, (l, _))| l.metric == metric)?;
        Some(held.cell.judge(now, of.ages(), false, None).quality)
    }

    #[test]
    fn what_is_pushed_ages_and_is_forgotten_like_all_else() {
        let pushed = Pushed::default();
        let values = vec![value("duty", 0.5, 9), value("undated", 1.0, -1)];
        assert_eq!(pushed.take(push("gpu", values), at(10)), Ok(2));
        assert_eq!(quality(&pushed, "gpu/duty", at(11)), Some(Quality::Fresh));
        assert_eq!(quality(&pushed, "gpu/undated", at(11)), Some(Quality::Missing));
        // Pushed a second late: it is as old as it says.
        assert_eq!(quality(&pushed, "gpu/duty", at(13)), Some(Quality::Stale));
        assert_eq!(quality(&pushed, "gpu/duty", at(30)), Some(Quality::Stale));
        assert_eq!(quality(&pushed, "gpu/duty", at(31)), None);
        assert!(pushed.told(at(31)).is_empty());
    }

    #[test]
    fn what_is_pushed_again_with_the_same_time_ages_though_it_is_ahead_and_an_earlier_one_changes_nothing() {
        let pushed = Pushed::default();
        let cell = |now| {
            let held = pushed.told(now)[0].values[0].1.clone();
            (held.cell.last.map(|r| (r.value, now.since(r.at).as_secs())), held.cell.absent)
        };
        for seconds in [10, 12, 14] {
            pushed.take(push("gpu", vec![value("duty", seconds as f64, 3600)]), at(seconds)).unwrap();
        }
        assert_eq!(cell(at(14)), (Some((10.0, 4)), None));
        assert_eq!(quality(&pushed, "gpu/duty", at(14)), Some(Quality::Stale));
        // Its clock is set right, and later is an hour late.
        pushed.take(push("gpu", vec![value("duty", 2.0, 15)]), at(15)).unwrap();
        assert_eq!(cell(at(15)), (Some((2.0, 0)), None));
        pushed.take(push("gpu", vec![value("duty", 3.0, 5)]), at(16)).unwrap();
        assert_eq!(cell(at(16)), (Some((2.0, 1)), Some(Absent::WentBack)));
    }

    #[test]
    fn a_value_of_no_scope_is_refused() {
        let pushed = Pushed::default();
        for given in [0, 99, -5] {
            let value = proto::PushedValue { scope: given, ..value("a", 1.0, 1) };
            let refused = Err(PushError::Scope { metric: "a".into(), given });
            assert_eq!(pushed.take(push("gpu", vec![value]), at(1)), refused);
        }
        assert!(pushed.told(at(1)).is_empty());
    }

    #[test]
    fn whoever_pushes_says_whom_it_is_about() {
        use proto::Scope::{Cgroup, CgroupNuma, Container, ContainerNuma, Volume};
        let pushed = Pushed::default();
        for scope in [Container, ContainerNuma, Volume, Cgroup, CgroupNuma] {
            let of_nobody = proto::PushedValue { scope: scope.into(), ..value("a", 1.0, 1) };
            let refused = pushed.take(push("gpu", vec![of_nobody.clone()]), at(1));
            assert!(matches!(refused, Err(PushError::Nobody { .. })), "{scope:?}: {refused:?}");
            let owner = || "x".to_owned();
            let of_somebody =
                proto::PushedValue { container_id: owner(), pod_uid: owner(), cgroup: owner(), ..of_nobody };
            assert!(pushed.take(push("gpu", vec![of_somebody]), at(1)).is_ok(), "{scope:?}");
        }
    }

    #[test]
    fn none_of_the_fetchers_own_names_can_be_pushed_under() {
        let pushed = Pushed::default();
        let told = crate::query::metrics().into_iter().flat_map(|m| m.sources);
        let layers = store::Source::LAYERS.map(|source| source.name().to_owned());
        for own in told.chain(layers).chain(["cgroup".to_owned(), "proc".to_owned()]) {
            let refused = pushed.take(push(&own, vec![value("a", 1.0, 1)]), at(1));
            assert!(matches!(refused, Err(PushError::Name { .. })), "{own}: {refused:?}");
        }
    }

    #[test]
    fn a_push_is_taken_as_a_whole_or_not_at_all() {
        let pushed = Pushed::default();
        let own = ["proc", "cgroup-v2", "malachite", "perf", "cgroupstats"].map(|own| (own, "a", 1.0));
        for (source, metric, v) in
            [("gpu", "a", f64::NAN), ("gpu", "A", 1.0), ("", "a", 1.0), ("a/b", "a", 1.0)]
                .into_iter()
                .chain(own)
        {
            let values = vec![value("good", 1.0, 1), value(metric, v, 1)];
            assert!(pushed.take(push(source, values), at(1)).is_err(), "{source} {metric} {v}");
        }
        let short = proto::PushRequest { period_ms: 99, ..push("gpu", Vec::new()) };
        assert_eq!(pushed.take(short, at(1)), Err(PushError::Period(99)));
        assert!(pushed.told(at(1)).is_empty());
    }

    #[test]
    fn memory_is_bounded_by_sources_and_values() {
        let pushed = Pushed::default();
        let many =
            |from: usize, to: usize| (from..to).map(|n| value(&format!("m{n}"), 1.0, 1)).collect::<Vec<_>>();
        assert_eq!(pushed.take(push("gpu", many(0, VALUES)), at(1)), Ok(VALUES));
        // The same ones again are no more.
        assert_eq!(pushed.take(push("gpu", many(0, 5)), at(2)), Ok(VALUES));
        assert!(matches!(
            pushed.take(push("gpu", many(VALUES, VALUES + 1)), at(2)),
            Err(PushError::Full { .. })
        ));
        for n in 1..SOURCES {
            assert_eq!(pushed.take(push(&format!("s{n}"), many(0, 1)), at(2)), Ok(1));
        }
        assert!(matches!(pushed.take(push("more", many(0, 1)), at(2)), Err(PushError::Full { .. })));
    }
}
