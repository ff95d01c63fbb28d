//! Descriptors that stay open between passes, as many as the process may have.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use oxalyst_cgroups::read_into;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::errand::Progress;

/// Left to connections (`common.max_connections` are 256 where nothing else is said), logs and the like.
const RESERVE: u64 = 384;
/// More are never kept: about 2,000 containers with all files of either version.
const MOST: u64 = 65_536;
/// Passes between attempts to open a file that could not be opened, at most; it doubles up to this.
pub(super) const LONGEST_WAIT: u64 = 16;

/// How many descriptors are kept, and how many may be. Clones count together.
#[derive(Clone, Debug)]
pub(super) struct Descriptors {
    kept: Arc<AtomicUsize>,
    cap: usize,
}

/// One file of one subject.
#[derive(Debug, Default)]
pub(super) enum Slot {
    /// Not open.
    #[default]
    Closed,
    /// Open.
    Kept(File),
    /// Not open, and not read since a read of another file of the same subject hung.
    Untried,
    /// A read of it hangs, and its thread was given up; tried again once that came back, and not at once.
    Hung { why: Arc<str>, thread: Arc<Progress>, again: u64 },
    /// Could not be opened; tried again later.
    Refused { why: Arc<str>, absent: bool, attempts: u32, again: u64 },
}

/// Why a file gave nothing.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) what: Arc<str>,
    /// The file or its cgroup may be gone.
    pub(super) gone: bool,
    /// It was not there to be opened, now or when it was last tried.
    pub(super) absent: bool,
    /// It has just gone, and its cgroup with it as it seems. Only if it is still away at the next attempt something is wrong.
    pub(super) going: bool,
}

/// Raises the soft limit of open files to what is of use here, as far as the hard one allows.
pub fn raise_file_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.unwrap_or(MOST + RESERVE).min(MOST + RESERVE);
    if current.is_some_and(|c| c < wanted)
        && let Err(e) = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum })
    {
        tracing::warn!(error = %e, limit = ?current, "RLIMIT_NOFILE stays low: files past it are opened anew each pass");
    }
}

// === impl Slot ===

impl Slot {
    /// Why it is let alone where nothing may be tried that is not known to answer.
    pub(super) fn untried(&self, name: &str) -> Option<String> {
        match self {
            Self::Hung { why, .. } => Some(why.to_string()),
            Self::Untried => Some(format!("{name}: not tried, because other reads hang")),
            _ => None,
        }
    }

    /// What is to be remembered of it even if everything open is lost.
    pub(super) fn mark(&self) -> Option<Self> {
        match self {
            Self::Hung { why, thread, again } => {
                Some(Self::Hung { why: Arc::clone(why), thread: Arc::clone(thread), again: *again })
            }
            Self::Untried => Some(Self::Untried),
            _ => None,
        }
    }
}

// === impl Descriptors ===

impl Descriptors {
    /// As many as RLIMIT_NOFILE leaves room for.
    pub(super) fn within_limit() -> Self {
        let soft = getrlimit(Resource::Nofile).current.unwrap_or(MOST + RESERVE);
        Self::capped(usize::try_from(soft.saturating_sub(RESERVE).min(MOST)).unwrap_or(0))
    }

    pub(super) fn capped(cap: usize) -> Self {
        Self { kept: Arc::default(), cap }
    }

    pub(super) fn kept(&self) -> usize {
        self.kept.load(Ordering::Relaxed)
    }

    /// Keeps a file, if there is room; otherwise it is given back, to be closed after use.
    pub(super) fn keep(&mut self, file: File) -> Result<Slot, File> {
        if self.kept() < self.cap {
            self.kept.fetch_add(1, Ordering::Relaxed);
            Ok(Slot::Kept(file))
        } else {
            Err(file)
        }
    }

