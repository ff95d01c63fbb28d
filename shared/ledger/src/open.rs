//! Opening: read both witnesses, judge, and either go on or quarantine and rebuild.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::contents::Contents;
use crate::disk::{DiskError, at, remove_drafts, sync_dir, write_whole};
use crate::fault::{Step, reach};
use crate::journal::{Journal, Scan};
use crate::lock::{Former, Lock};
use crate::mark::{self, Mark, Said};
use crate::record::{HEADER_LEN, Header};
use crate::snapshot;
use crate::store::{Found, Store, attempts_path};
use crate::verdict::{Evidence, Verdict};
use crate::{Damage, OpenError, Opened, Options, Witness};

/// The folder below the ledger's that is put aside whole when it is damaged.
const STORE: &str = "store";
const DRAFT: &str = "store.new";
const SLED: &str = "sled";
/// Damaged folders kept for people to look at; older ones are removed, so that they cannot fill the disk.
const KEPT_QUARANTINES: usize = 3;

/// An opened ledger's parts.
pub(crate) struct Parts {
    pub(crate) dir: PathBuf,
    pub(crate) journal: Journal,
    pub(crate) store: Store,
    pub(crate) contents: Contents,
    pub(crate) opened: Opened,
}

/// Opens what is in `root`, of which the lock is held.
pub(crate) fn open(root: &Path, options: &Options, lock: &mut Lock) -> Result<Parts, OpenError> {
    let dir = root.join(STORE);
    let draft = root.join(DRAFT);
    if exists(&dir)? {
        if exists(&draft)? {
            std::fs::remove_dir_all(&draft).map_err(at("removing", &draft))?;
        }
    } else if is_whole(&draft)? {
        // A rebuilt folder is complete before the damaged one is put aside: a crash between both steps leaves only the draft.
        std::fs::rename(&draft, &dir).map_err(at("renaming", &draft))?;
        sync_dir(root)?;
    } else if lock.tells_of_commits() {
        let verdict = nothing_left("the store is gone: this starts from nothing".to_owned(), lock);
        return rebuild(root, verdict, options, lock);
    } else {
        // Before the store has its name: a store that has one has had both marks ever since.
        lock.establish(Header { generation: 0, chain: 0 })?;
        build(root, &Contents::default())?;
        std::fs::rename(&draft, &dir).map_err(at("renaming", &draft))?;
        sync_dir(root)?;
    }
    if !dir.is_dir() {
        let verdict = nothing_left(format!("{} is no folder", dir.display()), lock);
        return rebuild(root, verdict, options, lock);
    }
    let (store, evidence) = gather(&dir, options, lock)?;
    let verdict = evidence.judge();
    if verdict.damage.is_empty() {
        return go_on(dir, store, evidence, verdict, lock);
    }
    drop(store);
    // sled is made of what the journal has, so a sound journal goes on as it is. This needs no room: a full disk is what damages
    // sled most often.
    match verdict.damage.iter().all(|d| d.witness == Witness::Sled) {
        true => replace_sled(root, dir, options, evidence, verdict, lock),
        false => rebuild(root, verdict, options, lock),
    }
}

/// What to go on with where no store is.
fn nothing_left(what: String, lock: &Lock) -> Verdict {
    let mut contents = Contents::default();
    if let Former::Marked(end) = lock.former() {
        contents.pass(end.generation);
    }
    let damage = vec![Damage::new(Witness::Journal, what)];
    Verdict { contents, damage, replayed: 0, torn: false }
}

fn gather(dir: &Path, options: &Options, lock: &Lock) -> Result<(Store, Evidence), OpenError> {
    remove_drafts(dir)?;
    let mut journals = BTreeMap::new();
    let mut snapshots = BTreeMap::new();
    for (generation, path) in numbered(dir, "journal-")? {
        let scan = match read(&path)? {
            Some(bytes) => Scan::of(&bytes).map_err(|version| OpenError::NewerFormat { path, version })?,
            None => Scan::unreadable(),
        };
        journals.insert(generation, scan);
    }
    for (generation, path) in numbered(dir, "snapshot-")? {
        let contents = match read(&path)?.map(|bytes| snapshot::decode(&bytes)) {
            Some(Ok(contents)) => Some(contents),
            None | Some(Err(None)) => None,
            Some(Err(Some(version))) => return Err(OpenError::NewerFormat { path, version }),
        };
        snapshots.insert(generation, contents);
    }
    let marks = mark::read(dir, lock);
    let (store, sled) = Store::open(&dir.join(SLED), options.reopen_backoff);
    Ok((store, Evidence { journals, snapshots, marks, sled }))
}

