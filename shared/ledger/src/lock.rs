//! One process owns the folder: `flock` on a file that holds the owner's process id.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::OpenError;
use crate::disk::{self, at};

/// Held until dropped, and by the kernel no longer than the process lives.
#[derive(Debug)]
pub(crate) struct Lock {
    path: PathBuf,
    file: File,
}

// === impl Lock ===

impl Lock {
    pub(crate) fn take(path: &Path) -> Result<Self, OpenError> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(at("opening the lock file", path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut text = String::new();
                let _ = file.read_to_string(&mut text);
                return Err(OpenError::Locked { path: path.to_owned(), pid: text.trim().parse().ok() });
            }
            Err(errno) => return Err(at("locking", path)(errno.into()).into()),
        }
        // Only for people and the error above; a full disk must not keep the owner from its ledger.
        let _ = file.set_len(0);
        let _ = file.write_all_at(format!("{}\n", std::process::id()).as_bytes(), 0);
        Ok(Self { path: path.to_owned(), file })
    }

    /// Whether the lock is still the file at its path. If not, it keeps nobody out.
    pub(crate) fn is_in_place(&self) -> bool {
        disk::is_at(&self.file, &self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_owner_is_told_the_first_ones_pid_until_it_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let first = Lock::take(&path).unwrap();
        match Lock::take(&path) {
            Err(OpenError::Locked { pid, .. }) => assert_eq!(pid, Some(std::process::id())),
            other => panic!("{other:?}"),
        }
        drop(first);
        Lock::take(&path).unwrap();
    }
}
