//! Passes over imitated trees of both versions and both drivers, with time given.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use metrics_fetcher::catalogue::{self, Scope};
use metrics_fetcher::clock::{Clock, ManualClock};
use metrics_fetcher::contents::File;
use metrics_fetcher::sample::{Ages, Judged, Quality};
use metrics_fetcher::sources::cgroup::{Named, Pass, PassSettings};
use metrics_fetcher::store::Snapshot;
use oxalyst_cgroups::fixture::{Fixture, Layout, Load};
use oxalyst_cgroups::{CgroupPath, Controller};

const LAYOUTS: [Layout; 2] = [Layout::V1, Layout::V2];
const SECOND: u64 = 1_000_000_000;
const PERIOD: Duration = Duration::from_secs(1);
const AGES: Ages = Ages { max_age: Duration::from_secs(3), withdrawal: Duration::from_secs(10) };
const FORGET: Duration = Duration::from_secs(20);

struct World {
    dir: tempfile::TempDir,
    fixture: Fixture,
    clock: ManualClock,
    pass: Pass,
    named: Vec<Named>,
    snapshot: Snapshot,
}

impl World {
    fn new(layout: Layout) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let host_root = dir.path().join("host");
        fs::create_dir(&host_root).unwrap();
        let fixture = Fixture::create(&host_root, layout).unwrap();
        let clock = ManualClock::default();
        let settings = PassSettings {
            host_root,
            roots: vec![CgroupPath::default()],
            forget: FORGET,
            cgroups: Vec::new(),
        };
        let pass = Pass::new(settings, Arc::new(clock.clone()));
        Self { dir, fixture, clock, pass, named: Vec::new(), snapshot: Snapshot::default() }
    }

    /// One period later, one pass.
    fn tick(&mut self) {
        self.clock.advance(PERIOD);
        self.snapshot = self.pass.run(&self.named);
    }

    fn ticks(&mut self, n: usize) {
        (0..n).for_each(|_| self.tick());
    }

    fn of(&self, container_id: &str, metric: &str) -> Option<Judged> {
        let (place, metric) = catalogue::find(metric).unwrap();
        let (subject, trouble) = match metric.scope {
            Scope::Node => (&self.snapshot.node, None),
            _ => (
                self.snapshot.containers.iter().find(|s| s.id.container_id == container_id)?,
                self.snapshot.pass.trouble.as_deref(),
            ),
        };
        Some(subject.cells.get(place).unwrap().judge(
            self.clock.now(),
            AGES,
            subject.removed.is_some(),
            trouble,
        ))
    }

    fn value(&self, container_id: &str, metric: &str) -> Option<f64> {
        self.of(container_id, metric)?.value
    }

    fn quality(&self, container_id: &str, metric: &str) -> Option<Quality> {
        self.of(container_id, metric).map(|j| j.quality)
    }

    fn reason(&self, container_id: &str, metric: &str) -> String {
        self.of(container_id, metric).unwrap().reason
    }

    fn used(&self, path: &CgroupPath, cpu_ns: u64) {
        self.fixture.load(path, &Load { cpu_ns, ..Load::default() }).unwrap();
    }
}

fn path(text: &str) -> CgroupPath {
    CgroupPath::new(text).unwrap()
}

fn abc() -> CgroupPath {
    path("kubepods/burstable/pod1/abc")
}

#[test]
fn a_busy_and_an_idle_container_differ_under_every_version_and_driver() {
    let drivers = [
        ["/kubepods/burstable/pod1/busy", "/kubepods/pod2/idle"],
        ["kubepods-burstable-pod1.slice:cri-containerd:busy", "kubepods-pod2.slice:crio:idle"],
    ];
    for (layout, names) in LAYOUTS.into_iter().flat_map(|l| drivers.map(|d| (l, d))) {
        let mut world = World::new(layout);
        let [busy, idle] = names.map(|n| CgroupPath::of_container(n).unwrap().0);
        world.fixture.cgroup(&busy).unwrap();
        world.fixture.cgroup(&idle).unwrap();
        world.tick();
        assert_eq!(
            world.quality("busy", "cpu.usage.container"),
            Some(Quality::Missing),
            "one reading is no rate"
        );
        assert!(world.reason("busy", "cpu.usage.container").contains("two readings"));
        world.used(&busy, SECOND * 3 / 2);
        world.tick();
        assert_eq!(world.value("busy", "cpu.usage.container"), Some(1.5), "{layout:?} {names:?}");
        assert_eq!(world.value("idle", "cpu.usage.container"), Some(0.0), "{layout:?} {names:?}");
        assert_eq!(world.of("busy", "cpu.usage.container").unwrap().interval, PERIOD);
        let uid = &world.snapshot.containers.iter().find(|s| s.id.container_id == "busy").unwrap().id.pod_uid;
        assert_eq!(uid, "1");
    }
}

