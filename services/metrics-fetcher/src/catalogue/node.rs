//! The machine.

use super::Kind::{self, Level, Rate, Ticks};
use super::Unit::{self, *};
use super::{Metric, Origin, Scope, Told, take};
use crate::contents::{Contents, File};
use crate::sources::proc::MemoryInfo;
use take::{blocked, cpus, full, load, meminfo, number, running, some, ticks, ticks_share, vmstat};

const fn node(
    name: &'static str,
    exposed: &'static str,
    unit: Unit,
    kind: Kind,
    file: File,
    take: fn(&Contents) -> Told,
    help: &'static str,
) -> Metric {
    Metric::row(name, Scope::Node, unit, kind, help)
        .file(Origin::From(file), Origin::From(file), take)
        .exposed(exposed)
}

const fn mem(
    name: &'static str,
    exposed: &'static str,
    take: fn(&Contents) -> Told,
    malachite: &'static str,
    help: &'static str,
) -> Metric {
    node(name, exposed, Bytes, Level, File::NodeMemory, take, help).malachite(malachite, 1024.0, Level)
}

/// Only from elsewhere than the kernel's files.
const fn far(name: &'static str, unit: Unit, kind: Kind, help: &'static str) -> Metric {
    Metric::row(name, Scope::Node, unit, kind, help)
}

/// The kernel has a file of it, which is not read here.
const fn unread(name: &'static str, why: &'static str, unit: Unit, kind: Kind, help: &'static str) -> Metric {
    far(name, unit, kind, help).file(Origin::Never(why), Origin::Never(why), take::nothing)
}

const fn fs(name: &'static str, unit: Unit, path: &'static str, help: &'static str) -> Metric {
    far(name, unit, Level, help).kubelet(path, 1.0, Level)
}

fn used(info: &MemoryInfo) -> Option<u64> {
    Some(info.total?.saturating_sub(info.available?))
}

