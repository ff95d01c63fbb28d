use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::path::CgroupPath;

/// `CGROUP2_SUPER_MAGIC` of `linux/magic.h`.
const CGROUP2_MAGIC: u64 = 0x6367_7270;

/// How a machine mounts its control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// One tree per controller.
    V1,
    /// One tree for all.
    V2,
    /// Controllers on v1 trees, and a v2 tree at `unified` for processes alone.
    Hybrid,
}

/// The controllers that are read or written here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Controller {
    /// Shares, quota, throttling.
    Cpu,
    /// CPU time; part of `cpu` on v2.
    Cpuacct,
    /// Allowed CPUs and memory nodes.
    Cpuset,
    /// Memory.
    Memory,
    /// Block I/O; `io` on v2.
    Blkio,
    /// Number of tasks.
    Pids,
    /// Huge pages.
    Hugetlb,
}

/// The control groups of one machine: version, and the root of each controller's tree.
///
/// The root's device and inode are those at detection: [`Hierarchy::is_current`] tells whether the same tree is still
/// there, because descriptors below a renamed or replaced root would read on without an error.
#[derive(Clone, Debug)]
pub struct Hierarchy {
    version: Version,
    root: PathBuf,
    mounts: [Option<PathBuf>; Controller::ALL.len()],
    /// Of a hybrid: which controllers have no tree of their own and live in the v2 tree.
    moved: [bool; Controller::ALL.len()],
    identities: Vec<(PathBuf, u64, u64)>,
}

// === impl Version ===

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V1 => "v1",
            Self::V2 => "v2",
            Self::Hybrid => "hybrid",
        })
    }
}

// === impl Controller ===

impl Controller {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Cpu, Self::Cpuacct, Self::Cpuset, Self::Memory, Self::Blkio, Self::Pids, Self::Hugetlb];

    /// The kernel's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cpuacct => "cpuacct",
            Self::Cpuset => "cpuset",
            Self::Memory => "memory",
            Self::Blkio => "blkio",
            Self::Pids => "pids",
            Self::Hugetlb => "hugetlb",
        }
    }

    /// Its name on a v2 tree.
    pub const fn unified_name(self) -> &'static str {
        match self {
            Self::Cpuacct => "cpu",
            Self::Blkio => "io",
            other => other.name(),
        }
    }
}

// === impl Hierarchy ===

impl Hierarchy {
    /// Looks at `<host_root>/sys/fs/cgroup`.
    ///
    /// It is v2 if `cgroup.controllers` is there, or the file system is cgroup2. Otherwise each folder (or link to a
    /// folder) whose name is a comma-separated list of controllers is the tree of each of them; `cpu` wins over
    /// `cpu,cpuacct` where both exist.
    ///
    /// # Errors
    /// [`Error::NoHierarchy`] if there is none; [`Error::Io`] if the folder cannot be read.
    pub fn detect(host_root: &Path) -> Result<Self, Error> {
        let root = host_root.join("sys/fs/cgroup");
        let mut identities = vec![identity(host_root)?, identity(&root)?];
        if is_v2(&root) {
            let mounts = Controller::ALL.map(|_| Some(root.clone()));
            let moved = [false; Controller::ALL.len()];
            return Ok(Self { version: Version::V2, root, mounts, moved, identities });
        }
        let mut names = Vec::new();
        for entry in fs::read_dir(&root).map_err(|e| Error::io("list", &root, e))? {
            let entry = entry.map_err(|e| Error::io("list", &root, e))?;
            // Follows links: `cpu` is often one to `cpu,cpuacct`. A dangling one is no tree.
            if entry.path().is_dir()
                && let Ok(name) = entry.file_name().into_string()
            {
                names.push(name);
            }
        }
        // The shortest name first, so that `cpu` wins over `cpu,cpuacct`; then by name, so that the answer never
        // depends on the order of a directory.
        names.sort_by(|a, b| a.len().cmp(&b.len()).then_with(|| a.cmp(b)));
        let mounts = Controller::ALL.map(|controller| {
            let name = names.iter().find(|n| n.split(',').any(|part| part == controller.name()))?;
            Some(root.join(name))
        });
        for mount in mounts.iter().flatten() {
            identities.push(identity(mount)?);
        }
        if mounts.iter().all(Option::is_none) {
            return Err(Error::NoHierarchy { path: root });
        }
        let unified = root.join("unified");
        let (mut version, mut moved) = (Version::V1, [false; Controller::ALL.len()]);
        if is_v2(&unified) {
            version = Version::Hybrid;
            identities.push(identity(&unified)?);
            // A tree without the file has none.
            let there = fs::read_to_string(unified.join("cgroup.controllers")).unwrap_or_default();
            for ((controller, mount), moved) in Controller::ALL.iter().zip(&mounts).zip(&mut moved) {
                *moved =
                    mount.is_none() && there.split_whitespace().any(|name| name == controller.unified_name());
            }
        }
        Ok(Self { version, root, mounts, moved, identities })
    }

    /// The version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Whether containers live in one tree for all controllers.
    pub fn is_unified(&self) -> bool {
        self.version == Version::V2
    }

    /// `<host_root>/sys/fs/cgroup`.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Whether a controller lives in the v2 tree of a hybrid.
    pub fn has_moved(&self, controller: Controller) -> bool {
        self.moved.get(controller as usize).copied().unwrap_or(false)
    }

    /// Root of the v2 tree of a hybrid.
    pub fn unified_mount(&self) -> PathBuf {
        self.root.join("unified")
    }