#[test]
fn both_versions_tell_the_same_of_the_same_load() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        world.fixture.cgroup(&abc()).unwrap();
        let load = Load {
            anon: 7 << 20,
            file: 3 << 20,
            limit: Some(64 << 20),
            throttled: (10, 4, SECOND / 2),
            ..Load::default()
        };
        world.fixture.load(&abc(), &load).unwrap();
        world.tick();
        world.fixture.load(&abc(), &Load { throttled: (20, 9, SECOND), ..load }).unwrap();
        world.tick();
        let table = [
            ("mem.usage.container", f64::from(10 << 20)),
            ("mem.rss.container", f64::from(7 << 20)),
            ("mem.cache.container", f64::from(3 << 20)),
            ("mem.limit.container", f64::from(64 << 20)),
            ("cpu.nr.period.container", 20.0),
            ("cpu.nr.throttled.container", 9.0),
            ("cpu.nr.throttled.container.rate", 5.0),
            ("cpu.throttled.time.container", 1_000_000.0),
            ("cpu.throttled.time.container.rate", 500_000.0),
        ];
        for (metric, value) in table {
            assert_eq!(world.value("abc", metric), Some(value), "{layout:?} {metric}");
        }
    }
}

#[test]
fn pressure_is_told_by_v2_and_missing_with_a_reason_on_v1() {
    let mut world = World::new(Layout::V2);
    world.fixture.cgroup(&abc()).unwrap();
    world.tick();
    assert_eq!(world.value("abc", "cpu.psi.some.avg10.container"), Some(0.015));
    assert_eq!(world.value("abc", "mem.psi.full.avg10.container"), Some(0.0025));
    let mut world = World::new(Layout::V1);
    world.fixture.cgroup(&abc()).unwrap();
    world.tick();
    let judged = world.of("abc", "cpu.psi.some.avg10.container").unwrap();
    assert_eq!((judged.quality, judged.value), (Quality::Missing, None));
    assert!(judged.reason.contains("v1"), "{}", judged.reason);
}

#[test]
fn no_limit_is_missing_and_not_a_number() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        world.fixture.cgroup(&abc()).unwrap();
        world.tick();
        let judged = world.of("abc", "mem.limit.container").unwrap();
        assert_eq!((judged.value, judged.reason.as_str()), (None, "unlimited"), "{layout:?}");
    }
}

#[test]
fn the_node_is_measured_from_proc() {
    let mut world = World::new(Layout::V2);
    world.tick();
    world.fixture.proc_stat(&[200, 100]).unwrap();
    world.tick();
    assert_eq!(world.value("", "cpu.usage.system"), None, "ticks need two seconds");
    world.tick();
    assert_eq!(world.value("", "cpu.total.system"), Some(2.0));
    assert_eq!(world.value("", "cpu.usage.system"), Some(1.5), "300 ticks in two seconds");
    assert_eq!(world.value("", "cpu.usage.ratio.system"), Some(0.75));
    assert_eq!(world.value("", "mem.total.system"), Some(f64::from(16_384_000) * 1024.0));
    assert_eq!(world.value("", "mem.used.system"), Some(f64::from(16_384_000 - 12_288_000) * 1024.0));
    assert_eq!(world.value("", "io.psi.some.avg10.system"), Some(0.015));
}

#[test]
fn a_renamed_root_makes_samples_stale_then_missing_and_its_return_heals_them() {
    for (layout, what) in LAYOUTS.into_iter().flat_map(|l| ["host/sys/fs/cgroup", "host"].map(|w| (l, w))) {
        let mut world = World::new(layout);
        world.fixture.cgroup(&abc()).unwrap();
        world.ticks(2);
        assert_eq!(world.quality("abc", "mem.rss.container"), Some(Quality::Fresh));
        let (here, away) = (world.dir.path().join(what), world.dir.path().join("away"));
        fs::rename(&here, &away).unwrap();

        world.tick();
        let pass = &world.snapshot.pass;
        assert!(
            pass.trouble.as_deref().is_some_and(|t| t.contains("host")),
            "{layout:?} {what}: {:?}",
            pass.trouble
        );
        assert!(
            pass.open_files <= File::NODE.len() + File::NUMA.len(),
            "descriptors of the lost tree are dropped"
        );
        world.ticks(4);
        let stale = world.of("abc", "mem.rss.container").unwrap();
        assert_eq!(
            (stale.quality, stale.value),
            (Quality::Stale, Some(f64::from(1 << 20))),
            "{layout:?} {what}"
        );
        assert!(stale.reason.contains("host"), "{}", stale.reason);
        world.ticks(8);
        let missing = world.of("abc", "mem.rss.container").unwrap();
        assert_eq!((missing.quality, missing.value), (Quality::Missing, None), "{layout:?} {what}");
        assert!(missing.at.is_some(), "the last time stays known");

        fs::rename(&away, &here).unwrap();
        world.tick();
        assert_eq!(world.snapshot.pass.trouble, None);
        assert_eq!(world.quality("abc", "mem.rss.container"), Some(Quality::Fresh), "{layout:?} {what}");
        assert_eq!(world.quality("", "mem.total.system"), Some(Quality::Fresh));
    }
}

