//! A busy and an idle cgroup on the kernel of the machine that runs the test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
#![allow(clippy::print_stdout)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use metrics_fetcher::catalogue;
use metrics_fetcher::clock::SystemClock;
use metrics_fetcher::sample::{Cell, Reading};
use metrics_fetcher::sources::cgroup::{Pass, PassSettings};
use metrics_fetcher::store::Snapshot;
use oxalyst_cgroups::{CgroupPath, Controller, Hierarchy, parse};

const TREES: [Controller; 3] = [Controller::Cpu, Controller::Cpuacct, Controller::Memory];
/// CPU time that the busy one must have used between the two passes.
const MEASURED_NS: u64 = 300_000_000;
const DEADLINE: Duration = Duration::from_secs(60);

/// Cgroups of this test alone, removed with their processes however it ends.
struct Own {
    hierarchy: Hierarchy,
    root: CgroupPath,
    children: Vec<Child>,
}

impl Own {
    fn create(name: &str) -> Result<Self, String> {
        let hierarchy = Hierarchy::detect(Path::new("/")).map_err(|e| e.to_string())?;
        let root = CgroupPath::new(&format!("oxalyst-test-{name}-{}", std::process::id())).unwrap();
        let own = Self { hierarchy, root, children: Vec::new() };
        for container in ["busy", "idle"] {
            for controller in TREES {
                let Ok(mount) = own.hierarchy.mount(controller) else {
                    return Err(format!("no controller {}", controller.name()));
                };
                let mut dir = mount.to_path_buf();
                for part in own.path(container).as_str().split('/') {
                    // On v2 a controller must be enabled from above, one level at a time; where it is already, or
                    // on v1, this fails and does not matter.
                    let _ = fs::write(dir.join("cgroup.subtree_control"), "+cpu +memory");
                    dir.push(part);
                    if !dir.is_dir() {
                        fs::create_dir(&dir).map_err(|e| format!("cannot make {}: {e}", dir.display()))?;
                    }
                }
            }
            if !own.file(Controller::Memory, container, "memory.stat").is_file() {
                return Err("the memory controller is not enabled here".to_owned());
            }
        }
        Ok(own)
    }

    fn path(&self, container: &str) -> CgroupPath {
        self.root.join(&format!("kubepods/burstable/podtest/{container}")).unwrap()
    }

    fn file(&self, controller: Controller, container: &str, name: &str) -> PathBuf {
        self.hierarchy.dir(controller, &self.path(container)).unwrap().join(name)
    }

    fn spawn(&mut self, container: &str, script: &str) {
        // It waits for a line, so that all it does is done within the cgroup.
        let mut child = Command::new("sh")
            .args(["-c", &format!("read go; {script}")])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        for controller in TREES {
            let procs = self.file(controller, container, "cgroup.procs");
            fs::write(&procs, child.id().to_string()).unwrap();
        }
        std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"go\n").unwrap();
        self.children.push(child);
    }

    fn cpu_ns(&self) -> u64 {
        if self.hierarchy.is_unified() {
            let bytes = fs::read(self.file(Controller::Cpu, "busy", "cpu.stat")).unwrap();
            parse::cpu_stat(&bytes).unwrap().usage_ns.unwrap()
        } else {
            let bytes = fs::read(self.file(Controller::Cpuacct, "busy", "cpuacct.usage")).unwrap();
            parse::cpuacct_usage(&bytes).unwrap()
        }
    }

    fn anon(&self) -> u64 {
        let bytes = fs::read(self.file(Controller::Memory, "busy", "memory.stat")).unwrap();
        let stat = if self.hierarchy.is_unified() {
            parse::memory_stat_v2(&bytes)
        } else {
            parse::memory_stat_v1(&bytes)
        };
        stat.unwrap().anon.unwrap()
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        for controller in TREES {
            let Ok(mount) = self.hierarchy.mount(controller) else { continue };
            for container in ["busy", "idle"] {
                let mut path = self.path(container).under(mount);
                while path.starts_with(mount) && path != mount {
                    let _ = fs::remove_dir(&path);
                    path.pop();
                }
            }
        }
    }
}

fn reading(snapshot: &Snapshot, container: &str, metric: &str) -> Reading {
    let (place, _) = catalogue::find(metric).unwrap();
    let subject = snapshot.containers.iter().find(|s| s.id.container_id == container).unwrap();
    match subject.cells.get(place).unwrap() {
        Cell { last: Some(reading), .. } => *reading,
        cell => panic!("{container} {metric}: {cell:?}"),
    }
}

/// What [`load`] runs as a process of its own, when a test asks for it by this variable.
const LOAD: &str = "OXALYST_TEST_LOAD";
/// Bytes that it touches.
const TOUCHED: usize = 64 << 20;

