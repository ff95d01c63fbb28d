//! The least that a pass can cost: bare reads of the same files, with the same ones kept open and the same ones opened.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::Fault;
use super::cgroups::Cgroups;

/// Files of one pass.
#[derive(Debug)]
pub(super) struct BareReads {
    kept: Vec<File>,
    opened: Vec<PathBuf>,
    buffer: Vec<u8>,
}

// === impl BareReads ===

impl BareReads {
    /// What the process keeps open below `/sys` and `/proc` (of the host, or imitated), opened once more; and of the cgroups
    /// those files that it has no descriptor left for, and so opens in each pass.
    pub(super) fn of(pid: u32, cgroups: Option<&Cgroups>) -> Result<Self, Fault> {
        let mut paths = BTreeSet::new();
        for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
            let Ok(target) = std::fs::read_link(entry?.path()) else { continue };
            let path = target.to_string_lossy();
            let read = path.contains("/cgroup/")
                || path.contains("/proc/")
                || path.contains("/devices/system/node/");
            if read && target.is_file() {
                paths.insert(target);
            }
        }
        if paths.is_empty() {
            return Err("the metrics-fetcher keeps no cgroup file open".into());
        }
        let mut opened = Vec::new();
        if let Some(cgroups) = cgroups {
            let name = |path: &PathBuf| path.file_name().map(|n| n.to_owned());
            let inside: BTreeSet<_> =
                paths.iter().filter(|p| p.to_string_lossy().contains(&cgroups.root)).collect();
            let names: BTreeSet<_> = inside.into_iter().filter_map(name).collect();
            let files = cgroups.inner.iter().flat_map(|dir| names.iter().map(|n| dir.join(n)));
            opened.extend(files.filter(|file| !paths.contains(file) && file.is_file()));
        }
        // Who is asked to measure may have as many descriptors as who is measured, and needs some of his own.
        let kept = paths.iter().map(File::open).collect::<Result<_, _>>()?;
        Ok(Self { kept, opened, buffer: vec![0; 16 << 10] })
    }

    /// Of each file one read; the CPU time that they took.
    pub(super) fn sample(&mut self) -> Duration {
        let start = thread_cpu();
        for file in &self.kept {
            // Gone meanwhile is a shorter floor, no fault.
            let _ = file.read_at(&mut self.buffer, 0);
        }
        for path in &self.opened {
            let _ = File::open(path).and_then(|file| file.read_at(&mut self.buffer, 0));
        }
        thread_cpu().saturating_sub(start)
    }

    /// For people.
    pub(super) fn told(&self) -> String {
        match self.opened.len() {
            0 => format!("one pread of each of the {} files that it keeps open", self.kept.len()),
            n => format!(
                "one pread of each of the {} files that it keeps open and of {n} that both open anew",
                self.kept.len()
            ),
        }
    }
}

fn thread_cpu() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}
