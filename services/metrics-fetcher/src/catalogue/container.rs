//! A container, and a container on one NUMA node. The same rows under other names serve the cgroups above the pods.

use oxalyst_cgroups::parse::{NumaMemory, Reclaim};

use super::Kind::{self, Level, Rate, Ticks};
use super::Origin::{self, From, Never};
use super::Unit::{self, *};
use super::{Metric, Scope, Told, take};
use crate::contents::{Contents, File};
use take::{
    cpu_ns, cpu_seconds, full, kernel, less, limit, memory, numa, number, oom_kill, period, periods, quota,
    quotient, read, reclaim, some, swap, system_seconds, throttled, throttled_us, user_seconds, written,
    written_bandwidth,
};

const NO_PSI: &str = "cgroup v1 tells no pressure of a cgroup (a hybrid does, in its v2 tree)";
const NO_TASKS: &str = "cgroup files tell no states of tasks: on v1 only CGROUPSTATS does, on v2 nothing";
const NO_PERF: &str = "it needs hardware counters, which cgroup files do not tell";
const ONLY_V2: &str = "cgroup v1 does not tell it";
const ONLY_V1: &str = "cgroup v2 does not tell it";
const PATCHED: &str = "only a patched kernel tells it";

const BOTH_CPU: Origin = From(File::CpuStat);
const BOTH_MEM: Origin = From(File::MemoryStat);

const fn container(
    name: &'static str,
    unit: Unit,
    kind: Kind,
    v1: Origin,
    v2: Origin,
    take: fn(&Contents) -> Told,
    help: &'static str,
) -> Metric {
    Metric::row(name, Scope::Container, unit, kind, help).file(v1, v2, take)
}

const fn bare(name: &'static str, unit: Unit, help: &'static str) -> Metric {
    Metric::row(name, Scope::Container, unit, Level, help)
}

/// Only malachite tells it.
const fn far(name: &'static str, unit: Unit, kind: Kind, why: &'static str, help: &'static str) -> Metric {
    Metric::row(name, Scope::Container, unit, kind, help).file(Never(why), Never(why), take::nothing)
}

const fn stat(
    name: &'static str,
    take: fn(&Contents) -> Told,
    v1: &'static str,
    v2: &'static str,
    help: &'static str,
) -> Metric {
    container(name, Bytes, Level, BOTH_MEM, BOTH_MEM, take, help)
        .malachite_v1(v1, 1.0, Level)
        .malachite_v2(v2, 1.0, Level)
}

const fn counter(
    name: &'static str,
    unit: Unit,
    kind: Kind,
    v1: Origin,
    take: fn(&Contents) -> Told,
    v2: &'static str,
    help: &'static str,
) -> Metric {
    container(name, unit, kind, v1, BOTH_MEM, take, help).malachite_v2(v2, 1.0, kind)
}

const fn fs(name: &'static str, unit: Unit, path: &'static str, help: &'static str) -> Metric {
    bare(name, unit, help).kubelet(path, 1.0, Level)
}

