//! The ledger as its owner sees it: what was acknowledged is there again, whatever happened to the files.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use oxalyst_ledger::{Change, CommitError, Ledger, OpenError, Opened, Options, Witness};

type State = BTreeMap<String, Vec<u8>>;

fn put(key: &str, value: impl Into<Vec<u8>>) -> Change {
    Change::Put(key.into(), value.into())
}

fn open(dir: &Path) -> (Ledger, Opened) {
    Ledger::open(dir, Options::default()).unwrap()
}

fn state(ledger: &Ledger) -> State {
    ledger.records().map(|(k, v)| (k.to_owned(), v.to_vec())).collect()
}

/// Commits `n` change sets; some overwrite, some delete.
fn fill(ledger: &mut Ledger, n: usize) {
    for i in 0..n {
        let from = ledger.generation();
        let mut changes = vec![put(&format!("pod/{}", from % 7), format!("{from}-{i}"))];
        if from % 5 == 4 {
            changes.push(Change::Delete(format!("pod/{}", (from + 1) % 7)));
        }
        ledger.commit(&changes).unwrap();
    }
}

fn newest(dir: &Path, prefix: &str) -> PathBuf {
    let names =
        fs::read_dir(dir.join("store")).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let number = names.filter_map(|n| n.strip_prefix(prefix)?.parse::<u64>().ok()).max().unwrap();
    dir.join("store").join(format!("{prefix}{number}"))
}

fn copy(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// A closed ledger that was cut at least twice and has records in its newest journal.
fn sample(dir: &Path) -> State {
    let options = Options { journal_limit: 600, ..Options::default() };
    let (mut ledger, _) = Ledger::open(dir, options).unwrap();
    for _ in 0..12 {
        fill(&mut ledger, 3);
        ledger.flush().unwrap();
    }
    drop(ledger);
    let (mut ledger, _) = open(dir);
    fill(&mut ledger, 9);
    state(&ledger)
}

#[test]
fn what_was_committed_is_there_again() {
    let dir = tempfile::tempdir().unwrap();
    let (mut ledger, opened) = open(dir.path());
    assert_eq!((opened.generation, opened.damage), (0, vec![]));
    assert_eq!(ledger.commit(&[put("a", "1"), put("b", "2")]).unwrap(), 1);
    assert_eq!(ledger.commit(&[put("a", "3"), Change::Delete("b".into())]).unwrap(), 2);
    drop(ledger);
    let (ledger, opened) = open(dir.path());
    assert_eq!((opened.generation, opened.damage, opened.torn_tail), (2, vec![], false));
    assert_eq!(ledger.get("a"), Some("3".as_bytes()));
    assert_eq!(ledger.get("b"), None);
}

#[test]
fn a_value_larger_than_sleds_segments_is_there_again_and_one_too_large_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (mut ledger, _) = open(dir.path());
    ledger.commit(&[put("large", vec![7; 300_000])]).unwrap();
    let refused = ledger.commit(&[put("larger", vec![7; 17 << 20])]);
    assert!(matches!(refused, Err(CommitError::TooLarge { .. })));
    drop(ledger);
    let (ledger, opened) = open(dir.path());
    assert_eq!((opened.generation, opened.damage, opened.replayed), (1, vec![], 0));
    assert_eq!(ledger.get("large"), Some([7; 300_000].as_slice()));
}

#[test]
fn a_cut_journal_stays_short_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let before = sample(dir.path());
    assert!(fs::metadata(newest(dir.path(), "journal-")).unwrap().len() < 1500);
    let files = fs::read_dir(dir.path().join("store")).unwrap().count();
    assert_eq!(files, 6, "two journals, two snapshots, the mark, sled");
    let (ledger, opened) = open(dir.path());
    assert_eq!(opened.damage, []);
    assert_eq!(state(&ledger), before);
}

#[test]
fn without_a_change_nothing_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let (mut ledger, _) = open(dir.path());
    ledger.commit(&[put("a", "1")]).unwrap();
    ledger.flush().unwrap();
    let files = || -> Vec<(PathBuf, Vec<u8>, std::time::SystemTime)> {
        let store = dir.path().join("store");
        [newest(dir.path(), "journal-"), store.join("sled/db")]
            .map(|p| (p.clone(), fs::read(&p).unwrap(), fs::metadata(&p).unwrap().modified().unwrap()))
            .into()
    };
    let before = files();
    assert_eq!(ledger.commit(&[]).unwrap(), 1);
    assert_eq!(ledger.commit(&[put("a", "1"), Change::Delete("b".into())]).unwrap(), 1);
    assert_eq!(ledger.commit(&[put("a", "2"), put("a", "1")]).unwrap(), 1);
    ledger.flush().unwrap();
    assert!(before == files());
}

