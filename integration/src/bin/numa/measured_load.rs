//! A load that knows what it uses, in a cgroup of its own, beside what the metrics-fetcher tells of it.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use integration::containerd::Containerd;
use integration::runtime::{ContainerId, fresh_uid};
use integration::scenarios::World;
use oxalyst_topology::Machine;
use rustix::time::{ClockId, clock_gettime};

use super::{LIMIT, fresh};

/// Bytes that it touches.
const MEMORY: usize = 32 << 20;
/// Samples that are compared; the middle one of their errors counts, for whoever is called away between the clock and the
/// file is wrong once.
const SAMPLES: usize = 5;

/// The load's clock between two looks at the date.
#[derive(Clone, Copy, Debug)]
struct Tick {
    before_ns: i64,
    used_ns: i64,
    after_ns: i64,
}

/// The load and its cgroup, which go together.
struct Load {
    child: Child,
    ticks: Arc<Mutex<Vec<Tick>>>,
    dirs: Vec<PathBuf>,
}

/// The load itself: it touches memory, burns CPU, and tells again and again what it has used by its own clock.
pub async fn burn() {
    let mut go = String::new();
    std::io::stdin().read_line(&mut go).unwrap();
    let touched = vec![1u8; MEMORY];
    std::thread::spawn(|| {
        let mut n = 0u64;
        loop {
            n = std::hint::black_box(n.wrapping_add(1));
        }
    });
    let date = || i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()).unwrap();
    let mut out = std::io::stdout();
    loop {
        let before = date();
        let used = clock_gettime(ClockId::ProcessCPUTime);
        let after = date();
        // Whoever started it is gone: so is its reason to be.
        if writeln!(out, "{before} {} {after}", used.tv_sec * 1_000_000_000 + used.tv_nsec).is_err() {
            break;
        }
        let _ = out.flush();
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    std::hint::black_box(touched);
}

/// CPU time within 2 % of the load's own clock over the same interval, memory within 2 % of what it touched, all of it on the
/// node that it may use.
pub async fn is_told(world: &mut World<Containerd>, machine: &Machine) {
    let node = machine.nodes().last().unwrap().id;
    let id = ContainerId(format!("{0:016x}{0:016x}{0:016x}{0:016x}", fastrand::u64(..)));
    let load = Load::start(&id.0, node);
    let (began, mut errors, mut seen) = (Instant::now(), Vec::new(), 0);
    while errors.len() < SAMPLES {
        assert!(began.elapsed() < LIMIT * 2, "sharp samples so far: {errors:?}");
        let sample = fresh(world, &id, "cpu.usage.container", "").await;
        let interval_ns = i64::try_from(sample.interval_ms).unwrap() * 1_000_000;
        if sample.time_unix_ns == seen {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        }
        seen = sample.time_unix_ns;
        let used = load.used(sample.time_unix_ns - interval_ns, sample.time_unix_ns).await;
        // The load was called away about one of the ends: that says nothing sharp.
        let Some((least, most)) = used.filter(|(least, most)| most - least <= least * 0.03) else {
            continue;
        };
        let truth = (least + most) / 2.0;
        errors.push((sample.value.unwrap() * interval_ns as f64 - truth).abs() / truth);
    }
    errors.sort_by(f64::total_cmp);
    println!("        CPU time told beside the load's own clock, errors of {SAMPLES} samples: {errors:.4?}");
    assert!(errors[SAMPLES / 2] <= 0.02, "{errors:?}");

    let touched = MEMORY as f64;
    let rss = fresh(world, &id, "mem.rss.container", "").await.value.unwrap();
    assert!((rss - touched).abs() <= touched * 0.02, "told {rss} bytes, {touched} were touched");
    for other in machine.nodes() {
        let told = fresh(world, &id, "mem.anon.numa.container", &other.id.to_string()).await.value.unwrap();
        let there = if other.id == node { touched } else { 0.0 };
        assert!((told - there).abs() <= touched * 0.02, "node {}: told {told}, {there} are there", other.id);
    }
}

// === impl Load ===

impl Load {
    /// Starts it where a kubelet would, bound to the memory of one node.
    fn start(id: &str, node: u32) -> Self {
        let mut dirs = Vec::new();
        let mut dir = PathBuf::from("/sys/fs/cgroup");
        for part in ["kubepods", "burstable", &format!("pod{}", fresh_uid()), id] {
            let _ = std::fs::write(dir.join("cgroup.subtree_control"), "+cpu +cpuset +memory");
            dir.push(part);
            if !dir.is_dir() {
                std::fs::create_dir(&dir).unwrap();
                dirs.push(dir.clone());
            }
        }
        std::fs::write(dir.join("cpuset.mems"), node.to_string()).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .arg("load")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        std::fs::write(dir.join("cgroup.procs"), child.id().to_string()).unwrap();
        child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
        let (ticks, out) = (Arc::<Mutex<Vec<Tick>>>::default(), child.stdout.take().unwrap());
        let told = Arc::clone(&ticks);
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                let mut numbers = line.split(' ').filter_map(|n| n.parse().ok());
                let mut next = || numbers.next();
                if let (Some(before_ns), Some(used_ns), Some(after_ns)) = (next(), next(), next()) {
                    told.lock().unwrap().push(Tick { before_ns, used_ns, after_ns });
                }
            }
        });
        Self { child, ticks, dirs }
    }

    /// The least and the most that it can have used between two dates, nanoseconds; `None` if it ran during one of them only.
    async fn used(&self, from: i64, to: i64) -> Option<(f64, f64)> {
        let began = Instant::now();
        while self.ticks.lock().unwrap().last().is_none_or(|tick| tick.before_ns < to) {
            assert!(began.elapsed() < LIMIT, "the load tells nothing any more");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let ticks = self.ticks.lock().unwrap();
        let at = |date: i64| {
            let least = ticks.iter().rfind(|tick| tick.after_ns <= date)?.used_ns;
            let most = ticks.iter().find(|tick| tick.before_ns >= date)?.used_ns;
            Some((least, most))
        };
        let (from, to) = (at(from)?, at(to)?);
        Some(((to.0 - from.1).max(1) as f64, (to.1 - from.0) as f64))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for dir in self.dirs.iter().rev().map(Path::new) {
            let _ = std::fs::remove_dir(dir);
        }
    }
}
