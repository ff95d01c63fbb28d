use std::io;
use std::path::{Path, PathBuf};

use crate::parse::ParseError;
use crate::path::PathError;

/// What went wrong with a cgroup tree; each variant names the path.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel or the file system refused an operation.
    #[error("{operation} {path}: {source}{}", hint(.source))]
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
}

/// What an operator can do, for the refusals that are met in practice.
fn hint(source: &io::Error) -> &'static str {
    match source.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
        Some(rustix::io::Errno::ACCESS | rustix::io::Errno::PERM) => {
            " (run as root, or mount the cgroup tree writable)"
        }
        Some(rustix::io::Errno::ROFS) => " (the cgroup tree is mounted read-only)",
        Some(rustix::io::Errno::MFILE) => " (raise RLIMIT_NOFILE)",
        Some(rustix::io::Errno::NOSPC) => " (v1: write cpuset.mems and cpuset.cpus of the parent first)",
        Some(rustix::io::Errno::BUSY) => " (a child cgroup still uses what is being taken away)",
        _ => "",
    }
}
