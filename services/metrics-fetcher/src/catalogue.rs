//! What can be measured: one table, from which come collection, the answers of the gRPC face and the node's gauges.
//!
//! Names are Katalyst's where it has one. Units are base units: where Katalyst keeps microseconds or percent under the
//! same name, the help says so.

use oxalyst_cgroups::parse::{Limit, MemoryStat, Stall};

use crate::contents::{Contents, File};
use crate::sources::proc::{MemoryInfo, USER_HZ};

/// Whom a metric is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The machine.
    Node,
    /// One container (or a pod's sandbox).
    Container,
}

/// Unit of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// CPUs' worth of time: 1 is one CPU fully used.
    Cores,
    /// Bytes.
    Bytes,
    /// 0..=1 in most cases.
    Ratio,
    /// Seconds.
    Seconds,
    /// A number of things.
    Count,
    /// Things per second.
    PerSecond,
}

/// How a value comes out of what a file tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// As told.
    Level,
    /// The growth per second between two readings.
    Rate,
}

/// Whether a version of cgroups tells it.
#[derive(Clone, Copy, Debug)]
pub enum Origin {
    /// In this file.
    From(File),
    /// Never, and why.
    Never(&'static str),
}

/// What a parsed file says of one metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Told {
    /// This, in the metric's unit (of a rate: the counter, in the unit times seconds).
    Value(f64),
    /// That there is no bound.
    Unlimited,
    /// Nothing.
    Nothing,
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Stable name.
    pub name: &'static str,
    /// Name in the exposition, behind `oxalyst_`; only of the node (a container is no label).
    pub exposed: Option<&'static str>,
    /// Whom it is about.
    pub scope: Scope,
    /// Unit.
    pub unit: Unit,
    /// Level or rate.
    pub kind: Kind,
    /// On cgroup v1.
    pub v1: Origin,
    /// On cgroup v2.
    pub v2: Origin,
    /// Takes it out of the file.
    pub take: fn(&Contents) -> Told,
    /// For people.
    pub help: &'static str,
}

use Kind::{Level, Rate};
use Origin::{From, Never};
use Unit::{Bytes, Cores, Count, PerSecond, Ratio, Seconds};

const NO_PSI: &str = "cgroup v1 tells no pressure of a cgroup";
const NANO: f64 = 1e9;

/// Metrics of the node.
#[rustfmt::skip] // one row a line: it is a table
pub static NODE: &[Metric] = &[
    node("cpu.total.system", "node_cpus", Count, Level, File::NodeStat, cpus, "CPUs online"),
    node("cpu.usage.system", "node_cpu_usage_cores", Cores, Rate, File::NodeStat, busy, "CPU time in use, but for what a hypervisor stole"),
    node("cpu.usage.ratio.system", "node_cpu_usage_ratio", Ratio, Rate, File::NodeStat, busy_share, "The same as a share of all CPUs online"),
    node("procs.running.system", "node_procs_running", Count, Level, File::NodeStat, running, "Runnable threads"),
    node("cpu.load.1min.system", "node_load_1min", Count, Level, File::NodeLoad, |c| load(c, 0), "Load average over 1 minute"),
    node("cpu.load.5min.system", "node_load_5min", Count, Level, File::NodeLoad, |c| load(c, 1), "Load average over 5 minutes"),
    node("cpu.load.15min.system", "node_load_15min", Count, Level, File::NodeLoad, |c| load(c, 2), "Load average over 15 minutes"),
    node("mem.total.system", "node_memory_total_bytes", Bytes, Level, File::NodeMemory, |c| meminfo(c, |m| m.total), "Memory of the machine"),
    node("mem.used.system", "node_memory_used_bytes", Bytes, Level, File::NodeMemory, |c| meminfo(c, used), "Total less available"),
    node("mem.free.system", "node_memory_free_bytes", Bytes, Level, File::NodeMemory, |c| meminfo(c, |m| m.free), "Memory that nobody uses"),
    node("mem.available.system", "node_memory_available_bytes", Bytes, Level, File::NodeMemory, |c| meminfo(c, |m| m.available), "Memory that can be had without swapping"),
    node("mem.buffer.system", "node_memory_buffers_bytes", Bytes, Level, File::NodeMemory, |c| meminfo(c, |m| m.buffers), "Buffers of block devices"),
    node("mem.pagecache.system", "node_memory_page_cache_bytes", Bytes, Level, File::NodeMemory, |c| meminfo(c, |m| m.cached), "Page cache, shared memory included"),
    node("mem.shmem.system", "node_memory_shmem_bytes", Bytes, Level, File::NodeMemory, |c| meminfo(c, |m| m.shmem), "Shared memory and tmpfs"),
    node("mem.dirty.system", "node_memory_dirty_bytes", Bytes, Level, File::NodeMemory, |c| meminfo(c, |m| m.dirty), "Page cache to be written"),
    node("mem.writeback.system", "node_memory_writeback_bytes", Bytes, Level, File::NodeMemory, |c| meminfo(c, |m| m.writeback), "Page cache being written"),
    node("mem.slab.reclaimable.system", "node_memory_slab_reclaimable_bytes", Bytes, Level, File::NodeMemory, |c| meminfo(c, |m| m.slab_reclaimable), "Kernel caches that can be given back"),
    node("mem.swap.total.system", "node_memory_swap_total_bytes", Bytes, Level, File::NodeMemory, |c| meminfo(c, |m| m.swap_total), "Swap space"),
    node("mem.swap.free.system", "node_memory_swap_free_bytes", Bytes, Level, File::NodeMemory, |c| meminfo(c, |m| m.swap_free), "Swap space that nobody uses"),
    node("cpu.psi.some.avg10.system", "node_cpu_pressure_some_ratio", Ratio, Level, File::NodeCpuPressure, |c| some(c, |s| s.avg10), "Share of the last 10 s in which some task waited for a CPU"),
    node("cpu.psi.full.avg10.system", "node_cpu_pressure_full_ratio", Ratio, Level, File::NodeCpuPressure, |c| full(c, |s| s.avg10), "The same of all tasks at once"),
    node("mem.psi.some.avg10.system", "node_memory_pressure_some_ratio", Ratio, Level, File::NodeMemoryPressure, |c| some(c, |s| s.avg10), "Share of the last 10 s in which some task waited for memory"),
    node("mem.psi.full.avg10.system", "node_memory_pressure_full_ratio", Ratio, Level, File::NodeMemoryPressure, |c| full(c, |s| s.avg10), "The same of all tasks at once"),
    node("io.psi.some.avg10.system", "node_io_pressure_some_ratio", Ratio, Level, File::NodeIoPressure, |c| some(c, |s| s.avg10), "Share of the last 10 s in which some task waited for I/O"),
    node("io.psi.full.avg10.system", "node_io_pressure_full_ratio", Ratio, Level, File::NodeIoPressure, |c| full(c, |s| s.avg10), "The same of all tasks at once"),
];