#[test]
fn a_ledger_that_is_opened_right_after_it_was_closed_has_its_sled() {
    // All sleds of a process share threads: one that was closed may have a write to end and hold its lock so long.
    let rounds = || {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        for round in 0..80 {
            let (mut ledger, _) = open(dir.path());
            assert_eq!(ledger.fault(), None, "round {round}");
            fill(&mut ledger, 20);
        }
    };
    let threads: Vec<_> = (0..6).map(|_| std::thread::spawn(rounds)).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn r16_a_second_owner_is_refused_with_the_first_ones_pid() {
    let dir = tempfile::tempdir().unwrap();
    let (_ledger, _) = open(dir.path());
    let Err(OpenError::Locked { pid, .. }) = Ledger::open(dir.path(), Options::default()) else { panic!() };
    assert_eq!(pid, Some(std::process::id()));
}

#[test]
fn a_torn_tail_is_cut_and_told() {
    let dir = tempfile::tempdir().unwrap();
    let before = sample(dir.path());
    let journal = newest(dir.path(), "journal-");
    let mut bytes = fs::read(&journal).unwrap();
    let len = bytes.len();
    // The first half of a record that never was acknowledged.
    bytes.extend_from_within(28..70);
    fs::write(&journal, &bytes).unwrap();
    let (mut ledger, opened) = open(dir.path());
    assert_eq!((opened.damage, opened.torn_tail), (vec![], true));
    assert_eq!(state(&ledger), before);
    assert_eq!(fs::metadata(&journal).unwrap().len(), len as u64);
    ledger.commit(&[put("after", "1")]).unwrap();
    drop(ledger);
    let (ledger, opened) = open(dir.path());
    assert_eq!((opened.damage, opened.torn_tail), (vec![], false));
    assert_eq!(ledger.get("after"), Some("1".as_bytes()));
}

/// Opens a copy of `dir` damaged by `damage`, and wants the same state; returns what was noticed.
fn survives(dir: &Path, before: &State, damage: impl FnOnce(&Path)) -> Opened {
    let work = tempfile::tempdir().unwrap();
    copy(dir, work.path());
    damage(work.path());
    let (mut ledger, opened) = open(work.path());
    assert_eq!(&state(&ledger), before, "{opened:?}");
    assert!(opened.quarantined.is_none() || !opened.damage.is_empty());
    assert_eq!(opened.generation, ledger.generation());
    ledger.commit(&[put("after", "1")]).unwrap();
    drop(ledger);
    let (ledger, again) = open(work.path());
    assert_eq!((ledger.get("after"), again.damage), (Some("1".as_bytes()), vec![]));
    opened
}

#[test]
fn r08_every_flipped_byte_of_every_journal_and_snapshot_is_noticed_and_costs_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let before = sample(dir.path());
    let mut bytes = 0;
    for entry in fs::read_dir(dir.path().join("store")).unwrap().map(Result::unwrap) {
        let name = entry.file_name();
        if entry.file_type().unwrap().is_dir() {
            continue;
        }
        // A stride keeps the test short; the codec's own tests flip every byte.
        for at in (0..entry.metadata().unwrap().len() as usize).step_by(11) {
            bytes += 1;
            let opened = survives(dir.path(), &before, |work| {
                let path = work.join("store").join(&name);
                let mut content = fs::read(&path).unwrap();
                content[at] ^= 1 << (at % 8);
                fs::write(&path, content).unwrap();
            });
            assert!(!opened.damage.is_empty(), "{name:?} byte {at}");
        }
    }
    assert!(bytes > 100);
}

#[test]
fn every_truncation_of_the_newest_journal_is_noticed_and_costs_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let before = sample(dir.path());
    let journal = newest(dir.path(), "journal-");
    let len = fs::metadata(&journal).unwrap().len();
    for keep in (0..len).step_by(7) {
        let opened = survives(dir.path(), &before, |work| {
            let path = newest(work, "journal-");
            fs::OpenOptions::new().write(true).open(path).unwrap().set_len(keep).unwrap();
        });
        assert!(!opened.damage.is_empty(), "kept {keep}");
    }
}

