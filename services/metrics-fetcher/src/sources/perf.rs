//! Cycles and instructions of containers, from the processor's own counters.
//!
//! Counting costs: each switch between cgroups on a CPU reprograms its counters, and each container takes two descriptors a
//! CPU. So it is done only where it is asked for, and of so many containers at most.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use oxalyst_cgroups::{CgroupPath, Hierarchy};
use perf_event::events::{Hardware, Software};
use perf_event::{Builder, CountAndTime, Counter};
use serde_json::json;

use super::apart::{Probe, Told};
use crate::clock::Clock;
use crate::machine::cpulist;
use crate::store::Id;

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Events {
    /// Cycles and instructions of the processor.
    Hardware,
    /// Time, twice: what every kernel can count, whatever the processor. For tests of everything but the numbers.
    Clocks,
}

/// Counters of containers, kept open between passes.
#[derive(Debug)]
pub struct Perf {
    host_root: PathBuf,
    events: Events,
    most: usize,
    cpus: Vec<usize>,
    counted: BTreeMap<String, Counted>,
}

/// Of one container.
#[derive(Debug)]
struct Counted {
    pairs: Vec<Pair>,
    totals: [u64; 2],
}

/// The counters of one CPU, in one group: they count during the same time.
#[derive(Debug)]
struct Pair {
    counters: [Counter; 2],
    before: [CountAndTime; 2],
}

// === impl Perf ===

impl Perf {
    /// Counts `most` containers at most, below `<host_root>/sys/fs/cgroup`.
    pub fn new(host_root: &Path, events: Events, most: usize) -> Self {
        Self { host_root: host_root.to_path_buf(), events, most, cpus: Vec::new(), counted: BTreeMap::new() }
    }

    /// How many containers are counted now.
    pub fn counted(&self) -> usize {
        self.counted.len()
    }

    /// Which CPUs are online; if others than before, everything is opened anew.
    fn online(&mut self) {
        let list = oxalyst_cgroups::read_text(&self.host_root.join("sys/devices/system/cpu/online"));
        let cpus: Vec<usize> = cpulist(&list.unwrap_or_else(|_| "0".to_owned()))
            .filter_map(|cpu| usize::try_from(cpu).ok())
            .collect();
        if cpus != self.cpus {
            self.counted.clear();
            self.cpus = cpus;
        }
    }

    /// Whether anything can be counted here at all.
    fn check(&self) -> Result<(), String> {
        let mut builder = self.events.builder(0);
        builder.any_pid().one_cpu(self.cpus.first().copied().unwrap_or(0));
        builder.build().map(drop).map_err(|e| unavailable(&e))
    }

    fn open(&self, dir: &Path) -> io::Result<Counted> {
        let folder = File::open(dir)?;
        let pair = |cpu: &usize| {
            let mut first = self.events.builder(0);
            let mut first = first.observe_cgroup(&folder).one_cpu(*cpu).build()?;
            let mut second = self.events.builder(1);
            let mut second = second.observe_cgroup(&folder).one_cpu(*cpu).build_with_group(&mut first)?;
            first.enable_group()?;
            let before = [first.read_count_and_time()?, second.read_count_and_time()?];
            Ok(Pair { counters: [first, second], before })
        };
        let pairs = self.cpus.iter().map(pair).collect::<io::Result<_>>()?;
        Ok(Counted { pairs, totals: [0; 2] })
    }
}

impl Probe for Perf {
    fn read(&mut self, containers: &[Arc<Id>], clock: &dyn Clock) -> Result<Told, String> {
        self.online();
        self.check()?;
        let hierarchy = Hierarchy::detect(&self.host_root).map_err(|e| e.to_string())?;
        let live: BTreeSet<&str> = containers.iter().map(|id| id.container_id.as_str()).collect();
        self.counted.retain(|id, _| live.contains(id.as_str()));
        let mut told = Told::default();
        for id in containers {
            let mut failed = |why: String| {
                told.failed += 1;
                told.failure.get_or_insert_with(|| format!("{}: {why}", id.cgroup).into());
            };
            if !self.counted.contains_key(&id.container_id) {
                if self.counted.len() >= self.most {
                    failed(format!("{} containers are counted already (perf.max_containers)", self.most));
                    continue;
                }
                match root(&hierarchy, id).ok_or_else(not_there).and_then(|dir| self.open(&dir)) {
                    Ok(opened) => drop(self.counted.insert(id.container_id.clone(), opened)),
                    Err(e) => {
                        failed(e.to_string());
                        continue;
                    }
                }
            }
            let at = clock.now();
            match self.counted.get_mut(&id.container_id).map(Counted::read) {
                Some(Ok([cycles, instructions])) => {
                    let values = json!({"cycles": cycles, "instructions": instructions});
                    told.answers.push((Arc::clone(id), at, values));
                }
                Some(Err(e)) => {
                    self.counted.remove(&id.container_id);
                    failed(e.to_string());
                }
                None => {}
            }
        }
        Ok(told)
    }
}

