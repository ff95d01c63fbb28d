//! The made-up kernel: a folder that looks like `/sys` and `/proc`, with the rules of cpusets.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use oxalyst_nri::api::LinuxResources;
use oxalyst_topology::{CpuSet, NumaMask};

use super::machine::{MachineLayout, put};

/// Which tree of cgroups is imitated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CgroupLayout {
    /// A tree for each controller: `cpu,cpuacct`, `cpuset`, `memory`.
    #[default]
    V1,
    /// One tree.
    V2,
}

/// A folder that imitates the machine's `/sys` and `/proc`.
#[derive(Debug)]
pub struct Kernel {
    host_root: PathBuf,
    layout: CgroupLayout,
    cpus: CpuSet,
    mems: NumaMask,
    busy_ns: AtomicU64,
    up_ns: AtomicU64,
}

// === impl Kernel ===

impl Kernel {
    /// Makes the machine below `host_root`.
    pub(super) fn create(
        host_root: &Path,
        machine: &MachineLayout,
        layout: CgroupLayout,
    ) -> io::Result<Self> {
        machine.write(host_root)?;
        let kernel = Self {
            host_root: host_root.to_owned(),
            layout,
            cpus: machine.cpus(),
            mems: machine.mems(),
            busy_ns: AtomicU64::new(0),
            up_ns: AtomicU64::new(0),
        };
        for tree in kernel.trees() {
            fs::create_dir_all(tree)?;
        }
        match layout {
            CgroupLayout::V1 => {
                for name in ["cpu", "cpuacct"] {
                    match std::os::unix::fs::symlink("cpu,cpuacct", kernel.root().join(name)) {
                        Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(e),
                        _ => {}
                    }
                }
                let root = kernel.cpuset_dir("");
                put(&root.join("cpuset.cpus"), &kernel.cpus)?;
                put(&root.join("cpuset.mems"), &kernel.mems)?;
            }
            CgroupLayout::V2 => put(&kernel.root().join("cgroup.controllers"), "cpuset cpu io memory pids")?,
        }
        kernel.effective("", &kernel.cpus, &kernel.mems)?;
        kernel.write_proc(machine)?;
        Ok(kernel)
    }

    /// Root below which the services find `/sys` and `/proc`.
    pub fn host_root(&self) -> &Path {
        &self.host_root
    }

    /// Online CPUs.
    pub fn online(&self) -> &CpuSet {
        &self.cpus
    }

    /// Makes a cgroup, and those above it, which inherit their parents' cpusets.
    pub(super) fn create_cgroup(&self, path: &str) -> io::Result<()> {
        let path = path.trim_start_matches('/');
        for (end, _) in path.match_indices('/').chain([(path.len(), "")]) {
            let at = &path[..end];
            if self.cpuset_dir(at).is_dir() {
                continue;
            }
            for tree in self.trees() {
                fs::create_dir_all(tree.join(at))?;
            }
            let parent = at.rsplit_once('/').map_or("", |(parent, _)| parent);
            let (cpus, mems) = (self.cpus_of(parent)?, self.mems_of(parent)?);
            match self.layout {
                // The kernel leaves them empty; whoever makes a cgroup copies its parent's, for nothing could run in it.
                CgroupLayout::V1 => self.write_cpuset(at, Some(&cpus), Some(&mems))?,
                CgroupLayout::V2 => {
                    let dir = self.cpuset_dir(at);
                    put(&dir.join("cpuset.cpus"), "")?;
                    put(&dir.join("cpuset.mems"), "")?;
                    put(&dir.join("cgroup.controllers"), "cpuset cpu io memory pids")?;
                }
            }
            self.effective(at, &cpus, &mems)?;
            self.write_counters(at)?;
        }
        Ok(())
    }

