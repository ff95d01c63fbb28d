//! Cgroups of the kernel's, one pod each, as a kubelet names them.

use std::path::{Path, PathBuf};

use super::Fault;
use crate::runtime::fresh_uid;

/// Cgroups in every tree, removed when dropped.
#[derive(Debug)]
pub(super) struct Cgroups {
    /// Below the mounts: nobody else's containers are there.
    pub(super) root: String,
    folders: Vec<PathBuf>,
    /// Containers' folders, in every tree.
    pub(super) inner: Vec<PathBuf>,
    /// Containers' ids.
    pub(super) ids: Vec<String>,
}

// === impl Cgroups ===

impl Cgroups {
    pub(super) fn create(containers: usize) -> Result<Self, Fault> {
        let mount = Path::new("/sys/fs/cgroup");
        let trees: Vec<PathBuf> = if mount.join("cgroup.controllers").exists() {
            vec![mount.to_owned()]
        } else {
            let named = ["cpu,cpuacct", "cpu", "cpuacct", "cpuset", "memory", "blkio", "pids", "hugetlb"];
            named.iter().map(|name| mount.join(name)).filter(|p| p.is_dir() && !p.is_symlink()).collect()
        };
        let root = format!("oxalyst-bench-{}", std::process::id());
        let mut made = Self { root: root.clone(), folders: Vec::new(), inner: Vec::new(), ids: Vec::new() };
        for tree in &trees {
            let mut dir = tree.clone();
            for part in [root.as_str(), "kubepods", "burstable"] {
                // v2 gives a cgroup the files of those controllers that its parent hands down.
                let _ = std::fs::write(dir.join("cgroup.subtree_control"), "+cpu +memory +io +pids");
                dir.push(part);
                made.make(&dir)?;
            }
            let _ = std::fs::write(dir.join("cgroup.subtree_control"), "+cpu +memory +io +pids");
        }
        for _ in 0..containers {
            let uid = fresh_uid();
            let id = format!("{0:016x}{0:016x}{0:016x}{0:016x}", fastrand::u64(..));
            for tree in &trees {
                let pod = tree.join(&root).join(format!("kubepods/burstable/pod{uid}"));
                made.make(&pod)?;
                let _ = std::fs::write(pod.join("cgroup.subtree_control"), "+cpu +memory +io +pids");
                made.make(&pod.join(&id))?;
                made.inner.push(pod.join(&id));
            }
            made.ids.push(id);
        }
        Ok(made)
    }

    fn make(&mut self, dir: &Path) -> Result<(), Fault> {
        std::fs::create_dir_all(dir).map_err(|e| format!("make {}: {e}", dir.display()))?;
        self.folders.push(dir.to_owned());
        Ok(())
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        for dir in self.folders.iter().rev() {
            let _ = std::fs::remove_dir(dir);
        }
    }
}