/// Metrics of the node.
#[rustfmt::skip] // one row a line: it is a table
pub static NODE: &[Metric] = &[
    node("cpu.total.system", "node_cpus", Count, Level, File::NodeStat, cpus, "CPUs online").malachite("derived/cpus", 1.0, Level),
    node("cpu.usage.system", "node_cpu_usage_cores", Cores, Ticks, File::NodeStat, |c| ticks(c, |t| Some(t.busy)), "CPU time in use, but for what a hypervisor stole").malachite("derived/cpu_usage", 1.0, Level).history(),
    node("cpu.usage.ratio.system", "node_cpu_usage_ratio", Ratio, Ticks, File::NodeStat, |c| ticks_share(c, |t| Some(t.busy)), "The same as a share of all CPUs online").malachite("compute/global_cpu/cpu_usage", 0.01, Level),
    node("cpu.sys.usage.ratio.system", "node_cpu_system_ratio", Ratio, Ticks, File::NodeStat, |c| ticks_share(c, |t| Some(t.system)), "Share of all CPUs in the kernel (Katalyst: cpu.sys.usage.ratio.cpu of the node)").malachite("compute/global_cpu/cpu_sys_usage", 0.01, Level),
    node("cpu.iowait.ratio.system", "node_cpu_iowait_ratio", Ratio, Ticks, File::NodeStat, |c| ticks_share(c, |t| Some(t.iowait)), "Share of all CPUs idle while I/O was under way"),
    node("cpu.steal.ratio.system", "node_cpu_steal_ratio", Ratio, Ticks, File::NodeStat, |c| ticks_share(c, |t| t.steal), "Share of all CPUs that a hypervisor took"),
    node("procs.running.system", "node_procs_running", Count, Level, File::NodeStat, running, "Runnable threads").malachite("compute/process_stats/procs_running", 1.0, Level),
    node("procs.blocked.system", "node_procs_blocked", Count, Level, File::NodeStat, blocked, "Threads that wait for I/O").malachite("compute/process_stats/procs_blocked", 1.0, Level),
    node("cpu.load.1min.system", "node_load_1min", Count, Level, File::NodeLoad, |c| load(c, 0), "Load average over 1 minute").malachite("compute/load/one", 1.0, Level),
    node("cpu.load.5min.system", "node_load_5min", Count, Level, File::NodeLoad, |c| load(c, 1), "Load average over 5 minutes").malachite("compute/load/five", 1.0, Level),
    node("cpu.load.15min.system", "node_load_15min", Count, Level, File::NodeLoad, |c| load(c, 2), "Load average over 15 minutes").malachite("compute/load/fifteen", 1.0, Level),
    far("cpi.avg.system", Ratio, Level, "Cycles an instruction, mean over the CPUs that tell it").malachite("derived/cpi", 1.0, Level),
    mem("mem.total.system", "node_memory_total_bytes", |c| meminfo(c, |m| m.total), "memory/system/mem_total", "Memory of the machine"),
    node("mem.used.system", "node_memory_used_bytes", Bytes, Level, File::NodeMemory, |c| meminfo(c, used), "Total less available"),
    mem("mem.free.system", "node_memory_free_bytes", |c| meminfo(c, |m| m.free), "memory/system/mem_free", "Memory that nobody uses"),
    mem("mem.available.system", "node_memory_available_bytes", |c| meminfo(c, |m| m.available), "memory/system/mem_available", "Memory that can be had without swapping"),
    mem("mem.buffer.system", "node_memory_buffers_bytes", |c| meminfo(c, |m| m.buffers), "memory/system/mem_buffers", "Buffers of block devices"),
    mem("mem.pagecache.system", "node_memory_page_cache_bytes", |c| meminfo(c, |m| m.cached), "memory/system/mem_page_cache", "Page cache, shared memory included"),
    mem("mem.shmem.system", "node_memory_shmem_bytes", |c| meminfo(c, |m| m.shmem), "memory/system/mem_shm", "Shared memory and tmpfs"),
    mem("mem.active.anon.system", "node_memory_active_anon_bytes", |c| meminfo(c, |m| m.active_anon), "memory/system/mem_active_anon", "Anonymous memory used of late"),
    mem("mem.inactive.anon.system", "node_memory_inactive_anon_bytes", |c| meminfo(c, |m| m.inactive_anon), "memory/system/mem_inactive_anon", "Anonymous memory not used of late"),
    mem("mem.active.file.system", "node_memory_active_file_bytes", |c| meminfo(c, |m| m.active_file), "memory/system/mem_active_file", "Page cache used of late"),
    mem("mem.inactive.file.system", "node_memory_inactive_file_bytes", |c| meminfo(c, |m| m.inactive_file), "memory/system/mem_inactive_file", "Page cache not used of late"),
    mem("mem.dirty.system", "node_memory_dirty_bytes", |c| meminfo(c, |m| m.dirty), "memory/system/mem_dirty_page_cache", "Page cache to be written"),
    mem("mem.writeback.system", "node_memory_writeback_bytes", |c| meminfo(c, |m| m.writeback), "memory/system/mem_write_back_page_cache", "Page cache being written"),
    mem("mem.slab.reclaimable.system", "node_memory_slab_reclaimable_bytes", |c| meminfo(c, |m| m.slab_reclaimable), "memory/system/mem_slab_reclaimable", "Kernel caches that can be given back"),
    mem("mem.swap.total.system", "node_memory_swap_total_bytes", |c| meminfo(c, |m| m.swap_total), "memory/system/mem_swap_total", "Swap space"),
    mem("mem.swap.free.system", "node_memory_swap_free_bytes", |c| meminfo(c, |m| m.swap_free), "memory/system/mem_swap_free", "Swap space that nobody uses"),
    node("mem.kswapdsteal.system", "node_memory_kswapd_steal_pages", Pages, Level, File::NodeVmstat, |c| vmstat(c, |v| v.steal_kswapd), "Pages that kswapd reclaimed since boot").malachite("memory/system/vmstat_pgsteal_kswapd", 1.0, Level),
    node("mem.direct.pgsteal.system", "node_memory_direct_steal_pages", Pages, Level, File::NodeVmstat, |c| vmstat(c, |v| v.steal_direct), "Pages that allocating tasks reclaimed since boot").malachite("memory/system/vmstat_pgsteal_direct", 1.0, Level),
    node("mem.kswapd.pgscan.system", "node_memory_kswapd_scan_pages", Pages, Level, File::NodeVmstat, |c| vmstat(c, |v| v.scan_kswapd), "Pages that kswapd looked at since boot").malachite("memory/system/vmstat_pgscan_kswapd", 1.0, Level),
    node("mem.direct.pgscan.system", "node_memory_direct_scan_pages", Pages, Level, File::NodeVmstat, |c| vmstat(c, |v| v.scan_direct), "Pages that allocating tasks looked at since boot").malachite("memory/system/vmstat_pgscan_direct", 1.0, Level),
    node("mem.compact.stall.system", "node_memory_compact_stalls", Count, Level, File::NodeVmstat, |c| vmstat(c, |v| v.compact_stall), "Allocations that waited for compaction since boot").malachite("memory/system/vmstat_compact_stall", 1.0, Level),
    node("mem.oom.system", "node_memory_oom_kills", Count, Level, File::NodeVmstat, |c| vmstat(c, |v| v.oom_kill), "Tasks killed for want of memory since boot"),
    node("mem.kswapdsteal.rate.system", "node_memory_kswapd_steal_pages_per_second", PerSecond, Rate, File::NodeVmstat, |c| vmstat(c, |v| v.steal_kswapd), "Pages a second (Katalyst: .delta., per pass, whose first is all since boot)").malachite("memory/system/vmstat_pgsteal_kswapd", 1.0, Rate),
    node("mem.direct.pgsteal.rate.system", "node_memory_direct_steal_pages_per_second", PerSecond, Rate, File::NodeVmstat, |c| vmstat(c, |v| v.steal_direct), "Pages a second (Katalyst: .delta.)").malachite("memory/system/vmstat_pgsteal_direct", 1.0, Rate),
    node("mem.kswapd.pgscan.rate.system", "node_memory_kswapd_scan_pages_per_second", PerSecond, Rate, File::NodeVmstat, |c| vmstat(c, |v| v.scan_kswapd), "Pages a second (Katalyst: .delta.)").malachite("memory/system/vmstat_pgscan_kswapd", 1.0, Rate),
    node("mem.direct.pgscan.rate.system", "node_memory_direct_scan_pages_per_second", PerSecond, Rate, File::NodeVmstat, |c| vmstat(c, |v| v.scan_direct), "Pages a second (Katalyst: .delta.)").malachite("memory/system/vmstat_pgscan_direct", 1.0, Rate),
    node("mem.scale.factor.system", "node_memory_watermark_scale_factor", Count, Level, File::NodeScaleFactor, number, "Distance between the watermarks in 1/10000 of the memory").malachite("memory/system/vm_watermark_scale_factor", 1.0, Level),
    unread("mem.sock.tcp.system", "it is not read from /proc/net/sockstat and /proc/sys/net", Pages, Level, "Memory of TCP sockets").malachite("memory/system/mem_sock_tcp", 1.0, Level),
    unread("mem.sock.tcp_limit.system", "it is not read from /proc/net/sockstat and /proc/sys/net", Pages, Level, "Its limit").malachite("memory/system/mem_sock_tcp_limit", 1.0, Level),
    unread("mem.sock.udp.system", "it is not read from /proc/net/sockstat and /proc/sys/net", Pages, Level, "Memory of UDP sockets").malachite("memory/system/mem_sock_udp", 1.0, Level),
    unread("mem.sock.udp_limit.system", "it is not read from /proc/net/sockstat and /proc/sys/net", Pages, Level, "Its limit").malachite("memory/system/mem_sock_udp_limit", 1.0, Level),
    node("cpu.psi.some.avg10.system", "node_cpu_pressure_some_ratio", Ratio, Level, File::NodeCpuPressure, |c| some(c, |s| s.avg10), "Share of the last 10 s in which some task waited for a CPU").malachite("compute/pressure/some/avg10", 0.01, Level),
    node("cpu.psi.full.avg10.system", "node_cpu_pressure_full_ratio", Ratio, Level, File::NodeCpuPressure, |c| full(c, |s| s.avg10), "The same of all tasks at once").malachite("compute/pressure/full/avg10", 0.01, Level),
    node("mem.psi.some.avg10.system", "node_memory_pressure_some_ratio", Ratio, Level, File::NodeMemoryPressure, |c| some(c, |s| s.avg10), "Share of the last 10 s in which some task waited for memory"),
    node("mem.psi.full.avg10.system", "node_memory_pressure_full_ratio", Ratio, Level, File::NodeMemoryPressure, |c| full(c, |s| s.avg10), "The same of all tasks at once"),
    node("io.psi.some.avg10.system", "node_io_pressure_some_ratio", Ratio, Level, File::NodeIoPressure, |c| some(c, |s| s.avg10), "Share of the last 10 s in which some task waited for I/O"),
    node("io.psi.full.avg10.system", "node_io_pressure_full_ratio", Ratio, Level, File::NodeIoPressure, |c| full(c, |s| s.avg10), "The same of all tasks at once"),
    unread("net.tcp.delay_acks", "it is not read from /proc/net/netstat", Count, Level, "Delayed acknowledgements").malachite("network/tcp/tcp_delay_acks", 1.0, Level),
    unread("net.tcp.listen_overflows", "it is not read from /proc/net/netstat", Count, Level, "Connections lost to a full queue").malachite("network/tcp/tcp_listen_overflows", 1.0, Level),
    unread("net.tcp.listen_drops", "it is not read from /proc/net/netstat", Count, Level, "Connections dropped while listening").malachite("network/tcp/tcp_listen_drops", 1.0, Level),
    unread("net.tcp.abort_on_memory", "it is not read from /proc/net/netstat", Count, Level, "Connections ended for want of memory").malachite("network/tcp/tcp_abort_on_memory", 1.0, Level),
    unread("net.tcp.req_q_full_drop", "it is not read from /proc/net/netstat", Count, Level, "Requests dropped by a full queue").malachite("network/tcp/tcp_req_q_full_drop", 1.0, Level),
    unread("net.tcp.retran", "it is not read from /proc/net/snmp", Ratio, Level, "Share of segments sent again, as malachite tells it").malachite("network/tcp/tcp_retran", 1.0, Level),
    unread("net.tcp.retrans_segs", "it is not read from /proc/net/snmp", Count, Level, "Segments sent again").malachite("network/tcp/tcp_retrans_segs", 1.0, Level),
    unread("net.tcp.out_segs", "it is not read from /proc/net/snmp", Count, Level, "Segments sent").malachite("network/tcp/tcp_out_segs", 1.0, Level),
    unread("net.tcp.close_wait", "it is not read from /proc/net/tcp", Count, Level, "Connections in CLOSE_WAIT").malachite("network/tcp/tcp_close_wait", 1.0, Level),
    unread("zram.used.total.system", "it is not read from /sys/block", Bytes, Level, "Memory that zram takes").malachite("derived/zram_used", 1.0, Level),
    unread("zram.compr.usage.system", "it is not read from /sys/block", Bytes, Level, "Compressed data in zram").malachite("derived/zram_compr", 1.0, Level),
    unread("zram.origin.usage.system", "it is not read from /sys/block", Bytes, Level, "The same before compression").malachite("derived/zram_orig", 1.0, Level),
    fs("available.fs.node", Bytes, "fs/availableBytes", "File system of the kubelet: free"),
    fs("capacity.fs.node", Bytes, "fs/capacityBytes", "Its size"),
    fs("used.fs.node", Bytes, "fs/usedBytes", "In use"),
    fs("inodes.fs.node", Count, "fs/inodes", "Its inodes"),
    fs("free.inodes.fs.node", Count, "fs/inodesFree", "Free inodes"),
    fs("used.inodes.fs.node", Count, "fs/inodesUsed", "Inodes in use"),
    fs("available.rootfs.system", Bytes, "imageFs/availableBytes", "File system of the images: free"),
    fs("capacity.rootfs.system", Bytes, "imageFs/capacityBytes", "Its size"),
    fs("used.rootfs.system", Bytes, "imageFs/usedBytes", "In use"),
    fs("inodes.rootfs.system", Count, "imageFs/inodes", "Its inodes"),
    fs("free.inodes.rootfs.system", Count, "imageFs/inodesFree", "Free inodes"),
    fs("used.inodes.rootfs.system", Count, "imageFs/inodesUsed", "Inodes in use"),
    far("total.power.used.watts", Watts, Level, "Power of the machine").malachite("power/total_power", 1.0, Level),
    far("cpu.power.used.watts", Watts, Level, "Of the CPUs").malachite("power/cpu_power", 1.0, Level),
    far("mem.power.used.watts", Watts, Level, "Of the memory").malachite("power/mem_power", 1.0, Level),
    far("fan.power.used.watts", Watts, Level, "Of the fans").malachite("power/fan_power", 1.0, Level),
    far("hdd.power.used.watts", Watts, Level, "Of the disks").malachite("power/hdd_power", 1.0, Level),
    far("scaling.cur.freq.khz", Kilohertz, Level, "Present frequency of CPU 0").malachite("freq/cpu_freq/0/scaling_cur_freq", 1.0, Level),
];
