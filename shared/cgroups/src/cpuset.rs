use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::hierarchy::{Controller, Hierarchy};
use crate::kept::read_into;
use crate::path::CgroupPath;

/// The cpuset files of one cgroup.
#[derive(Debug)]
pub struct CpusetFiles {
    dir: PathBuf,
    effective_cpus: &'static str,
    effective_mems: &'static str,
}

/// What the kernel says of a cpuset, in its own list format ("0-3,8"), without a line end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpusetState {
    /// `cpuset.cpus`: what was asked for; empty on v2 means "as the parent".
    pub cpus: String,
    /// `cpuset.mems`, likewise.
    pub mems: String,
    /// What holds: asked for, within the parent's, and online. `None` where the kernel does not tell.
    pub effective_cpus: Option<String>,
    /// The same of memory nodes.
    pub effective_mems: Option<String>,
}

// === impl CpusetFiles ===

impl CpusetFiles {
    /// The files of `path`; its folder must exist and hold `cpuset.cpus`.
    ///
    /// # Errors
    /// [`Error::NoController`] where the cpuset controller is not mounted, or (v2) not enabled for this cgroup;
    /// [`Error::Io`] with [`Error::is_gone`] where the cgroup does not exist.
    pub fn open(hierarchy: &Hierarchy, path: &CgroupPath) -> Result<Self, Error> {
        let dir = hierarchy.dir(Controller::Cpuset, path)?;
        std::fs::metadata(&dir).map_err(|e| Error::io("stat", &dir, e))?;
        if !dir.join("cpuset.cpus").exists() {
            return Err(Error::NoController { controller: Controller::Cpuset.name(), path: dir });
        }
        let (effective_cpus, effective_mems) = if hierarchy.is_unified() {
            ("cpuset.cpus.effective", "cpuset.mems.effective")
        } else {
            ("cpuset.effective_cpus", "cpuset.effective_mems")
        };
        Ok(Self { dir, effective_cpus, effective_mems })
    }

    /// Folder of the cgroup in the cpuset tree.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Reads all four files.
    ///
    /// # Errors
    /// [`Error::Io`]; the effective files may be absent (kernels before 3.17), the others not.
    pub fn read(&self) -> Result<CpusetState, Error> {
        Ok(CpusetState {
            cpus: self.text("cpuset.cpus")?,
            mems: self.text("cpuset.mems")?,
            effective_cpus: self.optional(self.effective_cpus)?,
            effective_mems: self.optional(self.effective_mems)?,
        })
    }

    /// Writes `cpuset.cpus` if it differs; true if it was written. Lists that mean the same and read differently
    /// ("0,1" and "0-1") count as different.
    ///
    /// # Errors
    /// [`Error::EmptyList`] for an empty list; [`Error::Io`] with what the kernel answered.
    pub fn write_cpus(&self, list: &str) -> Result<bool, Error> {
        self.write("cpuset.cpus", list)
    }

    /// Writes `cpuset.mems` if it differs; true if it was written. On v2 the kernel moves the pages of running tasks
    /// before it returns, which may take long.
    ///
    /// # Errors
    /// As [`CpusetFiles::write_cpus`].
    pub fn write_mems(&self, list: &str) -> Result<bool, Error> {
        self.write("cpuset.mems", list)
    }

    fn write(&self, name: &str, list: &str) -> Result<bool, Error> {
        let path = self.dir.join(name);
        let list = list.trim();
        if list.is_empty() {
            return Err(Error::EmptyList { path });
        }
        if self.text(name)? == list {
            return Ok(false);
        }
        // Truncates as a shell's `>` does (kernfs has no length to cut, an imitated file has), never creates, and
        // hands the whole value to the kernel in one call.
        let file = OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(&path)
            .map_err(|e| Error::io("open", &path, e))?;
        file.write_all_at(format!("{list}\n").as_bytes(), 0).map_err(|e| Error::io("write", &path, e))?;
        Ok(true)
    }

    fn text(&self, name: &str) -> Result<String, Error> {
        let path = self.dir.join(name);
        let file = File::open(&path).map_err(|e| Error::io("open", &path, e))?;
        let mut buffer = Vec::new();
        let bytes = read_into(&file, &path, &mut buffer)?;
        Ok(String::from_utf8_lossy(bytes.trim_ascii()).into_owned())
    }

    fn optional(&self, name: &str) -> Result<Option<String>, Error> {
        match self.text(name) {
            Ok(text) => Ok(Some(text)),
            // The cgroup itself is there (its other files were just read): this kernel has no such file.
            Err(Error::Io { operation: "open", source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Fixture, Layout};

    fn files(layout: Layout) -> (tempfile::TempDir, CpusetFiles) {
        let dir = tempfile::tempdir().unwrap();
        let fixture = Fixture::create(dir.path(), layout).unwrap();
        let path = CgroupPath::new("kubepods/pod1/abc").unwrap();
        fixture.cgroup(&path).unwrap();
        let files = CpusetFiles::open(&Hierarchy::detect(dir.path()).unwrap(), &path).unwrap();
        (dir, files)
    }

    #[test]
    fn what_is_written_is_read_back_on_both_versions() {
        for layout in [Layout::V1, Layout::V2] {
            let (_dir, files) = files(layout);
            assert!(files.write_cpus("1-2,5").unwrap(), "{layout:?}");
            assert!(files.write_cpus("7").unwrap(), "{layout:?}");
            assert!(files.write_mems("0").unwrap(), "{layout:?}");
            let state = files.read().unwrap();
            assert_eq!((state.cpus.as_str(), state.mems.as_str()), ("7", "0"), "{layout:?}");
            assert!(state.effective_cpus.is_some(), "{layout:?}");
        }
    }

    #[test]
    fn nothing_is_written_that_is_already_there() {
        let (_dir, files) = files(Layout::V2);
        assert!(files.write_cpus("0-3").unwrap());
        assert!(!files.write_cpus("0-3\n").unwrap());
    }

    #[test]
    fn an_empty_list_is_refused_and_the_file_stays() {
        let (_dir, files) = files(Layout::V1);
        files.write_cpus("0").unwrap();
        assert!(matches!(files.write_cpus(" \n"), Err(Error::EmptyList { .. })));
        assert_eq!(files.read().unwrap().cpus, "0");
    }

    #[test]
    fn a_removed_cgroup_is_gone_and_an_older_kernel_tells_no_effective_set() {
        let (_dir, files) = files(Layout::V1);
        std::fs::remove_file(files.dir().join("cpuset.effective_cpus")).unwrap();
        assert_eq!(files.read().unwrap().effective_cpus, None);
        std::fs::remove_dir_all(files.dir()).unwrap();
        assert!(files.read().unwrap_err().is_gone());
        assert!(files.write_cpus("0").unwrap_err().is_gone());
    }
}