/// Metrics of a container.
#[rustfmt::skip] // one row a line: it is a table
pub static CONTAINER: &[Metric] = &[
    container("cpu.usage.container", Cores, Rate, From(File::CpuUsage), BOTH_CPU, cpu_seconds, "CPU time used").malachite("Cpu/cpu_usage_ratio", 1.0, Level).kubelet("cpu/usageCoreNanoSeconds", 1e-9, Rate).history(),
    container("cpu.usage.user.container", Cores, Ticks, From(File::CpuUser), BOTH_CPU, user_seconds, "Of it in user mode, as far as the clock tick tells").malachite("Cpu/cpu_user_usage_ratio", 1.0, Level),
    container("cpu.usage.sys.container", Cores, Ticks, From(File::CpuSystem), BOTH_CPU, system_seconds, "Of it in the kernel, likewise").malachite("Cpu/cpu_sys_usage_ratio", 1.0, Level),
    container("cpu.quota.container", Microseconds, Level, From(File::CpuQuota), From(File::CpuMax), quota, "CPU time that may be used in each period").malachite_v1("Cpu/cfs_quota_us", 1.0, Level).malachite_v2("Cpu/max", 1.0, Level).limit(),
    container("cpu.period.container", Microseconds, Level, From(File::CpuPeriod), From(File::CpuMax), period, "Length of a period").malachite_v1("Cpu/cfs_period_us", 1.0, Level).malachite_v2("Cpu/max_period", 1.0, Level),
    bare("cpu.limit.container", Cores, "Quota by period; missing where there is no quota").derived(&["cpu.quota.container", "cpu.period.container"], quotient),
    bare("cpu.usage.ratio.container", Ratio, "Usage by limit; missing where there is no limit").derived(&["cpu.usage.container", "cpu.limit.container"], quotient),
    container("cpu.share.container", Count, Level, From(File::CpuShares), From(File::CpuShares), number, "Shares (v1), weight (v2)").malachite_v1("Cpu/cpu_shares", 1.0, Level).malachite_v2("Cpu/weight", 1.0, Level),
    container("cpu.nr.period.container", Count, Level, BOTH_CPU, BOTH_CPU, periods, "Enforcement periods of the CPU limit in which it was runnable").malachite_v1("Cpu/cpu_nr_periods", 1.0, Level).malachite_v2("Cpu/cpu_stats/nr_periods", 1.0, Level),
    container("cpu.nr.throttled.container", Count, Level, BOTH_CPU, BOTH_CPU, throttled, "Of them those in which it was throttled").malachite_v1("Cpu/cpu_nr_throttled", 1.0, Level).malachite_v2("Cpu/cpu_stats/nr_throttled", 1.0, Level),
    container("cpu.throttled.time.container", Microseconds, Level, BOTH_CPU, BOTH_CPU, throttled_us, "Time throttled, summed over CPUs").malachite_v1("Cpu/cpu_throttled_time", 1e-3, Level).malachite_v2("Cpu/cpu_stats/throttled_usec", 1.0, Level),
    container("cpu.nr.period.container.rate", PerSecond, Rate, BOTH_CPU, BOTH_CPU, periods, "Enforcement periods a second").malachite_v1("Cpu/cpu_nr_periods", 1.0, Rate).malachite_v2("Cpu/cpu_stats/nr_periods", 1.0, Rate),
    container("cpu.nr.throttled.container.rate", PerSecond, Rate, BOTH_CPU, BOTH_CPU, throttled, "Throttled periods a second").malachite_v1("Cpu/cpu_nr_throttled", 1.0, Rate).malachite_v2("Cpu/cpu_stats/nr_throttled", 1.0, Rate).history(),
    container("cpu.throttled.time.container.rate", MicrosecondsPerSecond, Rate, BOTH_CPU, BOTH_CPU, throttled_us, "Microseconds throttled a second, summed over CPUs").malachite_v1("Cpu/cpu_throttled_time", 1e-3, Rate).malachite_v2("Cpu/cpu_stats/throttled_usec", 1.0, Rate).history(),
    far("cpu.nr.runnable.container", Count, Level, NO_TASKS, "Runnable tasks").malachite("Cpu/task_nr_runnable", 1.0, Level),
    far("cpu.nr.uninterruptible.container", Count, Level, NO_TASKS, "Tasks in uninterruptible sleep").malachite("Cpu/task_nr_unint", 1.0, Level),
    far("cpu.nr.iowait.container", Count, Level, NO_TASKS, "Tasks that wait for I/O").malachite("Cpu/task_nr_iowait", 1.0, Level),
    far("cpu.load.1min.container", Count, Level, NO_TASKS, "Load average over 1 minute").malachite("Cpu/load/one", 1.0, Level),
    far("cpu.load.5min.container", Count, Level, NO_TASKS, "Load average over 5 minutes").malachite("Cpu/load/five", 1.0, Level),
    far("cpu.load.15min.container", Count, Level, NO_TASKS, "Load average over 15 minutes").malachite("Cpu/load/fifteen", 1.0, Level),
    far("cpu.load.runnable.container", Count, Level, NO_TASKS, "Load average of runnable tasks over 1 minute").malachite("Cpu/load/runnable_one", 1.0, Level),
    far("cpu.cycles.container", Count, Level, NO_PERF, "Cycles").malachite("Cpu/cycles", 1.0, Level),
    far("cpu.instructions.container", Count, Level, NO_PERF, "Instructions").malachite("Cpu/instructions", 1.0, Level),
    far("cpu.l3cachemiss.container", Count, Level, NO_PERF, "Misses of the L3 cache").malachite("derived/l3_misses", 1.0, Level),
    far("cpu.read.drams.container", Count, Level, NO_PERF, "Lines read from memory").malachite("Cpu/ocr_read_drams", 1.0, Level),
    far("cpu.imc.write.container", Count, Level, NO_PERF, "Lines written to memory by all").malachite("Cpu/imc_writes", 1.0, Level),
    far("cpu.store.ins.container", Count, Level, NO_PERF, "Stores of the container").malachite("Cpu/store_ins", 1.0, Level),
    far("cpu.store.allins.container", Count, Level, NO_PERF, "Stores of all").malachite("Cpu/store_all_ins", 1.0, Level),
    far("cpu.cycles.container.rate", PerSecond, Rate, NO_PERF, "Cycles a second").malachite("Cpu/cycles", 1.0, Rate),
    far("cpu.instructions.container.rate", PerSecond, Rate, NO_PERF, "Instructions a second").malachite("Cpu/instructions", 1.0, Rate),
    far("cpu.l3cachemiss.container.rate", PerSecond, Rate, NO_PERF, "L3 misses a second").malachite("derived/l3_misses", 1.0, Rate),
    far("cpu.imc.write.container.rate", PerSecond, Rate, NO_PERF, "Lines written a second").malachite("Cpu/imc_writes", 1.0, Rate),
    far("cpu.store.ins.container.rate", PerSecond, Rate, NO_PERF, "Stores a second").malachite("Cpu/store_ins", 1.0, Rate),
    far("cpu.store.allins.container.rate", PerSecond, Rate, NO_PERF, "Stores of all a second").malachite("Cpu/store_all_ins", 1.0, Rate),
    far("mem.bandwidth.read.container", MibPerSecond, Rate, NO_PERF, "Memory read, 64 bytes a line").malachite("Cpu/ocr_read_drams", 64.0 / 1_048_576.0, Rate),
    bare("cpu.cpi.container", Ratio, "Cycles an instruction over the last interval (Katalyst smooths it, assuming 10 s)").derived(&["cpu.cycles.container.rate", "cpu.instructions.container.rate"], quotient).file(Never(NO_PERF), Never(NO_PERF), take::nothing),
    bare("mem.bandwidth.write.container", MibPerSecond, "Memory written: its share of all stores times all lines written").derived(&["cpu.store.ins.container.rate", "cpu.store.allins.container.rate", "cpu.imc.write.container.rate"], written_bandwidth).file(Never(NO_PERF), Never(NO_PERF), take::nothing),
    container("mem.usage.container", Bytes, Level, From(File::MemoryUsage), From(File::MemoryUsage), number, "Memory charged, page cache included").malachite("Memory/memory_usage_in_bytes", 1.0, Level).kubelet("memory/usageBytes", 1.0, Level).history(),
    container("mem.limit.container", Bytes, Level, From(File::MemoryLimit), From(File::MemoryLimit), limit, "Memory limit").malachite_v1("Memory/memory_limit_in_bytes", 1.0, Level).malachite_v2("Memory/max", 1.0, Level).limit(),
    container("mem.tcp.limit.container", Bytes, Level, From(File::TcpLimit), Never(ONLY_V1), limit, "Limit of TCP buffers").malachite_v1("Memory/kern_tcp_memory_limit_in_bytes", 1.0, Level).limit(),
    container("mem.usage.kern.container", Bytes, Level, From(File::KernelMemory), BOTH_MEM, kernel, "Kernel memory charged").malachite_v1("Memory/kern_memory_usage_in_bytes", 1.0, Level).malachite_v2("Memory/mem_stats/kernel", 1.0, Level),
    bare("mem.usage.user.container", Bytes, "Usage less kernel memory (Katalyst: limit less kernel memory)").derived(&["mem.usage.container", "mem.usage.kern.container"], less),
    container("mem.swap.container", Bytes, Level, BOTH_MEM, From(File::SwapUsage), swap, "Swap in use").malachite_v1("Memory/total_swap", 1.0, Level).malachite_v2("Memory/swap_current", 1.0, Level),
    container("mem.swap.limit.container", Bytes, Level, Never(ONLY_V2), From(File::SwapLimit), limit, "Its limit").malachite_v2("Memory/swap_max", 1.0, Level).limit(),
    stat("mem.rss.container", |c| memory(c, |m| m.anon), "Memory/total_rss", "Memory/mem_stats/anon", "Anonymous memory").history(),
    stat("mem.cache.container", |c| memory(c, |m| m.file), "Memory/total_cache", "Memory/mem_stats/file", "Page cache, shared memory included"),
    stat("mem.shmem.container", |c| memory(c, |m| m.shmem), "Memory/total_shmem", "Memory/mem_stats/shmem", "Shared memory and tmpfs"),
    container("mem.mapped.container", Bytes, Level, BOTH_MEM, BOTH_MEM, |c| memory(c, |m| m.file_mapped), "Mapped files").malachite_v2("Memory/mem_stats/file_mapped", 1.0, Level),
    stat("mem.dirty.container", |c| memory(c, |m| m.file_dirty), "Memory/total_dirty", "Memory/mem_stats/file_dirty", "Page cache to be written, descendants included"),
    stat("mem.writeback.container", |c| memory(c, |m| m.file_writeback), "Memory/total_writeback", "Memory/mem_stats/file_writeback", "Page cache being written, descendants included"),
    stat("mem.inactiveanon.container", |c| memory(c, |m| m.inactive_anon), "Memory/total_inactive_anon", "Memory/mem_stats/inactive_anon", "Anonymous memory not used of late"),
    stat("mem.activeanon.container", |c| memory(c, |m| m.active_anon), "Memory/total_active_anon", "Memory/mem_stats/active_anon", "Anonymous memory used of late"),
    stat("mem.inactivefile.container", |c| memory(c, |m| m.inactive_file), "Memory/total_inactive_file", "Memory/mem_stats/inactive_file", "Page cache not used of late"),
    stat("mem.activefile.container", |c| memory(c, |m| m.active_file), "Memory/total_active_file", "Memory/mem_stats/active_file", "Page cache used of late"),
    container("mem.unevictable.container", Bytes, Level, BOTH_MEM, BOTH_MEM, |c| memory(c, |m| m.unevictable), "Memory that cannot be reclaimed").malachite_v2("Memory/mem_stats/unevictable", 1.0, Level),
    bare("mem.workingset.container", Bytes, "Usage less page cache not used of late: what the kubelet evicts by").derived(&["mem.usage.container", "mem.inactivefile.container"], less).kubelet("memory/workingSetBytes", 1.0, Level).history(),
    container("mem.pgfault.container", Count, Level, BOTH_MEM, BOTH_MEM, |c| memory(c, |m| m.pgfault), "Page faults").malachite_v1("Memory/total_pgfault", 1.0, Level).malachite_v2("Memory/mem_stats/pgfault", 1.0, Level),
    container("mem.pgmajfault.container", Count, Level, BOTH_MEM, BOTH_MEM, |c| memory(c, |m| m.pgmajfault), "Page faults that needed I/O").malachite_v1("Memory/total_pgmajfault", 1.0, Level).malachite_v2("Memory/mem_stats/pgmajfault", 1.0, Level),
    container("mem.pgfault.container.rate", PerSecond, Rate, BOTH_MEM, BOTH_MEM, |c| memory(c, |m| m.pgfault), "Page faults a second").malachite_v1("Memory/total_pgfault", 1.0, Rate).malachite_v2("Memory/mem_stats/pgfault", 1.0, Rate),
    container("mem.pgmajfault.container.rate", PerSecond, Rate, BOTH_MEM, BOTH_MEM, |c| memory(c, |m| m.pgmajfault), "Page faults that needed I/O, a second").malachite_v1("Memory/total_pgmajfault", 1.0, Rate).malachite_v2("Memory/mem_stats/pgmajfault", 1.0, Rate),
    container("mem.oom.container", Count, Level, From(File::OomEvents), From(File::OomEvents), oom_kill, "Tasks killed for want of memory, on v1 without those of cgroups within (malachite's counts other events, and is not taken)"),
    container("mem.oom.container.rate", PerSecond, Rate, From(File::OomEvents), From(File::OomEvents), oom_kill, "Tasks killed for want of memory, a second"),
    container("mem.allocstall.container", Count, Level, BOTH_MEM, Never(PATCHED), |c| reclaim(c, |r| r.allocstall), "Stalls of allocations; v1 tells it on a patched kernel").malachite_v1("Memory/total_allocstall", 1.0, Level),
    counter("mem.kswapdstall.container", Pages, Level, BOTH_MEM, |c| reclaim(c, |r| r.steal_kswapd), "Memory/mem_stats/pgsteal_kswapd", "Pages that kswapd reclaimed; v1 tells it on a patched kernel").malachite_v1("Memory/total_kswapd_steal", 1.0, Level),
    counter("mem.kswapdstall.container.rate", PerSecond, Rate, BOTH_MEM, |c| reclaim(c, |r| r.steal_kswapd), "Memory/mem_stats/pgsteal_kswapd", "The same a second").malachite_v1("Memory/total_kswapd_steal", 1.0, Rate),
    counter("mem.kswapdscan.container", Pages, Level, Never(ONLY_V2), |c| reclaim(c, |r| r.scan_kswapd), "Memory/mem_stats/pgscan_kswapd", "Pages that kswapd looked at"),
    counter("mem.kswapdscan.container.rate", PerSecond, Rate, Never(ONLY_V2), |c| reclaim(c, |r| r.scan_kswapd), "Memory/mem_stats/pgscan_kswapd", "The same a second"),
    counter("mem.directsteal.container", Pages, Level, Never(ONLY_V2), |c| reclaim(c, |r| r.steal_direct), "Memory/mem_stats/pgsteal_direct", "Pages that its tasks reclaimed"),
    counter("mem.directsteal.container.rate", PerSecond, Rate, Never(ONLY_V2), |c| reclaim(c, |r| r.steal_direct), "Memory/mem_stats/pgsteal_direct", "The same a second"),
    counter("mem.directscan.container", Pages, Level, Never(ONLY_V2), |c| reclaim(c, |r| r.scan_direct), "Memory/mem_stats/pgscan_direct", "Pages that its tasks looked at"),
    counter("mem.directscan.container.rate", PerSecond, Rate, Never(ONLY_V2), |c| reclaim(c, |r| r.scan_direct), "Memory/mem_stats/pgscan_direct", "The same a second"),
    counter("mem.pgsteal.container", Pages, Level, Never(ONLY_V2), |c| reclaim(c, |r| r.steal), "Memory/mem_stats/pgsteal", "Pages reclaimed"),
    counter("mem.pgsteal.container.rate", PerSecond, Rate, Never(ONLY_V2), |c| reclaim(c, |r| r.steal), "Memory/mem_stats/pgsteal", "The same a second"),
    counter("mem.pgscan.container", Pages, Level, Never(ONLY_V2), |c| reclaim(c, |r| r.scan), "Memory/mem_stats/pgscan", "Pages looked at for reclaim"),
    counter("mem.pgscan.container.rate", PerSecond, Rate, Never(ONLY_V2), |c| reclaim(c, |r| r.scan), "Memory/mem_stats/pgscan", "The same a second"),
    counter("mem.workingsetrefault.container", Pages, Level, Never(ONLY_V2), |c| reclaim(c, Reclaim::refault), "Memory/mem_stats/workingset_refault", "Pages that came back after they were reclaimed"),
    counter("mem.workingsetrefault.container.rate", PerSecond, Rate, Never(ONLY_V2), |c| reclaim(c, Reclaim::refault), "Memory/mem_stats/workingset_refault", "The same a second"),
    counter("mem.workingsetrefault.anon.container", Pages, Level, Never(ONLY_V2), |c| reclaim(c, |r| r.refault_anon), "Memory/mem_stats/workingset_refault_anon", "Of them anonymous ones"),
    counter("mem.workingsetrefault.anon.container.rate", PerSecond, Rate, Never(ONLY_V2), |c| reclaim(c, |r| r.refault_anon), "Memory/mem_stats/workingset_refault_anon", "The same a second"),
    counter("mem.workingsetrefault.file.container", Pages, Level, Never(ONLY_V2), |c| reclaim(c, |r| r.refault_file), "Memory/mem_stats/workingset_refault_file", "Of them those of files"),
    counter("mem.workingsetrefault.file.container.rate", PerSecond, Rate, Never(ONLY_V2), |c| reclaim(c, |r| r.refault_file), "Memory/mem_stats/workingset_refault_file", "The same a second"),
    counter("mem.workingsetactivate.container", Pages, Level, Never(ONLY_V2), |c| reclaim(c, Reclaim::activate), "Memory/mem_stats/workingset_activate", "Pages that came back and were active at once"),
    far("mem.proactive.reclaim.container", Count, Level, PATCHED, "Reclaim that was asked for").malachite_v2("Memory/bpf_mem_data/mem_reclaim_setting_sum", 1.0, Level),
    far("mem.proactive.reclaim.container.rate", PerSecond, Rate, PATCHED, "The same a second").malachite_v2("Memory/bpf_mem_data/mem_reclaim_setting_sum", 1.0, Rate),
    container("cpu.psi.some.avg10.container", Ratio, Level, Never(NO_PSI), From(File::CpuPressure), |c| some(c, |s| s.avg10), "Share of the last 10 s in which some task waited for a CPU").malachite_v2("Cpu/cpu_pressure/some/avg10", 0.01, Level).history(),
    container("cpu.psi.full.avg10.container", Ratio, Level, Never(NO_PSI), From(File::CpuPressure), |c| full(c, |s| s.avg10), "The same of all its tasks at once").malachite_v2("Cpu/cpu_pressure/full/avg10", 0.01, Level),
    container("mem.psi.some.avg10.container", Ratio, Level, Never(NO_PSI), From(File::MemoryPressure), |c| some(c, |s| s.avg10), "Share of the last 10 s in which some task waited for memory").malachite_v2("Memory/mem_pressure/some/avg10", 0.01, Level).history(),
    container("mem.psi.full.avg10.container", Ratio, Level, Never(NO_PSI), From(File::MemoryPressure), |c| full(c, |s| s.avg10), "The same of all its tasks at once").malachite_v2("Memory/mem_pressure/full/avg10", 0.01, Level),
    container("mem.psiavg60.container", Percent, Level, Never(NO_PSI), From(File::MemoryPressure), |c| some(c, |s| s.avg60 * 100.0), "Percent of the last 60 s in which some task waited for memory").malachite_v2("Memory/mem_pressure/some/avg60", 1.0, Level),
    container("io.psi.some.avg10.container", Ratio, Level, Never(NO_PSI), From(File::IoPressure), |c| some(c, |s| s.avg10), "Share of the last 10 s in which some task waited for I/O").malachite_v2("BlkIO/io_pressure/some/avg10", 0.01, Level),
    container("io.psi.full.avg10.container", Ratio, Level, Never(NO_PSI), From(File::IoPressure), |c| full(c, |s| s.avg10), "The same of all its tasks at once").malachite_v2("BlkIO/io_pressure/full/avg10", 0.01, Level),
    container("blkio.read.bps.container", BytesPerSecond, Rate, From(File::IoBytes), From(File::IoBytes), |c| read(c, |i| i.read_bytes), "Bytes read from block devices a second; on v1 missing while no file counts (malachite counts calls on file systems, and is not taken)"),
    container("blkio.write.bps.container", BytesPerSecond, Rate, From(File::IoBytes), From(File::IoBytes), |c| written(c, |i| i.written_bytes), "Bytes written to block devices a second"),
    container("blkio.read.iops.container", PerSecond, Rate, From(File::IoCounts), From(File::IoBytes), |c| read(c, |i| i.reads), "Reads from block devices a second"),
    container("blkio.write.iops.container", PerSecond, Rate, From(File::IoCounts), From(File::IoBytes), |c| written(c, |i| i.writes), "Writes to block devices a second"),
    container("pids.container", Count, Level, From(File::Pids), From(File::Pids), number, "Tasks"),
    container("pids.limit.container", Count, Level, From(File::PidsLimit), From(File::PidsLimit), limit, "Their limit").limit(),
    container("mem.hugetlb.64kb.container", Bytes, Level, From(File::Huge64K), From(File::Huge64K), number, "Huge pages of 64 KiB in use, where the machine has such"),
    container("mem.hugetlb.2mb.container", Bytes, Level, From(File::Huge2M), From(File::Huge2M), number, "Huge pages of 2 MiB in use, where the machine has such"),
    container("mem.hugetlb.32mb.container", Bytes, Level, From(File::Huge32M), From(File::Huge32M), number, "Huge pages of 32 MiB in use, where the machine has such"),
    container("mem.hugetlb.512mb.container", Bytes, Level, From(File::Huge512M), From(File::Huge512M), number, "Huge pages of 512 MiB in use, where the machine has such"),
    container("mem.hugetlb.1gb.container", Bytes, Level, From(File::Huge1G), From(File::Huge1G), number, "Huge pages of 1 GiB in use, where the machine has such"),
    container("mem.hugetlb.16gb.container", Bytes, Level, From(File::Huge16G), From(File::Huge16G), number, "Huge pages of 16 GiB in use, where the machine has such"),
    far("net.tcp.recv.bytes.container", Bytes, Level, "cgroup files tell nothing of the network", "Bytes received over TCP").malachite("Net/bpf_net_data/net_tcp_rx_bytes", 1.0, Level),
    far("net.tcp.send.bytes.container", Bytes, Level, "cgroup files tell nothing of the network", "Bytes sent over TCP").malachite("Net/bpf_net_data/net_tcp_tx_bytes", 1.0, Level),
    far("net.tcp.recv.packets.container", Count, Level, "cgroup files tell nothing of the network", "Packets received over TCP").malachite("Net/bpf_net_data/net_tcp_rx", 1.0, Level),
    far("net.tcp.send.packets.container", Count, Level, "cgroup files tell nothing of the network", "Packets sent over TCP").malachite("Net/bpf_net_data/net_tcp_tx", 1.0, Level),
    far("net.tcp.recv.bps.container", BytesPerSecond, Rate, "cgroup files tell nothing of the network", "Bytes received over TCP a second").malachite("Net/bpf_net_data/net_tcp_rx_bytes", 1.0, Rate),
    far("net.tcp.send.bps.container", BytesPerSecond, Rate, "cgroup files tell nothing of the network", "Bytes sent over TCP a second").malachite("Net/bpf_net_data/net_tcp_tx_bytes", 1.0, Rate),
    far("net.tcp.recv.pps.container", PerSecond, Rate, "cgroup files tell nothing of the network", "Packets received over TCP a second").malachite("Net/bpf_net_data/net_tcp_rx", 1.0, Rate),
    far("net.tcp.send.pps.container", PerSecond, Rate, "cgroup files tell nothing of the network", "Packets sent over TCP a second").malachite("Net/bpf_net_data/net_tcp_tx", 1.0, Rate),
    far("mbm.total.ps.container", BytesPerSecond, Level, "cgroup files tell nothing of memory traffic", "Memory traffic").malachite("mbm/total", 1.0, Level),
    far("mbm.local.ps.container", BytesPerSecond, Level, "cgroup files tell nothing of memory traffic", "Of it to local memory").malachite("mbm/local", 1.0, Level),
    fs("available.rootfs.container", Bytes, "rootfs/availableBytes", "File system of its layer: free"),
    fs("capacity.rootfs.container", Bytes, "rootfs/capacityBytes", "Its size"),
    fs("used.rootfs.container", Bytes, "rootfs/usedBytes", "In use by the container"),
    fs("inodes.rootfs.container", Count, "rootfs/inodes", "Its inodes"),
    fs("free.inodes.rootfs.container", Count, "rootfs/inodesFree", "Free inodes"),
    fs("used.inodes.rootfs.container", Count, "rootfs/inodesUsed", "Inodes in use by the container"),
    fs("available.logs.container", Bytes, "logs/availableBytes", "File system of its logs: free"),
    fs("capacity.logs.container", Bytes, "logs/capacityBytes", "Its size"),
    fs("inodes.logs.container", Count, "logs/inodes", "Its inodes"),
    fs("free.inodes.logs.container", Count, "logs/inodesFree", "Free inodes"),
    fs("used.inodes.logs.container", Count, "logs/inodesUsed", "Inodes in use by its logs"),
];

