//! What the kernel is asked about each container, on the kernel of the machine that runs the test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
#![allow(clippy::print_stdout)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use metrics_fetcher::clock::SystemClock;
use metrics_fetcher::sources::apart::{Probe, Told};
use metrics_fetcher::sources::cgroupstats::CgroupStats;
use metrics_fetcher::sources::perf::{Events, Perf};
use metrics_fetcher::store::Id;
use oxalyst_cgroups::{Hierarchy, parse};

const DEADLINE: Duration = Duration::from_secs(60);

/// Cgroups in one tree, with a process each, removed with them.
struct Own {
    tree: PathBuf,
    name: String,
    children: Vec<Child>,
}

impl Own {
    fn create(tree: PathBuf, name: &str) -> Result<Self, String> {
        let name = format!("oxalyst-test-{name}-{}", std::process::id());
        fs::create_dir(tree.join(&name))
            .map_err(|e| format!("cannot make a cgroup in {}: {e}", tree.display()))?;
        Ok(Self { tree, name, children: Vec::new() })
    }

    fn dir(&self, container: &str) -> PathBuf {
        self.tree.join(&self.name).join(container)
    }

    fn container(&mut self, container: &str, script: &str) -> Arc<Id> {
        fs::create_dir(self.dir(container)).unwrap();
        let mut child = Command::new("sh")
            .args(["-c", &format!("read go; {script}")])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        fs::write(self.dir(container).join("cgroup.procs"), child.id().to_string()).unwrap();
        std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"go\n").unwrap();
        self.children.push(child);
        let cgroup = format!("/{}/{container}", self.name);
        Arc::new(Id { container_id: container.to_owned(), cgroup, ..Id::default() })
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        for entry in fs::read_dir(self.dir("")).into_iter().flatten().flatten() {
            let _ = fs::remove_dir(entry.path());
        }
        let _ = fs::remove_dir(self.dir(""));
    }
}

fn number(told: &Told, container: &str, name: &str) -> Option<u64> {
    let (_, _, values) = told.answers.iter().find(|(id, ..)| id.container_id == container)?;
    values.get(name)?.as_u64()
}

/// The tree in which the kernel counts, where it has the CPU time of a cgroup as well.
fn counting() -> Result<PathBuf, String> {
    let hierarchy = Hierarchy::detect(Path::new("/")).map_err(|e| e.to_string())?;
    let tree = match hierarchy.is_unified() {
        true => hierarchy.root().to_path_buf(),
        false => hierarchy.root().join("unified"),
    };
    let alone = hierarchy.root().join("perf_event").is_dir();
    if tree.is_dir() && !alone { Ok(tree) } else { Err("perf_event has a tree of its own here".to_owned()) }
}

fn used_ns(own: &Own, container: &str) -> u64 {
    let stat = fs::read(own.dir(container).join("cpu.stat")).unwrap();
    parse::cpu_stat(&stat).unwrap().usage_ns.unwrap()
}

#[test]
fn counters_follow_the_tasks_of_a_cgroup_and_no_others() {
    let mut own = match counting().and_then(|tree| Own::create(tree, "perf")) {
        Ok(own) => own,
        Err(why) => return println!("skipped: {why}"),
    };
    let busy = own.container("busy", "while :; do :; done");
    let idle = own.container("idle", "read never");
    let clock = SystemClock::default();
    let mut perf = Perf::new(Path::new("/"), Events::Clocks, 2);
    let containers = [Arc::clone(&busy), Arc::clone(&idle)];
    let began = Instant::now();
    if let Err(why) = perf.read(&containers, &clock) {
        return println!("skipped: {why}");
    }
    loop {
        assert!(began.elapsed() < DEADLINE, "no interval was sharp enough");
        let first = (used_ns(&own, "busy"), perf.read(&containers, &clock).unwrap(), used_ns(&own, "busy"));
        // Long, for the kernel adds to a cgroup's CPU time by the tick.
        while used_ns(&own, "busy") < first.2 + 2_000_000_000 {
            assert!(began.elapsed() < DEADLINE, "the busy process gets no CPU");
        }
        let second = (used_ns(&own, "busy"), perf.read(&containers, &clock).unwrap(), used_ns(&own, "busy"));
        let (least, most) = ((second.0 - first.2) as f64, (second.2 - first.0) as f64);
        if most - least > least * 0.02 {
            continue;
        }
        let grown = |container, name| {
            number(&second.1, container, name).unwrap() - number(&first.1, container, name).unwrap()
        };
        let counted = grown("busy", "cycles") as f64;
        assert!(
            counted >= least * 0.98 && counted <= most * 1.02,
            "{counted}, the kernel says {least}..={most}"
        );
        assert!(grown("busy", "instructions") > 0);
        assert!((grown("idle", "cycles") as f64) < counted / 10.0);
        break;
    }

    // Whoever is gone is counted no more, and another may be.
    assert_eq!(perf.counted(), 2);
    perf.read(&containers[..1], &clock).unwrap();
    assert_eq!(perf.counted(), 1);
}

