//! Parts of the machine and of containers, cgroups above the pods, and what belongs together, over imitated trees.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::sync::Arc;
use std::time::Duration;

use metrics_fetcher::clock::{Clock, ManualClock};
use metrics_fetcher::names::Known;
use metrics_fetcher::query::{self, Terms};
use metrics_fetcher::rank::Ranking;
use metrics_fetcher::sample::Ages;
use metrics_fetcher::sources::cgroup::{Pass, PassSettings, Schedule, top_cgroups};
use metrics_fetcher::store::{Snapshot, View};
use oxalyst_cgroups::fixture::{Fixture, Layout};
use oxalyst_cgroups::{CgroupPath, Controller};
use oxalyst_proto::metrics::v1::{Quality, QueryRequest, Sample};

const AGES: Ages = Ages { max_age: Duration::from_secs(3), withdrawal: Duration::from_secs(10) };

struct World {
    dir: tempfile::TempDir,
    fixture: Fixture,
    clock: ManualClock,
    pass: Pass,
    snapshot: Snapshot,
}

fn settings(host_root: &std::path::Path) -> PassSettings {
    PassSettings {
        host_root: host_root.to_path_buf(),
        roots: vec![CgroupPath::default()],
        forget: Duration::from_secs(20),
        cgroups: Vec::new(),
    }
}

impl World {
    fn new(layout: Layout) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let fixture = Fixture::create(dir.path(), layout).unwrap();
        fixture.numa(&["0", "1"]).unwrap();
        fixture.cgroup(&path("kubepods/burstable/pod1/abc")).unwrap();
        fixture.cgroup(&path("kubepods")).unwrap();
        let clock = ManualClock::default();
        let pass = Pass::new(settings(dir.path()), Arc::new(clock.clone()));
        Self { dir, fixture, clock, pass, snapshot: Snapshot::default() }
    }

    fn tick(&mut self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
        self.snapshot = self.pass.run(&[]);
    }

    fn all(&self, metric: &str) -> Vec<Sample> {
        let view = View { kernel: Arc::new(self.snapshot.clone()), layers: Vec::new() };
        let request = QueryRequest { metrics: vec![metric.to_owned()], ..QueryRequest::default() };
        let terms = Terms { ages: AGES, ranking: Ranking::KernelFirst };
        query::samples(&view, &Known::default(), &request, self.clock.now(), terms).unwrap()
    }

    fn values(&self, metric: &str) -> Vec<(String, Option<f64>)> {
        self.all(metric).into_iter().map(|s| (s.instance, s.value)).collect()
    }
}

fn path(text: &str) -> CgroupPath {
    CgroupPath::new(text).unwrap()
}

fn of(parts: &[(&str, f64)]) -> Vec<(String, Option<f64>)> {
    parts.iter().map(|(name, value)| ((*name).to_owned(), Some(*value))).collect()
}

#[test]
fn each_cpu_and_numa_node_has_its_own_usage_over_two_seconds_or_more() {
    let mut world = World::new(Layout::V2);
    world.tick(1);
    world.fixture.proc_stat(&[100, 300]).unwrap();
    world.tick(4);
    assert_eq!(world.values("cpu.usage.ratio.cpu"), of(&[("0", 0.25), ("1", 0.75)]));
    assert_eq!(world.values("cpu.usage.numa"), of(&[("0", 0.25), ("1", 0.75)]));
    assert_eq!(world.all("cpu.usage.numa")[0].resolution, Some(0.0025), "10 ms of 4 s");
    assert_eq!(world.values("mem.total.numa"), of(&[("0", 16_777_216_000.0), ("1", 16_777_216_000.0)]));
    assert_eq!(world.all("mem.watermark.low.numa")[0].value, Some(220.0 * 4096.0), "its zones are summed");
    assert_eq!(world.all("mem.miss.numa")[1].value, Some(10.0));
}

#[test]
fn m03_no_more_cpu_is_told_than_there_is_and_that_says_so() {
    let mut world = World::new(Layout::V2);
    world.fixture.proc_stat(&[100, 100]).unwrap();
    world.tick(1);
    // 201 and 200 hundredths of a second in 2 s: the file counts in steps.
    world.fixture.proc_stat(&[301, 300]).unwrap();
    world.tick(2);
    let told = |metric| {
        let samples = world.all(metric).into_iter();
        samples.map(|s| (s.value.unwrap(), s.quality())).collect::<Vec<_>>()
    };
    assert_eq!(told("cpu.usage.ratio.cpu"), [(1.0, Quality::Clamped), (1.0, Quality::Fresh)]);
    assert_eq!(told("cpu.usage.ratio.system"), [(1.0, Quality::Clamped)]);
    assert_eq!(told("cpu.usage.system"), [(2.0, Quality::Clamped)]);
    assert_eq!(told("cpu.usage.numa"), [(1.0, Quality::Clamped), (1.0, Quality::Fresh)]);
    assert_eq!(told("cpu.usage.numa.avg"), [(1.0, Quality::Clamped), (1.0, Quality::Fresh)]);
}

