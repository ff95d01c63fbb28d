//! The materialised state in sled: the second witness.
//!
//! sled never decides over a commit: the journal does. If sled fails, the state in memory stands, and sled is closed,
//! opened again with back-off and brought up to it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use oxalyst_backoff::Backoff;

use crate::contents::Contents;
use crate::disk::{at, sync_dir};
use crate::envelope::{MANIFEST_KEY, Manifest, own_key, record_key, unwrap, wrap};
use crate::fault::{Step, reach};

/// Attempts to read a store, none of which came to an end, after which it counts as damaged.
const MAX_ATTEMPTS: usize = 3;

/// The ledger's own lock is held, so sled's is held by nobody who stays: by a thread of a sled that was closed just now and has a write
/// to end, or by a child that has not executed yet. So long they are waited for.
const UNLOCKED_WITHIN: Duration = Duration::from_secs(2);

/// sled, or the wait for it.
#[derive(Debug)]
pub(crate) struct Store {
    dir: PathBuf,
    db: Option<sled::Db>,
    /// What sled holds is not what the file holds.
    dirty: bool,
    backoff: Backoff,
    retry_at: Option<Instant>,
    fault: Option<String>,
}

/// Holds a byte for each attempt to read the sled in `dir` that has not come to an end.
pub(crate) fn attempts_path(dir: &Path) -> PathBuf {
    dir.with_extension("attempts")
}

/// What was found in sled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found {
    /// Sound in itself; whether it is the newest state only the journal knows.
    Sound(Contents),
    Damaged(String),
    /// It could not be opened just now (no room, a lock): it says nothing for or against the journal.
    Unavailable(String),
}

// === impl Store ===

impl Store {
    /// Opens (or creates) sled in `dir` and reads all of it.
    ///
    /// sled can panic, and in an aborting process end it, over damaged files. `attempts` beside the store counts openings that did
    /// not come to an end, so that such a store is given up instead of ending the process again and again.
    pub(crate) fn open(dir: &Path, backoff: (Duration, Duration)) -> (Self, Found) {
        let mut store = Self {
            dir: dir.to_owned(),
            db: None,
            dirty: false,
            backoff: Backoff::new(backoff.0, backoff.1),
            retry_at: None,
            fault: None,
        };
        let marker = attempts_path(dir);
        let attempts = std::fs::read(&marker).map_or(0, |m| m.len());
        if attempts >= MAX_ATTEMPTS {
            return (store, Found::Damaged(format!("{attempts} attempts to read it did not come to an end")));
        }
        // A full disk must not keep the owner from its ledger.
        let _ = std::fs::write(&marker, vec![b'.'; attempts + 1]);
        let found = match open_db(dir, UNLOCKED_WITHIN) {
            Ok(db) => {
                let found = guarded(|| read(&db)).unwrap_or_else(Found::Damaged);
                store.db = Some(db);
                found
            }
            Err(Unopened::Damaged(why)) => Found::Damaged(why),
            Err(Unopened::Unavailable(why)) => {
                store.give_up(why.clone());
                Found::Unavailable(why)
            }
        };
        let _ = std::fs::remove_file(&marker);
        (store, found)
    }

    /// Why sled is not in use at present.
    pub(crate) fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// Whether [`Store::flush`] has something to do.
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty || self.db.is_none()
    }

    /// Writes the keys that a commit changed, and the manifest, in one batch; not yet durable.
    pub(crate) fn apply<'a>(&mut self, contents: &Contents, changed: impl Iterator<Item = &'a str>) {
        let Some(db) = &self.db else { return };
        let mut batch = sled::Batch::default();
        for key in changed {
            match contents.entries.get(key) {
                Some(entry) => batch.insert(record_key(key), wrap(key, entry)),
                None => batch.remove(record_key(key)),
            }
        }
        batch.insert(MANIFEST_KEY, Manifest::of(contents).encode());
        self.dirty = true;
        if let Err(why) = guarded(|| db.apply_batch(batch)).and_then(|r| r.map_err(|e| e.to_string())) {
            self.give_up(why);
        }
    }

    /// Makes sled durable as `contents`; opens it again first if it failed before and its time has come.
    /// `Ok(false)`: its time has not come.
    pub(crate) fn flush(&mut self, contents: &Contents) -> Result<bool, String> {
        if self.db.is_none() {
            if self.retry_at.is_some_and(|at| Instant::now() < at) {
                return Ok(false);
            }
            self.reopen(contents)?;
        }
        if !self.dirty {
            return Ok(true);
        }
        let Some(db) = &self.db else { return Ok(false) };
        // sled ends in sync_file_range, which survives no power cut.
        let flushed = guarded(|| db.flush())
            .and_then(|r| r.map_err(|e| e.to_string()))
            .inspect(|_| reach(Step::SledFlushed))
            .and_then(|_| sync_files(&self.dir))
            .inspect(|()| reach(Step::SledSynced));
        match flushed {
            Ok(()) => {
                self.dirty = false;
                self.fault = None;
                self.backoff.reset();
                Ok(true)
            }
            Err(why) => {
                self.give_up(why.clone());
                Err(why)
            }
        }
    }

    /// Makes sled hold exactly `contents`, whatever it held.
    pub(crate) fn bring_to(&mut self, contents: &Contents) {
        let Some(db) = &self.db else { return };
        self.dirty = true;
        let replaced = guarded(|| replace(db, contents)).and_then(|r| r.map_err(|e| e.to_string()));
        if let Err(why) = replaced {
            self.give_up(why);
        }
        reach(Step::BroughtUp);
    }

    fn reopen(&mut self, contents: &Contents) -> Result<(), String> {
        // Commits do not wait for it.
        match open_db(&self.dir, Duration::ZERO) {
            Ok(db) => self.db = Some(db),
            Err(Unopened::Unavailable(why)) => self.give_up(why),
            Err(Unopened::Damaged(why)) => {
                // All it held is in memory and in the journal; a fresh one takes its place.
                let _ = std::fs::remove_dir_all(&self.dir);
                self.give_up(why);
            }
        }
        self.bring_to(contents);
        match (&self.db, &self.fault) {
            (None, Some(why)) => Err(why.clone()),
            _ => Ok(()),
        }
    }

    /// After one failed write sled refuses all others: it is closed, and opened again later.
    fn give_up(&mut self, why: String) {
        if let Some(db) = self.db.take() {
            let _ = guarded(|| drop(db));
        }
        self.dirty = true;
        self.fault = Some(why);
        self.retry_at = Some(Instant::now() + self.backoff.next_delay());
    }
}