/// A file's bytes; `None` where the disk or its permissions do not give them, which is damage like any other. What may pass (too
/// many open files, say) is an error.
fn read(path: &Path) -> Result<Option<Vec<u8>>, DiskError> {
    use rustix::io::Errno;
    let lasting = [Errno::IO, Errno::ACCESS, Errno::PERM, Errno::STALE, Errno::ISDIR];
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if Errno::from_io_error(&e).is_some_and(|errno| lasting.contains(&errno)) => Ok(None),
        Err(e) => Err(at("reading", path)(e)),
    }
}

fn go_on(
    dir: PathBuf,
    mut store: Store,
    evidence: Evidence,
    verdict: Verdict,
    lock: &mut Lock,
) -> Result<Parts, OpenError> {
    let Verdict { contents, damage, replayed, torn } = verdict;
    let (start, scan) = evidence.journals.last_key_value().unzip();
    let path = journal_path(&dir, start.copied().unwrap_or(0));
    let journal = Journal::open(&path, scan.map_or(0, |s| s.sound_len))?;
    bring_up_marks(&dir, evidence.marks, &contents, lock);
    if evidence.sled != Found::Sound(contents.clone()) {
        store.bring_to(&contents);
    }
    let opened =
        Opened { generation: contents.generation, replayed, torn_tail: torn, damage, quarantined: None };
    Ok(Parts { dir, journal, store, contents, opened })
}

/// Before sled is brought up, which they are never behind. A disk that refuses is no reason not to open.
fn bring_up_marks(dir: &Path, found: [Said; 2], contents: &Contents, lock: &mut Lock) {
    let [beside, within] = found;
    let now = Said::End(contents.end());
    let has_mark = match within {
        _ if within == now => true,
        // Where it is, so that it needs no room.
        Said::End(_) => {
            let mut mark = Mark::new(dir);
            mark.set(contents);
            mark.sync();
            true
        }
        Said::Nothing | Said::Flaw(_) => mark::create(dir, contents).is_ok(),
    };
    // The lock file's makes it a folder of this version, which has both.
    if has_mark && beside != now {
        let _ = lock.establish(contents.end());
    }
}

/// Puts only sled aside and fills a fresh one.
fn replace_sled(
    root: &Path,
    dir: PathBuf,
    options: &Options,
    evidence: Evidence,
    verdict: Verdict,
    lock: &mut Lock,
) -> Result<Parts, OpenError> {
    let sled = dir.join(SLED);
    let bad = unused_quarantine(root, verdict.contents.generation)?;
    let quarantined = match std::fs::rename(&sled, &bad) {
        Ok(()) => Some(bad),
        Err(_) if !exists(&sled)? => None,
        Err(_) => {
            std::fs::remove_dir_all(&sled).map_err(at("removing the damaged", &sled))?;
            None
        }
    };
    reach(Step::SledPutAside);
    let _ = std::fs::remove_file(attempts_path(&sled));
    forget_old_quarantines(root, KEPT_QUARANTINES);
    let (store, _) = Store::open(&sled, options.reopen_backoff);
    let mut parts = go_on(dir, store, evidence, verdict, lock)?;
    // Not needed, but until it is done the next opening would find a sled that is older than the journal.
    let _ = parts.store.flush(&parts.contents);
    parts.opened.quarantined = quarantined;
    Ok(parts)
}

/// Builds a sound folder beside the damaged one, and then swaps them.
fn rebuild(root: &Path, verdict: Verdict, options: &Options, lock: &mut Lock) -> Result<Parts, OpenError> {
    let dir = root.join(STORE);
    let Verdict { contents, damage, torn, .. } = verdict;
    if build(root, &contents).is_err() {
        // Room for what is sound counts more than what was damaged before.
        forget_old_quarantines(root, 0);
        build(root, &contents)?;
    }
    reach(Step::StoreBuilt);
    let bad = swap(root, contents.generation)?;
    // After it, so that a process that ends in between leaves a lock file from which the damage is told once more.
    let _ = lock.establish(contents.end());
    let (journal, store) = fill(&dir, &contents, options)?;
    let opened =
        Opened { generation: contents.generation, replayed: 0, torn_tail: torn, damage, quarantined: bad };
    Ok(Parts { dir, journal, store, contents, opened })
}

/// What a running ledger goes on with.
pub(crate) struct Anew {
    pub(crate) journal: Journal,
    pub(crate) store: Store,
}

/// Builds the store of a running ledger anew, whatever is left of it.
pub(crate) fn build_anew(root: &Path, contents: &Contents, options: &Options) -> Result<Anew, DiskError> {
    build(root, contents)?;
    swap(root, contents.generation)?;
    let (journal, store) = fill(&root.join(STORE), contents, options)?;
    Ok(Anew { journal, store })
}