    /// Root of a controller's tree.
    ///
    /// # Errors
    /// [`Error::NoController`] where it is not mounted.
    pub fn mount(&self, controller: Controller) -> Result<&Path, Error> {
        self.mounts
            .get(controller as usize)
            .and_then(Option::as_deref)
            .ok_or_else(|| Error::NoController { controller: controller.name(), path: self.root.clone() })
    }

    /// Folder of a cgroup in a controller's tree; it need not exist.
    ///
    /// # Errors
    /// [`Error::NoController`], as [`Hierarchy::mount`].
    pub fn dir(&self, controller: Controller, path: &CgroupPath) -> Result<PathBuf, Error> {
        Ok(path.under(self.mount(controller)?))
    }

    /// The tree to look for containers in: every runtime makes a container's cgroup in each of them.
    ///
    /// # Errors
    /// [`Error::NoHierarchy`] cannot happen after [`Hierarchy::detect`] succeeded, but is not a panic either.
    pub fn any_mount(&self) -> Result<&Path, Error> {
        [Controller::Memory, Controller::Cpuacct, Controller::Cpu, Controller::Cpuset]
            .into_iter()
            .find_map(|c| self.mount(c).ok())
            .ok_or_else(|| Error::NoHierarchy { path: self.root.clone() })
    }

    /// Whether every root is still the folder that it was at detection, by device and inode.
    ///
    /// # Errors
    /// [`Error::Io`] with operation "stat" where a root cannot be seen at all.
    pub fn is_current(&self) -> Result<bool, Error> {
        for (path, device, inode) in &self.identities {
            let now = identity(path)?;
            if (now.1, now.2) != (*device, *inode) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn identity(path: &Path) -> Result<(PathBuf, u64, u64), Error> {
    let metadata = fs::metadata(path).map_err(|e| Error::io("stat", path, e))?;
    if !metadata.is_dir() {
        return Err(Error::io("stat", path, io::Error::from(io::ErrorKind::NotADirectory)));
    }
    Ok((path.to_path_buf(), metadata.dev(), metadata.ino()))
}

fn is_v2(root: &Path) -> bool {
    root.join("cgroup.controllers").is_file()
        || rustix::fs::statfs(root).is_ok_and(|s| u64::try_from(s.f_type).is_ok_and(|t| t == CGROUP2_MAGIC))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::fixture::{self, Fixture};

    #[test]
    fn v2_is_seen_by_its_controllers_file() {
        let dir = tempfile::tempdir().unwrap();
        Fixture::create(dir.path(), fixture::Layout::V2).unwrap();
        let h = Hierarchy::detect(dir.path()).unwrap();
        assert_eq!(h.version(), Version::V2);
        assert_eq!(h.mount(Controller::Cpuacct).unwrap(), dir.path().join("sys/fs/cgroup"));
    }

    #[test]
    fn combined_controllers_are_found_with_and_without_links() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("sys/fs/cgroup");
        fs::create_dir_all(root.join("cpu,cpuacct")).unwrap();
        fs::create_dir_all(root.join("memory")).unwrap();
        let h = Hierarchy::detect(dir.path()).unwrap();
        assert_eq!(h.mount(Controller::Cpu).unwrap(), root.join("cpu,cpuacct"));
        assert_eq!(h.mount(Controller::Cpuacct).unwrap(), root.join("cpu,cpuacct"));
        assert!(matches!(h.mount(Controller::Cpuset), Err(Error::NoController { controller: "cpuset", .. })));
        symlink("cpu,cpuacct", root.join("cpu")).unwrap();
        symlink("nowhere", root.join("cpuset")).unwrap();
        let h = Hierarchy::detect(dir.path()).unwrap();
        assert_eq!(h.mount(Controller::Cpu).unwrap(), root.join("cpu"));
        assert!(h.mount(Controller::Cpuset).is_err(), "a dangling link is no tree");
    }

    #[test]
    fn a_unified_tree_beside_v1_is_hybrid() {
        let dir = tempfile::tempdir().unwrap();
        Fixture::create(dir.path(), fixture::Layout::V1).unwrap();
        assert_eq!(Hierarchy::detect(dir.path()).unwrap().version(), Version::V1);
        let unified = dir.path().join("sys/fs/cgroup/unified");
        fs::create_dir_all(&unified).unwrap();
        fs::write(unified.join("cgroup.controllers"), "\n").unwrap();
        assert_eq!(Hierarchy::detect(dir.path()).unwrap().version(), Version::Hybrid);
    }

    #[test]
    fn a_machine_without_cgroups_is_told_as_such() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("sys/fs/cgroup")).unwrap();
        let error = Hierarchy::detect(dir.path()).unwrap_err();
        assert!(matches!(error, Error::NoHierarchy { .. }), "{error}");
        assert!(Hierarchy::detect(&dir.path().join("absent")).unwrap_err().is_gone());
    }

    #[test]
    fn a_replaced_root_is_not_the_same_tree() {
        let dir = tempfile::tempdir().unwrap();
        Fixture::create(dir.path(), fixture::Layout::V1).unwrap();
        let h = Hierarchy::detect(dir.path()).unwrap();
        assert!(h.is_current().unwrap());
        let (root, away) = (dir.path().join("sys/fs/cgroup"), dir.path().join("sys/fs/away"));
        fs::rename(&root, &away).unwrap();
        assert!(h.is_current().unwrap_err().is_gone());
        Fixture::create(dir.path(), fixture::Layout::V1).unwrap();
        assert!(!h.is_current().unwrap());
        fs::remove_dir_all(&root).unwrap();
        fs::rename(&away, &root).unwrap();
        assert!(h.is_current().unwrap(), "the old root came back");
    }
}
