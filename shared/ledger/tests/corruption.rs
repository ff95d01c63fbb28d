//! Random damage of a ledger's files: what is not noticed has cost nothing, an older state that is consistent in itself included.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::indexing_slicing,
    missing_docs
)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use oxalyst_ledger::{Change, Ledger, Opened, Options};

type State = BTreeMap<String, Vec<u8>>;

/// xorshift: the same damage in each run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % below.max(1) as u64) as usize
    }
}

/// A ledger as a process left it, and what it had acknowledged.
struct Sample {
    dir: tempfile::TempDir,
    state: State,
    generation: u64,
}

/// In memory where that can be had: thousands of small files.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn options() -> Options {
    Options { journal_limit: 2500, ..Options::default() }
}

fn commits(ledger: &mut Ledger, n: usize, dice: &mut Dice) {
    for _ in 0..n {
        let pod = dice.roll(40);
        let value = format!("{} {}", ledger.generation(), "cpus=0-7".repeat(dice.roll(30)));
        let mut changes = vec![Change::Put(format!("pod/{pod}"), value.into())];
        if dice.roll(4) == 0 {
            changes.push(Change::Delete(format!("pod/{}", dice.roll(40))));
        }
        ledger.commit(&changes).unwrap();
    }
}

impl Sample {
    /// Cut several times, and with change sets in its newest journal; `killed`: sled has not seen the last of them.
    fn new(killed: bool) -> Self {
        let (work, dir) = (scratch(), scratch());
        let mut dice = Dice(11);
        let (mut ledger, _) = Ledger::open(work.path(), options()).unwrap();
        for _ in 0..12 {
            commits(&mut ledger, 9, &mut dice);
            ledger.flush().unwrap();
        }
        let (mut ledger, _) = {
            drop(ledger);
            Ledger::open(work.path(), Options::default()).unwrap()
        };
        assert_eq!(ledger.fault(), None, "sled is in use");
        commits(&mut ledger, 5, &mut dice);
        ledger.flush().unwrap();
        commits(&mut ledger, 6, &mut dice);
        let state = ledger.records().map(|(k, v)| (k.to_owned(), v.to_vec())).collect();
        let generation = ledger.generation();
        match killed {
            // What the files hold now is what a killed process leaves.
            true => copy(work.path(), dir.path()),
            false => {
                drop(ledger);
                copy(work.path(), dir.path());
            }
        }
        Self { dir, state, generation }
    }

    /// Every file of the store, sled's too, and the lock file with its mark.
    fn files(&self) -> Vec<PathBuf> {
        let mut files = vec![PathBuf::from("lock")];
        let mut folders = vec![self.dir.path().join("store")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
                match entry.file_type().unwrap().is_dir() {
                    true => folders.push(entry.path()),
                    false => files.push(entry.path().strip_prefix(self.dir.path()).unwrap().to_owned()),
                }
            }
        }
        files.sort();
        files
    }

    fn copied(&self) -> tempfile::TempDir {
        let work = scratch();
        copy(self.dir.path(), work.path());
        work
    }
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

/// Damages one file; says how.
fn damage(path: &Path, dice: &mut Dice) -> String {
    let mut bytes = fs::read(path).unwrap();
    // Most of sled's file is not in use yet.
    let used = bytes.iter().rposition(|b| *b != 0).map_or(1, |last| last + 1);
    let at = dice.roll(used);
    let how = match dice.roll(7) {
        0 | 1 => {
            bytes[at] ^= 1 << dice.roll(8);
            format!("a bit at {at}")
        }
        2 => {
            bytes[at] = bytes[at].wrapping_add(1 + dice.roll(255) as u8);
            format!("the byte at {at}")
        }
        3 | 4 => {
            bytes.truncate(at);
            format!("cut to {at}")
        }
        5 => {
            let len = 1 + dice.roll(300);
            bytes[at..].iter_mut().take(len).for_each(|b| *b = dice.roll(256) as u8);
            format!("{len} random bytes at {at}")
        }
        _ => {
            let flips = 2 + dice.roll(8);
            for _ in 0..flips {
                let at = dice.roll(used);
                bytes[at] ^= 1 << dice.roll(8);
            }
            format!("{flips} bits")
        }
    };
    fs::write(path, bytes).unwrap();
    how
}

