use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::parse::ParseError;
use crate::path::PathError;

/// What went wrong with a cgroup tree; each variant names the path.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel or the file system refused an operation.
    #[error("{operation} {path}: {source}{}", explained(.path, .source))]
    Io {
        /// What was being done: "open", "read", "write", "list", "stat".
        operation: &'static str,
        /// To which file or folder.
        path: PathBuf,
        /// What came back.
        source: io::Error,
    },
    /// A file says what no kernel says.
    #[error("{path}: {source}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// The offending line.
        source: ParseError,
    },
    /// A name of a cgroup that cannot be one.
    #[error(transparent)]
    Path(#[from] PathError),
    /// No cgroup file system where one is expected.
    #[error(
        "{path} holds neither cgroup v2 (no cgroup.controllers) nor any cgroup v1 controller: mount the host's /sys/fs/cgroup there, or set host_root"
    )]
    NoHierarchy {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// A controller that is not mounted (v1) or not enabled for this cgroup (v2).
    #[error(
        "controller {controller} is not available under {path}: mount it (v1) or enable it in cgroup.subtree_control (v2)"
    )]
    NoController {
        /// Kernel's name of the controller.
        controller: &'static str,
        /// Root of the hierarchy.
        path: PathBuf,
    },
    /// The kernel took a value and says something else, or a cgroup that is not ours to change allows less.
    #[error(
        "{path} says {now:?} where {wanted:?} is wanted: somebody else writes it, or a cgroup above allows less"
    )]
    NotHeld {
        /// The file.
        path: PathBuf,
        /// What it should say.
        wanted: String,
        /// What it says.
        now: String,
    },
    /// A file that no kernel makes.
    #[error(
        "read {path}: it is longer than {longest} bytes, so it is none of the kernel's: see what is mounted there"
    )]
    TooLong {
        /// The file.
        path: PathBuf,
        /// What is read at most.
        longest: usize,
    },
    /// An empty cpuset would stop every task of the cgroup (v1) or silently mean "the parent's" (v2).
    #[error("refusing to write an empty list to {path}")]
    EmptyList {
        /// The file.
        path: PathBuf,
    },
}

// === impl Error ===

impl Error {
    pub(crate) fn io(operation: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { operation, path: path.to_path_buf(), source }
    }

    /// Whether the cgroup (or its file) no longer exists.
    pub fn is_gone(&self) -> bool {
        match self {
            Self::Io { source, .. } => crate::kept::is_dead(source),
            _ => false,
        }
    }

    /// Whether the kernel refused a value: in another order, or once the tree has changed, it may take it.
    pub fn is_refusal(&self) -> bool {
        let Self::Io { operation: "write", source, .. } = self else { return false };
        matches!(
            source.raw_os_error().map(Errno::from_raw_os_error),
            Some(Errno::BUSY | Errno::INVAL | Errno::NOSPC | Errno::ACCESS)
        )
    }
}

/// What an operator can do, for the refusals that are met in practice.
fn explained(path: &Path, source: &io::Error) -> &'static str {
    let Some(errno) = source.raw_os_error().map(Errno::from_raw_os_error) else { return "" };
    let file = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    match (errno, file) {
        (Errno::ROFS, _) => " (the cgroup tree is mounted read-only)",
        (Errno::MFILE, _) => " (raise RLIMIT_NOFILE)",
        (Errno::NOSPC, _) => {
            " (empty cpuset: v1 wants cpuset.mems and cpuset.cpus of the parent written first)"
        }
        (Errno::ACCESS, "cpuset.cpus" | "cpuset.mems") => {
            " (v1: not within the parent's; else: run as root, or mount the cgroup tree writable)"
        }
        (Errno::ACCESS | Errno::PERM, _) => " (run as root, or mount the cgroup tree writable)",
        (Errno::BUSY, "cpuset.cpus" | "cpuset.mems") => {
            " (a child cgroup still uses what is being taken away)"
        }
        (Errno::BUSY, _) => " (more is in use than the new limit allows)",
        (Errno::INVAL, "cpuset.cpus" | "cpuset.mems") => {
            " (one of them is not there or offline, or another cgroup has it exclusively)"
        }
        (Errno::INVAL, "cpu.cfs_quota_us" | "cpu.cfs_period_us" | "cpu.max") => {
            " (below the kernel's millisecond, less than the burst, or on v1 more than the cgroup above may use)"
        }
        (Errno::INVAL, "cpu.cfs_burst_us" | "cpu.max.burst") => " (the burst may not pass the quota)",
        (Errno::INVAL, "cpu.shares" | "cpu.weight") => " (an idle cgroup, cpu.idle = 1, has no weight)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(file: &str, errno: Errno) -> String {
        Error::io("write", Path::new(file), errno.into()).to_string()
    }

    #[test]
    fn c02_and_its_like_are_explained_by_the_file_they_happened_to() {
        assert!(told("/a/cpuset.cpus", Errno::NOSPC).contains("empty cpuset"));
        assert!(told("/a/cpuset.cpus", Errno::BUSY).contains("child"));
        assert!(told("/a/memory.limit_in_bytes", Errno::BUSY).contains("in use"));
        assert!(told("/a/cpu.cfs_quota_us", Errno::INVAL).contains("millisecond"));
        assert!(told("/a/cpu.max.burst", Errno::INVAL).contains("burst"));
        assert!(Error::io("write", Path::new("/a"), Errno::BUSY.into()).is_refusal());
        assert!(!Error::io("open", Path::new("/a"), Errno::ACCESS.into()).is_refusal());
    }
}