enum Unopened {
    /// A lock, permissions, no room: may pass.
    Unavailable(String),
    Damaged(String),
}

fn open_db(dir: &Path, patience: Duration) -> Result<sled::Db, Unopened> {
    let config = sled::Config::new()
        .path(dir)
        .mode(sled::Mode::LowSpace)
        .segment_size(64 << 10)
        .cache_capacity(1 << 20)
        .flush_every_ms(None);
    let end = Instant::now() + patience;
    let opened = loop {
        match guarded(|| config.open()) {
            Ok(Err(sled::Error::Io(e))) if is_locked(&e) && Instant::now() < end => {
                std::thread::park_timeout(Duration::from_millis(2));
            }
            opened => break opened,
        }
    };
    match opened {
        Ok(Ok(db)) => Ok(db),
        Ok(Err(sled::Error::Io(e))) => match e.kind() {
            // Cut short, or a file in the place of its folder.
            ErrorKind::UnexpectedEof | ErrorKind::AlreadyExists | ErrorKind::NotADirectory => {
                Err(Unopened::Damaged(e.to_string()))
            }
            _ => Err(Unopened::Unavailable(e.to_string())),
        },
        Ok(Err(e)) => Err(Unopened::Damaged(e.to_string())),
        Err(why) => Err(Unopened::Damaged(why)),
    }
}

/// sled says it in words only.
fn is_locked(error: &std::io::Error) -> bool {
    error.kind() == ErrorKind::Other && error.to_string().contains("could not acquire lock")
}

fn replace(db: &sled::Db, contents: &Contents) -> sled::Result<()> {
    let mut batch = sled::Batch::default();
    for key in db.iter().keys() {
        let key = key?;
        if own_key(&key).is_none_or(|own| !contents.entries.contains_key(own)) {
            batch.remove(key);
        }
    }
    for (key, entry) in &contents.entries {
        batch.insert(record_key(key), wrap(key, entry));
    }
    batch.insert(MANIFEST_KEY, Manifest::of(contents).encode());
    db.apply_batch(batch)
}

fn read(db: &sled::Db) -> Found {
    let mut entries = BTreeMap::new();
    let mut manifest = None;
    for item in db.iter() {
        let (key, value) = match item {
            Ok(item) => item,
            Err(e) => return Found::Damaged(e.to_string()),
        };
        if key == MANIFEST_KEY {
            match Manifest::decode(&value) {
                Some(m) => manifest = Some(m),
                None => return Found::Damaged("its manifest is broken".into()),
            }
            continue;
        }
        let Some(own) = own_key(&key) else { return Found::Damaged("it holds a foreign key".into()) };
        let Some(entry) = unwrap(own, &value) else {
            return Found::Damaged(format!("the record {own} is broken"));
        };
        entries.insert(own.to_owned(), entry);
    }
    match manifest {
        Some(m) => {
            let contents = Contents::new(m.generation, m.chain, entries);
            match Manifest::of(&contents) == m {
                true => Found::Sound(contents),
                false => Found::Damaged("its records are not those of its manifest".into()),
            }
        }
        None if entries.is_empty() => Found::Sound(Contents::default()),
        None => Found::Damaged("it has records and no manifest".into()),
    }
}

/// sled panics over some damage; a panic is an error like any other here.
fn guarded<T>(f: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given");
        format!("sled panicked: {text}")
    })
}

fn sync_files(dir: &Path) -> Result<(), String> {
    let db = dir.join("db");
    let synced = File::open(&db).and_then(|f| f.sync_data()).map_err(at("syncing", &db));
    synced.and_then(|()| sync_dir(dir)).map_err(|e| e.to_string())
}
