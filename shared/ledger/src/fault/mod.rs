//! The steps at which a process can die. This crate's own tests end it there as `kill -9` does; in every other build they
//! are nothing.

#[cfg(test)]
mod armed;
#[cfg(test)]
mod tests;

#[cfg(test)]
pub(crate) use armed::{reach, reach_with, sync_data};

/// A step of a commit, of a cut or of an opening, named by what has just been done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// A change set is about to be appended.
    CommitBegun,
    /// Half of it is in the journal.
    HalfAppended,
    /// All of it is, not synced.
    Appended,
    /// It is synced: durable, and not yet acknowledged.
    AppendSynced,
    /// The lock file's mark tells of it.
    LockMarked,
    /// The store's mark tells of it.
    Marked,
    /// sled has it in memory.
    AppliedToSled,
    /// sled has written it to its file.
    SledFlushed,
    /// sled's file is synced.
    SledSynced,
    /// Half of a file that replaces another is written beside it.
    DraftHalfWritten,
    /// All of it is, not synced.
    DraftWritten,
    /// It is synced.
    DraftSynced,
    /// It bears its name; the folder is not synced.
    DraftRenamed,
    /// A new snapshot has been read back.
    SnapshotReadBack,
    /// The journal has been cut: a fresh one goes on from the snapshot.
    JournalCut,
    /// A file that is not needed any more is removed.
    OlderRemoved,
    /// The lock file tells of a journal anew, not synced.
    LockWritten,
    /// An unfinished record is cut off the journal.
    TailCut,
    /// sled was brought to the state that the journal gives.
    BroughtUp,
    /// Damaged sled is put aside.
    SledPutAside,
    /// A sound store lies beside a damaged one.
    StoreBuilt,
    /// The damaged store is put aside, and the sound one not yet in its place.
    StorePutAside,
    /// The sound store is in its place; the folder is not synced.
    StoreReplaced,
}

/// The process has come to `step`.
#[cfg(not(test))]
#[inline]
pub(crate) fn reach(_: Step) {}

/// The process is about to do what `step` names; a test does `part` of it and dies.
#[cfg(not(test))]
#[inline]
pub(crate) fn reach_with(_: Step, _part: impl FnOnce()) {}

/// `fdatasync`; a test has it fail.
#[cfg(not(test))]
#[inline]
pub(crate) fn sync_data(file: &std::fs::File) -> std::io::Result<()> {
    file.sync_data()
}
