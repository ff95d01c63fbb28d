//! A writer is killed at every step, again and again, over one ledger that lives through all of it.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::Step;
use super::armed::{FAILING_SYNCS, KILL_AT};
use crate::{Change, CommitError, Ledger, OpenError, Opened, Options, Witness};

const DIR: &str = "LEDGER_TEST_KILL_DIR";
/// A writer that has not come to its step by then never will.
const MOST_COMMITS: u64 = 400;

/// Steps that every writer comes to.
const OF_WRITING: [Step; 16] = [
    Step::CommitBegun,
    Step::HalfAppended,
    Step::Appended,
    Step::AppendSynced,
    Step::LockMarked,
    Step::Marked,
    Step::AppliedToSled,
    Step::SledFlushed,
    Step::SledSynced,
    Step::DraftHalfWritten,
    Step::DraftWritten,
    Step::DraftSynced,
    Step::DraftRenamed,
    Step::SnapshotReadBack,
    Step::JournalCut,
    Step::OlderRemoved,
];
/// Steps of an opening, the state that leads to each of them, and the visits that there are.
const OF_OPENING: [(Step, Before, u32); 13] = [
    (Step::TailCut, Before::TornTail, 1),
    (Step::BroughtUp, Before::SledLags, 1),
    (Step::SledPutAside, Before::SledDamaged, 1),
    (Step::DraftHalfWritten, Before::SnapshotDamaged, 3),
    (Step::DraftWritten, Before::SnapshotDamaged, 3),
    (Step::DraftSynced, Before::SnapshotDamaged, 3),
    (Step::DraftRenamed, Before::SnapshotDamaged, 3),
    (Step::StoreBuilt, Before::SnapshotDamaged, 1),
    (Step::StorePutAside, Before::SnapshotDamaged, 1),
    (Step::StoreReplaced, Before::SnapshotDamaged, 1),
    (Step::LockWritten, Before::SnapshotDamaged, 1),
    (Step::LockWritten, Before::FormerVersion, 1),
    (Step::DraftRenamed, Before::FormerVersion, 1),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    TornTail,
    SledLags,
    SledDamaged,
    SnapshotDamaged,
    FormerVersion,
}

fn options() -> Options {
    Options { journal_limit: 3000, reopen_backoff: (Duration::from_millis(1), Duration::from_millis(5)) }
}

/// Another test that starts a process just now holds a copy of our lock until it executes.
fn open(dir: &Path) -> (Ledger, Opened) {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        match Ledger::open(dir, options()) {
            Err(OpenError::Locked { .. }) if Instant::now() < end => std::thread::yield_now(),
            opened => return opened.unwrap(),
        }
    }
}

/// An allocation is three records that belong together; some go again.
fn changes(generation: u64) -> Vec<Change> {
    let pod = generation % 11;
    if generation % 5 == 4 {
        return ["pod", "pool", "machine"].map(|part| Change::Delete(format!("{part}/{pod}"))).into();
    }
    let value = generation.to_string().repeat(1 + (generation % 17) as usize);
    ["pod", "pool", "machine"].map(|part| Change::Put(format!("{part}/{pod}"), value.clone().into())).into()
}

/// What the ledger must hold at a generation.
#[derive(Default)]
struct Model {
    generation: u64,
    entries: BTreeMap<String, Vec<u8>>,
}

impl Model {
    fn advance_to(&mut self, generation: u64) {
        assert!(self.generation <= generation, "generation {} became {generation}", self.generation);
        while self.generation < generation {
            self.generation += 1;
            // A change set that alters nothing would make no generation.
            let before = self.entries.clone();
            for change in changes(self.generation) {
                match change {
                    Change::Put(key, value) => drop(self.entries.insert(key, value)),
                    Change::Delete(key) => drop(self.entries.remove(&key)),
                }
            }
            if before == self.entries {
                self.entries.insert("filler".into(), self.generation.to_string().into());
            }
        }
    }
}