#[test]
fn devices_and_interfaces_are_told_by_name_and_their_rates_from_the_second_reading_on() {
    let mut world = World::new(Layout::V1);
    world.tick(1);
    assert_eq!(world.values("io.read.system"), of(&[("vda", 10.0)]));
    assert_eq!(world.values("net.tcp.receive_bytes"), of(&[("eth0", 1000.0)]), "no loopback");
    assert_eq!(world.all("net.receive.bps")[0].quality(), Quality::Missing);
    world.fixture.proc("1/net/dev", "h\nh\n eth0: 3000 0 0 0 0 0 0 0 2500 0 0 0 0 0 0 0\n").unwrap();
    world.fixture.proc("diskstats", "254 0 vda 30 0 80 0 20 0 160 0 0 1009 0\n").unwrap();
    world.tick(2);
    assert_eq!(world.values("net.receive.bps"), of(&[("eth0", 1000.0)]));
    assert_eq!(world.values("net.transmit.bps"), of(&[("eth0", 250.0)]));
    assert_eq!(world.values("io.read.ops.system"), of(&[("vda", 10.0)]));
    assert!((world.all("io.busy.rate.system")[0].value.unwrap() - 0.5).abs() < 1e-9);
}

#[test]
fn memory_of_a_container_is_told_by_node_and_cpu_time_where_the_kernel_does() {
    for layout in [Layout::V1, Layout::V2] {
        let mut world = World::new(layout);
        world.tick(1);
        let told = |metric| world.values(metric).into_iter().filter(|v| v.1.is_some()).collect::<Vec<_>>();
        assert_eq!(told("mem.anon.numa.container"), of(&[("0", 4096.0)]), "{layout:?}");
        assert_eq!(told("mem.total.numa.container"), of(&[("0", 12_288.0)]), "{layout:?}");
    }
    let mut world = World::new(Layout::V1);
    world.tick(1);
    let abc = path("kubepods/burstable/pod1/abc");
    world.fixture.set(Controller::Cpuacct, &abc, "cpuacct.usage_percpu", "500000000 2000000000 \n").unwrap();
    world.tick(1);
    assert_eq!(world.values("cpu.usage.numa.container"), of(&[("0", 0.5), ("1", 2.0)]));
}

#[test]
fn io_pids_limits_and_kills_of_both_versions() {
    for layout in [Layout::V1, Layout::V2] {
        let mut world = World::new(layout);
        let abc = path("kubepods/burstable/pod1/abc");
        world.tick(1);
        if layout == Layout::V1 {
            let set = |c, f, t| world.fixture.set(c, &abc, f, t).unwrap();
            set(
                Controller::Blkio,
                "blkio.throttle.io_service_bytes_recursive",
                "8:0 Read 6096\n8:0 Write 8192\n",
            );
            set(Controller::Cpu, "cpu.cfs_quota_us", "150000\n");
        } else {
            let set = |c, f, t| world.fixture.set(c, &abc, f, t).unwrap();
            set(Controller::Memory, "io.stat", "8:0 rbytes=6096 wbytes=8192 rios=1 wios=2\n");
            set(Controller::Cpu, "cpu.max", "150000 100000\n");
        }
        world.tick(2);
        let one = |metric| world.all(metric)[0].clone();
        assert_eq!(one("blkio.read.bps.container").value, Some(1000.0), "{layout:?}");
        assert_eq!(one("blkio.write.iops.container").value, Some(0.0), "{layout:?}");
        assert_eq!(one("pids.container").value, Some(3.0), "{layout:?}");
        assert_eq!(one("pids.limit.container").reason, "unlimited", "{layout:?}");
        assert_eq!(one("mem.oom.container").value, Some(0.0), "{layout:?}");
        assert_eq!(one("cpu.limit.container").value, Some(1.5), "{layout:?}");
        assert_eq!(one("mem.workingset.container").value, Some(f64::from(1 << 20)), "{layout:?}");
        let tasks = one("cpu.nr.runnable.container");
        assert!(tasks.quality() == Quality::Missing && tasks.reason.contains("CGROUPSTATS"), "{tasks:?}");
    }
}

