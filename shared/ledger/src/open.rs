//! Opening: read both witnesses, judge, and either go on or quarantine and rebuild.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::contents::Contents;
use crate::disk::{DiskError, at, remove_drafts, sync_dir, write_whole};
use crate::journal::{Journal, Scan};
use crate::record::Header;
use crate::snapshot;
use crate::store::{Found, Store};
use crate::verdict::{Evidence, Verdict};
use crate::{OpenError, Opened, Options};

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

pub(crate) fn open(root: &Path, options: &Options) -> Result<Parts, OpenError> {
    let dir = root.join(STORE);
    let draft = root.join(DRAFT);
    if !exists(&dir)? {
        // A rebuilt folder is complete before the damaged one is put aside: a crash between both steps leaves only the draft.
        if exists(&draft)? {
            std::fs::rename(&draft, &dir).map_err(at("renaming", &draft))?;
            sync_dir(root)?;
        } else {
            build(root, &Contents::default(), options)?;
            std::fs::rename(&draft, &dir).map_err(at("renaming", &draft))?;
            sync_dir(root)?;
        }
    } else if exists(&draft)? {
        std::fs::remove_dir_all(&draft).map_err(at("removing", &draft))?;
    }
    let (store, evidence) = gather(&dir, options)?;
    let verdict = evidence.judge();
    match verdict.damage.is_empty() {
        true => go_on(dir, store, evidence, verdict),
        false => {
            drop(store);
            rebuild(root, verdict, options)
        }
    }
}

fn gather(dir: &Path, options: &Options) -> Result<(Store, Evidence), OpenError> {
    remove_drafts(dir)?;
    let mut journals = BTreeMap::new();
    let mut snapshots = BTreeMap::new();
    for (generation, path) in numbered(dir, "journal-")? {
        let bytes = std::fs::read(&path).map_err(at("reading", &path))?;
        let scan = Scan::of(&bytes).map_err(|version| OpenError::NewerFormat { path, version })?;
        journals.insert(generation, scan);
    }
    for (generation, path) in numbered(dir, "snapshot-")? {
        let bytes = std::fs::read(&path).map_err(at("reading", &path))?;
        let contents = match snapshot::decode(&bytes) {
            Ok(contents) => Some(contents),
            Err(None) => None,
            Err(Some(version)) => return Err(OpenError::NewerFormat { path, version }),
        };
        snapshots.insert(generation, contents);
    }
    let (store, sled) = Store::open(&dir.join(SLED), options.reopen_backoff);
    Ok((store, Evidence { journals, snapshots, sled }))
}

fn go_on(dir: PathBuf, mut store: Store, evidence: Evidence, verdict: Verdict) -> Result<Parts, OpenError> {
    let Verdict { contents, damage, replayed, torn } = verdict;
    let (start, scan) = evidence.journals.last_key_value().unzip();
    let path = journal_path(&dir, start.copied().unwrap_or(0));
    let journal = Journal::open(&path, scan.map_or(0, |s| s.sound_len))?;
    if evidence.sled != Found::Sound(contents.clone()) {
        store.bring_to(&contents);
    }
    let opened =
        Opened { generation: contents.generation, replayed, torn_tail: torn, damage, quarantined: None };
    Ok(Parts { dir, journal, store, contents, opened })
}

/// Builds a sound folder beside the damaged one, and then swaps them.
fn rebuild(root: &Path, verdict: Verdict, options: &Options) -> Result<Parts, OpenError> {
    let dir = root.join(STORE);
    let draft = root.join(DRAFT);
    let Verdict { contents, damage, torn, .. } = verdict;
    build(root, &contents, options)?;
    let bad = unused_quarantine(root, contents.generation)?;
    std::fs::rename(&dir, &bad).map_err(at("putting aside", &dir))?;
    std::fs::rename(&draft, &dir).map_err(at("renaming", &draft))?;
    sync_dir(root)?;
    forget_old_quarantines(root);
    let (store, evidence) = gather(&dir, options)?;
    let again = evidence.judge();
    if !again.damage.is_empty() {
        return Err(OpenError::Unusable { path: dir, damage: again.damage });
    }
    let mut parts = go_on(dir, store, evidence, again)?;
    parts.opened = Opened {
        generation: contents.generation,
        replayed: 0,
        torn_tail: torn,
        damage,
        quarantined: Some(bad),
    };
    Ok(parts)
}

/// A complete folder of `contents` under the name of a draft, durable.
fn build(root: &Path, contents: &Contents, options: &Options) -> Result<(), OpenError> {
    let draft = root.join(DRAFT);
    if exists(&draft)? {
        std::fs::remove_dir_all(&draft).map_err(at("removing", &draft))?;
    }
    std::fs::create_dir(&draft).map_err(at("creating", &draft))?;
    write_whole(&snapshot_path(&draft, contents.generation), &snapshot::encode(contents))?;
    let header = Header { generation: contents.generation, chain: contents.chain };
    write_whole(&journal_path(&draft, contents.generation), &header.encode())?;
    let (mut store, _) = Store::open(&draft.join(SLED), options.reopen_backoff);
    store.bring_to(contents);
    let filled = store.flush(contents);
    drop(store);
    if let Err(why) = filled {
        let source = std::io::Error::other(why);
        return Err(DiskError { doing: "filling", path: draft.join(SLED), source }.into());
    }
    sync_dir(&draft)?;
    sync_dir(root)?;
    Ok(())
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
        if let Some(number) = number {
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

fn forget_old_quarantines(root: &Path) {
    let Ok(entries) = std::fs::read_dir(root) else { return };
    let prefix = format!("{STORE}.bad-");
    let mut kept: Vec<_> = entries
        .flatten()
        .filter(|e| e.file_name().to_string_lossy().starts_with(&prefix))
        .filter_map(|e| Some((e.metadata().ok()?.modified().ok()?, e.path())))
        .collect();
    kept.sort();
    let surplus = kept.len().saturating_sub(KEPT_QUARANTINES);
    for (_, path) in kept.into_iter().take(surplus) {
        let _ = std::fs::remove_dir_all(path);
    }
}
