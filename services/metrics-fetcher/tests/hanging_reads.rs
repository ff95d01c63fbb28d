//! Reads that hang: a pipe that nobody writes to blocks whoever opens it, as a stuck device blocks whoever reads it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
#![allow(clippy::print_stdout)]

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use oxalyst_cgroups::fixture::{Fixture, Layout};
use oxalyst_cgroups::{CgroupPath, Controller};
use oxalyst_mesh::connect;
use oxalyst_proto::metrics::v1::metrics_client::MetricsClient;
use oxalyst_proto::metrics::v1::{ListSourcesRequest, Quality, QueryRequest, Sample, SourceInfo};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tonic::transport::Channel;

const DEADLINE: Duration = Duration::from_secs(30);
const STAT: &str = "memory.stat";

struct World {
    dir: tempfile::TempDir,
    fixture: Fixture,
    child: Child,
    client: MetricsClient<Channel>,
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl World {
    fn start() -> Self {
        Self::start_by(Command::new(env!("CARGO_BIN_EXE_metrics-fetcher")))
    }

    /// With so few descriptors that no file stays open between passes.
    fn start_with_nothing_open() -> Self {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "ulimit -n 100 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_metrics-fetcher")]);
        Self::start_by(command)
    }

    fn start_by(mut command: Command) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (host, run) = (dir.path().join("host"), dir.path().join("run"));
        let fixture = Fixture::create(&host, Layout::V2).unwrap();
        fixture.cgroup(&container("c0")).unwrap();
        command
            .env_clear()
            .stderr(std::fs::File::create(dir.path().join("log")).unwrap())
            .stdout(Stdio::null());
        for setting in [
            format!("common.run_dir={}", run.display()),
            format!("common.host_root={}", host.display()),
            "period_ms=100".to_owned(),
            "read_deadline_ms=200".to_owned(),
            "pass_deadline_ms=1500".to_owned(),
            "stale_after_periods=20".to_owned(),
            "withdraw_after_periods=60".to_owned(),
            "forget_after_periods=80".to_owned(),
        ] {
            command.args(["--set", &setting]);
        }
        let client = MetricsClient::new(connect(&run, "metrics-fetcher"));
        Self { child: command.spawn().unwrap(), dir, fixture, client }
    }

    fn stat_of(&self, id: &str) -> PathBuf {
        self.fixture.dir(Controller::Memory, &container(id)).join(STAT)
    }

    /// A container whose `memory.stat` is a pipe; it is put in place in one step.
    fn hanging(&self, id: &str) {
        self.hanging_in(id, &[STAT]);
    }

    /// The same with pipes in place of several files.
    fn hanging_in(&self, id: &str, files: &[&str]) {
        let aside = CgroupPath::new(&format!("aside/{id}")).unwrap();
        self.fixture.cgroup(&aside).unwrap();
        let place = |path| self.fixture.dir(Controller::Memory, path);
        for file in files {
            let pipe = place(&aside).join(file);
            std::fs::remove_file(&pipe).unwrap();
            mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        }
        std::fs::rename(place(&aside), place(&container(id))).unwrap();
    }

    /// Whoever waits for a writer of these pipes goes on, and files of another container stand in their place.
    fn answered(&self, id: &str, files: &[&str]) {
        for file in files {
            let file = self.stat_of(id).with_file_name(file);
            let pipe = file.with_extension("pipe");
            std::fs::rename(&file, &pipe).unwrap();
            std::fs::copy(self.stat_of("c0").with_file_name(file.file_name().unwrap()), &file).unwrap();
            // Nobody waits at one that was not tried.
            let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::NONBLOCK;
            drop(rustix::fs::open(&pipe, flags, Mode::empty()));
        }
    }

    async fn readers_are(&self, count: usize) {
        let began = Instant::now();
        while self.readers() != count {
            assert!(began.elapsed() < DEADLINE, "{} threads read, not {count}", self.readers());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn sample(&mut self, id: &str, metric: &str) -> Option<Sample> {
        let request = QueryRequest {
            metrics: vec![metric.to_owned()],
            ids: vec![id.to_owned()],
            ..QueryRequest::default()
        };
        self.client.query(request).await.ok()?.into_inner().samples.pop()
    }

    async fn until(&mut self, id: &str, metric: &str, holds: impl Fn(&Sample) -> bool) -> Sample {
        let (began, mut last) = (Instant::now(), None);
        while began.elapsed() < DEADLINE {
            match self.sample(id, metric).await {
                Some(sample) if holds(&sample) => return sample,
                other => last = other,
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{id} {metric}: {last:?}\n{}", self.log());
    }

    async fn source(&mut self) -> SourceInfo {
        self.client.list_sources(ListSourcesRequest {}).await.unwrap().into_inner().sources.remove(0)
    }

    /// Threads that read cgroups, waiting ones among them.
    fn readers(&self) -> usize {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let name =
            |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        tasks.flatten().map(name).filter(|name| name.trim() == "cgroup-pass").count()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    fn lines(&self, with: &str) -> usize {
        self.log().lines().filter(|line| line.contains(with)).count()
    }
}

fn container(id: &str) -> CgroupPath {
    CgroupPath::new(&format!("kubepods/burstable/poduid-1/{id}")).unwrap()
}

fn fresh(sample: &Sample) -> bool {
    sample.quality() == Quality::Fresh
}

const RSS: &str = "mem.rss.container";
const USAGE: &str = "mem.usage.container";

#[tokio::test]
async fn m15_a_read_that_hangs_costs_its_file_and_not_the_pass() {
    let mut world = World::start();
    world.until("c0", RSS, fresh).await;
    world.hanging("c1");
    // What its other files tell is there, and the file that hangs is named.
    world.until("c1", USAGE, fresh).await;
    let late = world.until("c1", RSS, |s| s.reason.contains("given up")).await;
    assert!(late.value.is_none() && late.reason.contains(STAT), "{late:?}");
    // The others are read on and on.
    let before = world.until("c0", RSS, fresh).await;
    let after = world.until("c0", RSS, |s| fresh(s) && s.cycle > before.cycle + 40).await;
    assert!(after.time_unix_ns > before.time_unix_ns);
    // Long after the file could be tried again it was not: its first reader still hangs.
    assert_eq!(world.readers(), 2);
    assert_eq!(world.lines("some files cannot be read"), 1, "{}", world.log());
    let source = world.source().await;
    assert!(source.error.contains("given up"), "{source:?}");

    // The device answers at last: the thread comes back, and the file is read again.
    let stat = world.stat_of("c1");
    let pipe = stat.with_file_name("pipe");
    std::fs::rename(&stat, &pipe).unwrap();
    std::fs::copy(world.stat_of("c0"), &stat).unwrap();
    // Whoever waits for a writer goes on once there is one.
    drop(std::fs::OpenOptions::new().write(true).open(&pipe).unwrap());
    world.until("c1", RSS, fresh).await;
    let began = Instant::now();
    while world.readers() > 1 {
        assert!(began.elapsed() < DEADLINE, "the thread that came back does not end");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(world.lines("all files can be read"), 1, "{}", world.log());
}

/// A file system in user space whose process never answers: whoever looks into the folder hangs until it is dropped.
struct Stuck {
    folder: PathBuf,
    device: Option<std::fs::File>,
}

impl Stuck {
    fn mount(folder: PathBuf) -> Result<Self, String> {
        use std::os::fd::AsRawFd as _;
        std::fs::create_dir_all(&folder).unwrap();
        let device = std::fs::File::options().read(true).write(true).open("/dev/fuse");
        let device = device.map_err(|e| format!("/dev/fuse: {e}"))?;
        let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let data = std::ffi::CString::new(data).unwrap();
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("stuck", &folder, "fuse", flags, data.as_c_str())
            .map_err(|e| format!("mount of FUSE: {e}"))?;
        Ok(Self { folder, device: Some(device) })
    }
}

impl Drop for Stuck {
    fn drop(&mut self) {
        // Its end answers all that wait.
        self.device.take();
        let _ = rustix::mount::unmount(&self.folder, rustix::mount::UnmountFlags::DETACH);
    }
}

#[tokio::test]
async fn m15_a_listing_that_hangs_costs_its_thread_and_not_the_pass() {
    let mut world = World::start();
    world.until("c0", RSS, fresh).await;
    // Beside the pods: it is found out to be none of them only by looking into it.
    let folder = world.dir.path().join("host/sys/fs/cgroup/kubepods/burstable/podstuck");
    let stuck = match Stuck::mount(folder) {
        Ok(stuck) => stuck,
        Err(why) => return println!("skipped: {why}"),
    };
    let began = Instant::now();
    while !world.source().await.error.contains("listing") {
        assert!(began.elapsed() < DEADLINE, "nothing is said of it: {}", world.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let error = world.source().await.error;
    assert!(error.contains("podstuck") && error.contains("given up"), "{error}");
    // Whoever is known is read on and on, by one thread more than hangs.
    let before = world.until("c0", RSS, fresh).await;
    world.until("c0", RSS, |s| fresh(s) && s.cycle > before.cycle + 20).await;
    assert_eq!(world.readers(), 2);
    assert_eq!(world.lines("some files cannot be read"), 1, "{}", world.log());

    // It goes: the thread comes back, and who came meanwhile is found.
    world.fixture.cgroup(&container("c1")).unwrap();
    drop(stuck);
    world.until("c1", RSS, fresh).await;
    let began = Instant::now();
    while world.readers() > 1 {
        assert!(began.elapsed() < DEADLINE, "the thread that came back does not end");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(world.lines("all files can be read"), 1, "{}", world.log());
}

#[tokio::test]
async fn m15_files_of_one_container_that_hang_cost_two_threads_and_not_the_pass() {
    for files in [&["memory.stat", "io.stat"][..], &["memory.stat", "io.stat", "memory.current"]] {
        let mut world = World::start();
        world.until("c0", RSS, fresh).await;
        world.hanging_in("c1", files);
        world.readers_are(3).await;
        // All that is another's is read on and on, longer than any of them is let alone.
        let before = world.until("c0", RSS, fresh).await;
        world.until("c0", RSS, |s| fresh(s) && s.cycle > before.cycle + 40).await;
        let node = world
            .client
            .query(QueryRequest { metrics: vec!["mem.total.system".to_owned()], ..QueryRequest::default() });
        let node = node.await.unwrap().into_inner().samples;
        assert!(fresh(&node[0]), "{node:?}");
        assert_eq!(world.readers(), 3);
        let source = world.source().await;
        assert_eq!(source.late_reads_total, 2, "{source:?}");
        assert!(source.error.contains("uid-1/c1"), "{source:?}");
        assert_eq!(world.lines("cgroups cannot be read"), 0, "{}", world.log());
        // They answer at last: every file is read again.
        world.answered("c1", files);
        world.until("c1", RSS, fresh).await;
        world.until("c1", USAGE, fresh).await;
        world.readers_are(1).await;
    }
}

#[tokio::test]
async fn a_file_without_end_is_not_read_whole_and_says_so() {
    let mut world = World::start();
    world.until("c0", RSS, fresh).await;
    let pid = world.child.id();
    let peak = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    let before = peak();
    let (stat, proc) = (world.stat_of("c0"), world.dir.path().join("host/proc/vmstat"));
    for file in [&stat, &proc] {
        let file = std::fs::File::options().write(true).open(file).unwrap();
        file.set_len(1 << 30).unwrap();
    }
    let late = world.until("c0", RSS, |s| s.reason.contains("longer than")).await;
    assert!(late.reason.contains(STAT), "{late:?}");
    assert!(world.source().await.error.contains("longer than"));
    assert!(peak() < before + (64 << 10), "{} KiB at most, {before} before", peak());
    // The others are read on.
    world.until("c0", USAGE, fresh).await;
}

#[tokio::test]
async fn m15_with_four_threads_lost_who_comes_is_let_alone_and_the_rest_is_read_on() {
    let mut world = World::start();
    world.until("c0", RSS, fresh).await;
    for n in 1..=4 {
        world.hanging(&format!("c{n}"));
        world.until(&format!("c{n}"), RSS, |s| s.reason.contains("given up")).await;
    }
    assert_eq!(world.readers(), 5);
    world.hanging("c5");
    let late = world.until("c5", RSS, |s| s.reason.contains("not tried")).await;
    assert!(late.value.is_none() && late.reason.contains(STAT), "{late:?}");
    let before = world.until("c0", RSS, fresh).await;
    world.until("c0", RSS, |s| fresh(s) && s.cycle > before.cycle + 20).await;
    assert_eq!((world.readers(), world.source().await.late_reads_total), (5, 4));
    // With one thread back there is one to lose.
    world.answered("c1", &[STAT]);
    world.until("c1", RSS, fresh).await;
    world.until("c5", RSS, |s| s.reason.contains("given up")).await;
    world.answered("c5", &[STAT]);
    world.until("c5", RSS, fresh).await;
}

/// As [`m15_four_threads_are_given_up_and_no_more`], with a folder in the place of the fifth file.
#[tokio::test]
async fn m15_a_listing_that_hangs_as_the_fifth_stops_the_pass_until_it_ends() {
    let mut world = World::start();
    world.until("c0", RSS, fresh).await;
    for n in 1..=4 {
        world.hanging(&format!("c{n}"));
        world.until(&format!("c{n}"), RSS, |s| s.reason.contains("given up")).await;
    }
    let before = world.until("c0", RSS, fresh).await;
    world.until("c0", RSS, |s| fresh(s) && s.cycle > before.cycle).await;
    let folder = world.dir.path().join("host/sys/fs/cgroup/kubepods/burstable/podstuck");
    let stuck = match Stuck::mount(folder) {
        Ok(stuck) => stuck,
        Err(why) => return println!("skipped: {why}"),
    };
    let late = world.until("c0", RSS, |s| s.quality() == Quality::Stale).await;
    assert!(late.value.is_some() && late.reason.contains("deadline"), "{late:?}");
    assert_eq!(world.readers(), 5);
    drop(stuck);
    world.until("c0", RSS, |s| fresh(s) && s.cycle > late.cycle).await;
}

#[tokio::test]
async fn m15_four_threads_are_given_up_and_no_more() {
    let mut world = World::start_with_nothing_open();
    world.until("c0", RSS, fresh).await;
    for n in 1..=4 {
        world.hanging(&format!("c{n}"));
        world.until(&format!("c{n}"), RSS, |s| s.reason.contains("given up")).await;
    }
    let before = world.until("c0", RSS, fresh).await;
    world.until("c0", RSS, |s| fresh(s) && s.cycle > before.cycle).await;
    assert_eq!(world.readers(), 5);
    // A file that was read until now.
    let (stat, pipe) = (world.stat_of("c0"), world.stat_of("c0").with_file_name("pipe"));
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    std::fs::rename(&pipe, &stat).unwrap();
    // Now the pass itself hangs, and says so; everything ages, nothing is wiped.
    let late = world.until("c0", RSS, |s| s.quality() == Quality::Stale).await;
    assert!(late.value.is_some() && late.reason.contains("deadline"), "{late:?}");
    assert_eq!(world.readers(), 5);
    assert_eq!(world.lines("cgroups cannot be read; what is known ages"), 1, "{}", world.log());

    let pid = rustix::process::Pid::from_child(&world.child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let began = Instant::now();
    while world.child.try_wait().unwrap().is_none() {
        assert!(began.elapsed() < DEADLINE, "threads that hang keep it from ending");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
