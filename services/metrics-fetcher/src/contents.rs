//! Which files are read, and what they say once parsed.

use oxalyst_cgroups::Controller;
use oxalyst_cgroups::parse::{
    self, CpuMax, CpuStat, IoStat, Limit, MemoryStat, NumaMemory, OomEvents, ParseError, Pressure,
};

use crate::machine::Machine;
use crate::sources::proc::{
    self, CpuTicks, Disk, Interface, LoadAverage, MemoryInfo, NumaCounts, NumaInfo, ProcStat, Vmstat,
    Watermarks,
};
use crate::store::Instance;

/// A file of a container's cgroup, of `/proc`, or of a NUMA node, by what it tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum File {
    /// v1 `cpuacct.usage`. CPU time comes first: the clock is read just before.
    CpuUsage,
    /// `cpu.stat`.
    CpuStat,
    /// `memory.usage_in_bytes`, `memory.current`.
    MemoryUsage,
    /// `memory.limit_in_bytes`, `memory.max`.
    MemoryLimit,
    /// `memory.stat`.
    MemoryStat,
    /// v2 `cpu.pressure`.
    CpuPressure,
    /// v2 `memory.pressure`.
    MemoryPressure,
    /// v2 `io.pressure`.
    IoPressure,
    /// v1 `cpuacct.usage_user`.
    CpuUser,
    /// v1 `cpuacct.usage_sys`.
    CpuSystem,
    /// v1 `cpuacct.usage_percpu`.
    CpuEach,
    /// v2 `cpu.max`.
    CpuMax,
    /// v1 `cpu.cfs_quota_us`.
    CpuQuota,
    /// v1 `cpu.cfs_period_us`.
    CpuPeriod,
    /// `cpu.shares`, `cpu.weight`.
    CpuShares,
    /// v1 `memory.kmem.usage_in_bytes`.
    KernelMemory,
    /// v1 `memory.kmem.tcp.limit_in_bytes`.
    TcpLimit,
    /// v2 `memory.swap.current`.
    SwapUsage,
    /// v2 `memory.swap.max`.
    SwapLimit,
    /// `memory.oom_control`, `memory.events`.
    OomEvents,
    /// `memory.numa_stat`.
    NumaStat,
    /// v2 `io.stat`; v1 `blkio.throttle.io_service_bytes_recursive`.
    IoBytes,
    /// v1 `blkio.throttle.io_serviced_recursive`.
    IoCounts,
    /// v1 `blkio.bfq.io_service_bytes_recursive`, where the one before tells of no device.
    BfqBytes,
    /// v1 `blkio.bfq.io_serviced_recursive`, likewise.
    BfqCounts,
    /// v1 `blkio.io_service_bytes_recursive`: the CFQ scheduler's, likewise.
    CfqBytes,
    /// v1 `blkio.io_serviced_recursive`, likewise.
    CfqCounts,
    /// `pids.current`.
    Pids,
    /// `pids.max`.
    PidsLimit,
    /// `hugetlb.64KB.usage_in_bytes`, `hugetlb.64KB.current`.
    Huge64K,
    /// `hugetlb.2MB.usage_in_bytes`, `hugetlb.2MB.current`.
    Huge2M,
    /// `hugetlb.32MB.usage_in_bytes`, `hugetlb.32MB.current`.
    Huge32M,
    /// `hugetlb.512MB.usage_in_bytes`, `hugetlb.512MB.current`.
    Huge512M,
    /// `hugetlb.1GB.usage_in_bytes`, `hugetlb.1GB.current`.
    Huge1G,
    /// `hugetlb.16GB.usage_in_bytes`, `hugetlb.16GB.current`.
    Huge16G,
    /// `/proc/stat`.
    NodeStat,
    /// `/proc/meminfo`.
    NodeMemory,
    /// `/proc/loadavg`.
    NodeLoad,
    /// `/proc/pressure/cpu`.
    NodeCpuPressure,
    /// `/proc/pressure/memory`.
    NodeMemoryPressure,
    /// `/proc/pressure/io`.
    NodeIoPressure,
    /// `/proc/vmstat`.
    NodeVmstat,
    /// `/proc/zoneinfo`.
    NodeZones,
    /// `/proc/sys/vm/watermark_scale_factor`.
    NodeScaleFactor,
    /// `/proc/diskstats`.
    NodeDisks,
    /// `/proc/1/net/dev`: the host's network, also from within a container that shares the host's PIDs.
    NodeNetwork,
    /// `meminfo` of a NUMA node.
    NumaMeminfo,
    /// `numastat` of a NUMA node.
    NumaCounts,
}

