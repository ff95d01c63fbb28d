//! A durable map from keys to bytes that notices its own damage.
//!
//! No embedded store notices every damage by itself; sled takes a damaged message for the end of its log and comes back as an
//! older state that is consistent in itself. So there are two witnesses: a short journal of ours, which decides, and sled,
//! which holds the materialised state. [`Ledger::open`] compares them.
//!
//! ```text
//! <folder>/lock                 flock and process id of the one owner, and how far the newest journal has come
//! <folder>/store/journal-<g>    change sets after generation g; the one before is kept
//! <folder>/store/snapshot-<g>   everything at generation g; the one before is kept
//! <folder>/store/mark           the same; neither is synced with a commit
//! <folder>/store/sled/          the materialised state, with a manifest in each batch
//! <folder>/store.bad-<g>/       what was damaged (all of it, or sled alone) when the ledger came back at generation g
//! ```
//!
//! The calls block (a commit waits for the disk): their place is a blocking thread.

mod contents;
mod disk;
mod envelope;
mod fault;
mod journal;
mod lock;
mod mark;
mod open;
mod place;
mod record;
mod snapshot;
mod store;
mod verdict;
mod wire;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use contents::Contents;
use disk::at;
use fault::{Step, reach};
use journal::Journal;
use lock::Lock;
use mark::Mark;
use open::{Parts, journal_path, numbered, snapshot_path};
use record::Record;
use store::Store;

pub use disk::DiskError;

/// The map. One owner; dropped, it flushes what it can.
#[derive(Debug)]
pub struct Ledger {
    dir: PathBuf,
    journal: Journal,
    mark: Mark,
    store: Store,
    contents: Contents,
    options: Options,
    /// How often the folder was found removed or replaced, and built anew.
    rebuilt: u64,
    /// Last, so that the folder is released only when sled is closed.
    lock: Lock,
}

/// How a ledger behaves.
#[derive(Debug, Clone)]
pub struct Options {
    /// [`Ledger::flush`] cuts a journal that is longer, in bytes; a commit does so itself at four times this length.
    pub journal_limit: u64,
    /// Shortest and longest wait before sled is opened again after it failed.
    pub reopen_backoff: (Duration, Duration),
}

/// One change of a change set. In a set, the last change of a key counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The key has this value from now on.
    Put(String, Vec<u8>),
    /// The key is gone.
    Delete(String),
}

/// What opening found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    /// Number of the last change set; 0 for a new ledger.
    pub generation: u64,
    /// Change sets that sled had not seen and now has. Normal after a crash.
    pub replayed: u64,
    /// The journal ended within a record, which was never acknowledged. Normal after a power cut.
    pub torn_tail: bool,
    /// What was damaged; empty: nothing. The ledger goes on with the newest state that could be had back.
    pub damage: Vec<Damage>,
    /// Where the damaged files lie now.
    pub quarantined: Option<PathBuf>,
}

/// A damaged part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// Which of the ledger's parts it is.
    pub witness: Witness,
    /// What is wrong with it, for people.
    pub detail: String,
}

/// The ledger's parts; each bears witness of the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Witness {
    /// The change sets since the snapshot.
    Journal,
    /// The materialised state.
    Sled,
    /// The state at the start of a journal.
    Snapshot,
    /// How far the journal had come: in the lock file, and in the store.
    Mark,
}

/// Why a ledger could not be opened. Damage is no reason.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process owns the folder.
    #[error(
        "the ledger is locked by {}: stop that process or use another folder (lock file {})",
        owner(*pid),
        path.display()
    )]
    Locked {
        /// The lock file.
        path: PathBuf,
        /// Process id of the owner; `None`: not readable.
        pid: Option<u32>,
    },
    /// A later version of this program wrote it.
    #[error("{} has format version {version}, this program reads up to {}: run the newer program", path.display(), record::VERSION)]
    NewerFormat {
        /// The file.
        path: PathBuf,
        /// Its format version.
        version: u16,
    },
    /// The folder cannot be read or written. Trying again later can help (no room, say).
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// Why a change set was not committed. The ledger is as before, and the next commit may succeed.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// The disk refused: no room, or failing.
    #[error(
        "{0}; nothing of the change was kept: make room or look at the disk, the ledger goes on by itself"
    )]
    Storage(#[from] DiskError),
    /// The change set is too large.
    #[error("a change set of {bytes} bytes is larger than {} bytes", record::MAX_BODY)]
    TooLarge {
        /// Its encoded size.
        bytes: usize,
    },
}

/// Why the materialised state is not durable yet. No commit is lost by it, and the next flush tries again.
#[derive(Debug, thiserror::Error)]
pub enum FlushError {
    /// sled failed; it is opened again with back-off.
    #[error("sled in {}: {why}; commits go on in the journal, sled is opened again by itself", path.display())]
    Sled {
        /// The ledger's folder.
        path: PathBuf,
        /// What sled said.
        why: String,
    },
    /// The snapshot or the fresh journal could not be written; the old ones are used on.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

fn owner(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another process".into(), |pid| format!("process {pid}"))
}

// === impl Ledger ===

impl Ledger {
    /// Opens the ledger in the folder `dir`, which is created if it is absent (its parent must exist).
    ///
    /// Damaged files are put aside, and the ledger goes on with the newest state that the sound ones give; [`Opened`] tells.
    pub fn open(dir: impl AsRef<Path>, options: Options) -> Result<(Self, Opened), OpenError> {
        let root = dir.as_ref();
        match std::fs::create_dir(root) {
            Ok(()) => root.parent().filter(|p| !p.as_os_str().is_empty()).map_or(Ok(()), disk::sync_dir)?,
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(at("creating the folder", root)(e).into()),
        }
        let lock_path = root.join("lock");
        let mut lock = Lock::take(&lock_path)?;
        let Parts { dir, journal, store, contents, opened } = open::open(root, &options, &mut lock)?;
        let mark = Mark::new(&dir);
        Ok((Self { dir, journal, mark, store, contents, options, rebuilt: 0, lock }, opened))
    }

