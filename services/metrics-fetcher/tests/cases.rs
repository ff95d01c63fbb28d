//! Cases of other projects that no other file here has: old values in use, milli-cores for cores, the pause container.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::sync::Arc;
use std::time::Duration;

use metrics_fetcher::aggregate::aggregate;
use metrics_fetcher::catalogue::{self, Scope, Unit};
use metrics_fetcher::clock::{Clock as _, ManualClock};
use metrics_fetcher::names::Known;
use metrics_fetcher::query::{self, Terms};
use metrics_fetcher::rank::Ranking;
use metrics_fetcher::sample::{Ages, Cell, Reading};
use metrics_fetcher::sources::cgroup::{Pass, PassSettings};
use metrics_fetcher::store::{Id, Layer, PassReport, Source, Store, Subject};
use oxalyst_cgroups::CgroupPath;
use oxalyst_cgroups::fixture::{Fixture, Layout, Load};
use oxalyst_proto::meta::v1::{Pod, PodContainer};
use oxalyst_proto::metrics::v1::{Aggregation, Quality, QueryRequest, Sample};

const PERIOD: Duration = Duration::from_secs(5);
const AGES: Ages = Ages { max_age: Duration::from_secs(15), withdrawal: Duration::from_secs(50) };

struct World {
    _dir: tempfile::TempDir,
    fixture: Fixture,
    clock: ManualClock,
    pass: Pass,
    store: Store,
    known: Known,
}

impl World {
    fn new(containers: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let fixture = Fixture::create(dir.path(), Layout::V2).unwrap();
        for id in containers {
            fixture.cgroup(&cgroup(id)).unwrap();
        }
        let clock = ManualClock::default();
        let settings = PassSettings {
            host_root: dir.path().to_path_buf(),
            roots: vec![CgroupPath::default()],
            forget: PERIOD * 20,
            cgroups: Vec::new(),
        };
        let pass = Pass::new(settings, Arc::new(clock.clone()));
        Self { _dir: dir, fixture, clock, pass, store: Store::default(), known: Known::default() }
    }

    fn tick(&mut self) {
        self.clock.advance(PERIOD);
        let snapshot = self.pass.run(&[]);
        self.store.publish(snapshot);
    }

    fn samples(&self, metric: &str) -> Vec<Sample> {
        let request = QueryRequest { metrics: vec![metric.to_owned()], ..QueryRequest::default() };
        let terms = Terms { ages: AGES, ranking: Ranking::KernelFirst };
        query::samples(&self.store.view(), &self.known, &request, self.clock.now(), terms).unwrap()
    }
}

fn cgroup(id: &str) -> CgroupPath {
    CgroupPath::new(&format!("kubepods/burstable/poduid-1/{id}")).unwrap()
}

#[test]
fn m06_what_is_too_old_to_act_on_has_no_value_and_says_why() {
    let mut world = World::new(&["app"]);
    world.tick();
    assert_eq!(world.samples("mem.rss.container")[0].quality(), Quality::Fresh);
    world.clock.advance(AGES.max_age + Duration::from_millis(1));
    let stale = world.samples("mem.rss.container");
    assert_eq!(stale[0].quality(), Quality::Stale);
    let sum = aggregate(&stale, Aggregation::Sum).unwrap();
    assert_eq!(
        (sum.stale, sum.missing, sum.oldest_age_ms),
        (1, 0, 15_001),
        "whoever sums up sees that it is old"
    );
    world.clock.advance(AGES.withdrawal);
    let withdrawn = world.samples("mem.rss.container");
    assert_eq!((withdrawn[0].quality(), withdrawn[0].value), (Quality::Missing, None));
    assert!(withdrawn[0].reason.contains("withdrawn"), "{}", withdrawn[0].reason);
    let sum = aggregate(&withdrawn, Aggregation::Sum).unwrap();
    assert_eq!((sum.value, sum.counted, sum.missing), (None, 0, 1), "a sum of nothing is no zero");
    // What is asked for by a stricter age is judged by that.
    world.tick();
    let request = QueryRequest {
        max_age_ms: Some(0),
        metrics: vec!["mem.rss.container".into()],
        ..QueryRequest::default()
    };
    world.clock.advance(Duration::from_millis(1));
    let terms = Terms { ages: AGES, ranking: Ranking::KernelFirst };
    let strict =
        query::samples(&world.store.view(), &world.known, &request, world.clock.now(), terms).unwrap();
    assert_eq!(strict[0].quality(), Quality::Stale);
}

