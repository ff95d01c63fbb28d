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
                for name in ["cpu,cpuacct", "cpuset", "memory"] {
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
        if self.layout == Layout::V2 {
            for name in ["cpu.pressure", "memory.pressure", "io.pressure"] {
                self.set(Controller::Memory, path, name, PRESSURE)?;
            }
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

const PRESSURE: &str =
    "some avg10=1.50 avg60=0.50 avg300=0.10 total=1234\nfull avg10=0.25 avg60=0.00 avg300=0.00 total=56\n";

const MEMINFO: &str = "MemTotal:       16384000 kB\nMemFree:         8192000 kB\nMemAvailable:   12288000 kB\nBuffers:          102400 kB\n\
Cached:          4096000 kB\nSwapCached:            0 kB\nSwapTotal:             0 kB\nSwapFree:              0 kB\nDirty:               128 kB\n\
Writeback:             0 kB\nShmem:             20480 kB\nSReclaimable:     204800 kB\nHugePages_Total:       0\n";
