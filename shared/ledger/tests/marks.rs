//! The last change sets of a process that was killed at once: sled has not seen them, and whoever takes them from the journal takes
//! the marks with them. It is told of all the same.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::fs;
use std::path::Path;

use oxalyst_ledger::{Change, Ledger, Opened, Options, Witness};
use tempfile::TempDir;

const MARKS: [&str; 2] = ["lock", "store/mark"];

fn put(ledger: &mut Ledger, key: &str) -> u64 {
    ledger.commit(&[Change::Put(key.to_owned(), b"cpus=0-3".to_vec())]).unwrap()
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).unwrap()),
        }
    }
}

fn copied(from: &TempDir) -> TempDir {
    let to = tempfile::tempdir().unwrap();
    copy(from.path(), to.path());
    to
}

/// What a process left that was killed right after its last answer, and what it would have left before its last two change sets.
fn killed() -> (TempDir, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let (mut ledger, _) = Ledger::open(dir.path(), Options::default()).unwrap();
    for n in 0..4 {
        put(&mut ledger, &format!("a{n}"));
    }
    ledger.flush().unwrap();
    let earlier = copied(&dir);
    put(&mut ledger, "b");
    assert_eq!(put(&mut ledger, "last"), LAST);
    (copied(&dir), earlier)
}

const LAST: u64 = 6;

fn open(dir: &Path) -> (bool, Opened) {
    let (ledger, opened) = Ledger::open(dir, Options::default()).unwrap();
    let is_there = ledger.get("last").is_some();
    assert!(is_there || opened.damage.is_empty() || opened.generation > LAST, "{opened:?}");
    (is_there, opened)
}

fn witnesses(opened: &Opened) -> Vec<Witness> {
    opened.damage.iter().map(|d| d.witness).collect()
}

fn cut_journal(dir: &Path) {
    let journal = fs::OpenOptions::new().write(true).open(dir.join("store/journal-0")).unwrap();
    journal.set_len(journal.metadata().unwrap().len() - 5).unwrap();
}

type Harm = fn(&Path);
const HARMS: [(&str, Harm); 6] = [
    ("removed", |mark| fs::remove_file(mark).unwrap()),
    ("flipped", |mark| {
        let mut bytes = fs::read(mark).unwrap();
        bytes[3] ^= 4;
        fs::write(mark, bytes).unwrap();
    }),
    ("cut", |mark| fs::OpenOptions::new().write(true).open(mark).unwrap().set_len(3).unwrap()),
    ("emptied", |mark| fs::write(mark, b"").unwrap()),
    ("random", |mark| fs::write(mark, [7; 50]).unwrap()),
    ("longer", |mark| fs::write(mark, [&fs::read(mark).unwrap()[..], b"\n"].concat()).unwrap()),
];

#[test]
fn what_a_killed_process_left_is_no_damage() {
    let (left, _) = killed();
    let (is_there, opened) = open(left.path());
    assert_eq!((is_there, opened.damage), (true, vec![]));
    assert!(opened.replayed > 0, "sled has not seen the last one");
}

#[test]
fn r08_a_harmed_mark_is_damage_that_is_put_aside_and_costs_nothing() {
    let (left, _) = killed();
    for mark in MARKS {
        for (how, harm) in HARMS {
            let work = copied(&left);
            harm(&work.path().join(mark));
            let (is_there, opened) = open(work.path());
            assert!(is_there, "{mark} {how}");
            assert_eq!(witnesses(&opened), [Witness::Mark], "{mark} {how}");
            assert!(opened.quarantined.is_some_and(|bad| bad.is_dir()));
            let (is_there, again) = open(work.path());
            assert_eq!((is_there, again.damage), (true, vec![]), "{mark} {how}: told once");
        }
    }
}

#[test]
fn r08_a_shortened_journal_is_told_of_with_one_mark_or_both_harmed() {
    let (left, _) = killed();
    for marks in [&MARKS[..1], &MARKS[1..], &MARKS] {
        for (how, harm) in HARMS {
            let work = copied(&left);
            cut_journal(work.path());
            marks.iter().for_each(|mark| harm(&work.path().join(mark)));
            let (is_there, opened) = open(work.path());
            assert!(!is_there && !opened.damage.is_empty(), "{marks:?} {how}: {opened:?}");
        }
    }
}

fn bring_back(earlier: &Path, work: &Path, part: &str) {
    let (old, new) = (earlier.join(part), work.join(part));
    if old.is_dir() {
        fs::remove_dir_all(&new).unwrap();
        copy(&old, &new);
    } else {
        fs::copy(old, new).unwrap();
    }
}

