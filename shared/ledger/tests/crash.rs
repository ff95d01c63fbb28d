//! The ledger in a process of its own, which is killed, traced, or short of room.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    missing_docs
)]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use oxalyst_ledger::{Change, CommitError, Ledger, OpenError, Opened, Options, Witness};

/// Tells a child process where its ledger lies.
const DIR: &str = "LEDGER_TEST_DIR";

fn options() -> Options {
    Options { journal_limit: 4000, reopen_backoff: (Duration::from_millis(1), Duration::from_millis(5)) }
}

/// Another test that starts a process just now holds a copy of our lock until it executes.
fn open(dir: &Path, options: Options) -> (Ledger, Opened) {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        match Ledger::open(dir, options.clone()) {
            Err(OpenError::Locked { .. }) if Instant::now() < end => std::thread::yield_now(),
            opened => return opened.unwrap(),
        }
    }
}

fn put(key: &str, value: &str) -> Change {
    Change::Put(key.into(), value.into())
}

/// This test binary, about to run one of its ignored tests as a child.
fn child(wrapper: &[&str], name: &str, dir: &Path) -> Command {
    let exe = std::env::current_exe().unwrap();
    let mut words = wrapper.iter().map(|w| w.to_string()).chain([exe.to_str().unwrap().to_owned()]);
    let mut command = Command::new(words.next().unwrap());
    command.args(words).args(["--exact", name, "--ignored", "--nocapture"]).env(DIR, dir);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

fn child_dir() -> std::path::PathBuf {
    std::env::var_os(DIR).expect("runs as a child of the other tests only").into()
}

fn acknowledge(text: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "ack {text}").unwrap();
    out.flush().unwrap();
}

#[test]
#[ignore = "runs as a child of r09_kill_9_loses_nothing_acknowledged"]
fn child_commits_for_ever() {
    let (mut ledger, opened) = open(&child_dir(), options());
    assert_eq!(opened.damage, []);
    for round in 0_u64.. {
        let next = ledger.generation() + 1;
        let generation = ledger.commit(&[put(&format!("k{}", next % 50), &next.to_string())]).unwrap();
        acknowledge(&generation.to_string());
        if round % 7 == 3 {
            ledger.flush().unwrap();
        }
    }
}

#[test]
fn r09_kill_9_loses_nothing_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let mut last = 0;
    for round in 0..30_u32 {
        let mut process = child(&[], "child_commits_for_ever", dir.path()).spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map(Result::unwrap);
        let mut acknowledged = lines.by_ref().filter_map(|l| l.split("ack ").nth(1)?.parse::<u64>().ok());
        last = acknowledged.nth(3 + (round as usize * 13) % 90).expect("the child ends early");
        process.kill().unwrap();
        assert_eq!(process.wait().unwrap().signal(), Some(9));
        // What it still said before the signal came.
        last = acknowledged.last().unwrap_or(last);

        let (ledger, opened) = open(dir.path(), options());
        assert_eq!(opened.damage, [], "round {round}");
        // At most the one commit whose acknowledgement was not said any more.
        assert!((last..=last + 1).contains(&opened.generation), "{last} {opened:?}");
        for back in 0..opened.generation.min(50) {
            let generation = opened.generation - back;
            let value = ledger.get(&format!("k{}", generation % 50));
            assert_eq!(value, Some(generation.to_string().as_bytes()));
        }
    }
    println!("30 rounds, {last} commits");
    assert!(last > 500);
}

#[test]
#[ignore = "runs as a child of a03_r09_kill_9_at_every_step_of_a_commit_leaves_it_whole_or_absent"]
fn child_commits_a_while() {
    let (mut ledger, _) = open(&child_dir(), options());
    for round in 0..50 {
        let next = ledger.generation() + 1;
        let generation = ledger.commit(&[put(&format!("k{}", next % 50), &next.to_string())]).unwrap();
        acknowledge(&generation.to_string());
        if round % 7 == 3 {
            ledger.flush().unwrap();
        }
    }
}