// === impl Counted ===

impl Counted {
    /// Both totals since it was opened.
    fn read(&mut self) -> io::Result<[u64; 2]> {
        for pair in &mut self.pairs {
            let places = pair.counters.iter_mut().zip(&mut pair.before).zip(&mut self.totals);
            for ((counter, before), total) in places {
                let now = counter.read_count_and_time()?;
                *total = total.saturating_add(grown(before, &now));
                *before = now;
            }
        }
        Ok(self.totals)
    }
}

// === impl Events ===

impl Events {
    fn builder<'a>(self, place: usize) -> Builder<'a> {
        let mut builder = match (self, place) {
            (Self::Hardware, 0) => Builder::new(Hardware::CPU_CYCLES),
            (Self::Hardware, _) => Builder::new(Hardware::INSTRUCTIONS),
            (Self::Clocks, 0) => Builder::new(Software::TASK_CLOCK),
            (Self::Clocks, _) => Builder::new(Software::CPU_CLOCK),
        };
        builder.include_kernel();
        builder
    }
}

/// What was counted in between. A processor has few counters: where the kernel lent them to others for a part of the time,
/// that part is taken to have been like the rest.
fn grown(before: &CountAndTime, now: &CountAndTime) -> u64 {
    let count = now.count.saturating_sub(before.count);
    let enabled = now.time_enabled.saturating_sub(before.time_enabled);
    let running = now.time_running.saturating_sub(before.time_running);
    match running {
        0 => 0,
        running if running >= enabled => count,
        running => {
            let scaled = u128::from(count) * u128::from(enabled) / u128::from(running);
            u64::try_from(scaled).unwrap_or(u64::MAX)
        }
    }
}

/// The folder by which the kernel knows the container where it counts: in the tree of `perf_event` on v1, in that of v2 where
/// there is none.
fn root(hierarchy: &Hierarchy, id: &Id) -> Option<PathBuf> {
    let path = CgroupPath::new(&id.cgroup).ok()?;
    let own = ["perf_event", "unified", ""].map(|name| hierarchy.root().join(name));
    let mut trees = own.iter().filter(|tree| hierarchy.is_unified() == (**tree == hierarchy.root()));
    trees.find_map(|tree| Some(path.under(tree)).filter(|dir| dir.is_dir()))
}

fn not_there() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "it has no cgroup in the tree of perf_event")
}

/// Why nothing can be counted, and what an operator can do.
fn unavailable(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::Unsupported => format!(
            "unavailable: this machine has no hardware counters, as most virtual ones ({error}); set perf.enabled=false"
        ),
        io::ErrorKind::PermissionDenied => format!(
            "unavailable: perf_event_open is not allowed ({error}): it needs CAP_PERFMON, or kernel.perf_event_paranoid below 1"
        ),
        _ => format!("unavailable: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn read(count: u64, enabled_ms: u64, running_ms: u64) -> CountAndTime {
        let [time_enabled, time_running] = [enabled_ms, running_ms].map(Duration::from_millis).map(nanos);
        CountAndTime { count, time_enabled, time_running }
    }

    fn nanos(duration: Duration) -> u64 {
        u64::try_from(duration.as_nanos()).unwrap()
    }

    #[test]
    fn a_counter_that_was_lent_to_others_is_scaled_and_never_goes_down() {
        assert_eq!(grown(&read(100, 10, 10), &read(300, 20, 20)), 200);
        assert_eq!(grown(&read(100, 10, 10), &read(300, 20, 15)), 400, "it counted during half of the time");
        assert_eq!(grown(&read(100, 10, 10), &read(100, 20, 10)), 0, "it never counted");
        assert_eq!(grown(&read(100, 10, 10), &read(50, 20, 20)), 0);
        assert_eq!(grown(&read(0, 0, 0), &read(u64::MAX, 100, 1)), u64::MAX);
    }

    #[test]
    fn what_is_missing_is_named_with_what_to_do() {
        let says = |code| unavailable(&io::Error::from_raw_os_error(code));
        assert!(says(2).contains("no hardware counters") && says(95).contains("no hardware counters"));
        assert!(says(13).contains("CAP_PERFMON") && says(1).contains("CAP_PERFMON"));
    }
}