    /// Sets what `resources` names and leaves the rest, as the kernel takes it: a cpuset beyond the parent's or without an
    /// online CPU is refused.
    pub(super) fn set(&self, path: &str, resources: &LinuxResources) -> io::Result<()> {
        let path = path.trim_start_matches('/');
        let dir = self.cpuset_dir(path);
        fs::metadata(&dir)?;
        if let Some(cpu) = &resources.cpu {
            let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
            let cpus = list::<CpuSet>(&cpu.cpus)?;
            if cpus.as_ref().is_some_and(|c| !c.is_subset(&self.cpus)) {
                return Err(io::Error::new(ErrorKind::InvalidInput, "numerical result out of range"));
            }
            if let Some(cpus) = &cpus
                && !cpus.is_subset(&self.cpus_of(parent)?)
            {
                return Err(io::Error::new(
                    ErrorKind::PermissionDenied,
                    "not within the parent's cpuset.cpus",
                ));
            }
            let mems = list::<NumaMask>(&cpu.mems)?;
            if let Some(mems) = &mems
                && !mems.is_subset(&self.mems_of(parent)?)
            {
                return Err(io::Error::new(
                    ErrorKind::PermissionDenied,
                    "not within the parent's cpuset.mems",
                ));
            }
            self.write_cpuset(path, cpus.as_ref(), mems.as_ref())?;
            let (cpus, mems) = (self.cpus_of(path)?, self.mems_of(path)?);
            self.effective(path, &cpus, &mems)?;
            let v1 = self.layout == CgroupLayout::V1;
            if let Some(shares) = &cpu.shares {
                let (name, value) = if v1 {
                    ("cpu.shares", shares.value)
                } else {
                    // As runc converts them.
                    ("cpu.weight", 1 + (shares.value.max(2) - 2) * 9999 / 262_142)
                };
                put(&self.dir("cpu,cpuacct", path).join(name), value)?;
            }
        }
        if let Some(limit) = resources.memory.as_ref().and_then(|m| m.limit.as_ref()) {
            let name = if self.layout == CgroupLayout::V1 { "memory.limit_in_bytes" } else { "memory.max" };
            put(&self.dir("memory", path).join(name), limit.value)?;
        }
        Ok(())
    }