/// A parsed file, or what it says of one CPU, NUMA node or device.
#[derive(Clone, Copy, Debug)]
pub enum Contents {
    /// CPU time in nanoseconds.
    Nanoseconds(u64),
    /// `cpu.stat`.
    CpuStat(CpuStat),
    /// Bytes, or a count.
    Number(u64),
    /// Bytes, or a count, or none.
    Limit(Limit),
    /// `memory.stat`.
    MemoryStat(MemoryStat),
    /// Stalls.
    Pressure(Pressure),
    /// Quota and period.
    CpuMax(CpuMax),
    /// Microseconds or none.
    Quota(Option<u64>),
    /// Events.
    Oom(OomEvents),
    /// v2.
    Io(IoStat),
    /// v1: read and written, bytes or operations, and the file that counts them: each counts from its own beginning.
    ReadWritten(u64, u64, File),
    /// Of one NUMA node.
    NumaMemory(NumaMemory),
    /// Nothing, or nothing that is not told by parts.
    Parts,
    /// `/proc/stat`.
    NodeStat(ProcStat),
    /// `/proc/meminfo`.
    NodeMemory(MemoryInfo),
    /// `/proc/loadavg`.
    NodeLoad(LoadAverage),
    /// `/proc/vmstat`.
    Vmstat(Vmstat),
    /// Of one CPU.
    Cpu(CpuTicks),
    /// Of a NUMA node's CPUs, and how many they are.
    Cpus(CpuTicks, u64),
    /// Of a NUMA node's zones.
    Watermarks(Watermarks),
    /// Of one device.
    Disk(Disk),
    /// Of one interface.
    Interface(Interface),
    /// Of a NUMA node.
    NumaInfo(NumaInfo),
    /// Of a NUMA node.
    NumaCounts(NumaCounts),
}

/// What a file says of one part.
#[derive(Clone, Debug)]
pub struct Row {
    /// Which kind of part, by its scope.
    pub scope: crate::catalogue::Scope,
    /// Which.
    pub instance: Instance,
    /// The file.
    pub file: File,
    /// What it says.
    pub contents: Contents,
}

/// What a parser needs to know of the machine, and where it puts what is told by parts.
#[derive(Debug)]
pub struct Reading<'a> {
    /// One tree for all controllers.
    pub unified: bool,
    /// CPUs and NUMA nodes.
    pub machine: &'a Machine,
    /// Scope of a container's NUMA parts.
    pub numa_scope: crate::catalogue::Scope,
    /// Grows.
    pub rows: &'a mut Vec<Row>,
    /// Used again for every file.
    pub numa: &'a mut Vec<NumaMemory>,
}

// === impl File ===