/// The kernel ends the process as it enters the n-th of these calls: opening, appending, syncing, cutting, flushing.
#[test]
fn a03_r09_kill_9_at_every_step_of_a_commit_leaves_it_whole_or_absent() {
    if Command::new("strace").arg("-V").output().is_err() {
        println!("skipped: strace is not installed");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let steps = [
        ("pwrite64", 120),
        ("fdatasync", 80),
        ("write", 80),
        ("fsync", 24),
        ("rename", 12),
        ("unlink", 12),
        ("ftruncate", 4),
    ];
    // A ledger that is killed while it is first made has nothing yet, and says so.
    let mut acknowledged = open(dir.path(), options()).0.commit(&[put("k1", "1")]).unwrap();
    let (mut killed, mut rebuilt) = (0, 0);
    for (call, times) in steps {
        let mut here = 0;
        for nth in 1..=times {
            let inject = format!("inject={call}:signal=KILL:when={nth}");
            let trace = format!("trace={call}");
            let wrapper = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", &trace, "-e", &inject];
            let output =
                child(&wrapper, "child_commits_a_while", dir.path()).stderr(Stdio::null()).output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let mut said = text.lines().filter_map(|l| l.split("ack ").nth(1)?.parse::<u64>().ok());
            acknowledged = said.next_back().unwrap_or(acknowledged);
            let (ledger, opened) = open(dir.path(), options());
            // sled is rebuilt where it was killed while it made a file of its own: that is told, and costs nothing.
            rebuilt += usize::from(!opened.damage.is_empty());
            assert!(
                opened.damage.iter().all(|d| d.witness == Witness::Sled),
                "{call} {nth}: {:?}",
                opened.damage
            );
            // At most the one commit whose acknowledgement was not said any more.
            assert!(
                (acknowledged..=acknowledged + 1).contains(&opened.generation),
                "{call} {nth}: {acknowledged} {opened:?}"
            );
            for back in 0..opened.generation.min(50) {
                let generation = opened.generation - back;
                let value = ledger.get(&format!("k{}", generation % 50));
                assert_eq!(value, Some(generation.to_string().as_bytes()), "{call} {nth}");
            }
            acknowledged = opened.generation;
            if output.status.signal() != Some(9) {
                assert!(output.status.success(), "{call} {nth}: {text}");
                break;
            }
            here += 1;
        }
        println!("killed {here} times at {call}");
        killed += here;
    }
    println!("{killed} rounds, {acknowledged} commits, sled rebuilt {rebuilt} times");
    assert!(killed >= 200, "{killed}");
}

#[test]
#[ignore = "runs as a child of a_commit_is_synced_before_it_is_acknowledged"]
fn child_commits_three_times_and_cuts() {
    let options = Options { journal_limit: 60, ..options() };
    let (mut ledger, _) = open(&child_dir(), options);
    for generation in 1..=3 {
        ledger.commit(&[put("k", &generation.to_string())]).unwrap();
        acknowledge(&generation.to_string());
    }
    ledger.flush().unwrap();
    acknowledge("flushed");
}

#[test]
fn a_commit_is_synced_before_it_is_acknowledged() {
    if Command::new("strace").arg("-V").output().is_err() {
        println!("skipped: strace is not installed");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let calls = "trace=write,pwrite64,fdatasync,fsync,rename,renameat,renameat2,mkdir";
    let wrapper = ["strace", "-f", "-y", "-e", calls];
    let output = child(&wrapper, "child_commits_three_times_and_cuts", &dir.path().join("ledger"))
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    let trace = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{trace}");
    let calls: Vec<&str> = trace.lines().collect();
    let position =
        |what: &str| calls.iter().position(|c| c.contains(what)).unwrap_or_else(|| panic!("{what}\n{trace}"));
    let finished = |range: std::ops::Range<usize>, call: &str, path: &str| {
        calls[range].iter().any(|c| c.contains(call) && c.contains(path))
    };

    let mut from = 0;
    for generation in 1..=3 {
        let ack = position(&format!("ack {generation}"));
        let write = from
            + calls[from..ack]
                .iter()
                .rposition(|c| c.contains("/journal-") && c.contains("pwrite64("))
                .unwrap();
        assert!(finished(write + 1..ack, "fdatasync(", "/journal-"), "generation {generation}\n{trace}");
        from = ack;
    }
    let opened = position("ack 1");
    let moved =
        calls[..opened].iter().rposition(|c| c.contains("rename") && c.contains("store.new")).unwrap();
    assert!(
        finished(moved + 1..opened, "fsync(", "/ledger>"),
        "the folder is synced after the rename\n{trace}"
    );
    let flushed = position("ack flushed");
    let cut = calls[..flushed].iter().rposition(|c| c.contains("rename") && c.contains("journal-3")).unwrap();
    assert!(finished(cut + 1..flushed, "fsync(", "/store>"), "the folder is synced after the cut\n{trace}");
    assert!(finished(from..flushed, "fdatasync(", "/sled/db"), "sled's file is synced\n{trace}");
}

#[test]
#[ignore = "runs as a child of r14_a_full_disk_refuses_and_later_goes_on, in a mount namespace of its own"]
fn child_fills_a_disk() {
    let mount = child_dir();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=4m", "ledger-test"])
        .arg(&mount)
        .status()
        .is_ok_and(|s| s.success());
    if !mounted {
        acknowledge("no mount");
        return;
    }
    let dir = mount.join("ledger");
    let (mut ledger, _) = open(&dir, options());
    ledger.commit(&[put("before", "1")]).unwrap();
    let ballast = mount.join("ballast");
    for round in 0..3_u64 {
        // Fill the disk to its last byte.
        let mut file = std::fs::File::create(&ballast).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
        while file.write_all(&[1]).is_ok() {}
        let mut refused = 0;
        let mut generation = ledger.generation();
        for i in 0..200_u64 {
            let change = put(&format!("full/{round}/{}", i % 3), &format!("{i}{}", "x".repeat(600)));
            match ledger.commit(&[change]) {
                Ok(g) => {
                    assert_eq!(g, generation + 1);
                    generation = g;
                }
                Err(CommitError::Storage(e)) => {
                    assert_eq!(e.source.kind(), std::io::ErrorKind::StorageFull);
                    assert_eq!(ledger.generation(), generation);
                    refused += 1;
                }
                Err(e) => panic!("{e}"),
            }
            let _ = ledger.flush();
        }
        assert!(refused > 0);
        // Opened again on a full disk it knows what was acknowledged.
        let before: Vec<(String, Vec<u8>)> = ledger.records().map(|(k, v)| (k.into(), v.into())).collect();
        drop(ledger);
        let opened;
        (ledger, opened) = open(&dir, options());
        assert_eq!(opened.generation, generation);
        // sled may be damaged by a full disk; the journal must not be.
        assert!(opened.damage.iter().all(|d| d.witness == Witness::Sled), "{opened:?}");
        assert!(ledger.records().eq(before.iter().map(|(k, v)| (k.as_str(), v.as_slice()))));

        // Room again: the same ledger goes on, sled too.
        drop(file);
        std::fs::remove_file(&ballast).unwrap();
        ledger.commit(&[put("after", &round.to_string())]).unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while ledger.flush().is_err() || ledger.fault().is_some() {
            assert!(Instant::now() < deadline, "{:?}", ledger.fault());
            std::thread::yield_now();
        }
        drop(ledger);
        let opened;
        (ledger, opened) = open(&dir, options());
        assert_eq!((opened.replayed, opened.damage), (0, vec![]), "sled had everything");
        assert_eq!(ledger.get("after"), Some(round.to_string().as_bytes()));
    }
    acknowledge("done");
}

#[test]
fn r14_a_full_disk_refuses_and_later_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let namespace: &[&str] = match rustix::process::getuid().is_root() {
        true => &["unshare", "-m"],
        false => &["unshare", "-Urm"],
    };
    let run = child(namespace, "child_fills_a_disk", dir.path()).stderr(Stdio::piped()).output();
    let Ok(output) = run else {
        println!("skipped: unshare is not installed");
        return;
    };
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if err.starts_with("unshare:") || out.contains("ack no mount") {
        println!("skipped: no mount namespace here: {err}");
        return;
    }
    assert!(output.status.success() && out.contains("ack done"), "{out}\n{err}");
}
