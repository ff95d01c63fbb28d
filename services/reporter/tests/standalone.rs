//! Without an API server the object is a file.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod stand_in;

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use oxalyst_kube_types::CustomNodeResource;
use stand_in::{Bench, PATIENCE, command, gather};

fn read(path: &Path) -> CustomNodeResource {
    serde_yaml_ng::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[tokio::test]
async fn the_object_is_written_to_the_run_folder_and_again_only_when_it_changes() {
    let mut bench = Bench::start(&["spacing_ms=0".to_owned()]).await;
    let path = bench.run_dir.path().join("kcnr.yaml");
    assert_eq!(bench.published().await, 1);
    let object = read(&path);
    assert_eq!(object.metadata.name.as_deref(), Some("node-a"));
    assert_eq!(object.status.as_ref().unwrap().topology_zone.len(), 2);

    // The ledger moves on, but nothing of the object changes.
    bench.peers.exclusive(&[]);
    assert_eq!(bench.published().await, 1);

    bench.peers.exclusive(&[("u1", "1-2")]);
    assert_eq!(bench.published().await, 2);
    let zones = read(&path).status.unwrap().topology_zone;
    let consumers: Vec<_> = zones.iter().map(|z| z.children[0].allocations[0].consumer.clone()).collect();
    assert_eq!(consumers, ["default/pod-u1/u1", "default/pod-u1/u1"]);
    assert!(bench.status_when("ready", |s| s.ready).await.facts["target"].contains("kcnr.yaml"));
}

#[tokio::test]
async fn a14_why_amounts_for_reclaimed_pods_never_change_is_told() {
    let mut bench = Bench::start(&[]).await;
    bench.published().await;
    let told = bench.status_when("ready", |s| s.ready).await.facts["reclaimed"].clone();
    assert!(told.starts_with("not published: ") && told.contains("advisor"), "{told}");
    let text = std::fs::read_to_string(bench.run_dir.path().join("kcnr.yaml")).unwrap();
    assert!(!text.contains("reclaimed"), "{text}");
}

#[tokio::test]
async fn a_deleted_file_comes_back() {
    let mut bench = Bench::start(&["check_period_ms=1000".to_owned()]).await;
    bench.published().await;
    let path = bench.run_dir.path().join("kcnr.yaml");
    std::fs::remove_file(&path).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while !path.exists() {
        assert!(Instant::now() < deadline, "the file stays away");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(read(&path).metadata.name.as_deref(), Some("node-a"));
}

#[tokio::test]
async fn without_peers_it_says_what_it_waits_for_and_begins_when_they_come() {
    let run_dir = tempfile::tempdir().unwrap();
    let mut child = command(run_dir.path(), &[]).stderr(Stdio::piped()).spawn().unwrap();
    let lines = gather(&mut child);
    let channel = oxalyst_mesh::connect(run_dir.path(), "reporter");
    let client = oxalyst_proto::mesh::v1::introspection_client::IntrospectionClient::new(channel);
    let deadline = Instant::now() + PATIENCE;
    let pending = |names: &'static [&'static str]| {
        let mut client = client.clone();
        async move {
            loop {
                let answer = client.get_status(oxalyst_proto::mesh::v1::GetStatusRequest {}).await;
                let seen = answer.map(|a| a.into_inner().pending).unwrap_or_default();
                if seen.iter().map(|p| p.name.as_str()).eq(names.iter().copied())
                    && seen.iter().all(|p| names.is_empty() || !p.detail.is_empty())
                {
                    return;
                }
                assert!(Instant::now() < deadline, "never pending {names:?}: {seen:?}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    };
    pending(&["meta-server", "object", "orm", "publish"]).await;
    let _peers = stand_in::Peers::start(run_dir.path());
    pending(&[]).await;
    let lost = lines.lock().unwrap().iter().filter(|l| l.contains("does not work")).count();
    assert_eq!(lost, 2, "one line for each peer: {:?}", lines.lock().unwrap());
}

#[tokio::test]
async fn a_bad_kubeconfig_is_one_line_and_a_readiness_detail() {
    for (name, text) in [("missing", None), ("broken", Some("{ no: [kubeconfig")), ("empty", Some("{}"))] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        if let Some(text) = text {
            std::fs::write(&path, text).unwrap();
        }
        let run_dir = tempfile::tempdir().unwrap();
        let peers = stand_in::Peers::start(run_dir.path());
        let set = [format!("kubeconfig={}", path.display()), "spacing_ms=0".to_owned()];
        let mut child = command(run_dir.path(), &set).stderr(Stdio::piped()).spawn().unwrap();
        let lines = gather(&mut child);
        let mut bench = Bench::around(peers, run_dir, child);
        // Several attempts, so that a line for each of them would show.
        bench
            .status_when("a failing publisher", |s| {
                s.pending.iter().any(|p| p.name == "publish" && p.detail.contains(path.to_str().unwrap()))
            })
            .await;
        bench.failures(3).await;
        let told: Vec<String> = lines
            .lock()
            .unwrap()
            .iter()
            .filter(|l| l.contains("WARN") || l.contains("ERROR"))
            .cloned()
            .collect();
        assert_eq!(told.len(), 1, "{name}: {told:?}");
        assert!(told[0].contains(path.to_str().unwrap()), "{told:?}");
    }
}