#[test]
fn so_many_containers_are_counted_and_no_more() {
    let mut own = match counting().and_then(|tree| Own::create(tree, "perfcap")) {
        Ok(own) => own,
        Err(why) => return println!("skipped: {why}"),
    };
    let containers = ["a", "b", "c"].map(|name| own.container(name, "read never"));
    let mut perf = Perf::new(Path::new("/"), Events::Clocks, 2);
    match perf.read(&containers, &SystemClock::default()) {
        Err(why) => println!("skipped: {why}"),
        Ok(told) => {
            assert_eq!((told.answers.len(), told.failed, perf.counted()), (2, 1, 2));
            let why = told.failure.unwrap();
            assert!(why.contains("/c: ") && why.contains("perf.max_containers"), "{why}");
        }
    }
}

#[test]
fn hardware_counters_tell_cycles_or_why_there_are_none() {
    let mut own = match counting().and_then(|tree| Own::create(tree, "perfhw")) {
        Ok(own) => own,
        Err(why) => return println!("skipped: {why}"),
    };
    let busy = own.container("busy", "while :; do :; done");
    let mut perf = Perf::new(Path::new("/"), Events::Hardware, 2);
    let (clock, began) = (SystemClock::default(), Instant::now());
    loop {
        match perf.read(std::slice::from_ref(&busy), &clock) {
            Err(why) => return assert!(why.starts_with("unavailable: "), "{why}"),
            Ok(told) if number(&told, "busy", "cycles") > Some(0) => {
                return assert!(number(&told, "busy", "instructions") > Some(0));
            }
            Ok(told) => assert!(began.elapsed() < DEADLINE, "{told:?}"),
        }
    }
}

#[test]
fn the_kernel_tells_how_many_tasks_of_a_v1_cgroup_are_runnable() {
    let hierarchy = Hierarchy::detect(Path::new("/")).unwrap();
    if hierarchy.is_unified() {
        return println!("skipped: of cgroup v2 the kernel answers no CGROUPSTATS");
    }
    let mut own = match Own::create(hierarchy.any_mount().unwrap().to_path_buf(), "tasks") {
        Ok(own) => own,
        Err(why) => return println!("skipped: {why}"),
    };
    let containers = [own.container("busy", "while :; do :; done"), own.container("idle", "read never")];
    let (mut probe, clock, began) =
        (CgroupStats::new(Path::new("/")), SystemClock::default(), Instant::now());
    loop {
        let told = probe.read(&containers, &clock).unwrap();
        if told.answers.is_empty() && told.failed == 0 {
            return println!("skipped: this kernel was built without CONFIG_TASKSTATS");
        }
        assert_eq!(told.failed, 0, "{:?}", told.failure);
        let runnable = ["busy", "idle"].map(|name| number(&told, name, "task_nr_runnable"));
        // Until they have read their line, both may run, or wait.
        if runnable == [Some(1), Some(0)] {
            assert_eq!(number(&told, "busy", "task_nr_unint"), Some(0));
            break;
        }
        assert!(began.elapsed() < DEADLINE, "{runnable:?}");
    }
    // A container that went away fails alone.
    let gone =
        Arc::new(Id { container_id: "gone".into(), cgroup: "/oxalyst-no-such".into(), ..Id::default() });
    let told = probe.read(&[gone, Arc::clone(&containers[0])], &clock).unwrap();
    assert_eq!((told.answers.len(), told.failed), (1, 1));
    // A folder that is no cgroup is nothing to ask about, and no failure.
    let imitated = tempfile::tempdir().unwrap();
    fs::create_dir_all(imitated.path().join("sys/fs/cgroup/memory/c")).unwrap();
    let folder = Arc::new(Id { container_id: "c".into(), cgroup: "/c".into(), ..Id::default() });
    let told = CgroupStats::new(imitated.path()).read(&[folder], &clock).unwrap();
    assert_eq!((told.answers.len(), told.failed), (0, 0), "{:?}", told.failure);
}