    pub(super) fn close(&mut self, slot: &mut Slot) {
        // That a read hangs is true of what comes in its place until the contrary is known.
        if slot.mark().is_none()
            && let Slot::Kept(_) = std::mem::take(slot)
        {
            self.kept.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Reads the whole file of `slot`, opening it if need be. `name` stands for it in errors, `path` is asked for only
    /// to open it, `pass` is the number of the pass.
    pub(super) fn read<'b>(
        &mut self,
        slot: &mut Slot,
        name: &Path,
        path: impl FnOnce() -> PathBuf,
        pass: u64,
        buffer: &'b mut Vec<u8>,
    ) -> Result<&'b [u8], Fault> {
        let attempts = match slot {
            Slot::Refused { why, again, absent, .. } if pass < *again => {
                return Err(Fault { what: Arc::clone(why), gone: false, absent: *absent, going: false });
            }
            Slot::Hung { why, thread, again } if pass < *again || !thread.has_come_back() => {
                return Err(Fault { what: Arc::clone(why), gone: false, absent: false, going: false });
            }
            Slot::Refused { attempts, .. } => *attempts,
            _ => 0,
        };
        if !matches!(slot, Slot::Kept(_)) {
            let path = path();
            let file = File::open(&path).map_err(|source| {
                let gone = oxalyst_cgroups::is_dead(&source);
                let what: Arc<str> = format!("open {}: {source}", path.display()).into();
                let wait = 2u64.saturating_pow(attempts).min(LONGEST_WAIT);
                *slot = Slot::Refused {
                    why: Arc::clone(&what),
                    absent: gone,
                    attempts: attempts + 1,
                    again: pass + wait,
                };
                Fault { what, gone, absent: gone, going: gone && attempts == 0 }
            })?;
            match self.keep(file) {
                Ok(kept) => *slot = kept,
                Err(file) => {
                    *slot = Slot::Closed;
                    return read_into(&file, name, buffer).map_err(|e| Fault {
                        gone: e.is_gone(),
                        absent: false,
                        going: e.is_gone(),
                        what: e.to_string().into(),
                    });
                }
            }
        }
        let outcome = match slot {
            Slot::Kept(file) => read_into(file, name, buffer),
            _ => Ok([].as_slice()),
        };
        outcome.map_err(|e| {
            // Of a removed cgroup it would answer the same for ever; of any other fault, opening anew is the cure too.
            self.close(slot);
            Fault { gone: e.is_gone(), absent: false, going: e.is_gone(), what: e.to_string().into() }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(
        descriptors: &mut Descriptors,
        slot: &mut Slot,
        path: &Path,
        pass: u64,
    ) -> Result<Vec<u8>, Fault> {
        let mut buffer = Vec::new();
        descriptors.read(slot, path, || path.to_path_buf(), pass, &mut buffer).map(<[u8]>::to_vec)
    }

    #[test]
    fn past_the_cap_files_are_read_and_not_kept() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        std::fs::write(&a, "1").unwrap();
        std::fs::write(&b, "2").unwrap();
        let mut descriptors = Descriptors::capped(1);
        let (mut one, mut two) = (Slot::default(), Slot::default());
        assert_eq!(read(&mut descriptors, &mut one, &a, 1).unwrap(), b"1");
        assert_eq!(read(&mut descriptors, &mut two, &b, 1).unwrap(), b"2");
        assert!(matches!((&one, &two), (Slot::Kept(_), Slot::Closed)));
        assert_eq!(descriptors.kept(), 1);
        descriptors.close(&mut one);
        descriptors.close(&mut two);
        assert_eq!(descriptors.kept(), 0);
    }

    #[test]
    fn a_file_that_is_not_there_is_tried_ever_more_seldom_and_taken_once_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("late");
        let (mut descriptors, mut slot) = (Descriptors::capped(9), Slot::default());
        let mut opened = Vec::new();
        for pass in 1..40 {
            let mut tried = false;
            let mut buffer = Vec::new();
            let fault = descriptors
                .read(
                    &mut slot,
                    &path,
                    || {
                        tried = true;
                        path.clone()
                    },
                    pass,
                    &mut buffer,
                )
                .unwrap_err();
            assert!(fault.what.contains("late"), "{}", fault.what);
            if tried {
                opened.push(pass);
            }
        }
        assert_eq!(opened, [1, 2, 4, 8, 16, 32]);
        std::fs::write(&path, "3").unwrap();
        assert!(read(&mut descriptors, &mut slot, &path, 47).is_err());
        assert_eq!(read(&mut descriptors, &mut slot, &path, 48).unwrap(), b"3");
    }
}
