//! Imitated machines below a folder: `/sys/fs/cgroup` and `/proc`, with contents as a kernel writes them.
//!
//! For tests of whatever reads these trees. Values are set by writing files anew, so that descriptors that are kept
//! open see them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::hierarchy::Controller;
use crate::path::CgroupPath;

/// Which tree is imitated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// `cpu,cpuacct` with two links, `cpuset`, `memory`.
    V1,
    /// One tree.
    V2,
}

/// An imitated machine.
#[derive(Debug, Clone)]
pub struct Fixture {
    host_root: PathBuf,
    layout: Layout,
}

/// What one imitated cgroup shows.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// CPU time used.
    pub cpu_ns: u64,
    /// Anonymous memory in bytes.
    pub anon: u64,
    /// Page cache in bytes.
    pub file: u64,
    /// Memory limit in bytes; `None` is unlimited.
    pub limit: Option<u64>,
    /// Enforcement periods, those throttled, and the time throttled.
    pub throttled: (u64, u64, u64),
}

// === impl Load ===

impl Default for Load {
    fn default() -> Self {
        Self { cpu_ns: 0, anon: 1 << 20, file: 2 << 20, limit: None, throttled: (0, 0, 0) }
    }
}

// === impl Fixture ===

impl Fixture {
    /// Makes the trees below `host_root`; what is there already stays.
    ///
    /// # Errors
    /// Whatever the file system answers.
    pub fn create(host_root: &Path, layout: Layout) -> io::Result<Self> {
        let fixture = Self { host_root: host_root.to_path_buf(), layout };
        let root = fixture.root();
        match layout {
            Layout::V1 => {
                for name in ["cpu,cpuacct", "cpuset", "memory", "blkio", "pids", "hugetlb"] {
                    fs::create_dir_all(root.join(name))?;
                }
                for name in ["cpu", "cpuacct"] {
                    match std::os::unix::fs::symlink("cpu,cpuacct", root.join(name)) {
                        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
                        _ => {}
                    }
                }
            }
            Layout::V2 => {
                fs::create_dir_all(&root)?;
                fs::write(root.join("cgroup.controllers"), "cpuset cpu io memory hugetlb pids\n")?;
            }
        }
        fixture.proc_stat(&[0, 0])?;
        fixture.proc("meminfo", MEMINFO)?;
        fixture.proc("loadavg", "0.50 0.25 0.10 2/345 6789\n")?;
        for name in ["cpu", "memory", "io"] {
            fixture.proc(&format!("pressure/{name}"), PRESSURE)?;
        }
        for (name, content) in PROC_FILES {
            fixture.proc(name, content)?;
        }
        fixture.numa(&["0-1"])?;
        Ok(fixture)
    }

    /// `<host_root>/sys/fs/cgroup`.
    pub fn root(&self) -> PathBuf {
        self.host_root.join("sys/fs/cgroup")
    }

    /// Folder of a cgroup in a controller's tree.
    pub fn dir(&self, controller: Controller, path: &CgroupPath) -> PathBuf {
        match self.layout {
            Layout::V1 => path.under(&self.root().join(controller.name())),
            Layout::V2 => path.under(&self.root()),
        }
    }

    /// Makes a cgroup with all its files.
    ///
    /// # Errors
    /// Whatever the file system answers.
    pub fn cgroup(&self, path: &CgroupPath) -> io::Result<()> {
        for controller in Controller::ALL {
            fs::create_dir_all(self.dir(controller, path))?;
        }
        let effective = match self.layout {
            Layout::V1 => ["cpuset.effective_cpus", "cpuset.effective_mems"],
            Layout::V2 => ["cpuset.cpus.effective", "cpuset.mems.effective"],
        };
        self.set(Controller::Cpuset, path, "cpuset.cpus", "\n")?;
        self.set(Controller::Cpuset, path, "cpuset.mems", "\n")?;
        self.set(Controller::Cpuset, path, effective[0], "0-1\n")?;
        self.set(Controller::Cpuset, path, effective[1], "0\n")?;
        let files: &[(Controller, &str, &str)] = match self.layout {
            Layout::V1 => V1_FILES,
            Layout::V2 => V2_FILES,
        };
        for (controller, name, content) in files {
            self.set(*controller, path, name, content)?;
        }
        self.load(path, &Load::default())
    }

