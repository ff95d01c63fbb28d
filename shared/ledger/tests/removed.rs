//! The folder is removed or replaced, under a running process or while none runs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use oxalyst_ledger::{Change, CommitError, Ledger, Options, Witness};
use std::path::Path;
use tempfile::TempDir;

fn open(dir: &Path) -> Ledger {
    let (ledger, opened) = Ledger::open(dir, Options::default()).unwrap();
    assert_eq!(opened.damage, []);
    ledger
}

fn put(ledger: &mut Ledger, key: &str) -> Result<u64, CommitError> {
    ledger.commit(&[Change::Put(key.to_owned(), b"value".to_vec())])
}

fn keys(ledger: &Ledger) -> Vec<String> {
    ledger.records().map(|(key, _)| key.to_owned()).collect()
}

/// A folder in a folder, so that the whole of it can be removed.
fn home() -> (TempDir, std::path::PathBuf) {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("ledger");
    (home, dir)
}

#[test]
fn a_folder_that_is_removed_under_the_ledger_is_built_anew_and_nothing_is_lost() {
    let (_home, dir) = home();
    let mut ledger = open(&dir);
    put(&mut ledger, "a").unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    assert_eq!(put(&mut ledger, "b").unwrap(), 2);
    assert_eq!(ledger.rebuilt(), 1);
    put(&mut ledger, "c").unwrap();
    assert_eq!(ledger.rebuilt(), 1, "once is enough");
    ledger.flush().unwrap();
    drop(ledger);
    assert_eq!(keys(&open(&dir)), ["a", "b", "c"]);
}

#[test]
fn a_removed_folder_is_noticed_without_a_commit_too() {
    let (_home, dir) = home();
    let mut ledger = open(&dir);
    put(&mut ledger, "a").unwrap();
    std::fs::remove_dir_all(dir.join("store")).unwrap();
    ledger.flush().unwrap();
    assert_eq!(ledger.rebuilt(), 1);
    drop(ledger);
    assert_eq!(keys(&open(&dir)), ["a"]);
}

#[test]
fn a_folder_that_another_process_took_meanwhile_is_not_written() {
    let (_home, dir) = home();
    let mut first = open(&dir);
    put(&mut first, "a").unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    let second = open(&dir);
    let refused = put(&mut first, "b").unwrap_err();
    assert!(matches!(refused, CommitError::Storage(_)), "{refused}");
    assert!(refused.to_string().contains("locked"), "{refused}");
    assert_eq!(keys(&first), ["a"]);
    drop(second);
    put(&mut first, "b").unwrap();
}

#[test]
fn a_store_that_was_removed_while_nobody_ran_is_told_of() {
    let (_home, dir) = home();
    put(&mut open(&dir), "a").unwrap();
    std::fs::remove_dir_all(dir.join("store")).unwrap();
    let (ledger, opened) = Ledger::open(&dir, Options::default()).unwrap();
    assert_eq!(opened.damage.iter().map(|d| d.witness).collect::<Vec<_>>(), [Witness::Journal]);
    // The lock file tells how far it had come: that is not used again.
    assert_eq!((opened.generation, opened.quarantined), (2, None));
    assert_eq!(keys(&ledger), [""; 0]);
    drop(ledger);
    open(&dir);
}
