//! Parts of the machine: NUMA nodes, CPUs, block devices, network interfaces; and volumes of pods.

use super::Kind::{self, Level, Rate, Ticks};
use super::Unit::{self, *};
use super::{Metric, Origin, Scope, Told, take};
use crate::contents::{Contents, File};
use take::{
    cpus, disk, half, marks, numa_counts, numa_info, received, sent, sum, ticks, ticks_share, usable,
};

const fn part(
    scope: Scope,
    name: &'static str,
    unit: Unit,
    kind: Kind,
    file: File,
    take: fn(&Contents) -> Told,
    help: &'static str,
) -> Metric {
    Metric::row(name, scope, unit, kind, help).file(Origin::From(file), Origin::From(file), take)
}

const fn mem(
    name: &'static str,
    take: fn(&Contents) -> Told,
    malachite: &'static str,
    help: &'static str,
) -> Metric {
    part(Scope::Numa, name, Bytes, Level, File::NumaMeminfo, take, help).malachite(malachite, 1024.0, Level)
}

const fn count(name: &'static str, take: fn(&Contents) -> Told, help: &'static str) -> Metric {
    part(Scope::Numa, name, Pages, Level, File::NumaCounts, take, help)
}

const fn far(scope: Scope, name: &'static str, unit: Unit, help: &'static str) -> Metric {
    Metric::row(name, scope, unit, Level, help)
}

const fn nic(
    name: &'static str,
    unit: Unit,
    kind: Kind,
    take: fn(&Contents) -> Told,
    malachite: &'static str,
    help: &'static str,
) -> Metric {
    part(Scope::Network, name, unit, kind, File::NodeNetwork, take, help).malachite(malachite, 1.0, kind)
}

const MIB_TO_GIB: f64 = 1.0 / 1024.0;