    /// Sets what a cgroup shows of CPU and memory.
    ///
    /// # Errors
    /// Whatever the file system answers.
    pub fn load(&self, path: &CgroupPath, load: &Load) -> io::Result<()> {
        let Load { cpu_ns, anon, file, limit, throttled: (periods, throttled, throttled_ns) } = *load;
        let usage = anon + file;
        match self.layout {
            Layout::V1 => {
                let stat = format!(
                    "nr_periods {periods}\nnr_throttled {throttled}\nthrottled_time {throttled_ns}\n"
                );
                self.set(Controller::Cpu, path, "cpu.stat", &stat)?;
                self.set(Controller::Cpuacct, path, "cpuacct.usage", &format!("{cpu_ns}\n"))?;
                let memory = format!(
                    "cache {file}\nrss {anon}\ntotal_cache {file}\ntotal_rss {anon}\ntotal_shmem 0\ntotal_mapped_file 0\n\
                     total_dirty 0\ntotal_writeback 0\ntotal_pgfault 10\ntotal_pgmajfault 1\ntotal_inactive_anon 0\n\
                     total_active_anon {anon}\ntotal_inactive_file {file}\ntotal_active_file 0\n"
                );
                self.set(Controller::Memory, path, "memory.stat", &memory)?;
                self.set(Controller::Memory, path, "memory.usage_in_bytes", &format!("{usage}\n"))?;
                let limit = limit.unwrap_or(9_223_372_036_854_771_712);
                self.set(Controller::Memory, path, "memory.limit_in_bytes", &format!("{limit}\n"))
            }
            Layout::V2 => {
                let stat = format!(
                    "usage_usec {}\nuser_usec 0\nsystem_usec 0\nnr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec {}\n",
                    cpu_ns / 1000,
                    throttled_ns / 1000
                );
                self.set(Controller::Cpu, path, "cpu.stat", &stat)?;
                let memory = format!(
                    "anon {anon}\nfile {file}\nkernel 0\nshmem 0\nfile_mapped 0\nfile_dirty 0\nfile_writeback 0\n\
                     inactive_anon 0\nactive_anon {anon}\ninactive_file {file}\nactive_file 0\npgfault 10\npgmajfault 1\n"
                );
                self.set(Controller::Memory, path, "memory.stat", &memory)?;
                self.set(Controller::Memory, path, "memory.current", &format!("{usage}\n"))?;
                let limit = limit.map_or_else(|| "max".to_owned(), |l| l.to_string());
                self.set(Controller::Memory, path, "memory.max", &format!("{limit}\n"))
            }
        }
    }

    /// Sets one file of a cgroup.
    ///
    /// # Errors
    /// Whatever the file system answers.
    pub fn set(
        &self,
        controller: Controller,
        path: &CgroupPath,
        file: &str,
        content: &str,
    ) -> io::Result<()> {
        fs::write(self.dir(controller, path).join(file), content)
    }