/// As [`Model`], by way of the ledger.
fn commit_next(ledger: &mut Ledger) -> u64 {
    let next = ledger.generation() + 1;
    let filler = Change::Put("filler".into(), next.to_string().into());
    let set = match ledger.contents.effective(&changes(next)).is_empty() {
        true => vec![filler],
        false => changes(next),
    };
    ledger.commit(&set).unwrap()
}

#[test]
#[ignore = "runs as a child that is killed"]
fn child_writes_until_it_is_killed() {
    let dir = PathBuf::from(std::env::var_os(DIR).expect("runs as a child only"));
    let (mut ledger, _) = open(&dir);
    for round in 0..MOST_COMMITS {
        let generation = commit_next(&mut ledger);
        let mut out = std::io::stdout().lock();
        writeln!(out, "ack {generation}").unwrap();
        out.flush().unwrap();
        if round % 3 == 2 {
            ledger.flush().unwrap();
        }
    }
}

/// Runs a writer that dies at a visit to a step; gives the last generation that it acknowledged.
fn killed_at(dir: &Path, step: Step, visit: u32) -> Option<u64> {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "fault::tests::child_writes_until_it_is_killed", "--ignored", "--nocapture"])
        .env(DIR, dir)
        .env(KILL_AT, format!("{step:?}:{visit}"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.signal(), Some(9), "{step:?}:{visit} was not reached\n{out}\n{err}");
    out.lines().filter_map(|line| line.split("ack ").nth(1)?.parse().ok()).next_back()
}

fn newest(dir: &Path, prefix: &str) -> PathBuf {
    crate::open::numbered(&dir.join("store"), prefix).unwrap().pop_last().unwrap().1
}

fn prepare(dir: &Path, before: Before) {
    match before {
        Before::TornTail => {
            let path = newest(dir, "journal-");
            let mut bytes = std::fs::read(&path).unwrap();
            bytes.extend_from_slice(b"OXR!");
            std::fs::write(&path, bytes).unwrap();
        }
        // The writer before was killed between its commit and the flush.
        Before::SledLags => drop(killed_at(dir, Step::AppliedToSled, 2)),
        Before::SledDamaged => std::fs::write(dir.join("store/sled.attempts"), "...").unwrap(),
        Before::FormerVersion => {
            std::fs::write(dir.join("lock"), "4711\n").unwrap();
            // It had one where something was committed since the store was made.
            let _ = std::fs::remove_file(dir.join("store/mark"));
        }
        Before::SnapshotDamaged => {
            let path = newest(dir, "snapshot-");
            let mut bytes = std::fs::read(&path).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 4;
            std::fs::write(&path, bytes).unwrap();
        }
    }
}

/// Opens the ledger after a writer was killed: everything acknowledged is there, and of what was not, all or nothing.
fn verify(dir: &Path, model: &mut Model, acknowledged: Option<u64>, what: &str) -> Opened {
    let (ledger, opened) = open(dir);
    let acknowledged = acknowledged.unwrap_or(model.generation);
    assert!(
        (acknowledged..=acknowledged + 1).contains(&opened.generation),
        "{what}: {acknowledged} {opened:?}"
    );
    model.advance_to(opened.generation);
    let held: BTreeMap<String, Vec<u8>> =
        ledger.records().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    assert_eq!(held, model.entries, "{what}: {opened:?}");
    opened
}

#[test]
fn a_writer_killed_at_any_step_of_a_commit_or_a_cut_leaves_all_or_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = Model::default();
    let mut rounds = 0;
    for visit in 1..=13 {
        for step in OF_WRITING {
            let acknowledged = killed_at(dir.path(), step, visit);
            let opened = verify(dir.path(), &mut model, acknowledged, &format!("{step:?}:{visit}"));
            assert_eq!(opened.damage, [], "{step:?}:{visit}");
            assert!(!opened.torn_tail || step == Step::HalfAppended, "{step:?}:{visit}");
            rounds += 1;
        }
    }
    assert!(rounds >= 180 && model.generation > 1000, "{rounds} rounds, generation {}", model.generation);
}

