//! Which files are read, and what they say once parsed.

use oxalyst_cgroups::Controller;
use oxalyst_cgroups::parse::{self, CpuStat, Limit, MemoryStat, ParseError, Pressure};

use crate::sources::proc::{self, LoadAverage, MemoryInfo, ProcStat};

/// A file of a container's cgroup or of `/proc`, by what it tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum File {
    /// v1 `cpuacct.usage`.
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
}

/// A parsed file.
#[derive(Clone, Copy, Debug)]
pub enum Contents {
    /// CPU time in nanoseconds.
    CpuUsage(u64),
    /// `cpu.stat`.
    CpuStat(CpuStat),
    /// Bytes.
    MemoryUsage(u64),
    /// Bytes or none.
    MemoryLimit(Limit),
    /// `memory.stat`.
    MemoryStat(MemoryStat),
    /// Stalls.
    Pressure(Pressure),
    /// `/proc/stat`.
    NodeStat(ProcStat),
    /// `/proc/meminfo`.
    NodeMemory(MemoryInfo),
    /// `/proc/loadavg`.
    NodeLoad(LoadAverage),
}

// === impl File ===

impl File {
    /// Those of a container.
    pub const CONTAINER: [Self; 8] = [
        Self::CpuUsage,
        Self::CpuStat,
        Self::MemoryUsage,
        Self::MemoryLimit,
        Self::MemoryStat,
        Self::CpuPressure,
        Self::MemoryPressure,
        Self::IoPressure,
    ];

    /// Those of the node.
    pub const NODE: [Self; 6] = [
        Self::NodeStat,
        Self::NodeMemory,
        Self::NodeLoad,
        Self::NodeCpuPressure,
        Self::NodeMemoryPressure,
        Self::NodeIoPressure,
    ];

    /// Place among the files of its kind.
    pub const fn slot(self) -> usize {
        let (first, this) = (Self::NodeStat as usize, self as usize);
        if this < first { this } else { this - first }
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
            _ => return None,
        })
    }

    /// Understands the bytes of this file.
    ///
    /// # Errors
    /// [`ParseError`] with the offending line.
    pub fn parse(self, unified: bool, bytes: &[u8]) -> Result<Contents, ParseError> {
        Ok(match self {
            Self::CpuUsage => Contents::CpuUsage(parse::cpuacct_usage(bytes)?),
            Self::CpuStat => Contents::CpuStat(parse::cpu_stat(bytes)?),
            Self::MemoryUsage => Contents::MemoryUsage(parse::memory_usage(bytes)?.0),
            Self::MemoryLimit => Contents::MemoryLimit(parse::memory_limit(bytes)?),
            Self::MemoryStat if unified => Contents::MemoryStat(parse::memory_stat_v2(bytes)?),
            Self::MemoryStat => Contents::MemoryStat(parse::memory_stat_v1(bytes)?),
            Self::CpuPressure
            | Self::MemoryPressure
            | Self::IoPressure
            | Self::NodeCpuPressure
            | Self::NodeMemoryPressure
            | Self::NodeIoPressure => Contents::Pressure(parse::pressure(bytes)?),
            Self::NodeStat => Contents::NodeStat(proc::stat(bytes)?),
            Self::NodeMemory => Contents::NodeMemory(proc::meminfo(bytes)?),
            Self::NodeLoad => Contents::NodeLoad(proc::loadavg(bytes)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_places() {
        for files in [File::CONTAINER.as_slice(), File::NODE.as_slice()] {
            for (place, file) in files.iter().enumerate() {
                assert_eq!(file.slot(), place, "{file:?}");
            }
        }
    }
}