    /// Removes a cgroup from every tree.
    ///
    /// # Errors
    /// Whatever the file system answers, but for a folder that is already gone.
    pub fn remove(&self, path: &CgroupPath) -> io::Result<()> {
        for controller in Controller::ALL {
            match fs::remove_dir_all(self.dir(controller, path)) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }

    /// Sets `/proc/stat`: one CPU per element, each with that much busy time in hundredths of a second.
    ///
    /// # Errors
    /// Whatever the file system answers.
    pub fn proc_stat(&self, busy_ticks: &[u64]) -> io::Result<()> {
        let total: u64 = busy_ticks.iter().sum();
        let mut text = format!("cpu  {total} 0 0 100000 50 0 0 0 0 0\n");
        for (cpu, busy) in busy_ticks.iter().enumerate() {
            text.push_str(&format!("cpu{cpu} {busy} 0 0 50000 25 0 0 0 0 0\n"));
        }
        text.push_str(
            "intr 123 0 4\nctxt 99\nbtime 1700000000\nprocesses 42\nprocs_running 2\nprocs_blocked 0\n",
        );
        self.proc("stat", &text)
    }

    /// Sets the NUMA nodes: one per element, which is the list of its CPUs; each has the memory of the machine.
    ///
    /// # Errors
    /// Whatever the file system answers.
    pub fn numa(&self, cpulists: &[&str]) -> io::Result<()> {
        for (node, cpulist) in cpulists.iter().enumerate() {
            let dir = self.host_root.join(format!("sys/devices/system/node/node{node}"));
            fs::create_dir_all(&dir)?;
            fs::write(dir.join("cpulist"), format!("{cpulist}\n"))?;
            let line = |key: &str, kib: u64| format!("Node {node} {key}: {kib:>15} kB\n");
            let fields = [("MemTotal", 16_384_000), ("MemFree", 8_192_000), ("MemUsed", 8_192_000)];
            let fields = fields.iter().chain(&[("FilePages", 4_096_000), ("Shmem", 20_480)]);
            let fields = fields.chain(&[("Inactive(file)", 1_024_000), ("Active(file)", 512_000)]);
            fs::write(dir.join("meminfo"), fields.map(|(k, v)| line(k, *v)).collect::<String>())?;
            let stat = "numa_hit 1000\nnuma_miss 10\nnuma_foreign 5\ninterleave_hit 3\nlocal_node 990\nother_node 20\n";
            fs::write(dir.join("numastat"), stat)?;
        }
        Ok(())
    }

    /// Sets a file below `/proc`.
    ///
    /// # Errors
    /// Whatever the file system answers.
    pub fn proc(&self, file: &str, content: &str) -> io::Result<()> {
        let path = self.host_root.join("proc").join(file);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(path, content)
    }
}

const V1_FILES: &[(Controller, &str, &str)] = &[
    (Controller::Cpu, "cpu.cfs_quota_us", "-1\n"),
    (Controller::Cpu, "cpu.cfs_period_us", "100000\n"),
    (Controller::Cpu, "cpu.shares", "1024\n"),
    (Controller::Cpuacct, "cpuacct.usage_user", "0\n"),
    (Controller::Cpuacct, "cpuacct.usage_sys", "0\n"),
    (Controller::Cpuacct, "cpuacct.usage_percpu", "0 0 \n"),
    (Controller::Memory, "memory.kmem.usage_in_bytes", "4096\n"),
    (Controller::Memory, "memory.kmem.tcp.limit_in_bytes", "9223372036854771712\n"),
    (Controller::Memory, "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n"),
    (
        Controller::Memory,
        "memory.numa_stat",
        "total=3 N0=3\nhierarchical_total=3 N0=3\nhierarchical_file=2 N0=2\nhierarchical_anon=1 N0=1\nhierarchical_unevictable=0 N0=0\n",
    ),
    (
        Controller::Blkio,
        "blkio.throttle.io_service_bytes_recursive",
        "254:0 Read 4096\n254:0 Write 8192\nTotal 12288\n",
    ),
    (Controller::Blkio, "blkio.throttle.io_serviced_recursive", "254:0 Read 1\n254:0 Write 2\nTotal 3\n"),
    (Controller::Pids, "pids.current", "3\n"),
    (Controller::Pids, "pids.max", "max\n"),
    (Controller::Hugetlb, "hugetlb.2MB.usage_in_bytes", "0\n"),
];

const V2_FILES: &[(Controller, &str, &str)] = &[
    (Controller::Cpu, "cpu.max", "max 100000\n"),
    (Controller::Cpu, "cpu.weight", "100\n"),
    (Controller::Cpu, "cpu.pressure", PRESSURE),
    (Controller::Memory, "memory.pressure", PRESSURE),
    (Controller::Memory, "io.pressure", PRESSURE),
    (Controller::Memory, "memory.swap.current", "0\n"),
    (Controller::Memory, "memory.swap.max", "max\n"),
    (Controller::Memory, "memory.events", "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n"),
    (Controller::Memory, "memory.numa_stat", "anon N0=4096\nfile N0=8192\nunevictable N0=0\n"),
    (Controller::Memory, "io.stat", "254:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n"),
    (Controller::Memory, "pids.current", "3\n"),
    (Controller::Memory, "pids.max", "max\n"),
    (Controller::Memory, "hugetlb.2MB.current", "0\n"),
];

const PROC_FILES: &[(&str, &str)] = &[
    (
        "vmstat",
        "nr_free_pages 1\npgsteal_kswapd 100\npgsteal_direct 20\npgscan_kswapd 200\npgscan_direct 40\ncompact_stall 3\noom_kill 1\n",
    ),
    (
        "zoneinfo",
        "Node 0, zone      DMA\n  pages free     100\n        min      10\n        low      20\n        high     30\n        managed  3840\n\
         Node 0, zone   Normal\n  pages free     1000\n        min      100\n        low      200\n        high     300\n        managed  4000000\n",
    ),
    ("sys/vm/watermark_scale_factor", "10\n"),
    ("diskstats", " 254       0 vda 10 0 80 5 20 0 160 7 0 9 12 0 0 0 0 0 0\n"),
    (
        "1/net/dev",
        "Inter-|   Receive                                                |  Transmit\n \
         face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n\
         \x20 eth0: 1000 10 0 1 0 0 0 2 2000 20 0 0 0 0 0 0\n    lo: 5 1 0 0 0 0 0 0 5 1 0 0 0 0 0 0\n",
    ),
];

const PRESSURE: &str =
    "some avg10=1.50 avg60=0.50 avg300=0.10 total=1234\nfull avg10=0.25 avg60=0.00 avg300=0.00 total=56\n";

const MEMINFO: &str = "MemTotal:       16384000 kB\nMemFree:         8192000 kB\nMemAvailable:   12288000 kB\nBuffers:          102400 kB\n\
Cached:          4096000 kB\nSwapCached:            0 kB\nSwapTotal:             0 kB\nSwapFree:              0 kB\nDirty:               128 kB\n\
Writeback:             0 kB\nShmem:             20480 kB\nSReclaimable:     204800 kB\nHugePages_Total:       0\n";