#[test]
fn on_v1_files_that_count_no_io_tell_nothing_and_those_that_count_are_read_instead() {
    let mut world = World::new(Layout::V1);
    let abc = path("kubepods/burstable/pod1/abc");
    let set = |world: &World, file: &str, text: &str| {
        world.fixture.set(Controller::Blkio, &abc, file, text).unwrap()
    };
    let throttle = "blkio.throttle.io_service_bytes_recursive";
    set(&world, throttle, "Total 0\n");
    world.tick(1);
    world.tick(2);
    let silent = world.all("blkio.write.bps.container").remove(0);
    assert_eq!((silent.value, silent.quality()), (None, Quality::Missing), "{}", silent.reason);
    for scheduler in ["blkio.io_service_bytes_recursive", "blkio.bfq.io_service_bytes_recursive"] {
        set(&world, scheduler, "8:0 Read 0\n8:0 Write 1000\nTotal 1000\n");
        // A file that was not there is looked for again after some passes.
        (0..20).for_each(|_| world.tick(1));
        set(&world, scheduler, "8:0 Read 0\n8:0 Write 5000\nTotal 5000\n");
        world.tick(2);
        assert_eq!(world.all("blkio.write.bps.container")[0].value, Some(2000.0), "{scheduler}");
    }
    // No rate spans two files.
    set(&world, throttle, "8:0 Read 0\n8:0 Write 900000\nTotal 900000\n");
    world.tick(1);
    assert_eq!(world.all("blkio.write.bps.container")[0].value, Some(2000.0), "what was told before holds");
    set(&world, throttle, "8:0 Read 0\n8:0 Write 900500\nTotal 900500\n");
    world.tick(1);
    assert_eq!(world.all("blkio.write.bps.container")[0].value, Some(500.0));
    assert_eq!(world.snapshot.pass.failed_files, 0, "{:?}", world.snapshot.pass.failure);
}

#[test]
fn time_in_user_mode_is_sampled_at_the_tick_and_says_so_and_is_never_more_than_all() {
    for layout in [Layout::V1, Layout::V2] {
        let mut world = World::new(layout);
        let abc = path("kubepods/burstable/pod1/abc");
        let used = |world: &World, all: u64, user: u64, system: u64| match layout {
            Layout::V1 => {
                for (file, ms) in
                    [("cpuacct.usage", all), ("cpuacct.usage_user", user), ("cpuacct.usage_sys", system)]
                {
                    world
                        .fixture
                        .set(Controller::Cpuacct, &abc, file, &format!("{}\n", ms * 1_000_000))
                        .unwrap();
                }
            }
            _ => {
                let [all, user, system] = [all, user, system].map(|ms| ms * 1000);
                let text = format!("usage_usec {all}\nuser_usec {user}\nsystem_usec {system}\n");
                world.fixture.set(Controller::Cpu, &abc, "cpu.stat", &text).unwrap();
            }
        };
        let told = |world: &World, metric: &str| world.all(metric).remove(0);
        used(&world, 1000, 1000, 0);
        world.tick(1);
        used(&world, 2000, 1900, 100);
        world.tick(1);
        assert_eq!(told(&world, "cpu.usage.container").value, Some(1.0), "{layout:?}");
        assert_eq!(
            told(&world, "cpu.usage.user.container").value,
            None,
            "a window of ticks is two seconds or more"
        );
        used(&world, 2500, 2600, 200);
        world.tick(1);
        let [user, system] = ["cpu.usage.user.container", "cpu.usage.sys.container"].map(|m| told(&world, m));
        assert_eq!((user.value, user.quality()), (Some(0.75), Quality::Clamped), "{layout:?} {user:?}");
        assert_eq!((system.value, system.quality()), (Some(0.1), Quality::Fresh), "{layout:?} {system:?}");
        assert_eq!((user.interval_ms, user.resolution), (2000, Some(0.005)), "{layout:?}");
        // The next window begins where this one ends.
        used(&world, 4500, 4000, 900);
        world.tick(2);
        assert_eq!(told(&world, "cpu.usage.user.container").value, Some(0.7), "{layout:?}");
    }
}