    /// Number of the last change set; 0 before the first.
    pub fn generation(&self) -> u64 {
        self.contents.generation
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&[u8]> {
        self.contents.entries.get(key).map(|e| e.value.as_slice())
    }

    /// All keys and values, in order of keys.
    pub fn records(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.contents.entries.iter().map(|(key, e)| (key.as_str(), e.value.as_slice()))
    }

    /// Makes the changes, all or none, durable; returns their generation. Changes that alter nothing are left out; if none
    /// is left nothing is written, and the present generation is returned.
    ///
    /// Costs one append and one `fdatasync`.
    pub fn commit(&mut self, changes: &[Change]) -> Result<u64, CommitError> {
        let changes = self.contents.effective(changes);
        if changes.is_empty() {
            return Ok(self.contents.generation);
        }
        self.stay_in_place()?;
        let next = self.contents.generation.saturating_add(1);
        let (record, bytes) = Record::encode(next, self.contents.chain, changes)
            .map_err(|bytes| CommitError::TooLarge { bytes })?;
        reach(Step::CommitBegun);
        self.journal.append(&bytes)?;
        self.contents.apply(&record);
        self.lock.set(self.contents.end());
        reach(Step::LockMarked);
        self.mark.set(&self.contents);
        reach(Step::Marked);
        self.store.apply(&self.contents, record.changes.iter().map(Change::key));
        reach(Step::AppliedToSled);
        if self.journal.len() > self.options.journal_limit.saturating_mul(4) {
            // The change is durable already; a cut that fails is tried again.
            let _ = self.flush();
        }
        Ok(next)
    }

    /// Makes the materialised state durable, opens sled again if it failed and its time has come, and cuts a long journal.
    ///
    /// To be called now and then (each second, say) and when nothing else is to be done; writes nothing when nothing changed.
    pub fn flush(&mut self) -> Result<(), FlushError> {
        self.stay_in_place()?;
        if self.store.is_dirty() {
            self.lock.sync();
            self.mark.sync();
            let flushed = self.store.flush(&self.contents);
            if !flushed.map_err(|why| FlushError::Sled { path: self.dir.clone(), why })? {
                return Ok(());
            }
        }
        // A journal without a record is as short as can be.
        if self.journal.len() > self.options.journal_limit.max(record::HEADER_LEN as u64) {
            self.cut_journal()?;
        }
        Ok(())
    }

    /// Why sled is not in use at present; `None` while all is well. Commits do not need it.
    pub fn fault(&self) -> Option<&str> {
        self.store.fault()
    }

    /// A snapshot, read back, and then a fresh journal that goes on from it; the pair before is kept.
    fn cut_journal(&mut self) -> Result<(), DiskError> {
        let generation = self.contents.generation;
        let header = self.contents.end();
        let path = snapshot_path(&self.dir, generation);
        disk::write_whole(&path, &snapshot::encode(&self.contents))?;
        let bytes = std::fs::read(&path).map_err(at("reading", &path))?;
        if snapshot::decode(&bytes).as_ref() != Ok(&self.contents) {
            let _ = std::fs::remove_file(&path);
            return Err(at("reading back", &path)(std::io::ErrorKind::InvalidData.into()));
        }
        reach(Step::SnapshotReadBack);
        let old = self.journal.path().to_owned();
        let journal = journal_path(&self.dir, generation);
        self.journal = Journal::create(&journal, header).inspect_err(|_| {
            // Half made it would be taken for the newest one.
            let _ = std::fs::remove_file(&journal);
        })?;
        reach(Step::JournalCut);
        self.remove_older_than(&old)
    }

    fn remove_older_than(&self, journal: &Path) -> Result<(), DiskError> {
        let journals = numbered(&self.dir, "journal-")?;
        let Some(oldest) = journals.iter().find(|(_, path)| *path == journal).map(|(g, _)| *g) else {
            return Ok(());
        };
        let current = self.contents.generation;
        let unneeded = |generation: u64| generation < oldest || (generation > oldest && generation < current);
        for (generation, path) in journals.into_iter().chain(numbered(&self.dir, "snapshot-")?) {
            if unneeded(generation) {
                std::fs::remove_file(&path).map_err(at("removing", &path))?;
                reach(Step::OlderRemoved);
            }
        }
        disk::sync_dir(&self.dir)
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        // What this fails to write is replayed from the journal.
        let _ = self.flush();
    }
}

// === impl Options ===

impl Default for Options {
    /// A journal of 256 KiB; sled again after 100 ms to 30 s.
    fn default() -> Self {
        Self {
            journal_limit: 256 << 10,
            reopen_backoff: (Duration::from_millis(100), Duration::from_secs(30)),
        }
    }
}

// === impl Change ===

impl Change {
    /// The key that changes.
    pub fn key(&self) -> &str {
        match self {
            Self::Put(key, _) | Self::Delete(key) => key,
        }
    }
}

// === impl Damage ===

impl Damage {
    pub(crate) fn new(witness: Witness, detail: String) -> Self {
        Self { witness, detail }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.witness.as_str(), self.detail)
    }
}

// === impl Witness ===

impl Witness {
    /// A stable name: "journal", "sled", "snapshot", "mark".
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Journal => "journal",
            Self::Sled => "sled",
            Self::Snapshot => "snapshot",
            Self::Mark => "mark",
        }
    }
}