/// Metrics of a NUMA node.
#[rustfmt::skip] // one row a line: it is a table
pub static NUMA: &[Metric] = &[
    mem("mem.total.numa", |c| numa_info(c, |n| n.total), "memory/mem_total", "Memory of the node"),
    mem("mem.used.numa", |c| numa_info(c, |n| n.used), "memory/mem_used", "Total less free"),
    mem("mem.free.numa", |c| numa_info(c, |n| n.free), "memory/mem_free", "Memory that nobody uses"),
    mem("mem.shmem.numa", |c| numa_info(c, |n| n.shmem), "memory/mem_shmem", "Shared memory and tmpfs"),
    far(Scope::Numa, "mem.available.numa", Bytes, "Memory that can be had without swapping").malachite("memory/mem_available", 1024.0, Level),
    mem("mem.filepage.numa", |c| numa_info(c, |n| n.file), "memory/mem_file_pages", "Page cache, shared memory included"),
    mem("mem.inactivefile.numa", |c| numa_info(c, |n| n.inactive_file), "memory/mem_inactive_file", "Page cache not used of late"),
    mem("mem.activefile.numa", |c| numa_info(c, |n| n.active_file), "memory/mem_active_file", "Page cache used of late"),
    part(Scope::Numa, "mem.watermark.min.numa", Bytes, Level, File::NodeZones, |c| marks(c, |m| m.min), "Watermark of its zones: below it nothing but emergencies is served"),
    part(Scope::Numa, "mem.watermark.low.numa", Bytes, Level, File::NodeZones, |c| marks(c, |m| m.low), "Below it kswapd wakes"),
    part(Scope::Numa, "mem.watermark.high.numa", Bytes, Level, File::NodeZones, |c| marks(c, |m| m.high), "Above it kswapd sleeps"),
    count("mem.hit.numa", |c| numa_counts(c, |n| n.hit), "Pages allocated here as wanted, since boot"),
    count("mem.miss.numa", |c| numa_counts(c, |n| n.miss), "Pages allocated here though another node was wanted, since boot"),
    count("mem.foreign.numa", |c| numa_counts(c, |n| n.foreign), "Pages wanted here and allocated elsewhere, since boot"),
    count("mem.local.numa", |c| numa_counts(c, |n| n.local), "Pages allocated here by tasks that ran here, since boot"),
    count("mem.other.numa", |c| numa_counts(c, |n| n.other), "Pages allocated here by tasks that ran elsewhere, since boot"),
    far(Scope::Numa, "mem.bandwidth.read.numa", GibPerSecond, "Memory read").malachite("memory/mem_read_bandwidth_mb", MIB_TO_GIB, Level),
    far(Scope::Numa, "mem.bandwidth.write.numa", GibPerSecond, "Memory written").malachite("memory/mem_write_bandwidth_mb", MIB_TO_GIB, Level),
    far(Scope::Numa, "mem.bandwidth.numa", GibPerSecond, "Both").derived(&["mem.bandwidth.read.numa", "mem.bandwidth.write.numa"], sum),
    far(Scope::Numa, "mem.bandwidth.theory.numa", GibPerSecond, "What the memory can do in theory").malachite("memory/mem_theory_mx_bandwidth_mb", MIB_TO_GIB, Level),
    far(Scope::Numa, "mem.bandwidth.max.numa", GibPerSecond, "0.8 of it").derived(&["mem.bandwidth.theory.numa"], usable),
    far(Scope::Numa, "mem.latency.read.numa", Nanoseconds, "Latency of reads").malachite("memory/mem_read_latency", 1.0, Level),
    far(Scope::Numa, "mem.latency.write.numa", Nanoseconds, "Latency of writes").malachite("memory/mem_write_latency", 1.0, Level),
    far(Scope::Numa, "mem.latency.amd.l3.miss", Nanoseconds, "Latency of L3 misses on AMD").malachite("memory/amd_l3_miss_latency_max", 1.0, Level),
    part(Scope::Numa, "cpu.total.numa", Count, Level, File::NodeStat, cpus, "CPUs online"),
    part(Scope::Numa, "cpu.usage.numa", Cores, Ticks, File::NodeStat, |c| ticks(c, |t| Some(t.busy)), "CPU time in use on its CPUs").malachite("derived/cpu_usage", 1.0, Level),
    part(Scope::Numa, "cpu.usage.numa.avg", Ratio, Ticks, File::NodeStat, |c| ticks_share(c, |t| Some(t.busy)), "The same as a share of its CPUs").malachite("derived/cpu_usage_avg", 1.0, Level),
    far(Scope::Numa, "cpu.schedwait.numa.avg", Count, "Scheduling wait times 1000, mean over its CPUs; missing where one of them does not tell it").malachite("derived/sched_wait_avg", 1000.0, Level),
    part(Scope::Numa, "cpu.iowait.ratio.numa.avg", Ratio, Ticks, File::NodeStat, |c| ticks_share(c, |t| Some(t.iowait)), "Share of its CPUs idle while I/O was under way (malachite's is in its own unit, and not taken)"),
    far(Scope::Numa, "mem.frag.score.numa", Count, "Fragmentation score").malachite("extfrag/mem_frag_score", 1.0, Level),
    far(Scope::Numa, "mem.frag.order9.score.numa", Count, "Fragmentation score of order 9").malachite("derived/order9", 1.0, Level),
    far(Scope::Numa, "mem.frag.order10.score.numa", Count, "Fragmentation score of order 10").malachite("derived/order10", 1.0, Level),
    far(Scope::Numa, "mem.frag.high_order_score.numa", Count, "Mean of the scores of orders 9 and 10").derived(&["mem.frag.order9.score.numa", "mem.frag.order10.score.numa"], half),
    far(Scope::Numa, "mbm.total.ps.numa", BytesPerSecond, "Memory traffic of its L3 caches").malachite("l3/total", 1.0, Level),
    far(Scope::Numa, "mbm.local.ps.numa", BytesPerSecond, "Of it to its own memory").malachite("l3/local", 1.0, Level),
    far(Scope::Numa, "mbm.victim.ps.numa", BytesPerSecond, "Of it evictions").malachite("l3/victim", 1.0, Level),
    far(Scope::Numa, "mbm.max.ps.numa", BytesPerSecond, "The most that one L3 cache can do").malachite("l3/max", 1.0, Level),
];

