//! A disk without room, in a mount namespace of its own.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use oxalyst_proto::orm::v1::AdmitPodRequest;
use oxalyst_proto::orm::v1::admit_reply::Outcome;

use crate::host::{DEADLINE, Host, placed, refused, sandbox};
use crate::{Held, held, stopped};

/// Tells a child process that it runs in a mount namespace of its own.
const MOUNT: &str = "ORM_TEST_MOUNT";

/// Runs one of the ignored tests below where it can mount a small disk.
fn in_namespace(name: &str) {
    let dir = tempfile::tempdir().unwrap();
    let run = Command::new("unshare")
        .arg("-m")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--ignored", "--nocapture"])
        .env(MOUNT, dir.path())
        .stdin(Stdio::null())
        .output();
    let Ok(output) = run else {
        println!("skipped: unshare is not installed");
        return;
    };
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if err.starts_with("unshare:") || out.contains("no mount") {
        println!("skipped: no mount namespace here: {err}");
        return;
    }
    assert!(output.status.success() && out.contains("1 passed"), "{out}\n{err}");
}

/// A disk of 2 MiB, or `None` where none can be mounted.
fn small_disk() -> Option<PathBuf> {
    let dir = PathBuf::from(std::env::var_os(MOUNT).expect("runs as a child of the other tests only"));
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=2m", "orm-test"]).arg(&dir).status();
    if mount.is_ok_and(|status| status.success()) {
        return Some(dir);
    }
    println!("no mount");
    None
}

/// Takes the last byte of a disk; dropped, it gives them back.
struct Ballast(PathBuf);

impl Ballast {
    fn on(disk: &Path) -> Self {
        let path = disk.join("ballast");
        let mut file = std::fs::File::create(&path).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
        while file.write_all(&[1]).is_ok() {}
        Self(path)
    }
}

impl Drop for Ballast {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

#[test]
fn r14_a_full_disk_refuses_exclusive_sets_only_and_admission_resumes_without_a_restart() {
    in_namespace("disk::child_fills_the_disk_of_a_running_allocator");
}

#[tokio::test]
#[ignore = "runs as a child in a mount namespace of its own"]
async fn child_fills_the_disk_of_a_running_allocator() {
    let Some(disk) = small_disk() else { return };
    let host = Host::with_machine(128, 2);
    let ledger = format!("ledger_dir={}", disk.join("ledger").display());
    let more = ["--set", ledger.as_str()];
    let mut orm = host.start(&more).await;
    orm.admit(&sandbox("first", "dedicated_cores", Some(1024))).await;
    let mut known = held(&orm.state().await);
    for round in 0..2 {
        let ballast = Ballast::on(&disk);
        // The journal's last block has room for a few yet.
        let mut refusal = None;
        for nth in 0..60 {
            let uid = format!("full-{round}-{nth}");
            let reply = orm.admit(&sandbox(&uid, "dedicated_cores", Some(1024))).await;
            match reply.outcome.as_ref().unwrap() {
                Outcome::Placed(placed) => drop(known.insert(uid, Held::of(placed))),
                Outcome::Refused(_) => {
                    refusal = Some((uid, refused(&reply).clone()));
                    break;
                }
            }
        }
        let (uid, refusal) = refusal.expect("a full disk refuses");
        assert_eq!(refusal.reason, "storage");
        assert!(
            refusal.message.contains("No space left") && refusal.message.contains("make room"),
            "{refusal:?}"
        );
        assert!(!refusal.message.contains("delete"), "{refusal:?}");
        let shared = format!("shared-{round}");
        let reply = orm.admit(&sandbox(&shared, "shared_cores", Some(512))).await;
        known.insert(shared, Held::of(placed(&reply)));
        let state = orm.state().await;
        assert!(!state.storage_fault.is_empty());
        assert_eq!(held(&state), known);

        drop(ballast);
        let reply = orm.admit(&sandbox(&uid, "dedicated_cores", Some(1024))).await;
        known.insert(uid, Held::of(placed(&reply)));
        let state = orm.state().await;
        assert_eq!((held(&state), state.storage_fault.as_str()), (known.clone(), ""));
        // What held in memory only meanwhile is durable now.
        drop(orm);
        orm = host.start(&more).await;
        assert_eq!(held(&orm.state().await), known);
    }
}

#[test]
fn a_disk_that_is_full_at_the_start_is_waited_for_and_said_so() {
    in_namespace("disk::child_starts_on_a_full_disk");
}

#[tokio::test]
#[ignore = "runs as a child in a mount namespace of its own"]
async fn child_starts_on_a_full_disk() {
    let Some(disk) = small_disk() else { return };
    let host = Host::new();
    let ballast = Ballast::on(&disk);
    let ledger = format!("ledger_dir={}", disk.join("new/ledger").display());
    let mut orm = host.spawn(&["--set", &ledger]);
    let end = Instant::now() + DEADLINE;
    let pending = loop {
        if let Ok(status) = orm.status().await {
            break status.pending;
        }
        assert!(
            Instant::now() < end && orm.child.try_wait().unwrap().is_none(),
            "it ended or does not answer"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    let [pending] = pending.as_slice() else { panic!("{pending:?}") };
    assert_eq!(pending.name, "ledger");
    let text = &pending.detail;
    assert!(
        text.contains("No space left") && text.contains("make room") && !text.contains("delete"),
        "{text}"
    );
    let request = AdmitPodRequest {
        sandbox: Some(sandbox("d", "dedicated_cores", Some(1024))),
        ..AdmitPodRequest::default()
    };
    let refused = orm.client.admit_pod(request).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable, "{refused}");

    drop(ballast);
    let end = Instant::now() + DEADLINE;
    while !orm.status().await.unwrap().ready {
        assert!(Instant::now() < end, "room does not help");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(placed(&orm.admit(&sandbox("d", "dedicated_cores", Some(1024))).await).cpus, "0");
    stopped(orm).await;
}