enum Outcome {
    /// All that was acknowledged is there.
    Right,
    /// Not all is there, and the ledger says so.
    Told,
    /// Not all is there, and nobody says so.
    Undetected,
}

fn outcome(sample: &Sample, work: &Path) -> (Outcome, Opened) {
    let (ledger, opened) = Ledger::open(work, options()).unwrap();
    let right = ledger.records().eq(sample.state.iter().map(|(k, v)| (k.as_str(), v.as_slice())));
    // A generation that was told to others never comes to mean something else.
    assert!(right || opened.damage.is_empty() || opened.generation > sample.generation, "{opened:?}");
    match (right, opened.damage.is_empty()) {
        (true, _) => (Outcome::Right, opened),
        (false, false) => (Outcome::Told, opened),
        (false, true) => (Outcome::Undetected, opened),
    }
}

/// `rounds` of damage to one of the files that `chosen` admits.
fn rounds(sample: &Sample, rounds: usize, seed: u64, chosen: impl Fn(&str) -> bool) -> usize {
    let files = sample.files();
    let files: Vec<&PathBuf> = files.iter().filter(|f| chosen(f.to_str().unwrap())).collect();
    assert!(!files.is_empty());
    let mut dice = Dice(seed);
    let mut told = 0;
    for round in 0..rounds {
        let work = sample.copied();
        let file = files[round % files.len()];
        let how = damage(&work.path().join(file), &mut dice);
        let (outcome, opened) = outcome(sample, work.path());
        match outcome {
            Outcome::Right => {}
            Outcome::Told => told += 1,
            Outcome::Undetected => panic!("round {round}: {}: {how}: undetected: {opened:?}", file.display()),
        }
    }
    println!("{rounds} corruptions: {} cost nothing, {told} were told, 0 undetected", rounds - told);
    told
}

fn is_journal(file: &str) -> bool {
    file.contains("/journal-")
}

fn is_sled(file: &str) -> bool {
    file.contains("/sled/")
}

#[test]
fn r08_of_400_corruptions_of_the_journals_none_is_undetected_and_none_costs_anything() {
    assert_eq!(rounds(&Sample::new(false), 400, 101, is_journal), 0);
}

#[test]
fn r08_r11_of_300_corruptions_of_sleds_files_none_is_undetected_and_none_costs_anything() {
    assert_eq!(rounds(&Sample::new(false), 300, 202, is_sled), 0);
}

#[test]
fn r08_of_200_corruptions_of_snapshots_and_marks_none_is_undetected_and_none_costs_anything() {
    assert_eq!(rounds(&Sample::new(false), 200, 303, |f| !is_journal(f) && !is_sled(f)), 0);
}

#[test]
fn r08_r11_of_600_corruptions_of_what_a_killed_process_left_none_is_undetected() {
    let sample = Sample::new(true);
    // The journal alone knows the last change sets: what it loses of them cannot be had back, but is told.
    let told = rounds(&sample, 300, 404, is_journal);
    assert!(told > 20, "{told}");
    assert_eq!(rounds(&sample, 300, 505, |f| !is_journal(f)), 0);
}