#[test]
fn each_missing_file_is_noticed_or_harmless_and_costs_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let before = sample(dir.path());
    for entry in fs::read_dir(dir.path().join("store")).unwrap().map(Result::unwrap) {
        survives(dir.path(), &before, |work| {
            let path = work.join("store").join(entry.file_name());
            if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
        });
    }
}

#[test]
fn what_is_no_file_or_no_folder_any_more_is_damage_like_any_other() {
    let dir = tempfile::tempdir().unwrap();
    let before = sample(dir.path());
    for prefix in ["journal-", "snapshot-"] {
        let opened = survives(dir.path(), &before, |work| {
            let path = newest(work, prefix);
            fs::remove_file(&path).unwrap();
            fs::create_dir(path).unwrap();
        });
        assert!(!opened.damage.is_empty(), "{prefix}");
    }
    let opened = survives(dir.path(), &before, |work| {
        fs::remove_dir_all(work.join("store/sled")).unwrap();
        fs::write(work.join("store/sled"), "no folder").unwrap();
    });
    assert_eq!(opened.damage.iter().map(|d| d.witness).collect::<Vec<_>>(), [Witness::Sled]);
    fs::remove_dir_all(dir.path().join("store")).unwrap();
    fs::write(dir.path().join("store"), "no folder").unwrap();
    let (ledger, opened) = open(dir.path());
    assert_eq!((state(&ledger), opened.damage.len()), (State::new(), 1));
    assert_eq!(fs::read(opened.quarantined.unwrap()).unwrap(), b"no folder");
}

#[test]
fn random_corruption_of_sled_costs_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let before = sample(dir.path());
    let used = fs::read(dir.path().join("store/sled/db")).unwrap();
    let used_len = used.iter().rposition(|b| *b != 0).unwrap() + 1;
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut noticed = 0;
    for round in 0..60 {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        let at = (seed % used_len as u64) as usize;
        let opened = survives(dir.path(), &before, |work| {
            let path = work.join("store/sled/db");
            let mut bytes = used.clone();
            match round % 3 {
                0 => bytes[at] ^= 1 << (seed >> 61),
                1 => bytes.truncate(at),
                _ => bytes[at..].iter_mut().take(200).for_each(|b| *b = b.wrapping_mul(31).wrapping_add(7)),
            }
            fs::write(path, bytes).unwrap();
        });
        noticed += usize::from(!opened.damage.is_empty() || opened.replayed > 0);
    }
    assert!(noticed > 20, "{noticed} of 60");
}

#[test]
fn a_sled_of_an_earlier_time_never_wins() {
    let dir = tempfile::tempdir().unwrap();
    let aside = tempfile::tempdir().unwrap();
    let sled = dir.path().join("store/sled");
    let (mut ledger, _) = open(dir.path());
    fill(&mut ledger, 5);
    drop(ledger);
    copy(&sled, aside.path());
    let (mut ledger, _) = open(dir.path());
    fill(&mut ledger, 5);
    let before = state(&ledger);
    drop(ledger);

    copy(aside.path(), &sled);
    let (ledger, opened) = open(dir.path());
    assert_eq!((state(&ledger), opened.replayed), (before.clone(), 5), "within the journal: replayed");
    assert_eq!(opened.damage, []);
    drop(ledger);

    let (mut ledger, _) =
        Ledger::open(dir.path(), Options { journal_limit: 0, ..Options::default() }).unwrap();
    ledger.flush().unwrap();
    drop(ledger);
    copy(aside.path(), &sled);
    let (ledger, opened) = open(dir.path());
    assert_eq!(state(&ledger), before);
    assert_eq!(
        opened.damage.iter().map(|d| d.witness).collect::<Vec<_>>(),
        [Witness::Sled],
        "the journal was cut"
    );
}