/// Not a test but the load of one: it touches memory, burns CPU, and tells by its own clock how much it has used.
#[test]
fn load() {
    if std::env::var_os(LOAD).is_none() {
        return;
    }
    let mut lines = std::io::stdin().lines();
    assert_eq!(lines.next().unwrap().unwrap(), "go");
    let touched = vec![1u8; TOUCHED];
    std::thread::spawn(|| {
        let mut n = 0u64;
        loop {
            n = std::hint::black_box(n.wrapping_add(1));
        }
    });
    for line in lines {
        assert_eq!(line.unwrap(), "clock");
        let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        println!("used {}", used.tv_sec * 1_000_000_000 + used.tv_nsec);
        std::io::Write::flush(&mut std::io::stdout()).unwrap();
    }
    std::hint::black_box(touched);
}

/// A load in a cgroup.
struct Loaded {
    child: Child,
    answers: std::io::Lines<std::io::BufReader<std::process::ChildStdout>>,
}

impl Drop for Loaded {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Loaded {
    fn start(own: &Own, container: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "load", "--nocapture", "--test-threads=1"])
            .env(LOAD, "1")
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        for controller in TREES {
            fs::write(own.file(controller, container, "cgroup.procs"), child.id().to_string()).unwrap();
        }
        let answers = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
        let mut loaded = Self { child, answers };
        loaded.say("go");
        loaded
    }

    fn say(&mut self, line: &str) {
        let stdin = self.child.stdin.as_mut().unwrap();
        std::io::Write::write_all(stdin, format!("{line}\n").as_bytes()).unwrap();
    }

    /// CPU time of the whole process, by its own clock, nanoseconds.
    fn used_ns(&mut self) -> u64 {
        self.say("clock");
        loop {
            // The test's harness says this and that.
            let line = self.answers.next().unwrap().unwrap();
            if let Some(ns) = line.split("used ").nth(1) {
                return ns.parse().unwrap();
            }
        }
    }
}

fn pass_over(own: &Own) -> Pass {
    let settings = PassSettings {
        host_root: "/".into(),
        roots: vec![own.root.clone()],
        forget: Duration::from_secs(60),
        cgroups: Vec::new(),
    };
    Pass::new(settings, Arc::new(SystemClock::default()))
}

#[test]
fn the_loads_own_clock_and_the_memory_it_touched_are_told_within_2_percent() {
    let own = match Own::create("truth") {
        Ok(own) => own,
        Err(why) => {
            println!("skipped: {why}");
            return;
        }
    };
    let (mut load, mut pass, began) = (Loaded::start(&own, "busy"), pass_over(&own), Instant::now());
    loop {
        assert!(began.elapsed() < DEADLINE, "the load's clock was never asked close enough to a pass");
        // The clock before and after each pass bounds what the pass can have seen.
        let first = (load.used_ns(), pass.run(&[]), load.used_ns());
        while load.used_ns() < first.2 + 1_000_000_000 {
            assert!(began.elapsed() < DEADLINE, "the load gets no CPU");
        }
        let second = (load.used_ns(), pass.run(&[]), load.used_ns());
        let (least, most) = ((second.0 - first.2) as f64, (second.2 - first.0) as f64);
        // A machine that gave the CPU to others in between says nothing sharp: again.
        if most - least > least * 0.01 {
            continue;
        }
        let told = reading(&second.1, "busy", "cpu.usage.container");
        let told = told.value * told.interval().as_nanos() as f64;
        let truth = (least + most) / 2.0;
        assert!((told - truth).abs() <= truth * 0.02, "told {told} ns, the load's own clock says {truth}");
        let touched = TOUCHED as f64;
        let rss = reading(&second.1, "busy", "mem.rss.container").value;
        assert!((rss - touched).abs() <= touched * 0.02, "told {rss} bytes, {touched} were touched");
        break;
    }
}

/// Every file of a folder's own, copied.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        if entry.file_type().unwrap().is_file()
            && let Ok(bytes) = fs::read(entry.path())
        {
            fs::write(to.join(entry.file_name()), bytes).unwrap();
        }
    }
}