    /// Removes a cgroup and those below it; gone already is fine.
    pub(super) fn remove_cgroup(&self, path: &str) -> io::Result<()> {
        for tree in self.trees() {
            match fs::remove_dir_all(tree.join(path.trim_start_matches('/'))) {
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }

    /// The CPUs on which a task of the cgroup may run.
    pub fn cpus_of(&self, path: &str) -> io::Result<CpuSet> {
        self.inherited(path, "cpuset.cpus", &self.cpus)
    }

    /// The nodes whose memory a task of the cgroup may use.
    pub fn mems_of(&self, path: &str) -> io::Result<NumaMask> {
        self.inherited(path, "cpuset.mems", &self.mems)
    }

    /// What a cgroup's file says or, where it is empty (v2), that of the first above it that says something.
    fn inherited<S: std::str::FromStr + Clone>(&self, path: &str, name: &str, root: &S) -> io::Result<S> {
        let mut at = path.trim_start_matches('/');
        while !at.is_empty() {
            let file = self.cpuset_dir(at).join(name);
            let text = fs::read_to_string(&file)?;
            if !text.trim().is_empty() {
                return text.trim().parse().map_err(|_| {
                    io::Error::new(ErrorKind::InvalidData, format!("{}: {text:?}", file.display()))
                });
            }
            at = at.rsplit_once('/').map_or("", |(parent, _)| parent);
        }
        Ok(root.clone())
    }

    /// Folder of a cgroup in the tree that holds its cpuset.
    pub fn cpuset_dir(&self, path: &str) -> PathBuf {
        self.dir("cpuset", path)
    }

    /// Lets time pass: one CPU's worth for each of the cgroups `busy`, and for those above them.
    pub(super) fn advance(&self, time: Duration, busy: &[String]) -> io::Result<()> {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        for path in busy {
            let path = path.trim_start_matches('/');
            for (end, _) in path.match_indices('/').chain([(path.len(), "")]) {
                self.add_cpu_time(&path[..end], ns)?;
            }
        }
        let cpus = self.cpus.len() as u64;
        let up = self.up_ns.fetch_add(ns, Ordering::Relaxed) + ns;
        let used = ns * (busy.len() as u64).min(cpus);
        let busy = self.busy_ns.fetch_add(used, Ordering::Relaxed) + used;
        self.write_stat(busy, up * cpus)
    }

    fn add_cpu_time(&self, path: &str, ns: u64) -> io::Result<()> {
        let dir = self.dir("cpu,cpuacct", path);
        let (name, scale) = match self.layout {
            CgroupLayout::V1 => ("cpuacct.usage", 1),
            CgroupLayout::V2 => ("cpu.stat", 1000),
        };
        let file = dir.join(name);
        let text = fs::read_to_string(&file)?;
        let number = text.split_whitespace().find_map(|word| word.parse::<u64>().ok()).unwrap_or(0);
        let now = number + ns / scale;
        let text = match self.layout {
            CgroupLayout::V1 => format!("{now}\n"),
            CgroupLayout::V2 => cpu_stat_v2(now),
        };
        in_place(&file, &text)
    }

    fn write_counters(&self, path: &str) -> io::Result<()> {
        let (cpu, memory) = (self.dir("cpu,cpuacct", path), self.dir("memory", path));
        let (anon, file) = (1u64 << 20, 2u64 << 20);
        match self.layout {
            CgroupLayout::V1 => {
                put(&cpu.join("cpu.stat"), "nr_periods 0\nnr_throttled 0\nthrottled_time 0")?;
                put(&cpu.join("cpuacct.usage"), 0)?;
                put(&cpu.join("cpu.shares"), 1024)?;
                put(&cpu.join("cpu.cfs_quota_us"), -1)?;
                put(&cpu.join("cpu.cfs_period_us"), 100_000)?;
                put(&memory.join("memory.usage_in_bytes"), anon + file)?;
                put(&memory.join("memory.limit_in_bytes"), 9_223_372_036_854_771_712_u64)?;
                put(
                    &memory.join("memory.stat"),
                    format!(
                        "cache {file}\nrss {anon}\ntotal_cache {file}\ntotal_rss {anon}\ntotal_shmem 0\n\
                         total_inactive_anon 0\ntotal_active_anon {anon}\ntotal_inactive_file {file}\ntotal_active_file 0"
                    ),
                )
            }
            CgroupLayout::V2 => {
                fs::write(cpu.join("cpu.stat"), cpu_stat_v2(0))?;
                put(&cpu.join("cpu.weight"), 100)?;
                put(&cpu.join("cpu.max"), "max 100000")?;
                put(&memory.join("memory.current"), anon + file)?;
                put(&memory.join("memory.max"), "max")?;
                for name in ["cpu.pressure", "memory.pressure", "io.pressure"] {
                    put(&memory.join(name), PRESSURE)?;
                }
                put(
                    &memory.join("memory.stat"),
                    format!(
                        "anon {anon}\nfile {file}\nkernel 0\nshmem 0\ninactive_anon 0\nactive_anon {anon}\n\
                         inactive_file {file}\nactive_file 0"
                    ),
                )
            }
        }
    }

    fn write_proc(&self, machine: &MachineLayout) -> io::Result<()> {
        let proc = self.host_root.join("proc");
        let kib = (machine.memory >> 10) * self.mems.len() as u64;
        put(
            &proc.join("meminfo"),
            format!(
                "MemTotal:       {kib} kB\nMemFree:        {free} kB\nMemAvailable:   {free} kB\nBuffers:        0 kB\n\
                 Cached:         0 kB\nSwapTotal:      0 kB\nSwapFree:       0 kB\nShmem:          0 kB",
                free = kib / 2
            ),
        )?;
        put(&proc.join("loadavg"), "0.00 0.00 0.00 1/100 4242")?;
        put(&proc.join("uptime"), "1000.00 2000.00")?;
        put(&proc.join("version"), "Linux version 6.1.0-imitation")?;
        put(&proc.join("sys/kernel/random/boot_id"), crate::runtime::fresh_uid())?;
        put(&proc.join("sys/kernel/osrelease"), "6.1.0-imitation")?;
        put(&proc.join("sys/kernel/hostname"), "imitation")?;
        for name in ["cpu", "memory", "io"] {
            put(&proc.join("pressure").join(name), PRESSURE)?;
        }
        let mut cpuinfo = String::new();
        for cpu in self.cpus.iter() {
            cpuinfo.push_str(&format!("processor\t: {cpu}\nmodel name\t: imitation\n\n"));
        }
        put(&proc.join("cpuinfo"), cpuinfo)?;
        put(&proc.join("stat"), "")?;
        self.write_stat(0, 0)
    }

    /// `/proc/stat`, in hundredths of a second. Numbers of a fixed width: a reader never sees a shorter file.
    fn write_stat(&self, busy_ns: u64, total_ns: u64) -> io::Result<()> {
        const TICK: u64 = 10_000_000;
        let cpus = self.cpus.len() as u64;
        let (busy, idle) = (busy_ns / TICK, total_ns.saturating_sub(busy_ns) / TICK);
        let mut text = format!("cpu  {busy:020} 0 0 {idle:020} 0 0 0 0 0 0\n");
        for cpu in self.cpus.iter() {
            let (busy, idle) = (busy / cpus, idle / cpus);
            text.push_str(&format!("cpu{cpu} {busy:020} 0 0 {idle:020} 0 0 0 0 0 0\n"));
        }
        text.push_str("ctxt 99\nbtime 1700000000\nprocesses 42\nprocs_running 1\nprocs_blocked 0\n");
        in_place(&self.host_root.join("proc/stat"), &text)
    }

    fn write_cpuset(&self, path: &str, cpus: Option<&CpuSet>, mems: Option<&NumaMask>) -> io::Result<()> {
        let dir = self.cpuset_dir(path);
        if let Some(cpus) = cpus {
            at_once(&dir, "cpuset.cpus", cpus)?;
        }
        if let Some(mems) = mems {
            at_once(&dir, "cpuset.mems", mems)?;
        }
        Ok(())
    }

    fn effective(&self, path: &str, cpus: &CpuSet, mems: &NumaMask) -> io::Result<()> {
        let dir = self.cpuset_dir(path);
        let (for_cpus, for_mems) = match self.layout {
            CgroupLayout::V1 => ("cpuset.effective_cpus", "cpuset.effective_mems"),
            CgroupLayout::V2 => ("cpuset.cpus.effective", "cpuset.mems.effective"),
        };
        at_once(&dir, for_cpus, cpus)?;
        at_once(&dir, for_mems, mems)
    }

    fn dir(&self, tree: &str, path: &str) -> PathBuf {
        match self.layout {
            CgroupLayout::V1 => self.root().join(tree).join(path),
            CgroupLayout::V2 => self.root().join(path),
        }
    }

    fn trees(&self) -> Vec<PathBuf> {
        match self.layout {
            CgroupLayout::V1 => {
                ["cpu,cpuacct", "cpuset", "memory"].iter().map(|t| self.root().join(t)).collect()
            }
            CgroupLayout::V2 => vec![self.root()],
        }
    }

    fn root(&self) -> PathBuf {
        self.host_root.join("sys/fs/cgroup")
    }
}

const PRESSURE: &str =
    "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0";

fn cpu_stat_v2(usec: u64) -> String {
    format!(
        "usage_usec {usec:020}\nuser_usec 0\nsystem_usec 0\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0\n"
    )
}

/// A list in Linux format; empty: not told.
fn list<S: std::str::FromStr>(text: &str) -> io::Result<Option<S>> {
    if text.is_empty() {
        return Ok(None);
    }
    let parsed =
        text.parse().map_err(|_| io::Error::new(ErrorKind::InvalidInput, format!("not a list: {text:?}")))?;
    Ok(Some(parsed))
}

/// Replaces a file's line so that a reader sees the old or the new one, never an empty file.
fn at_once(dir: &Path, name: &str, line: impl ToString) -> io::Result<()> {
    let new = dir.join(".new");
    fs::write(&new, format!("{}\n", line.to_string()))?;
    fs::rename(new, dir.join(name))
}

/// Writes over a file's content without cutting it first: descriptors that are kept open see it, and never less than a number.
fn in_place(path: &Path, text: &str) -> io::Result<()> {
    let file: File = OpenOptions::new().write(true).open(path)?;
    file.write_all_at(text.as_bytes(), 0)
}