#[test]
fn r08_parts_of_an_earlier_time_are_told_of_where_they_cost_something() {
    let (left, earlier) = killed();
    let costly: [&[&str]; 6] = [
        &["store/journal-0"],
        &["store/journal-0", "store/mark"],
        &["store/journal-0", "lock"],
        &["store"],
        &["store/sled", "store/journal-0", "store/mark"],
        &["store/sled", "store/journal-0", "lock"],
    ];
    for parts in costly {
        let work = copied(&left);
        parts.iter().for_each(|part| bring_back(earlier.path(), work.path(), part));
        let (is_there, opened) = open(work.path());
        assert!(!is_there && !opened.damage.is_empty(), "{parts:?}: {opened:?}");
    }
    for part in ["lock", "store/mark", "store/sled"] {
        let work = copied(&left);
        bring_back(earlier.path(), work.path(), part);
        assert!(open(work.path()).0, "{part}");
    }
}

#[test]
fn r08_a_mark_behind_what_was_flushed_is_damage() {
    let (left, earlier) = killed();
    let (mut ledger, _) = Ledger::open(left.path(), Options::default()).unwrap();
    put(&mut ledger, "later");
    drop(ledger);
    for mark in MARKS {
        let work = copied(&left);
        bring_back(earlier.path(), work.path(), mark);
        let (is_there, opened) = open(work.path());
        assert_eq!((is_there, witnesses(&opened)), (true, vec![Witness::Mark]), "{mark}");
    }
}

#[test]
fn the_lock_file_of_another_ledger_is_damage() {
    let (left, _) = killed();
    let (other, work) = (tempfile::tempdir().unwrap(), copied(&left));
    let (mut ledger, _) = Ledger::open(other.path(), Options::default()).unwrap();
    for n in 0..LAST {
        put(&mut ledger, &format!("other {n}"));
    }
    drop(ledger);
    bring_back(other.path(), work.path(), "lock");
    let (is_there, opened) = open(work.path());
    assert_eq!((is_there, witnesses(&opened)), (true, vec![Witness::Mark]));
}

/// What the version with one mark left when it was killed after 15 change sets. It never changes.
#[test]
fn the_golden_folder_of_the_version_with_one_mark_opens_without_damage() {
    let dir = tempfile::tempdir().unwrap();
    copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/one-mark"), dir.path());
    for _ in 0..2 {
        let (ledger, opened) = Ledger::open(dir.path(), Options::default()).unwrap();
        assert_eq!((opened.damage, opened.generation), (vec![], 15));
        let values: Vec<_> = ledger.records().map(|(key, value)| (key.to_owned(), value.to_vec())).collect();
        let mut written: Vec<_> = (1..=15).map(|n| (format!("k{n}"), n.to_string().into_bytes())).collect();
        written.sort();
        assert_eq!(values, written);
    }
}

/// That version wrote the process id alone into the lock file, and a mark only with the first commit in a store.
#[test]
fn a_folder_of_the_version_before_opens_without_damage_and_has_both_marks_from_then_on() {
    let (left, earlier) = killed();
    for mark in ["as it is", "older", "missing"] {
        let work = copied(&left);
        fs::write(work.path().join("lock"), "4711\n").unwrap();
        match mark {
            "older" => bring_back(earlier.path(), work.path(), "store/mark"),
            "missing" => fs::remove_file(work.path().join("store/mark")).unwrap(),
            _ => {}
        }
        let (is_there, opened) = open(work.path());
        assert_eq!((is_there, opened.damage, opened.generation), (true, vec![], LAST), "mark {mark}");
        let after = copied(&work);
        for harmed in MARKS {
            let again = copied(&after);
            fs::remove_file(again.path().join(harmed)).unwrap();
            assert_eq!(witnesses(&open(again.path()).1), [Witness::Mark], "mark {mark}, {harmed}");
        }
        // And back: it writes the lock file as it did, and takes its commits on.
        fs::write(work.path().join("lock"), "4712\n").unwrap();
        assert_eq!(open(work.path()).1.damage, []);
    }
    let work = copied(&left);
    fs::write(work.path().join("lock"), "4711\n").unwrap();
    cut_journal(work.path());
    assert!(!open(work.path()).1.damage.is_empty(), "its one mark tells as before");
}

/// A file whose name no ledger comes to is somebody else's: it leaves generations to come, and what is acknowledged is durable.
#[test]
fn a_file_of_an_impossible_generation_is_put_aside_and_commits_go_on_being_durable() {
    for name in ["journal-18446744073709551615", "snapshot-18446744073709551614"] {
        let (left, _) = killed();
        fs::write(left.path().join("store").join(name), "x").unwrap();
        let (mut ledger, opened) = Ledger::open(left.path(), Options::default()).unwrap();
        assert!(!opened.damage.is_empty(), "{name}");
        let generation = put(&mut ledger, "later");
        assert!(generation < u64::MAX / 2, "{generation}");
        assert!(put(&mut ledger, "thereafter") > generation);
        drop(ledger);
        let (ledger, opened) = Ledger::open(left.path(), Options::default()).unwrap();
        assert_eq!(opened.damage, [], "{name} is aside");
        let keys: Vec<_> = ledger.records().map(|(key, _)| key.to_owned()).collect();
        assert!(keys.contains(&"later".to_owned()) && keys.contains(&"thereafter".to_owned()), "{keys:?}");
    }
}