#[test]
fn a_replaced_root_is_read_anew_and_counters_of_the_two_are_not_mixed() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        world.fixture.cgroup(&abc()).unwrap();
        world.used(&abc(), SECOND);
        world.ticks(2);
        let root = world.fixture.root();
        fs::rename(&root, world.dir.path().join("away")).unwrap();
        world.fixture = Fixture::create(&world.dir.path().join("host"), layout).unwrap();
        world.fixture.cgroup(&abc()).unwrap();
        let load = Load { cpu_ns: 100 * SECOND, anon: 9 << 20, ..Load::default() };
        world.fixture.load(&abc(), &load).unwrap();
        world.tick();
        assert_eq!(world.value("abc", "mem.rss.container"), Some(f64::from(9 << 20)), "{layout:?}");
        assert_eq!(world.value("abc", "cpu.usage.container"), None, "99 s of CPU in one second: {layout:?}");
        world.used(&abc(), 101 * SECOND);
        world.tick();
        assert_eq!(world.value("abc", "cpu.usage.container"), Some(1.0), "{layout:?}");
        assert_eq!(world.snapshot.containers.len(), 1, "the old one is not told beside the new one");
    }
}

#[test]
fn a_removed_container_is_stale_then_missing_then_forgotten() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        let other = path("kubepods/burstable/pod1/other");
        world.fixture.cgroup(&abc()).unwrap();
        world.fixture.cgroup(&other).unwrap();
        world.ticks(2);
        world.fixture.remove(&abc()).unwrap();
        world.tick();
        let judged = world.of("abc", "mem.rss.container").unwrap();
        assert_eq!(
            (judged.quality, judged.reason.as_str()),
            (Quality::Stale, "the cgroup was removed"),
            "{layout:?}"
        );
        world.ticks(10);
        assert_eq!(world.quality("abc", "mem.rss.container"), Some(Quality::Missing), "{layout:?}");
        world.ticks(11);
        assert_eq!(world.quality("abc", "mem.rss.container"), None, "{layout:?}");
        assert_eq!(world.quality("other", "mem.rss.container"), Some(Quality::Fresh), "{layout:?}");
        assert_eq!(world.snapshot.pass.trouble, None);
    }
}

#[test]
fn descriptors_of_removed_containers_are_given_back() {
    let mut world = World::new(Layout::V1);
    world.tick();
    let before = world.snapshot.pass.open_files;
    for round in 0..3 {
        let cgroup = path(&format!("kubepods/pod{round}/c{round}"));
        world.fixture.cgroup(&cgroup).unwrap();
        world.tick();
        assert!(world.snapshot.pass.open_files > before);
        world.fixture.remove(&cgroup).unwrap();
        world.fixture.remove(&path(&format!("kubepods/pod{round}"))).unwrap();
        // Twice: what a walk found changed is watched by the next pass.
        world.ticks(2);
    }
    // `kubepods` itself appeared, and is watched.
    assert!(world.snapshot.pass.open_files <= before + 2, "{} of {before}", world.snapshot.pass.open_files);
}

#[test]
fn garbage_in_a_file_costs_only_what_that_file_tells() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        world.fixture.cgroup(&abc()).unwrap();
        world
            .fixture
            .set(Controller::Memory, &abc(), "memory.stat", "anon ?\ntotal_rss \u{7}\n\u{0}\u{1}\n")
            .unwrap();
        world.ticks(2);
        let judged = world.of("abc", "mem.rss.container").unwrap();
        assert_eq!(judged.quality, Quality::Missing, "{layout:?}");
        let reason = &judged.reason;
        assert!(
            reason.contains("memory.stat") && reason.contains("line ") && reason.contains("/pod1/abc"),
            "{reason}"
        );
        assert_eq!(world.quality("abc", "mem.usage.container"), Some(Quality::Fresh), "{layout:?}");
        assert_eq!(world.quality("abc", "cpu.usage.container"), Some(Quality::Fresh), "{layout:?}");
        assert_eq!(world.snapshot.pass.failed_files, 1);
    }
}