/// Metrics of a logical CPU.
#[rustfmt::skip] // one row a line: it is a table
pub static CPU: &[Metric] = &[
    part(Scope::Cpu, "cpu.usage.ratio.cpu", Ratio, Ticks, File::NodeStat, |c| ticks(c, |t| Some(t.busy)), "Share of the time in use").malachite("compute/cpu_usage", 0.01, Level),
    part(Scope::Cpu, "cpu.sys.usage.ratio.cpu", Ratio, Ticks, File::NodeStat, |c| ticks(c, |t| Some(t.system)), "Share of the time in the kernel").malachite("compute/cpu_sys_usage", 0.01, Level),
    part(Scope::Cpu, "cpu.irq.ratio.cpu", Ratio, Ticks, File::NodeStat, |c| ticks(c, |t| Some(t.irq)), "Share of the time in interrupts"),
    part(Scope::Cpu, "cpu.steal.ratio.cpu", Ratio, Ticks, File::NodeStat, |c| ticks(c, |t| t.steal), "Share of the time that a hypervisor took"),
    part(Scope::Cpu, "cpu.iowait.ratio.cpu", Ratio, Ticks, File::NodeStat, |c| ticks(c, |t| Some(t.iowait)), "Share of the time idle while I/O was under way (malachite's is in its own unit, and not taken)"),
    far(Scope::Cpu, "cpu.schedwait.cpu", Count, "Scheduling wait times 1000").malachite("compute/cpu_sched_wait", 1000.0, Level),
];

/// Metrics of a block device.
#[rustfmt::skip] // one row a line: it is a table
pub static DEVICE: &[Metric] = &[
    part(Scope::Device, "io.read.system", Count, Level, File::NodeDisks, |c| disk(c, |d| d.reads), "Reads since boot").malachite("io/io_read", 1.0, Level),
    part(Scope::Device, "io.write.system", Count, Level, File::NodeDisks, |c| disk(c, |d| d.writes), "Writes since boot").malachite("io/io_write", 1.0, Level),
    part(Scope::Device, "io.busy.system", Milliseconds, Level, File::NodeDisks, |c| disk(c, |d| d.busy_ms), "Time with I/O under way since boot").malachite("io/io_busy", 1.0, Level),
    part(Scope::Device, "io.read.ops.system", PerSecond, Rate, File::NodeDisks, |c| disk(c, |d| d.reads), "Reads a second").malachite("io/io_read", 1.0, Rate),
    part(Scope::Device, "io.write.ops.system", PerSecond, Rate, File::NodeDisks, |c| disk(c, |d| d.writes), "Writes a second").malachite("io/io_write", 1.0, Rate),
    part(Scope::Device, "io.read.bps.system", BytesPerSecond, Rate, File::NodeDisks, |c| disk(c, |d| d.read_bytes), "Bytes read a second"),
    part(Scope::Device, "io.write.bps.system", BytesPerSecond, Rate, File::NodeDisks, |c| disk(c, |d| d.written_bytes), "Bytes written a second"),
    part(Scope::Device, "io.busy.rate.system", Ratio, Rate, File::NodeDisks, busy_seconds, "Share of the time with I/O under way").malachite("io/io_busy", 0.001, Rate),
    far(Scope::Device, "io.disk.type", Count, "1 HDD, 2 SSD, 3 NVME, 4 VIRTIO, 0 another that is told").malachite("derived/disk_type", 1.0, Level),
    far(Scope::Device, "io.disk.wbt", Microseconds, "Target latency of write-back throttling").malachite("io/wbt_lat_usec", 1.0, Level),
];

