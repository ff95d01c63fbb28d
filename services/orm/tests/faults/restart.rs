//! A process that finds its ledger otherwise than it left it, and one that finds it as it was.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use oxalyst_ledger::{Change, Ledger, Options};
use oxalyst_proto::orm::v1::allocator_client::AllocatorClient;
use oxalyst_proto::orm::v1::{AllocationRecord, GetStateRequest, ReconcileRequest};
use oxalyst_proto::runtime::v1::Sandbox;

use oxalyst_topology::CpuSet;
use prost::Message as _;

use crate::host::{DEADLINE, Host, placed, sandbox};
use crate::{copy, stopped};

/// Files of a ledger's store, sled's too.
fn files(store: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(store).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap().is_dir() {
            true => found.extend(files(&entry.path())),
            false => found.push(entry.path()),
        }
    }
    found
}

#[tokio::test]
async fn r01_r12_k15_one_byte_too_many_in_any_file_stops_nothing_and_costs_nothing() {
    let host = Host::new();
    let ledger = host.dir.path().join("ledger");
    let mut orm = host.start(&[]).await;
    orm.admit(&sandbox("a", "shared_cores", Some(512))).await;
    orm.admit(&sandbox("d", "dedicated_cores", Some(1024))).await;
    let before = orm.state().await;
    stopped(orm).await;
    let aside = tempfile::tempdir().unwrap();
    copy(&ledger, aside.path());
    let all = files(aside.path());
    assert!(all.len() >= 5, "{all:?}");
    for file in all {
        let name = file.strip_prefix(aside.path()).unwrap();
        std::fs::remove_dir_all(&ledger).unwrap();
        copy(aside.path(), &ledger);
        let mut bytes = std::fs::read(&file).unwrap();
        bytes.push(b'"');
        std::fs::write(ledger.join(name), bytes).unwrap();
        let mut orm = host.start(&[]).await;
        let after = orm.state().await;
        assert_eq!(after.pods, before.pods, "{}", name.display());
        assert!(orm.admit(&sandbox("d", "dedicated_cores", Some(1024))).await.outcome.is_some());
    }
}

#[tokio::test]
async fn r02_a_ledger_of_a_newer_version_is_left_alone_and_named() {
    let host = Host::new();
    stopped(host.start(&[]).await).await;
    let journal = host.dir.path().join("ledger/store/journal-0");
    let mut bytes = std::fs::read(&journal).unwrap();
    // The version, and the checksum that makes it sound.
    bytes[8] = 9;
    let crc = crc32c(&bytes[..24]);
    bytes[24..28].copy_from_slice(&crc.to_le_bytes());
    std::fs::write(&journal, &bytes).unwrap();
    let output = host.fails("run", &[]).await;
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(
        text.contains("journal-0 has format version 9") && text.contains("run the newer program"),
        "{text}"
    );
    assert_eq!(std::fs::read(&journal).unwrap(), bytes);
}

/// Castagnoli's, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

#[tokio::test]
async fn r05_r07_thirty_pods_and_all_that_is_told_of_them_are_the_same_after_a_restart() {
    let host = Host::with_machine(32, 2);
    let mut orm = host.start(&[]).await;
    for nth in 0..30 {
        let (level, shares) = match nth % 3 {
            0 => ("dedicated_cores", 2048),
            1 => ("shared_cores", 512),
            _ => ("reclaimed_cores", 256),
        };
        orm.admit(&sandbox(&format!("pod-{nth}"), level, Some(shares))).await;
    }
    let before = orm.state().await;
    assert_eq!(before.pods.iter().filter(|pod| pod.exclusive).count(), 10);
    stopped(orm).await;
    let mut orm = host.start(&[]).await;
    assert_eq!(orm.state().await, before);
    assert!(orm.status().await.unwrap().ready);
}

#[tokio::test]
async fn r17_a_record_of_another_time_is_passed_over_alone() {
    let host = Host::new();
    let mut orm = host.start(&[]).await;
    orm.admit(&sandbox("d", "dedicated_cores", Some(1024))).await;
    stopped(orm).await;
    let (mut ledger, _) = Ledger::open(host.dir.path().join("ledger"), Options::default()).unwrap();
    let strange = [("pod/bytes", vec![0xff; 9]), ("pod/empty", vec![]), ("elsewhere/x", b"1".to_vec())];
    let changes = strange.map(|(key, value)| Change::Put(key.into(), value));
    ledger.commit(&changes).unwrap();
    drop(ledger);
    let mut orm = host.start(&[]).await;
    assert_eq!(orm.cpus().await, [("d".to_owned(), "0".to_owned())].into());
    assert_eq!(orm.status().await.unwrap().facts["ledger.damage"], "none");
}