#[test]
fn a_file_that_turns_to_garbage_wipes_nothing_and_its_recovery_shows() {
    let mut world = World::new(Layout::V2);
    world.fixture.cgroup(&abc()).unwrap();
    world.tick();
    world.fixture.set(Controller::Memory, &abc(), "memory.current", "oops\n").unwrap();
    world.tick();
    assert_eq!(world.quality("abc", "mem.usage.container"), Some(Quality::Fresh), "read one period ago");
    world.ticks(3);
    let stale = world.of("abc", "mem.usage.container").unwrap();
    assert_eq!((stale.quality, stale.value), (Quality::Stale, Some(f64::from(3 << 20))));
    assert!(stale.reason.contains("oops"), "{}", stale.reason);
    world.fixture.set(Controller::Memory, &abc(), "memory.current", "42\n").unwrap();
    world.tick();
    assert_eq!(world.value("abc", "mem.usage.container"), Some(42.0));
}

#[test]
fn a_reset_counter_gives_no_negative_rate() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        world.fixture.cgroup(&abc()).unwrap();
        world.used(&abc(), 50 * SECOND);
        world.ticks(2);
        world.used(&abc(), SECOND);
        world.tick();
        assert_eq!(world.quality("abc", "cpu.usage.container"), Some(Quality::Reset), "{layout:?}");
        assert_eq!(world.value("abc", "cpu.usage.container"), None, "{layout:?}");
        world.used(&abc(), SECOND * 2);
        world.tick();
        assert_eq!(world.value("abc", "cpu.usage.container"), Some(1.0), "{layout:?}");
    }
}

#[test]
fn a_container_made_anew_under_the_same_name_is_another_one() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        world.fixture.cgroup(&abc()).unwrap();
        world.used(&abc(), SECOND);
        world.ticks(2);
        world.fixture.remove(&abc()).unwrap();
        world.fixture.cgroup(&abc()).unwrap();
        world.used(&abc(), 30 * SECOND);
        world.tick();
        assert_eq!(world.value("abc", "cpu.usage.container"), None, "{layout:?}");
        world.used(&abc(), 31 * SECOND);
        world.tick();
        assert_eq!(world.value("abc", "cpu.usage.container"), Some(1.0), "{layout:?}");
    }
}

#[test]
fn a_container_whose_folders_appear_one_after_the_other_is_measured_soon() {
    let mut world = World::new(Layout::V1);
    fs::create_dir_all(world.fixture.dir(Controller::Memory, &abc())).unwrap();
    world.tick();
    assert_eq!(world.quality("abc", "cpu.usage.container"), Some(Quality::Missing));
    world.fixture.cgroup(&abc()).unwrap();
    world.ticks(4);
    assert_eq!(world.quality("abc", "cpu.usage.container"), Some(Quality::Fresh));
}

#[test]
fn a_container_outside_of_kubepods_is_measured_once_somebody_names_it() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        let lone = path("k8s.io/lone");
        world.fixture.cgroup(&lone).unwrap();
        world.tick();
        assert_eq!(world.quality("lone", "mem.rss.container"), None);
        world.named =
            vec![Named { path: lone.clone(), container_id: "lone".to_owned(), pod_uid: "u".to_owned() }];
        world.tick();
        assert_eq!(world.quality("lone", "mem.rss.container"), Some(Quality::Fresh), "{layout:?}");
        world.fixture.remove(&lone).unwrap();
        world.tick();
        assert_eq!(world.quality("lone", "mem.rss.container"), Some(Quality::Stale), "{layout:?}");
    }
}

#[test]
fn what_the_runtime_calls_a_container_outweighs_its_folders_name() {
    let mut world = World::new(Layout::V2);
    world.fixture.cgroup(&abc()).unwrap();
    world.tick();
    assert_eq!(world.quality("abc", "mem.rss.container"), Some(Quality::Fresh));
    let (container_id, pod_uid) = ("0123".to_owned(), "1".to_owned());
    world.named = vec![Named { path: abc(), container_id, pod_uid }];
    world.tick();
    assert_eq!(world.quality("0123", "mem.rss.container"), Some(Quality::Fresh));
}

#[test]
fn a_machine_without_cgroups_still_tells_of_the_node() {
    let mut world = World::new(Layout::V2);
    fs::remove_dir_all(world.fixture.root()).unwrap();
    world.ticks(2);
    assert!(world.snapshot.pass.trouble.is_some());
    assert_eq!(world.quality("", "mem.total.system"), Some(Quality::Fresh));
}

#[test]
fn the_files_of_a_pass_are_those_that_can_be_read_bare() {
    let mut world = World::new(Layout::V2);
    world.fixture.cgroup(&abc()).unwrap();
    assert!(world.pass.files().is_empty());
    world.tick();
    // The folders above the container are imitated without files.
    let files: Vec<_> = world.pass.files().into_iter().filter(|f| f.is_file()).collect();
    let mut floor = metrics_fetcher::sources::cgroup::Floor::open(files.clone());
    assert_eq!(floor.len(), files.len());
    let bytes: u64 = files.iter().map(|f| fs::metadata(f).unwrap().len()).sum();
    assert_eq!(floor.read().unwrap() as u64, bytes);
}