/// Metrics of a container.
#[rustfmt::skip] // one row a line: it is a table
pub static CONTAINER: &[Metric] = &[
    container("cpu.usage.container", Cores, Rate, From(File::CpuUsage), From(File::CpuStat), cpu_seconds, "CPU time used"),
    container("cpu.nr.period.container", Count, Level, BOTH_CPU, BOTH_CPU, periods, "Enforcement periods of the CPU limit in which it was runnable"),
    container("cpu.nr.throttled.container", Count, Level, BOTH_CPU, BOTH_CPU, throttled, "Of them those in which it was throttled"),
    container("cpu.throttled.time.container", Seconds, Level, BOTH_CPU, BOTH_CPU, throttled_seconds, "Time throttled, summed over CPUs (Katalyst: microseconds)"),
    container("cpu.nr.period.container.rate", PerSecond, Rate, BOTH_CPU, BOTH_CPU, periods, "Enforcement periods a second"),
    container("cpu.nr.throttled.container.rate", PerSecond, Rate, BOTH_CPU, BOTH_CPU, throttled, "Throttled periods a second"),
    container("cpu.throttled.time.container.rate", Ratio, Rate, BOTH_CPU, BOTH_CPU, throttled_seconds, "Seconds throttled a second, summed over CPUs"),
    container("mem.usage.container", Bytes, Level, From(File::MemoryUsage), From(File::MemoryUsage), memory_usage, "Memory charged, page cache included"),
    container("mem.limit.container", Bytes, Level, From(File::MemoryLimit), From(File::MemoryLimit), memory_limit, "Memory limit"),
    container("mem.rss.container", Bytes, Level, BOTH_MEM, BOTH_MEM, |c| memory(c, |m| m.anon), "Anonymous memory"),
    container("mem.cache.container", Bytes, Level, BOTH_MEM, BOTH_MEM, |c| memory(c, |m| m.file), "Page cache, shared memory included"),
    container("mem.shmem.container", Bytes, Level, BOTH_MEM, BOTH_MEM, |c| memory(c, |m| m.shmem), "Shared memory and tmpfs"),
    container("mem.mapped.container", Bytes, Level, BOTH_MEM, BOTH_MEM, |c| memory(c, |m| m.file_mapped), "Mapped files"),
    container("mem.dirty.container", Bytes, Level, BOTH_MEM, BOTH_MEM, |c| memory(c, |m| m.file_dirty), "Page cache to be written"),
    container("mem.writeback.container", Bytes, Level, BOTH_MEM, BOTH_MEM, |c| memory(c, |m| m.file_writeback), "Page cache being written"),
    container("mem.inactiveanon.container", Bytes, Level, BOTH_MEM, BOTH_MEM, |c| memory(c, |m| m.inactive_anon), "Anonymous memory not used of late"),
    container("mem.activeanon.container", Bytes, Level, BOTH_MEM, BOTH_MEM, |c| memory(c, |m| m.active_anon), "Anonymous memory used of late"),
    container("mem.inactivefile.container", Bytes, Level, BOTH_MEM, BOTH_MEM, |c| memory(c, |m| m.inactive_file), "Page cache not used of late"),
    container("mem.activefile.container", Bytes, Level, BOTH_MEM, BOTH_MEM, |c| memory(c, |m| m.active_file), "Page cache used of late"),
    container("mem.pgfault.container", Count, Level, BOTH_MEM, BOTH_MEM, |c| memory(c, |m| m.pgfault), "Page faults"),
    container("mem.pgmajfault.container", Count, Level, BOTH_MEM, BOTH_MEM, |c| memory(c, |m| m.pgmajfault), "Page faults that needed I/O"),
    container("cpu.psi.some.avg10.container", Ratio, Level, Never(NO_PSI), From(File::CpuPressure), |c| some(c, |s| s.avg10), "Share of the last 10 s in which some task waited for a CPU"),
    container("cpu.psi.full.avg10.container", Ratio, Level, Never(NO_PSI), From(File::CpuPressure), |c| full(c, |s| s.avg10), "The same of all its tasks at once"),
    container("mem.psi.some.avg10.container", Ratio, Level, Never(NO_PSI), From(File::MemoryPressure), |c| some(c, |s| s.avg10), "Share of the last 10 s in which some task waited for memory"),
    container("mem.psi.full.avg10.container", Ratio, Level, Never(NO_PSI), From(File::MemoryPressure), |c| full(c, |s| s.avg10), "The same of all its tasks at once"),
    container("mem.psiavg60.container", Ratio, Level, Never(NO_PSI), From(File::MemoryPressure), |c| some(c, |s| s.avg60), "Share of the last 60 s in which some task waited for memory (Katalyst: percent)"),
    container("io.psi.some.avg10.container", Ratio, Level, Never(NO_PSI), From(File::IoPressure), |c| some(c, |s| s.avg10), "Share of the last 10 s in which some task waited for I/O"),
    container("io.psi.full.avg10.container", Ratio, Level, Never(NO_PSI), From(File::IoPressure), |c| full(c, |s| s.avg10), "The same of all its tasks at once"),
];