impl File {
    /// Those of a container.
    pub const CONTAINER: [Self; 35] = [
        Self::CpuUsage,
        Self::CpuStat,
        Self::MemoryUsage,
        Self::MemoryLimit,
        Self::MemoryStat,
        Self::CpuPressure,
        Self::MemoryPressure,
        Self::IoPressure,
        Self::CpuUser,
        Self::CpuSystem,
        Self::CpuEach,
        Self::CpuMax,
        Self::CpuQuota,
        Self::CpuPeriod,
        Self::CpuShares,
        Self::KernelMemory,
        Self::TcpLimit,
        Self::SwapUsage,
        Self::SwapLimit,
        Self::OomEvents,
        Self::NumaStat,
        Self::IoBytes,
        Self::IoCounts,
        Self::BfqBytes,
        Self::BfqCounts,
        Self::CfqBytes,
        Self::CfqCounts,
        Self::Pids,
        Self::PidsLimit,
        Self::Huge64K,
        Self::Huge2M,
        Self::Huge32M,
        Self::Huge512M,
        Self::Huge1G,
        Self::Huge16G,
    ];

    /// Those of the node.
    pub const NODE: [Self; 11] = [
        Self::NodeStat,
        Self::NodeMemory,
        Self::NodeLoad,
        Self::NodeCpuPressure,
        Self::NodeMemoryPressure,
        Self::NodeIoPressure,
        Self::NodeVmstat,
        Self::NodeZones,
        Self::NodeScaleFactor,
        Self::NodeDisks,
        Self::NodeNetwork,
    ];