const fn numa_row(
    name: &'static str,
    unit: Unit,
    kind: Kind,
    v1: Origin,
    v2: Origin,
    take: fn(&Contents) -> Told,
    help: &'static str,
) -> Metric {
    Metric::row(name, Scope::ContainerNuma, unit, kind, help).file(v1, v2, take)
}

const BOTH_NUMA: Origin = From(File::NumaStat);
const NO_EACH: &str = "cgroup v2 tells no CPU time by CPU";

/// Metrics of a container on one NUMA node.
#[rustfmt::skip] // one row a line: it is a table
pub static CONTAINER_NUMA: &[Metric] = &[
    numa_row("mem.total.numa.container", Bytes, Level, BOTH_NUMA, BOTH_NUMA, |c| numa(c, NumaMemory::total), "Anonymous memory, page cache and unevictable memory").malachite("Memory/total", 1.0, Level),
    numa_row("mem.file.numa.container", Bytes, Level, BOTH_NUMA, BOTH_NUMA, |c| numa(c, |n| n.file), "Page cache").malachite("Memory/file", 1.0, Level),
    numa_row("mem.anon.numa.container", Bytes, Level, BOTH_NUMA, BOTH_NUMA, |c| numa(c, |n| n.anon), "Anonymous memory").malachite("Memory/anon", 1.0, Level),
    numa_row("cpu.usage.count.numa.container", Nanoseconds, Level, From(File::CpuEach), Never(NO_EACH), cpu_ns, "CPU time used on its CPUs").malachite("Cpu/percpu", 1.0, Level),
    numa_row("cpu.usage.numa.container", Cores, Rate, From(File::CpuEach), Never(NO_EACH), cpu_seconds, "CPU time used on its CPUs").malachite("Cpu/percpu", 1e-9, Rate),
];