#[test]
fn a_journal_of_an_earlier_time_never_wins() {
    let dir = tempfile::tempdir().unwrap();
    let (mut ledger, _) = open(dir.path());
    fill(&mut ledger, 5);
    let journal = newest(dir.path(), "journal-");
    let earlier = fs::read(&journal).unwrap();
    fill(&mut ledger, 5);
    let before = state(&ledger);
    drop(ledger);
    fs::write(&journal, earlier).unwrap();
    let (ledger, opened) = open(dir.path());
    assert_eq!(state(&ledger), before);
    assert_eq!(opened.damage.iter().map(|d| d.witness).collect::<Vec<_>>(), [Witness::Journal]);
    assert!(opened.quarantined.unwrap().ends_with("store.bad-10"));
}

#[test]
fn with_everything_broken_it_starts_empty_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    sample(dir.path());
    for entry in fs::read_dir(dir.path().join("store")).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap().is_dir() {
            true => fs::write(entry.path().join("db"), b"rubbish").unwrap(),
            false => fs::write(entry.path(), vec![0x55; 500]).unwrap(),
        }
    }
    let (mut ledger, opened) = open(dir.path());
    assert!(!opened.damage.is_empty());
    assert_eq!(state(&ledger), State::new());
    let newest_cut = opened.generation;
    assert!(newest_cut > 30, "generations are not used again: {newest_cut}");
    ledger.commit(&[put("a", "1")]).unwrap();
}

#[test]
fn r02_a_newer_format_is_refused_by_name_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    sample(dir.path());
    let journal = newest(dir.path(), "journal-");
    let mut bytes = fs::read(&journal).unwrap();
    bytes[8] = 2;
    let crc = crc32c::crc32c(&bytes[..24]);
    bytes[24..28].copy_from_slice(&crc.to_le_bytes());
    fs::write(&journal, &bytes).unwrap();
    let Err(error) = Ledger::open(dir.path(), Options::default()) else { panic!() };
    assert!(error.to_string().contains("format version 2"), "{error}");
    assert_eq!(fs::read(&journal).unwrap(), bytes);
}

#[test]
fn damaged_folders_do_not_pile_up() {
    let dir = tempfile::tempdir().unwrap();
    let before = sample(dir.path());
    for _ in 0..6 {
        fs::remove_file(newest(dir.path(), "snapshot-")).unwrap();
        let (ledger, opened) = open(dir.path());
        assert_eq!(state(&ledger), before);
        assert!(opened.quarantined.unwrap().exists());
    }
    let bad = fs::read_dir(dir.path())
        .unwrap()
        .filter(|e| e.as_ref().unwrap().file_name().to_string_lossy().contains(".bad-"));
    assert_eq!(bad.count(), 3);
}

#[test]
fn a_store_that_ends_every_process_that_reads_it_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let before = sample(dir.path());
    let opened =
        survives(dir.path(), &before, |work| fs::write(work.join("store/sled.attempts"), "...").unwrap());
    assert_eq!(opened.damage.iter().map(|d| d.witness).collect::<Vec<_>>(), [Witness::Sled]);
    // A process that was killed while it opened the store has done no harm.
    let opened =
        survives(dir.path(), &before, |work| fs::write(work.join("store/sled.attempts"), ".").unwrap());
    assert_eq!(opened.damage, []);
}

#[test]
fn wherever_a_cut_or_a_rebuilding_stops_the_next_opening_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let before = sample(dir.path());
    let store = |work: &Path| work.join("store");
    type Stop<'a> = &'a dyn Fn(&Path);
    let stops: [(&str, Stop<'_>); 4] = [
        ("a draft of a file", &|work| fs::write(store(work).join("snapshot-999.new"), "half").unwrap()),
        ("rebuilt in part", &|work| copy(&store(work).join("sled"), &work.join("store.new/sled"))),
        ("put aside, not yet replaced", &|work| fs::rename(store(work), work.join("store.new")).unwrap()),
        ("a new snapshot, the old journal", &|work| {
            let newest = (newest(work, "journal-"), fs::read(newest(work, "journal-")).unwrap());
            let (mut ledger, _) =
                Ledger::open(work, Options { journal_limit: 0, ..Options::default() }).unwrap();
            ledger.flush().unwrap();
            let generation = ledger.generation();
            drop(ledger);
            fs::remove_file(store(work).join(format!("journal-{generation}"))).unwrap();
            fs::write(newest.0, newest.1).unwrap();
        }),
    ];
    for (what, stop) in stops {
        let opened = survives(dir.path(), &before, stop);
        assert_eq!(opened.damage, [], "{what}");
    }
}
