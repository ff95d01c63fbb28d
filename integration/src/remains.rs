//! What a demo or a bench leaves when it is killed: found by its folder, whose owner is known by a lock, and removed by
//! whoever comes next: a keeper that waits beside it, else the next run.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};

use crate::containerd;
use crate::process::{end_stranger, with_argument_below};

const PREFIX: &str = "oxalyst-";
const MEMORY: &str = "/dev/shm";
const LOCK: &str = "owner.lock";
/// The first argument of a keeper; the folder is the second.
const KEEPER: &str = "--keep";

/// A folder that is removed with everything that was started in it, even if its owner is killed.
#[derive(Debug)]
pub struct Folder {
    dir: tempfile::TempDir,
    /// Held as long as the owner lives.
    _lock: File,
    /// Its end is how the keeper learns that the owner is gone; after the folder's own removal, if that is regular.
    _keeper: Option<ChildStdin>,
}

// === impl Folder ===

impl Folder {
    /// A new one, with a keeper; what dead owners have left is removed first.
    pub fn new() -> std::io::Result<Self> {
        for folder in abandoned() {
            clear(&folder);
        }
        let dir = tempfile::Builder::new().prefix(PREFIX).tempdir()?;
        let lock = own(dir.path())?;
        // A group of its own keeps a Ctrl-C and a terminal's end away from it. It is not waited for: it ends after its owner.
        let mut keeper = Command::new(std::env::current_exe()?);
        keeper.arg(KEEPER).arg(dir.path()).process_group(0);
        let keeper = keeper.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?.stdin;
        Ok(Self { dir, _lock: lock, _keeper: keeper })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Removes it.
    pub fn close(self) -> std::io::Result<()> {
        self.dir.close()
    }
}

/// Ctrl-C, SIGTERM, or the end of the terminal.
pub fn asked_to_stop() -> std::io::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hang_up.recv() => {}
        }
    })
}

/// Does a keeper's work if this process was started as one; `main` ends then.
pub fn keep() -> bool {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_none_or(|first| first != KEEPER) {
        return false;
    }
    let Some(folder) = arguments.next().map(PathBuf::from) else { return true };
    // Nothing is ever written: this returns when the owner is gone.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    if folder.join(LOCK).exists() {
        clear(&folder);
    }
    true
}

/// Folders whose owner is gone.
fn abandoned() -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(std::env::temp_dir()) else { return Vec::new() };
    let ours = entries.flatten().filter(|e| e.file_name().to_string_lossy().starts_with(PREFIX));
    let free = |folder: &PathBuf| {
        // Writable: another user's is not ours to clear.
        File::options()
            .write(true)
            .open(folder.join(LOCK))
            .is_ok_and(|lock| flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok())
    };
    ours.map(|e| e.path()).filter(free).collect()
}

/// Marks the folder as this process's.
fn own(folder: &Path) -> std::io::Result<File> {
    let new = folder.join("owner.new");
    let mut lock = File::create(&new)?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    write!(lock, "{}", std::process::id())?;
    // There is no moment at which it is seen without its lock.
    std::fs::rename(&new, folder.join(LOCK))?;
    Ok(lock)
}

/// A folder in memory, where there is such, for made-up machines: cleared with the folder of this process.
pub fn in_memory() -> std::io::Result<tempfile::TempDir> {
    let prefix = memory_prefix(&std::process::id().to_string());
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix);
    builder.tempdir_in(MEMORY).or_else(|_| builder.tempdir())
}

fn memory_prefix(pid: &str) -> String {
    format!("{PREFIX}{pid}-")
}

/// Ends what was started with this folder, and removes what it left on the machine and the folder.
fn clear(folder: &Path) {
    // Services first: a gateway would mend what is taken away.
    for pid in with_argument_below("common.run_dir=", folder) {
        if !end_stranger(pid, Signal::TERM, Duration::from_secs(5)) {
            end_stranger(pid, Signal::KILL, Duration::from_secs(5));
        }
    }
    containerd::clear(folder);
    if let Some(owner) = std::fs::read_to_string(folder.join(LOCK)).ok().filter(|pid| !pid.is_empty()) {
        let prefix = memory_prefix(&owner);
        for entry in std::fs::read_dir(MEMORY).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&prefix) {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
    }
    // What cannot be removed is found by the next run.
    let _ = std::fs::remove_dir_all(folder);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_folder_is_abandoned_when_its_owner_is_gone_and_its_processes_end_with_it() {
        let dir = tempfile::Builder::new().prefix(PREFIX).tempdir().unwrap();
        let here = dir.path().to_path_buf();
        let lock = own(&here).unwrap();
        let machine = in_memory().unwrap();
        assert!(!abandoned().contains(&here), "its owner lives");
        let setting = format!("common.run_dir={}", here.join("run").display());
        // It waits by itself: a child of its own would for a moment bear the same arguments.
        let mut child =
            Command::new("sh").args(["-c", "read line", &setting]).stdin(Stdio::piped()).spawn().unwrap();
        let _held_open = child.stdin.take();
        let pid = child.id();
        drop(lock);
        // A program that another test starts has the lock as well until it runs.
        soon("its owner is gone", || abandoned().contains(&here));
        // The kernel shows a new program's arguments a moment after it runs.
        soon("the process is found by its arguments", || {
            with_argument_below("common.run_dir=", &here) == [pid]
        });
        let waiter = std::thread::spawn(move || child.wait().unwrap());
        clear(&here);
        assert!(!waiter.join().unwrap().success() && !here.exists() && !machine.path().exists());
    }

    fn soon(what: &str, holds: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !holds() {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::yield_now();
        }
    }
}