#[test]
fn files_of_an_earlier_time_are_told_or_cost_nothing() {
    let work = scratch();
    let mut dice = Dice(77);
    let (mut ledger, _) = Ledger::open(work.path(), options()).unwrap();
    let mut earlier = Vec::new();
    for _ in 0..10 {
        commits(&mut ledger, 6, &mut dice);
        ledger.flush().unwrap();
        let aside = scratch();
        copy(work.path(), aside.path());
        earlier.push(aside);
    }
    commits(&mut ledger, 3, &mut dice);
    let state: State = ledger.records().map(|(k, v)| (k.to_owned(), v.to_vec())).collect();
    // As a killed process leaves it, and as one that ended.
    let killed = Sample { dir: scratch(), state, generation: ledger.generation() };
    copy(work.path(), killed.dir.path());
    drop(ledger);
    let ended = Sample { dir: scratch(), state: killed.state.clone(), generation: killed.generation };
    copy(work.path(), ended.dir.path());
    for sample in [&killed, &ended] {
        // Each file by itself, sled as a whole, and the store as a whole.
        let parts = sample.files().into_iter().filter(|f| !is_sled(f.to_str().unwrap()));
        let parts: Vec<PathBuf> = parts.chain(["store/sled".into(), "store".into()]).collect();
        for aside in &earlier {
            for (n, one) in parts.iter().enumerate() {
                // And each two.
                for other in &parts[n..] {
                    let work = sample.copied();
                    bring_back(aside.path(), work.path(), one);
                    bring_back(aside.path(), work.path(), other);
                    if ["lock", "store"].map(PathBuf::from) == [one.clone(), other.clone()] {
                        // All there is.
                        continue;
                    }
                    let (outcome, opened) = outcome(sample, work.path());
                    assert!(
                        !matches!(outcome, Outcome::Undetected),
                        "{} and {}: {opened:?}",
                        one.display(),
                        other.display()
                    );
                }
            }
        }
    }
}

/// Puts a file or folder of an earlier time in the place of the present one, if there was one.
fn bring_back(earlier: &Path, work: &Path, part: &Path) {
    let (old, target) = (earlier.join(part), work.join(part));
    if old.is_dir() {
        let _ = fs::remove_dir_all(&target);
        copy(&old, &target);
    } else if old.exists() && target.parent().unwrap().exists() {
        fs::copy(&old, &target).unwrap();
    }
}

/// The journal, the marks, and another file now and then: whoever damages a folder does not stop at one.
#[test]
fn r08_of_600_corruptions_of_journal_and_marks_at_once_none_is_undetected() {
    for (killed, seed) in [(false, 707), (true, 808)] {
        let sample = Sample::new(killed);
        let files = sample.files();
        let journals = files.iter().filter(|f| is_journal(f.to_str().unwrap())).collect::<Vec<_>>();
        let newest = journals.iter().max_by_key(|f| f.to_str().map(|f| (f.len(), f.to_owned()))).unwrap();
        let mut dice = Dice(seed);
        let mut lost = 0;
        for round in 0..300 {
            let work = sample.copied();
            let mut how = vec![(newest.to_path_buf(), damage(&work.path().join(newest), &mut dice))];
            for mark in ["lock", "store/mark"] {
                let path = work.path().join(mark);
                match dice.roll(4) {
                    0 => {}
                    1 => {
                        fs::remove_file(&path).unwrap();
                        how.push((mark.into(), "removed".into()));
                    }
                    _ => how.push((mark.into(), damage(&path, &mut dice))),
                }
            }
            if dice.roll(3) == 0 {
                let more = &files[dice.roll(files.len())];
                if work.path().join(more).exists() {
                    how.push((more.clone(), damage(&work.path().join(more), &mut dice)));
                }
            }
            let (outcome, opened) = outcome(&sample, work.path());
            match outcome {
                Outcome::Right => {}
                Outcome::Told => lost += 1,
                Outcome::Undetected => panic!("round {round}: {how:?}: undetected: {opened:?}"),
            }
        }
        println!("300 corruptions of several files: {lost} cost something, all of these told");
        assert!(lost > 20 || !killed, "{lost}");
    }
}

#[test]
fn damage_to_several_files_at_once_never_stops_the_ledger() {
    for killed in [false, true] {
        let sample = Sample::new(killed);
        let files = sample.files();
        let mut dice = Dice(909);
        for _ in 0..75 {
            let work = sample.copied();
            for _ in 0..2 + dice.roll(4) {
                let file = &files[dice.roll(files.len())];
                damage(&work.path().join(file), &mut dice);
            }
            let (mut ledger, opened) = Ledger::open(work.path(), options()).unwrap();
            let next = ledger.commit(&[Change::Put("after".into(), b"1".to_vec())]).unwrap();
            assert_eq!(next, opened.generation + 1);
            drop(ledger);
            let (ledger, opened) = Ledger::open(work.path(), options()).unwrap();
            assert_eq!((ledger.get("after"), opened.damage), (Some("1".as_bytes()), vec![]));
        }
    }
}