    /// Those of each NUMA node, with their names in its folder.
    pub const NUMA: [(Self, &'static str); 2] =
        [(Self::NumaMeminfo, "meminfo"), (Self::NumaCounts, "numastat")];

    /// Place among the files of its kind.
    pub const fn slot(self) -> usize {
        let (node, numa, this) = (Self::NodeStat as usize, Self::NumaMeminfo as usize, self as usize);
        if this < node {
            this
        } else if this < numa {
            this - node
        } else {
            this - numa
        }
    }

    /// Whether a machine may be without it: then its metrics are missing and nothing has failed.
    pub const fn is_optional(self) -> bool {
        !matches!(
            self,
            Self::CpuUsage
                | Self::CpuStat
                | Self::MemoryUsage
                | Self::MemoryLimit
                | Self::MemoryStat
                | Self::NodeStat
                | Self::NodeMemory
                | Self::NodeLoad
        )
    }

    /// The file in whose place it is read, where that one tells of no device.
    pub const fn in_place_of(self) -> Option<Self> {
        match self {
            Self::BfqBytes | Self::CfqBytes => Some(Self::IoBytes),
            Self::BfqCounts | Self::CfqCounts => Some(Self::IoCounts),
            _ => None,
        }
    }

    /// Size of the huge pages that it counts, KiB: every size that Linux has on x86-64 and on arm64, whatever its base page.
    pub const fn huge_kib(self) -> Option<u64> {
        Some(match self {
            Self::Huge64K => 64,
            Self::Huge2M => 2048,
            Self::Huge32M => 32768,
            Self::Huge512M => 524288,
            Self::Huge1G => 1048576,
            Self::Huge16G => 16777216,
            _ => return None,
        })
    }

    /// Tree and name in a container's cgroup; `None` if the version has no such file, or tells it in another.
    pub const fn of_container(self, unified: bool) -> Option<(Controller, &'static str)> {
        Some(match (self, unified) {
            (Self::CpuUsage, false) => (Controller::Cpuacct, "cpuacct.usage"),
            (Self::CpuStat, _) => (Controller::Cpu, "cpu.stat"),
            (Self::MemoryUsage, false) => (Controller::Memory, "memory.usage_in_bytes"),
            (Self::MemoryUsage, true) => (Controller::Memory, "memory.current"),
            (Self::MemoryLimit, false) => (Controller::Memory, "memory.limit_in_bytes"),
            (Self::MemoryLimit, true) => (Controller::Memory, "memory.max"),
            (Self::MemoryStat, _) => (Controller::Memory, "memory.stat"),
            (Self::CpuPressure, true) => (Controller::Cpu, "cpu.pressure"),
            (Self::MemoryPressure, true) => (Controller::Memory, "memory.pressure"),
            (Self::IoPressure, true) => (Controller::Memory, "io.pressure"),
            (Self::CpuUser, false) => (Controller::Cpuacct, "cpuacct.usage_user"),
            (Self::CpuSystem, false) => (Controller::Cpuacct, "cpuacct.usage_sys"),
            (Self::CpuEach, false) => (Controller::Cpuacct, "cpuacct.usage_percpu"),
            (Self::CpuMax, true) => (Controller::Cpu, "cpu.max"),
            (Self::CpuQuota, false) => (Controller::Cpu, "cpu.cfs_quota_us"),
            (Self::CpuPeriod, false) => (Controller::Cpu, "cpu.cfs_period_us"),
            (Self::CpuShares, false) => (Controller::Cpu, "cpu.shares"),
            (Self::CpuShares, true) => (Controller::Cpu, "cpu.weight"),
            (Self::KernelMemory, false) => (Controller::Memory, "memory.kmem.usage_in_bytes"),
            (Self::TcpLimit, false) => (Controller::Memory, "memory.kmem.tcp.limit_in_bytes"),
            (Self::SwapUsage, true) => (Controller::Memory, "memory.swap.current"),
            (Self::SwapLimit, true) => (Controller::Memory, "memory.swap.max"),
            (Self::OomEvents, false) => (Controller::Memory, "memory.oom_control"),
            (Self::OomEvents, true) => (Controller::Memory, "memory.events"),
            (Self::NumaStat, _) => (Controller::Memory, "memory.numa_stat"),
            (Self::IoBytes, false) => (Controller::Blkio, "blkio.throttle.io_service_bytes_recursive"),
            (Self::IoBytes, true) => (Controller::Blkio, "io.stat"),
            (Self::IoCounts, false) => (Controller::Blkio, "blkio.throttle.io_serviced_recursive"),
            (Self::BfqBytes, false) => (Controller::Blkio, "blkio.bfq.io_service_bytes_recursive"),
            (Self::BfqCounts, false) => (Controller::Blkio, "blkio.bfq.io_serviced_recursive"),
            (Self::CfqBytes, false) => (Controller::Blkio, "blkio.io_service_bytes_recursive"),
            (Self::CfqCounts, false) => (Controller::Blkio, "blkio.io_serviced_recursive"),
            (Self::Pids, _) => (Controller::Pids, "pids.current"),
            (Self::PidsLimit, _) => (Controller::Pids, "pids.max"),
            (Self::Huge64K, false) => (Controller::Hugetlb, "hugetlb.64KB.usage_in_bytes"),
            (Self::Huge64K, true) => (Controller::Hugetlb, "hugetlb.64KB.current"),
            (Self::Huge2M, false) => (Controller::Hugetlb, "hugetlb.2MB.usage_in_bytes"),
            (Self::Huge2M, true) => (Controller::Hugetlb, "hugetlb.2MB.current"),
            (Self::Huge32M, false) => (Controller::Hugetlb, "hugetlb.32MB.usage_in_bytes"),
            (Self::Huge32M, true) => (Controller::Hugetlb, "hugetlb.32MB.current"),
            (Self::Huge512M, false) => (Controller::Hugetlb, "hugetlb.512MB.usage_in_bytes"),
            (Self::Huge512M, true) => (Controller::Hugetlb, "hugetlb.512MB.current"),
            (Self::Huge1G, false) => (Controller::Hugetlb, "hugetlb.1GB.usage_in_bytes"),
            (Self::Huge1G, true) => (Controller::Hugetlb, "hugetlb.1GB.current"),
            (Self::Huge16G, false) => (Controller::Hugetlb, "hugetlb.16GB.usage_in_bytes"),
            (Self::Huge16G, true) => (Controller::Hugetlb, "hugetlb.16GB.current"),
            _ => return None,
        })
    }

    /// Path below the host's root; `None` for a container's file.
    pub const fn of_node(self) -> Option<&'static str> {
        Some(match self {
            Self::NodeStat => "proc/stat",
            Self::NodeMemory => "proc/meminfo",
            Self::NodeLoad => "proc/loadavg",
            Self::NodeCpuPressure => "proc/pressure/cpu",
            Self::NodeMemoryPressure => "proc/pressure/memory",
            Self::NodeIoPressure => "proc/pressure/io",
            Self::NodeVmstat => "proc/vmstat",
            Self::NodeZones => "proc/zoneinfo",
            Self::NodeScaleFactor => "proc/sys/vm/watermark_scale_factor",
            Self::NodeDisks => "proc/diskstats",
            Self::NodeNetwork => "proc/1/net/dev",
            _ => return None,
        })
    }

    /// Understands the bytes of this file.
    ///
    /// # Errors
    /// [`ParseError`] with the offending line.
    pub fn parse(self, reading: &mut Reading<'_>, bytes: &[u8]) -> Result<Contents, ParseError> {
        let unified = reading.unified;
        Ok(match self {
            Self::CpuUsage | Self::CpuUser | Self::CpuSystem => {
                Contents::Nanoseconds(parse::cpuacct_usage(bytes)?)
            }
            Self::CpuStat => Contents::CpuStat(parse::cpu_stat(bytes)?),
            Self::CpuMax => Contents::CpuMax(parse::cpu_max(bytes)?),
            Self::CpuQuota => Contents::Quota(parse::cpu_quota(bytes)?),
            Self::MemoryUsage
            | Self::CpuPeriod
            | Self::CpuShares
            | Self::KernelMemory
            | Self::SwapUsage
            | Self::Pids
            | Self::Huge64K
            | Self::Huge2M
            | Self::Huge32M
            | Self::Huge512M
            | Self::Huge1G
            | Self::Huge16G
            | Self::NodeScaleFactor => Contents::Number(parse::single(bytes)?),
            Self::MemoryLimit | Self::TcpLimit | Self::SwapLimit | Self::PidsLimit => {
                Contents::Limit(parse::memory_limit(bytes)?)
            }
            Self::MemoryStat if unified => Contents::MemoryStat(parse::memory_stat_v2(bytes)?),
            Self::MemoryStat => Contents::MemoryStat(parse::memory_stat_v1(bytes)?),
            Self::OomEvents => Contents::Oom(parse::oom_events(bytes)?),
            Self::IoBytes if unified => Contents::Io(parse::io_stat(bytes)?),
            Self::IoBytes
            | Self::IoCounts
            | Self::BfqBytes
            | Self::BfqCounts
            | Self::CfqBytes
            | Self::CfqCounts => match parse::blkio(bytes)? {
                Some((read, written)) => Contents::ReadWritten(read, written, self),
                None => Contents::Parts,
            },
            Self::CpuPressure
            | Self::MemoryPressure
            | Self::IoPressure
            | Self::NodeCpuPressure
            | Self::NodeMemoryPressure
            | Self::NodeIoPressure => Contents::Pressure(parse::pressure(bytes)?),
            Self::NodeMemory => Contents::NodeMemory(proc::meminfo(bytes)?),
            Self::NodeLoad => Contents::NodeLoad(proc::loadavg(bytes)?),
            Self::NodeVmstat => Contents::Vmstat(proc::vmstat(bytes)?),
            Self::NumaMeminfo => Contents::NumaInfo(proc::numa_meminfo(bytes)?),
            Self::NumaCounts => Contents::NumaCounts(proc::numastat(bytes)?),
            Self::CpuEach
            | Self::NumaStat
            | Self::NodeStat
            | Self::NodeZones
            | Self::NodeDisks
            | Self::NodeNetwork => return crate::parts::parse(self, reading, bytes),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_places() {
        let numa = File::NUMA.map(|(file, _)| file);
        for files in [File::CONTAINER.as_slice(), File::NODE.as_slice(), numa.as_slice()] {
            for (place, file) in files.iter().enumerate() {
                assert_eq!(file.slot(), place, "{file:?}");
            }
        }
    }
}
