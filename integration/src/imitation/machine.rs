//! The made-up machine, as sysfs shows it.

use std::io;
use std::path::Path;

use oxalyst_topology::{CpuSet, NumaMask};

/// Sockets, NUMA nodes, cores and threads, all alike.
#[derive(Clone, Copy, Debug)]
pub struct MachineLayout {
    /// Sockets.
    pub sockets: u32,
    /// NUMA nodes of a socket.
    pub nodes: u32,
    /// Cores of a NUMA node; they share an L3 cache.
    pub cores: u32,
    /// Threads of a core. Numbered as x86 firmware does: first the first thread of each core, then the second.
    pub threads: u32,
    /// Memory of a NUMA node in bytes.
    pub memory: u64,
}

// === impl MachineLayout ===

impl Default for MachineLayout {
    /// One node with two CPUs.
    fn default() -> Self {
        Self { sockets: 1, nodes: 1, cores: 2, threads: 1, memory: 8 << 30 }
    }
}

impl MachineLayout {
    /// Two sockets, each of two NUMA nodes with `cores` cores of two threads.
    pub fn two_sockets(cores: u32) -> Self {
        Self { sockets: 2, nodes: 2, cores, threads: 2, memory: 16 << 30 }
    }

    /// All CPUs.
    pub fn cpus(&self) -> CpuSet {
        (0..self.all_cores() * self.threads).collect()
    }

    /// All memory nodes.
    pub fn mems(&self) -> NumaMask {
        (0..self.all_nodes()).collect()
    }

    fn all_nodes(&self) -> u32 {
        self.sockets * self.nodes
    }

    fn all_cores(&self) -> u32 {
        self.all_nodes() * self.cores
    }

    fn threads_of(&self, core: u32) -> CpuSet {
        (0..self.threads).map(|thread| thread * self.all_cores() + core).collect()
    }

    fn cpus_of(&self, cores: std::ops::Range<u32>) -> CpuSet {
        cores.flat_map(|core| self.threads_of(core).iter().collect::<Vec<_>>()).collect()
    }

    /// Writes `sys/devices/system/{cpu,node}` below `host_root`.
    pub(super) fn write(&self, host_root: &Path) -> io::Result<()> {
        let system = host_root.join("sys/devices/system");
        let cpus = self.cpus();
        for name in ["online", "present", "possible"] {
            put(&system.join("cpu").join(name), &cpus)?;
        }
        for name in ["offline", "isolated"] {
            put(&system.join("cpu").join(name), "")?;
        }
        for cpu in cpus.iter() {
            let core = cpu % self.all_cores();
            let node = core / self.cores;
            let dir = system.join(format!("cpu/cpu{cpu}"));
            let siblings = self.threads_of(core);
            put(&dir.join("topology/thread_siblings_list"), &siblings)?;
            put(&dir.join("topology/core_cpus_list"), &siblings)?;
            put(&dir.join("topology/core_id"), core)?;
            put(&dir.join("topology/physical_package_id"), node / self.nodes)?;
            put(&dir.join("cache/index3/level"), 3)?;
            put(&dir.join("cache/index3/id"), node)?;
            put(&dir.join("cache/index3/shared_cpu_list"), self.cpus_of_node(node))?;
        }
        for name in ["online", "possible", "has_cpu", "has_memory", "has_normal_memory"] {
            put(&system.join("node").join(name), self.mems())?;
        }
        for node in 0..self.all_nodes() {
            let dir = system.join(format!("node/node{node}"));
            put(&dir.join("cpulist"), self.cpus_of_node(node))?;
            let kib = self.memory >> 10;
            put(
                &dir.join("meminfo"),
                format!("Node {node} MemTotal:       {kib} kB\nNode {node} MemFree:        {kib} kB"),
            )?;
            let distances = (0..self.all_nodes()).map(|other| match other {
                other if other == node => "10",
                other if other / self.nodes == node / self.nodes => "11",
                _ => "21",
            });
            put(&dir.join("distance"), distances.collect::<Vec<_>>().join(" "))?;
        }
        Ok(())
    }

    fn cpus_of_node(&self, node: u32) -> CpuSet {
        self.cpus_of(node * self.cores..(node + 1) * self.cores)
    }
}

/// One line in a file, whose folder is made.
pub(super) fn put(path: &Path, line: impl ToString) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    std::fs::write(path, format!("{}\n", line.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discovery_finds_the_machine_that_was_written() {
        let dir = tempfile::tempdir().unwrap();
        MachineLayout::two_sockets(4).write(dir.path()).unwrap();
        let machine = oxalyst_topology::discover(dir.path()).unwrap();
        let nodes: Vec<_> = machine.nodes().iter().map(|n| n.cpus.to_string()).collect();
        assert_eq!(nodes, ["0-3,16-19", "4-7,20-23", "8-11,24-27", "12-15,28-31"]);
        assert_eq!(machine.online().to_string(), "0-31");
    }
}
