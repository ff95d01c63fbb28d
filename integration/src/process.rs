//! Processes that a suite starts: their output goes to a file, they are signalled by pid, and none outlives its owner.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::runtime::poll_until;

/// A running child.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: PathBuf,
}

/// Why a process could not be started, or did not end.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// It did not start.
    #[error("start {program}: {source}")]
    Spawn {
        /// The program.
        program: String,
        /// What came back.
        source: io::Error,
    },
    /// It was told to end and did not.
    #[error("pid {pid} is still there {limit:?} after {signal}; its log: {log}")]
    StillThere {
        /// The process.
        pid: u32,
        /// How long it was waited for.
        limit: Duration,
        /// What it was sent.
        signal: &'static str,
        /// Where its output is.
        log: PathBuf,
    },
}

// === impl Process ===

impl Process {
    /// Starts `command` in a process group of its own (a Ctrl-C on the terminal must not reach it before its owner has
    /// cleaned up), with both outputs appended to `log`.
    pub fn spawn(mut command: Command, log: &Path) -> Result<Self, ProcessError> {
        let program = command.get_program().to_string_lossy().into_owned();
        let mut spawn = || -> io::Result<Child> {
            let out = File::options().create(true).append(true).open(log)?;
            let err = out.try_clone()?;
            command.stdin(Stdio::null()).stdout(out).stderr(err).process_group(0).spawn()
        };
        let child = spawn().map_err(|source| ProcessError::Spawn { program, source })?;
        Ok(Self { child, log: log.to_owned() })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Everything it has written so far.
    pub fn output(&self) -> String {
        std::fs::read(&self.log).map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default()
    }

    /// SIGTERM, and waits for the end.
    pub async fn terminate(&mut self, limit: Duration) -> Result<ExitStatus, ProcessError> {
        self.end(Signal::TERM, "SIGTERM", limit).await
    }

    /// SIGKILL, and waits for the end.
    pub async fn kill(&mut self) -> Result<ExitStatus, ProcessError> {
        self.end(Signal::KILL, "SIGKILL", Duration::from_secs(10)).await
    }

    /// Waits until it has ended by itself.
    pub async fn wait(&mut self, limit: Duration) -> Result<ExitStatus, ProcessError> {
        let (pid, log) = (self.pid(), self.log.clone());
        poll_until(limit, async || {
            self.child.try_wait().ok().flatten().ok_or(ProcessError::StillThere {
                pid,
                limit,
                signal: "nothing",
                log: log.clone(),
            })
        })
        .await
    }

    async fn end(
        &mut self,
        signal: Signal,
        name: &'static str,
        limit: Duration,
    ) -> Result<ExitStatus, ProcessError> {
        if self.ended().is_none() {
            // It cannot be another process: the child has not been waited for.
            send(self.pid(), signal);
        }
        self.wait(limit).await.map_err(|e| match e {
            ProcessError::StillThere { pid, limit, log, .. } => {
                ProcessError::StillThere { pid, limit, signal: name, log }
            }
            other => other,
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only where it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends `signal` to the process `pid`; gone already is fine.
pub fn send(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// Sends `signal` to a process that is no child of ours and waits up to `limit` for its end. Returns whether it is gone.
pub fn end_stranger(pid: u32, signal: Signal, limit: Duration) -> bool {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return true };
    let handle = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(handle) => handle,
        Err(e) => return e == Errno::SRCH,
    };
    let _ = kill_process(pid, signal);
    let limit = Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(limit.subsec_nanos()),
    };
    let mut fds = [PollFd::new(&handle, PollFlags::IN)];
    poll(&mut fds, Some(&limit)).is_ok_and(|ready| ready > 0)
}

/// Processes whose command line has `argument` as one of its arguments.
pub fn with_argument(argument: &OsStr) -> Vec<u32> {
    with_argument_that(|arg| arg == argument.as_encoded_bytes())
}

/// Processes one of whose arguments is `key` followed by a path below `folder`.
pub fn with_argument_below(key: &str, folder: &Path) -> Vec<u32> {
    let start = format!("{key}{}/", folder.display());
    with_argument_that(|arg| arg.starts_with(start.as_bytes()))
}

fn with_argument_that(matches: impl Fn(&[u8]) -> bool) -> Vec<u32> {
    let Ok(dir) = std::fs::read_dir("/proc") else { return Vec::new() };
    dir.flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|&b| b == 0).any(&matches)
        })
        .collect()
}