#[test]
fn a_copy_of_the_files_is_told_as_the_kernels_own_files_are() {
    let mut own = match Own::create("parity") {
        Ok(own) => own,
        Err(why) => {
            println!("skipped: {why}");
            return;
        }
    };
    // It has used CPU and memory, and does nothing more.
    own.spawn("busy", "x=$(head -c 4000000 /dev/zero | tr '\\0' a); read never");
    let began = Instant::now();
    let (dir, mut live) = (tempfile::tempdir().unwrap(), pass_over(&own));
    loop {
        assert!(began.elapsed() < DEADLINE, "its files never hold still");
        for controller in oxalyst_cgroups::Controller::ALL {
            let Ok(mount) = own.hierarchy.mount(controller) else { continue };
            for container in ["busy", "idle"] {
                let from = own.path(container).under(mount);
                if from.is_dir() {
                    copy(&from, &dir.path().join(from.strip_prefix("/").unwrap()));
                }
            }
        }
        if own.hierarchy.is_unified() {
            let controllers = Path::new("sys/fs/cgroup/cgroup.controllers");
            fs::copy(Path::new("/").join(controllers), dir.path().join(controllers)).unwrap();
        }
        let settings = PassSettings {
            host_root: dir.path().to_path_buf(),
            roots: vec![own.root.clone()],
            forget: Duration::from_secs(60),
            cgroups: Vec::new(),
        };
        let copied = Pass::new(settings, Arc::new(SystemClock::default())).run(&[]);
        let kernel = live.run(&[]);
        let values = |snapshot: &Snapshot, id: &str| -> Vec<Option<f64>> {
            let subject = snapshot.containers.iter().find(|s| s.id.container_id == id).unwrap();
            let rows = catalogue::CONTAINER.iter().zip(subject.cells.iter());
            // Rates need time to pass, and averages of pressure go on falling.
            let level =
                |m: &catalogue::Metric| matches!(m.kind, catalogue::Kind::Level) && !m.name.contains(".psi");
            rows.filter(|(m, _)| level(m)).map(|(_, cell)| cell.last.map(|r| r.value)).collect()
        };
        let [a, b] = ["busy", "idle"].map(|id| (values(&copied, id), values(&kernel, id)));
        assert!(a.1.iter().flatten().count() > 20, "{:?}", a.1);
        assert_eq!(
            a.0.iter().map(Option::is_some).collect::<Vec<_>>(),
            a.1.iter().map(Option::is_some).collect::<Vec<_>>()
        );
        // The kernel folds counters of CPUs together when it likes: what differs then is read anew.
        if a.0 == a.1 && b.0 == b.1 && own.anon() > 4_000_000 {
            break;
        }
    }
}

#[tokio::test]
async fn a_busy_container_agrees_with_the_kernels_counters_and_an_idle_one_is_idle() {
    let mut own = match Own::create("busy") {
        Ok(own) => own,
        Err(why) => {
            println!("skipped: {why}");
            return;
        }
    };
    own.spawn("busy", "x=$(head -c 8000000 /dev/zero | tr '\\0' a); while :; do :; done");
    own.spawn("idle", "read never");
    let settings = PassSettings {
        host_root: "/".into(),
        roots: vec![own.root.clone()],
        forget: Duration::from_secs(60),
        cgroups: Vec::new(),
    };
    let mut pass = Pass::new(settings, Arc::new(SystemClock::default()));
    let began = Instant::now();
    // The shell holds its string from here on, and does nothing but count time.
    while own.anon() < 8_000_000 || own.cpu_ns() < MEASURED_NS {
        assert!(began.elapsed() < DEADLINE, "the busy process does not get going");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    // The kernel's counter before and after each pass bounds what the pass can have seen.
    let first = (own.cpu_ns(), pass.run(&[]), own.cpu_ns());
    while own.cpu_ns() < first.2 + MEASURED_NS {
        assert!(began.elapsed() < DEADLINE, "the busy process gets no CPU");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let anon = own.anon();
    let second = (own.cpu_ns(), pass.run(&[]), own.cpu_ns());

    let busy = reading(&second.1, "busy", "cpu.usage.container");
    let measured = busy.value * busy.interval().as_nanos() as f64;
    let (least, most) = ((second.0 - first.2) as f64, (second.2 - first.0) as f64);
    assert!(
        measured >= least * 0.98 && measured <= most * 1.02,
        "{measured} ns, the kernel says {least}..={most}"
    );
    let idle = reading(&second.1, "idle", "cpu.usage.container");
    assert!(idle.value < busy.value / 10.0, "idle {} busy {}", idle.value, busy.value);
    let rss = reading(&second.1, "busy", "mem.rss.container").value;
    assert!((rss - anon as f64).abs() <= anon as f64 * 0.02, "{rss} bytes, the kernel says {anon}");
    assert!(rss > reading(&second.1, "idle", "mem.rss.container").value);

    // A removed cgroup: its descriptors are dead, its last values stay for a while, nothing fails.
    drop(own);
    let third = pass.run(&[]);
    assert!(third.pass.trouble.is_none(), "{:?}", third.pass.trouble);
    assert!(third.containers.iter().all(|s| s.removed.is_some()), "{:?}", third.containers);
    assert_eq!(third.containers.len(), 2);
    assert_eq!(reading(&third, "busy", "cpu.usage.container"), busy);
}