#[test]
fn on_a_hybrid_each_controller_is_read_in_the_tree_that_it_lives_in() {
    let mut world = World::new(Layout::V1);
    let root = world.fixture.root();
    std::fs::remove_dir_all(root.join("memory")).unwrap();
    let unified = root.join("unified");
    let abc = unified.join("kubepods/burstable/pod1/abc");
    std::fs::create_dir_all(&abc).unwrap();
    std::fs::write(unified.join("cgroup.controllers"), "memory hugetlb\n").unwrap();
    let pressure =
        "some avg10=25.00 avg60=0.00 avg300=0.00 total=1\nfull avg10=5.00 avg60=0.00 avg300=0.00 total=1\n";
    for (file, text) in [
        ("memory.current", "1000000\n"),
        ("memory.max", "max\n"),
        ("memory.stat", "anon 700000\nfile 300000\ninactive_file 100000\npgscan 7\n"),
        ("memory.numa_stat", "anon N0=700000 N1=0\nfile N0=300000 N1=0\nunevictable N0=0 N1=0\n"),
        ("memory.events", "oom_kill 4\n"),
        ("cpu.pressure", pressure),
    ] {
        std::fs::write(abc.join(file), text).unwrap();
    }
    world.tick(1);
    let one = |metric| world.all(metric).into_iter().find(|s| s.container_id == "abc").unwrap();
    let told = [
        ("mem.usage.container", 1e6),
        ("mem.rss.container", 7e5),
        ("mem.workingset.container", 9e5),
        ("mem.pgscan.container", 7.0),
        ("mem.oom.container", 4.0),
        ("cpu.psi.some.avg10.container", 0.25),
        ("pids.container", 3.0),
    ];
    for (metric, value) in told {
        assert_eq!(one(metric).value, Some(value), "{metric}: {}", one(metric).reason);
    }
    assert_eq!(one("mem.limit.container").reason, "unlimited");
    assert_eq!(one("mem.anon.numa.container").value, Some(7e5));
    assert!(
        one("mem.tcp.limit.container").reason.contains("v2 does not"),
        "{:?}",
        one("mem.tcp.limit.container")
    );
    assert!(one("mem.psi.some.avg10.container").reason.contains("no file"), "not each kernel has it");
    let cpuacct = path("kubepods/burstable/pod1/abc");
    world.fixture.set(Controller::Cpuacct, &cpuacct, "cpuacct.usage", "1500000000\n").unwrap();
    world.tick(1);
    assert_eq!(world.all("cpu.usage.container")[0].value, Some(1.5));
    // Memory that lives in no tree at all: the error says where it was looked for.
    std::fs::write(unified.join("cgroup.controllers"), "\n").unwrap();
    world.pass = Pass::new(settings(world.dir.path()), Arc::new(world.clock.clone()));
    world.tick(1);
    let away = world.all("mem.usage.container").remove(0).reason;
    assert!(away.contains("memory/kubepods/burstable/pod1/abc/memory.usage_in_bytes"), "{away}");
}

#[test]
fn proc_has_a_health_of_its_own() {
    let mut world = World::new(Layout::V2);
    let file = world.dir.path().join("proc/meminfo");
    world.tick(1);
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    let errors = |world: &World| -> Vec<(String, bool)> {
        let view = View { kernel: Arc::new(world.snapshot.clone()), layers: Vec::new() };
        let second = Duration::from_secs(1);
        let schedule = Schedule { period: second, deadline: second, read_deadline: second };
        query::sources(&view, schedule, &[])
            .into_iter()
            .map(|s| (s.name, s.error.contains("meminfo")))
            .collect()
    };
    let all = |cgroup, proc| vec![("cgroup-v2".to_owned(), cgroup), ("proc".to_owned(), proc)];
    assert_eq!(errors(&world), all(false, false));
    world.pass = Pass::new(settings(world.dir.path()), Arc::new(world.clock.clone()));
    world.tick(1);
    assert_eq!(errors(&world), all(false, true));
    assert!(world.snapshot.pass.failed_files > 0);
}

#[test]
fn a_cgroup_that_goes_folder_by_folder_is_no_failure_and_one_that_stays_without_a_file_is() {
    let mut world = World::new(Layout::V1);
    let dir = world.fixture.dir(Controller::Cpuacct, &path("kubepods/burstable/pod1/abc"));
    std::fs::remove_dir_all(&dir).unwrap();
    world.tick(1);
    assert_eq!(world.snapshot.pass.failed_files, 0, "{:?}", world.snapshot.pass.failure);
    let told = world.all("cpu.usage.container").remove(0);
    assert!(told.reason.contains("cpuacct.usage") && told.reason.contains("abc"), "{}", told.reason);
    world.tick(1);
    assert!(world.snapshot.pass.failed_files > 0);
}