const BOTH_CPU: Origin = From(File::CpuStat);
const BOTH_MEM: Origin = From(File::MemoryStat);

/// The metrics of a scope; a subject's cells are in this order.
pub fn of(scope: Scope) -> &'static [Metric] {
    match scope {
        Scope::Node => NODE,
        Scope::Container => CONTAINER,
    }
}

/// The row of a name, and its place within its scope.
pub fn find(name: &str) -> Option<(usize, &'static Metric)> {
    NODE.iter().enumerate().chain(CONTAINER.iter().enumerate()).find(|(_, m)| m.name == name)
}

// === impl Metric ===

impl Metric {
    /// Where a version tells it.
    pub fn origin(&self, unified: bool) -> Origin {
        if unified { self.v2 } else { self.v1 }
    }
}

// === impl Unit ===

impl Unit {
    /// As the gRPC face says it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cores => "cores",
            Self::Bytes => "bytes",
            Self::Ratio => "ratio",
            Self::Seconds => "seconds",
            Self::Count => "count",
            Self::PerSecond => "per-second",
        }
    }
}

const fn node(
    name: &'static str,
    exposed: &'static str,
    unit: Unit,
    kind: Kind,
    file: File,
    take: fn(&Contents) -> Told,
    help: &'static str,
) -> Metric {
    let exposed = Some(exposed);
    Metric { name, exposed, scope: Scope::Node, unit, kind, v1: From(file), v2: From(file), take, help }
}

const fn container(
    name: &'static str,
    unit: Unit,
    kind: Kind,
    v1: Origin,
    v2: Origin,
    take: fn(&Contents) -> Told,
    help: &'static str,
) -> Metric {
    Metric { name, exposed: None, scope: Scope::Container, unit, kind, v1, v2, take, help }
}

/// Counts and bytes are below 2^53 on any machine that exists; beyond it the last digits blur.
#[allow(clippy::cast_precision_loss)]
fn told(value: Option<u64>) -> Told {
    value.map_or(Told::Nothing, |v| Told::Value(v as f64))
}