#[test]
fn m08_whoever_went_leaves_sums_with_the_pass_that_saw_it_whatever_others_still_tell() {
    let mut world = World::new(&["app", "gone"]);
    world.tick();
    // Another source tells of both, now and for ever.
    let tell = |world: &World| {
        let now = world.clock.now();
        let subject = |name: &str| {
            let id = Id { container_id: name.into(), pod_uid: "uid-1".into(), ..Id::default() };
            let mut subject = Subject::unknown(Scope::Container, id);
            subject.read = Some(now);
            for metric in ["mem.rss.container", "cpu.cycles.container"] {
                let cell = subject.cells.get_mut(catalogue::find(metric).unwrap().0).unwrap();
                *cell = Cell::default().after(Ok(Reading::level(9.0, now)));
            }
            Arc::new(subject)
        };
        world.store.publish_layer(Layer {
            source: Source::Malachite,
            period: PERIOD,
            ages: AGES,
            subjects: vec![subject("app"), subject("gone")],
            pass: PassReport::default(),
            stale_total: 0,
        });
    };
    let sum =
        |world: &World, metric: &str| aggregate(&world.samples(metric), Aggregation::Sum).unwrap().value;
    tell(&world);
    assert_eq!(sum(&world, "mem.rss.container"), Some(f64::from(2 << 20)));
    assert_eq!(sum(&world, "cpu.cycles.container"), Some(18.0));
    world.fixture.remove(&cgroup("gone")).unwrap();
    world.tick();
    tell(&world);
    assert_eq!(sum(&world, "mem.rss.container"), Some(f64::from(1 << 20)));
    assert_eq!(sum(&world, "cpu.cycles.container"), Some(9.0));
    let shown = world.samples("mem.rss.container").into_iter().find(|s| s.container_id == "gone").unwrap();
    assert_eq!(
        (shown.removed, shown.quality(), shown.value),
        (true, Quality::Stale, Some(f64::from(1 << 20))),
        "its last value stays on show"
    );
    for _ in 0..22 {
        world.tick();
    }
    tell(&world);
    assert_eq!(world.store.load().containers.len(), 1, "it is forgotten");
    assert_eq!(sum(&world, "mem.rss.container"), Some(f64::from(1 << 20)));
    assert_eq!(sum(&world, "cpu.cycles.container"), Some(9.0));
}

#[test]
fn m03_a_file_that_says_what_cannot_be_costs_what_it_tells_and_the_value_before_ages() {
    let mut world = World::new(&["app"]);
    let usage = world.fixture.root().join("kubepods/burstable/poduid-1/app/memory.current");
    std::fs::write(&usage, "4096\n").unwrap();
    world.tick();
    assert_eq!(world.samples("mem.usage.container")[0].value, Some(4096.0));
    std::fs::write(&usage, "18446744073709551449\n").unwrap();
    for _ in 0..4 {
        world.tick();
    }
    let sample = &world.samples("mem.usage.container")[0];
    assert_eq!((sample.quality(), sample.value, sample.age_ms), (Quality::Stale, Some(4096.0), 20_000));
    assert!(sample.reason.contains("cannot be"), "{}", sample.reason);
    let pass = &world.store.load().pass;
    let failure = pass.failure.as_deref().unwrap_or_default();
    assert!(failure.starts_with("mem.usage.container is said to be 1844674407370955"), "{failure}");
    assert_eq!(pass.failed_files, 1);
    std::fs::write(&usage, "8192\n").unwrap();
    world.tick();
    let sample = &world.samples("mem.usage.container")[0];
    assert_eq!((sample.quality(), sample.value), (Quality::Fresh, Some(8192.0)));
    assert_eq!(world.store.load().pass.failure, None);
}

#[test]
fn m07_one_and_a_half_cores_are_cores_at_both_ends() {
    let mut world = World::new(&["app"]);
    world.tick();
    // 1.5 CPUs for one period.
    let cpu_ns = 1_500_000_000 * PERIOD.as_secs();
    world.fixture.load(&cgroup("app"), &Load { cpu_ns, ..Load::default() }).unwrap();
    world.tick();
    let sample = &world.samples("cpu.usage.container")[0];
    assert!((sample.value.unwrap() - 1.5).abs() < 1e-9, "{sample:?}");
    assert_eq!(sample.unit, "cores");
    for metric in catalogue::all() {
        let Some(exposed) = metric.exposed else { continue };
        // At the other end the unit is in the name, so that nobody can take one for the other.
        let suffix: &[&str] = match metric.unit {
            Unit::Cores => &["_cores"],
            Unit::Bytes => &["_bytes"],
            Unit::Ratio => &["_ratio"],
            _ => continue,
        };
        assert!(suffix.iter().any(|s| exposed.ends_with(s)), "{exposed} is in {}", metric.unit.name());
        assert!(!exposed.contains("milli"), "{exposed}");
    }
}

#[test]
fn m17_the_pause_container_is_named_and_not_counted_as_another_pod() {
    let mut world = World::new(&["sandbox", "app"]);
    let app = PodContainer { name: "app".into(), container_id: "app".into(), ..PodContainer::default() };
    let pod = Pod {
        uid: "uid-1".into(),
        namespace: "default".into(),
        name: "web".into(),
        sandbox_id: "sandbox".into(),
        containers: vec![app],
        ..Pod::default()
    };
    world.known = Known::of([&pod]);
    world.tick();
    let samples = world.samples("mem.rss.container");
    let names: Vec<_> = samples.iter().map(|s| (s.pod.as_str(), s.container.as_str())).collect();
    assert_eq!(names, [("web", "app"), ("web", "POD")]);
    let average = aggregate(&samples, Aggregation::Average).unwrap();
    assert_eq!(average.counted, 1, "one pod, whatever it consists of");
}