#[test]
fn kills_of_a_cgroup_above_the_pods_are_told_where_they_are_of_all_within() {
    for (layout, told) in [(Layout::V1, None), (Layout::V2, Some(0.0))] {
        let mut world = World::new(layout);
        world.tick(1);
        let top = world.all("mem.oom.cgroup").into_iter().find(|s| s.cgroup == "/kubepods").unwrap();
        assert_eq!(top.value, told, "{layout:?} {}", top.reason);
        assert_eq!(top.reason.contains("own tasks alone"), layout == Layout::V1, "{}", top.reason);
    }
}

#[test]
fn a_kernel_without_some_files_misses_what_they_tell_and_nothing_has_failed() {
    let mut world = World::new(Layout::V1);
    let abc = path("kubepods/burstable/pod1/abc");
    let dir = world.fixture.dir(Controller::Hugetlb, &abc);
    std::fs::remove_file(dir.join("hugetlb.2MB.usage_in_bytes")).unwrap();
    world.tick(1);
    let sample = world.all("mem.hugetlb.2mb.container").remove(0);
    assert_eq!((sample.quality(), sample.value), (Quality::Missing, None));
    assert!(sample.reason.contains("no file"), "{}", sample.reason);
    assert_eq!(world.snapshot.pass.failed_files, 0, "{:?}", world.snapshot.pass.failure);
}

#[test]
fn huge_pages_are_told_of_every_size_that_the_machine_has_and_of_no_other() {
    for layout in [Layout::V1, Layout::V2] {
        let mut world = World::new(layout);
        let abc = path("kubepods/burstable/pod1/abc");
        for kib in [64, 2048, 524_288] {
            let size = format!("sys/kernel/mm/hugepages/hugepages-{kib}kB");
            std::fs::create_dir_all(world.dir.path().join(size)).unwrap();
        }
        let dir = world.fixture.dir(Controller::Hugetlb, &abc);
        let file = if layout == Layout::V1 { "usage_in_bytes" } else { "current" };
        for (size, bytes) in [("64KB", 65_536), ("512MB", 1 << 29), ("32MB", 1 << 25)] {
            std::fs::write(dir.join(format!("hugetlb.{size}.{file}")), format!("{bytes}\n")).unwrap();
        }
        world.tick(1);
        let one = |size: &str| world.all(&format!("mem.hugetlb.{size}.container"))[0].clone();
        assert_eq!(one("64kb").value, Some(65_536.0), "{layout:?}");
        assert_eq!(one("512mb").value, Some(f64::from(1 << 29)), "{layout:?}");
        assert_eq!(one("2mb").value, Some(0.0), "{layout:?}");
        // There is a file, and sysfs says that there are no such pages: it is not even opened.
        assert_eq!((one("32mb").value, one("32mb").quality()), (None, Quality::Missing), "{layout:?}");
        assert_eq!(world.snapshot.pass.failed_files, 0, "{:?}", world.snapshot.pass.failure);
    }
}

#[test]
fn m08_node_and_containers_of_one_pass_have_one_cycle() {
    let mut world = World::new(Layout::V2);
    world.tick(1);
    world.tick(1);
    let cycles = |metric| world.all(metric)[0].cycle;
    assert_eq!(cycles("mem.rss.container"), 2);
    assert_eq!(cycles("mem.total.system"), 2);
    assert_eq!(cycles("mem.total.numa"), 2);
    let sample = world.all("mem.rss.container").remove(0);
    assert_eq!(sample.read_time_unix_ns, sample.time_unix_ns);
}

#[test]
fn the_cgroups_above_the_pods_are_measured() {
    let mut world = World::new(Layout::V2);
    world.tick(1);
    let above = world.all("mem.usage.cgroup");
    let names: Vec<_> = above.iter().map(|s| (s.cgroup.as_str(), s.value.is_some())).collect();
    assert_eq!(
        names,
        [("/kubepods", true), ("/kubepods/burstable", false)],
        "the second is imitated without files"
    );
}

#[test]
fn t4_the_cgroups_above_the_pods_are_each_once() {
    let given: Vec<CgroupPath> =
        ["test", "test-0", "test-1", "test-2", "test-3", "d1", "d2", "d3", "kubepods/burstable", "d1"]
            .map(path)
            .into();
    let all = top_cgroups(&[CgroupPath::default()], &given);
    let names: Vec<String> = all.iter().map(ToString::to_string).filter(|n| !n.contains("slice")).collect();
    let expected = ["/d1", "/d2", "/d3", "/kubepods", "/kubepods/besteffort", "/kubepods/burstable", "/test"];
    let numa = ["/test-0", "/test-1", "/test-2", "/test-3"];
    assert_eq!(names, expected.iter().chain(&numa).map(|n| (*n).to_owned()).collect::<Vec<_>>());
}