/// As a version wrote it that did not bound uids: what runs is neither freed nor stuck because of its name.
#[tokio::test]
async fn a_pod_that_is_held_under_what_can_be_no_uid_any_more_is_served_to_its_end() {
    let host = Host::new();
    let mut orm = host.start(&[]).await;
    orm.admit(&sandbox("d", "dedicated_cores", Some(1024))).await;
    stopped(orm).await;
    let odd = "d\n".repeat(200);
    let (mut ledger, _) = Ledger::open(host.dir.path().join("ledger"), Options::default()).unwrap();
    let bytes = ledger.records().find(|(key, _)| *key == "allocation/d").unwrap().1.to_vec();
    let record = AllocationRecord { uid: odd.clone(), ..AllocationRecord::decode(&bytes[..]).unwrap() };
    let renamed = Change::Put(format!("allocation/{odd}"), record.encode_to_vec());
    ledger.commit(&[Change::Delete("allocation/d".into()), renamed]).unwrap();
    drop(ledger);

    let mut orm = host.start(&[]).await;
    let held = Sandbox { pod_uid: odd.clone(), ..sandbox("d", "dedicated_cores", Some(1024)) };
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        let list = ReconcileRequest { sandboxes: vec![held.clone()], containers: vec![] };
        orm.client.reconcile(list).await.unwrap();
        assert_eq!(orm.cpus().await[&odd], "0", "it is listed, and not absent");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(placed(&orm.admit(&held).await).cpus, "0");
    assert!(orm.release(&odd, "d-1").await);
    assert!(orm.cpus().await.is_empty());
}

#[tokio::test]
async fn r16_a_second_owner_ends_with_2_and_disturbs_nothing() {
    let host = Host::new();
    let mut orm = host.start(&[]).await;
    orm.admit(&sandbox("d", "dedicated_cores", Some(1024))).await;
    let before = orm.state().await;
    let output = host.fails("other", &[]).await;
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains(&format!("locked by process {}", orm.child.id())), "{text}");
    assert_eq!(orm.state().await, before);
}

#[tokio::test]
async fn r16_an_owner_that_ends_soon_is_waited_for() {
    let host = Host::new();
    let first = host.start(&[]).await;
    let mut second = host.command("other", &[]).spawn().unwrap();
    stopped(first).await;
    let mut client = AllocatorClient::new(oxalyst_mesh::connect(&host.dir.path().join("other"), "orm"));
    let end = Instant::now() + DEADLINE;
    while client.get_state(GetStateRequest::default()).await.is_err() {
        assert!(
            second.try_wait().unwrap().is_none() && Instant::now() < end,
            "it gave up or does not answer"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    second.kill().unwrap();
    second.wait().unwrap();
}

/// Records that the version before this one wrote on sixteen CPUs, of which 0 and 8 were reserved.
fn former_records() -> Vec<Change> {
    let bytes = |hex: &str| -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    };
    let lines = include_str!("../../testdata/former/records.hex").lines();
    let record = |(key, hex): (&str, &str)| Change::Put(key.to_owned(), bytes(hex));
    lines.map(|line| record(line.split_once(' ').unwrap())).collect()
}

#[tokio::test]
async fn records_of_the_version_before_are_taken_over_once_and_keep_every_set() {
    let host = Host::with_machine(16, 2);
    let folder = host.dir.path().join("ledger");
    std::fs::create_dir_all(&folder).unwrap();
    let (mut ledger, _) = Ledger::open(&folder, Options::default()).unwrap();
    ledger.commit(&former_records()).unwrap();
    // What this version had written before the former one ran is older than what that one knows.
    ledger.commit(&[Change::Put("allocation/outdated".into(), Vec::new())]).unwrap();
    let before = ledger.generation();
    drop(ledger);

    let reserved = ["--set", "reserved_cpus=0,8"];
    let mut orm = host.start(&reserved).await;
    let pods = orm.state().await.pods;
    let told = |uid: &str| {
        let pod = pods.iter().find(|pod| pod.pod_uid == uid).unwrap_or_else(|| panic!("{uid} is lost"));
        (pod.exclusive, pod.pool.as_str(), pod.cpus.as_str(), pod.flags.join(" "), pod.sandbox_id.as_str())
    };
    assert_eq!(told("bound"), (true, "", "1-4", String::new(), "bound-1"));
    assert_eq!(told("free"), (true, "", "5-6", String::new(), "free-1"));
    assert_eq!(told("reserved"), (false, "reserve", "0,8", String::new(), "reserved-1"));
    assert_eq!(told("system"), (false, "system", "0-15", String::new(), "system-1"));
    assert_eq!(told("agent"), (false, "", "0,7-15", "node-agent".into(), "agent-1"));
    for (uid, pool, flags) in [
        ("shared", "share", ""),
        ("strange", "share", "qos-invalid"),
        ("silent", "share", "no-request"),
        ("waiting", "share", "adopted-without-room"),
        ("reclaimed", "reclaim", ""),
    ] {
        let (exclusive, in_pool, cpus, said, _) = told(uid);
        assert_eq!((exclusive, in_pool, said.as_str()), (false, pool, flags), "{uid}");
        assert!(cpus.parse::<CpuSet>().unwrap().is_subset(&"7,9-15".parse().unwrap()), "{uid}: {cpus}");
    }
    assert_eq!(pods.len(), 10);
    let state = orm.state().await;
    stopped(orm).await;

    let (ledger, _) = Ledger::open(&folder, Options::default()).unwrap();
    assert!(ledger.generation() > before);
    let former: Vec<&str> =
        ledger.records().map(|(key, _)| key).filter(|key| key.starts_with("pod/")).collect();
    assert_eq!(former, Vec::<&str>::new());
    assert!(ledger.records().all(|(key, _)| key != "allocation/outdated"));
    drop(ledger);
    let mut orm = host.start(&reserved).await;
    assert_eq!(orm.state().await.pods, state.pods);
}