fn seconds(ns: Option<u64>) -> Told {
    match told(ns) {
        Told::Value(ns) => Told::Value(ns / NANO),
        other => other,
    }
}

fn cpu_seconds(c: &Contents) -> Told {
    match c {
        Contents::CpuUsage(ns) => seconds(Some(*ns)),
        Contents::CpuStat(stat) => seconds(stat.usage_ns),
        _ => Told::Nothing,
    }
}

fn periods(c: &Contents) -> Told {
    if let Contents::CpuStat(stat) = c { told(stat.nr_periods) } else { Told::Nothing }
}

fn throttled(c: &Contents) -> Told {
    if let Contents::CpuStat(stat) = c { told(stat.nr_throttled) } else { Told::Nothing }
}

fn throttled_seconds(c: &Contents) -> Told {
    if let Contents::CpuStat(stat) = c { seconds(stat.throttled_ns) } else { Told::Nothing }
}

fn memory_usage(c: &Contents) -> Told {
    if let Contents::MemoryUsage(bytes) = c { told(Some(*bytes)) } else { Told::Nothing }
}

fn memory_limit(c: &Contents) -> Told {
    match c {
        Contents::MemoryLimit(Limit::Unlimited) => Told::Unlimited,
        Contents::MemoryLimit(Limit::At(bytes)) => told(Some(bytes.0)),
        _ => Told::Nothing,
    }
}

fn memory(c: &Contents, field: fn(&MemoryStat) -> Option<u64>) -> Told {
    if let Contents::MemoryStat(stat) = c { told(field(stat)) } else { Told::Nothing }
}

fn some(c: &Contents, field: fn(&Stall) -> f64) -> Told {
    match c {
        Contents::Pressure(p) => p.some.as_ref().map_or(Told::Nothing, |s| Told::Value(field(s))),
        _ => Told::Nothing,
    }
}

fn full(c: &Contents, field: fn(&Stall) -> f64) -> Told {
    match c {
        Contents::Pressure(p) => p.full.as_ref().map_or(Told::Nothing, |s| Told::Value(field(s))),
        _ => Told::Nothing,
    }
}

fn cpus(c: &Contents) -> Told {
    if let Contents::NodeStat(stat) = c { told(Some(stat.cpus)) } else { Told::Nothing }
}

fn running(c: &Contents) -> Told {
    if let Contents::NodeStat(stat) = c { told(stat.procs_running) } else { Told::Nothing }
}

fn busy(c: &Contents) -> Told {
    let Contents::NodeStat(stat) = c else { return Told::Nothing };
    match told(Some(stat.busy_ticks)) {
        Told::Value(ticks) => Told::Value(ticks / USER_HZ),
        other => other,
    }
}

fn busy_share(c: &Contents) -> Told {
    match (busy(c), cpus(c)) {
        (Told::Value(seconds), Told::Value(cpus)) if cpus > 0.0 => Told::Value(seconds / cpus),
        _ => Told::Nothing,
    }
}

fn load(c: &Contents, which: usize) -> Told {
    match c {
        Contents::NodeLoad(load) => load.0.get(which).map_or(Told::Nothing, |v| Told::Value(*v)),
        _ => Told::Nothing,
    }
}

fn meminfo(c: &Contents, field: fn(&MemoryInfo) -> Option<u64>) -> Told {
    if let Contents::NodeMemory(info) = c { told(field(info)) } else { Told::Nothing }
}

fn used(info: &MemoryInfo) -> Option<u64> {
    Some(info.total?.saturating_sub(info.available?))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_say_their_scope() {
        let mut seen = BTreeSet::new();
        for metric in NODE.iter().chain(CONTAINER) {
            assert!(seen.insert(metric.name), "{} twice", metric.name);
            let suffix = if metric.scope == Scope::Node { ".system" } else { ".container" };
            assert!(
                metric.name.ends_with(suffix) || metric.name.ends_with(".container.rate"),
                "{}",
                metric.name
            );
            assert_eq!(metric.exposed.is_some(), metric.scope == Scope::Node, "{}", metric.name);
        }
    }

    #[test]
    fn each_origin_is_a_file_that_the_version_has() {
        for metric in CONTAINER {
            for unified in [false, true] {
                if let From(file) = metric.origin(unified) {
                    assert!(file.of_container(unified).is_some(), "{} unified {unified}", metric.name);
                }
            }
        }
        for metric in NODE {
            let From(file) = metric.v1 else { panic!("{} has no file", metric.name) };
            assert!(file.of_node().is_some(), "{}", metric.name);
        }
    }
}