/// Metrics of a network interface.
#[rustfmt::skip] // one row a line: it is a table
pub static NETWORK: &[Metric] = &[
    nic("net.tcp.receive_bytes", Bytes, Level, |c| received(c, 0), "network/receive_bytes", "Bytes received"),
    nic("net.tcp.receive_packets", Count, Level, |c| received(c, 1), "network/receive_packets", "Packets received"),
    nic("net.tcp.receive_errs", Count, Level, |c| received(c, 2), "network/receive_errs", "Errors in receiving"),
    nic("net.tcp.receive_drop", Count, Level, |c| received(c, 3), "network/receive_drop", "Dropped in receiving"),
    nic("net.tcp.receive_fifo", Count, Level, |c| received(c, 4), "network/receive_fifo", "Overruns in receiving"),
    nic("net.tcp.receive_frame", Count, Level, |c| received(c, 5), "network/receive_frame", "Broken frames"),
    nic("net.tcp.receive_compressed", Count, Level, |c| received(c, 6), "network/receive_compressed", "Compressed packets received"),
    nic("net.tcp.receive_multicast", Count, Level, |c| received(c, 7), "network/receive_multicast", "Multicast packets received"),
    nic("net.tcp.transmit_bytes", Bytes, Level, |c| sent(c, 0), "network/transmit_bytes", "Bytes sent"),
    nic("net.tcp.transmit_packets", Count, Level, |c| sent(c, 1), "network/transmit_packets", "Packets sent"),
    nic("net.tcp.transmit_errs", Count, Level, |c| sent(c, 2), "network/transmit_errs", "Errors in sending"),
    nic("net.tcp.transmit_drop", Count, Level, |c| sent(c, 3), "network/transmit_drop", "Dropped in sending"),
    nic("net.tcp.transmit_fifo", Count, Level, |c| sent(c, 4), "network/transmit_fifo", "Overruns in sending"),
    nic("net.tcp.transmit_colls", Count, Level, |c| sent(c, 5), "network/transmit_colls", "Collisions"),
    nic("net.tcp.transmit_carrier", Count, Level, |c| sent(c, 6), "network/transmit_carrier", "Losses of the carrier"),
    nic("net.tcp.transmit_compressed", Count, Level, |c| sent(c, 7), "network/transmit_compressed", "Compressed packets sent"),
    nic("net.receive.bps", BytesPerSecond, Rate, |c| received(c, 0), "network/receive_bytes", "Bytes received a second"),
    nic("net.transmit.bps", BytesPerSecond, Rate, |c| sent(c, 0), "network/transmit_bytes", "Bytes sent a second"),
    far(Scope::Network, "net.speed", Count, "Speed of the link, as malachite tells it").malachite("network/speeds", 1.0, Level),
];

const fn volume(name: &'static str, unit: Unit, path: &'static str, help: &'static str) -> Metric {
    far(Scope::Volume, name, unit, help).kubelet(path, 1.0, Level)
}

/// Metrics of a pod's volume.
#[rustfmt::skip] // one row a line: it is a table
pub static VOLUME: &[Metric] = &[
    volume("available.volume.pod.container", Bytes, "volume/availableBytes", "Free"),
    volume("capacity.volume.pod.container", Bytes, "volume/capacityBytes", "Its size"),
    volume("used.volume.pod.container", Bytes, "volume/usedBytes", "In use"),
    volume("inodes.volume.pod.container", Count, "volume/inodes", "Its inodes"),
    volume("free.inodes.volume.pod.container", Count, "volume/inodesFree", "Free inodes"),
    volume("used.inodes.volume.pod.container", Count, "volume/inodesUsed", "Inodes in use"),
];

fn busy_seconds(c: &Contents) -> Told {
    match disk(c, |d| d.busy_ms) {
        Told::Value(ms) => Told::Value(ms / 1000.0),
        other => other,
    }
}