/// The draft takes the store's place; gives where the old one lies now, if there was one.
fn swap(root: &Path, generation: u64) -> Result<Option<PathBuf>, DiskError> {
    let dir = root.join(STORE);
    let draft = root.join(DRAFT);
    let bad = unused_quarantine(root, generation)?;
    let there = exists(&dir)?;
    if there {
        std::fs::rename(&dir, &bad).map_err(at("putting aside", &dir))?;
    }
    reach(Step::StorePutAside);
    std::fs::rename(&draft, &dir).map_err(at("renaming", &draft))?;
    reach(Step::StoreReplaced);
    sync_dir(root)?;
    forget_old_quarantines(root, KEPT_QUARANTINES);
    Ok(there.then_some(bad))
}

/// Opens a store just built, and fills its sled.
fn fill(dir: &Path, contents: &Contents, options: &Options) -> Result<(Journal, Store), DiskError> {
    let (mut store, _) = Store::open(&dir.join(SLED), options.reopen_backoff);
    store.bring_to(contents);
    let _ = store.flush(contents);
    let journal = Journal::open(&journal_path(dir, contents.generation), HEADER_LEN as u64)?;
    Ok((journal, store))
}

/// A folder of `contents` under the name of a draft, durable, and complete but for sled, which is filled from it.
fn build(root: &Path, contents: &Contents) -> Result<(), DiskError> {
    let draft = root.join(DRAFT);
    if exists(&draft)? {
        std::fs::remove_dir_all(&draft).map_err(at("removing", &draft))?;
    }
    std::fs::create_dir(&draft).map_err(at("creating", &draft))?;
    write_whole(&snapshot_path(&draft, contents.generation), &snapshot::encode(contents))?;
    mark::create(&draft, contents)?;
    // The last one: with it the draft is whole.
    write_whole(&journal_path(&draft, contents.generation), &contents.end().encode())?;
    sync_dir(root)?;
    Ok(())
}

/// Whether [`build`] came to its end there.
fn is_whole(draft: &Path) -> Result<bool, DiskError> {
    Ok(draft.is_dir() && !numbered(draft, "journal-")?.is_empty())
}

pub(crate) fn journal_path(dir: &Path, generation: u64) -> PathBuf {
    dir.join(format!("journal-{generation}"))
}

pub(crate) fn snapshot_path(dir: &Path, generation: u64) -> PathBuf {
    dir.join(format!("snapshot-{generation}"))
}

/// Files named `prefix` and a generation, ascending.
pub(crate) fn numbered(dir: &Path, prefix: &str) -> Result<BTreeMap<u64, PathBuf>, DiskError> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(dir).map_err(at("listing", dir))? {
        let entry = entry.map_err(at("listing", dir))?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|n| n.strip_prefix(prefix)).and_then(|n| n.parse().ok());
        // What has become a folder is as good as missing.
        if let Some(number) = number
            && entry.file_type().map_err(at("examining", dir))?.is_file()
        {
            found.insert(number, entry.path());
        }
    }
    Ok(found)
}

fn exists(path: &Path) -> Result<bool, DiskError> {
    path.try_exists().map_err(at("examining", path))
}

fn unused_quarantine(root: &Path, generation: u64) -> Result<PathBuf, DiskError> {
    let plain = root.join(format!("{STORE}.bad-{generation}"));
    if !exists(&plain)? {
        return Ok(plain);
    }
    let mut nth = 2;
    loop {
        let path = root.join(format!("{STORE}.bad-{generation}-{nth}"));
        if !exists(&path)? {
            return Ok(path);
        }
        nth += 1;
    }
}

fn forget_old_quarantines(root: &Path, keep: usize) {
    let Ok(entries) = std::fs::read_dir(root) else { return };
    let prefix = format!("{STORE}.bad-");
    let mut kept: Vec<_> = entries
        .flatten()
        .filter(|e| e.file_name().to_string_lossy().starts_with(&prefix))
        .filter_map(|e| Some((e.metadata().ok()?.modified().ok()?, e.path())))
        .collect();
    kept.sort();
    let surplus = kept.len().saturating_sub(keep);
    for (_, path) in kept.into_iter().take(surplus) {
        let _ = std::fs::remove_dir_all(&path).or_else(|_| std::fs::remove_file(&path));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_disk_does_not_give_is_damage_and_what_may_pass_is_an_error() {
        // The first page of a process is never mapped: reading it gives EIO, as a bad sector does.
        assert_eq!(read(Path::new("/proc/self/mem")).unwrap(), None);
        assert!(read(Path::new("/no/such/file")).is_err());
    }
}