#[test]
fn a_process_killed_at_any_step_of_an_opening_leaves_all_or_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (mut ledger, _) = open(dir.path());
    let mut model = Model::default();
    for _ in 0..60 {
        let generation = commit_next(&mut ledger);
        model.advance_to(generation);
    }
    drop(ledger);
    let mut rounds = 0;
    for _ in 0..4 {
        for (step, before, visits) in OF_OPENING {
            for visit in 1..=visits {
                let what = format!("{step:?}:{visit} of {before:?}");
                prepare(dir.path(), before);
                assert_eq!(killed_at(dir.path(), step, visit), None, "{what}: killed before it could write");
                if before == Before::SledLags {
                    // Two commits went before.
                    model.advance_to(model.generation + 1);
                }
                let opened = verify(dir.path(), &mut model, None, &what);
                let damaged = opened.damage.iter().map(|d| d.witness).collect::<Vec<_>>();
                assert!(
                    damaged.iter().all(|w| match before {
                        Before::SnapshotDamaged => [Witness::Snapshot, Witness::Sled].contains(w),
                        Before::SledDamaged => *w == Witness::Sled,
                        Before::TornTail | Before::SledLags | Before::FormerVersion => false,
                    }),
                    "{what}: {opened:?}"
                );
                rounds += 1;
            }
        }
    }
    assert!(rounds >= 50, "{rounds}");
}

#[test]
fn a_process_killed_at_any_step_of_making_a_new_ledger_leaves_a_new_one() {
    let steps = [Step::DraftHalfWritten, Step::DraftWritten, Step::DraftSynced, Step::DraftRenamed];
    let drafts = steps.into_iter().flat_map(|step| (1..=3).map(move |visit| (step, visit)));
    for (step, visit) in drafts.chain([(Step::LockWritten, 1)]) {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(killed_at(dir.path(), step, visit), None);
        let opened = verify(dir.path(), &mut Model::default(), None, &format!("{step:?}:{visit}"));
        assert_eq!((opened.generation, opened.damage), (0, vec![]), "{step:?}:{visit}");
    }
}

#[test]
fn an_append_that_power_cut_short_anywhere_loses_nothing_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = Model::default();
    for visit in 1..=30 {
        let acknowledged = killed_at(dir.path(), Step::Appended, visit % 5 + 1).unwrap_or(model.generation);
        // What was not synced may be on the disk in any part.
        let path = newest(dir.path(), "journal-");
        let bytes = std::fs::read(&path).unwrap();
        let scan = crate::journal::Scan::of(&bytes).unwrap();
        let last = scan.records.last().map(|record| record.generation);
        assert_eq!(last, Some(acknowledged + 1), "the killed writer's record is there");
        let (_, record) = crate::record::Record::encode(
            acknowledged + 1,
            scan.records.last().unwrap().previous,
            scan.records.last().unwrap().changes.clone(),
        )
        .unwrap();
        let kept = bytes.len() - record.len() + record.len() * (visit as usize % 10) / 10;
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(kept as u64).unwrap();
        let opened = verify(dir.path(), &mut model, Some(acknowledged), &format!("{visit}"));
        assert_eq!((opened.generation, opened.damage), (acknowledged, vec![]));
    }
}

#[test]
fn r06_r10_a_failed_sync_is_told_to_the_caller_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let (mut ledger, _) = open(dir.path());
    let mut model = Model::default();
    for failing in [1, 2, 3, 5] {
        model.advance_to(commit_next(&mut ledger));
        FAILING_SYNCS.set(failing);
        // The append's own sync fails, then the one that takes it back, and so on with the next attempts.
        let mut refused = 0;
        while FAILING_SYNCS.get() > 0 {
            let lost = Change::Put("lost".into(), failing.to_string().into());
            let Err(CommitError::Storage(e)) = ledger.commit(&[lost]) else {
                panic!("a commit that is not durable was acknowledged");
            };
            assert_eq!(e.source.raw_os_error(), Some(5));
            refused += 1;
        }
        assert!(refused > 0 && ledger.generation() == model.generation);
        if failing != 3 {
            // Without a restart.
            model.advance_to(commit_next(&mut ledger));
        }
        drop(ledger);
        verify(dir.path(), &mut model, None, &format!("{failing} failing"));
        (ledger, _) = open(dir.path());
    }
}
