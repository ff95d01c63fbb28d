//! Against a real kube-apiserver and etcd: what the reporter applies is what kubectl sees.
//!
//! OXALYST_LAB_BIN names a folder with etcd, kube-apiserver and kubectl, or with kube.xz (see integration/lab/kube-up.sh).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod stand_in;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stand_in::{Bench, PATIENCE, command, gather};

/// A private API server; ends with its value.
struct Cluster {
    dir: tempfile::TempDir,
}

fn lab(script: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integration/lab").join(script)
}

// === impl Cluster ===

impl Cluster {
    /// A fresh API server with our definitions; `None`, with the reason printed, where its programs are not at hand.
    ///
    /// On a thread of its own: the imitated peers live on this one and must go on answering.
    async fn start() -> Option<Self> {
        tokio::task::spawn_blocking(Self::up).await.unwrap()
    }

    async fn stop(&self) {
        let dir = self.dir.path().to_owned();
        let down = move || Command::new(lab("kube-down.sh")).arg(dir).status().unwrap();
        assert!(tokio::task::spawn_blocking(down).await.unwrap().success());
    }

    fn up() -> Option<Self> {
        let Some(binaries) = std::env::var_os("OXALYST_LAB_BIN").filter(|path| Path::new(path).is_dir())
        else {
            println!(
                "skipped: OXALYST_LAB_BIN names no folder with kube-apiserver, etcd and kubectl (or kube.xz)"
            );
            return None;
        };
        let cluster = Self { dir: tempfile::tempdir().unwrap() };
        let up = Command::new(lab("kube-up.sh"))
            .arg(binaries)
            .arg(cluster.dir.path())
            .env("KUBE_CACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("kube-bin"))
            .status()
            .unwrap();
        assert!(up.success(), "kube-up.sh failed");
        let crds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/kube-types/crds");
        cluster.kubectl(&["apply", "--validate=strict", "-f", crds.to_str().unwrap()], None);
        let crd = "crd/customnoderesources.node.katalyst.kubewharf.io";
        cluster.kubectl(&["wait", "--for=condition=Established", "--timeout=30s", crd], None);
        Some(cluster)
    }

    fn kubeconfig(&self) -> String {
        format!("kubeconfig={}", self.dir.path().join("kubeconfig").display())
    }

    fn kubectl(&self, arguments: &[&str], input: Option<&Value>) -> String {
        let (ok, text) = self.try_kubectl(arguments, input);
        assert!(ok, "kubectl {arguments:?}: {text}");
        text
    }

    fn try_kubectl(&self, arguments: &[&str], input: Option<&Value>) -> (bool, String) {
        let mut child = Command::new(self.dir.path().join("kubectl"))
            .arg("--kubeconfig")
            .arg(self.dir.path().join("kubeconfig"))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        if let Some(input) = input {
            serde_json::to_writer(child.stdin.take().unwrap(), input).unwrap();
        }
        let output = child.wait_with_output().unwrap();
        let text = if output.status.success() { output.stdout } else { output.stderr };
        (output.status.success(), String::from_utf8(text).unwrap())
    }

    fn object(&self) -> Value {
        serde_json::from_str(&self.kubectl(&["get", "kcnr", "node-a", "-o", "json"], None)).unwrap()
    }

    /// Writes of the reporter as the API server saw them: (sub-resource, HTTP code, whether strictly validated).
    fn patches(&self) -> Vec<(String, u64, bool)> {
        let log = std::fs::read_to_string(self.dir.path().join("audit.log")).unwrap_or_default();
        let events = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        events
            .filter(|e| e["verb"] == "patch")
            .filter(|e| e["requestURI"].as_str().unwrap().contains("fieldManager=oxalyst-reporter"))
            .map(|e| {
                let strict = e["requestURI"].as_str().unwrap().contains("fieldValidation=Strict");
                let part = e["objectRef"]["subresource"].as_str().unwrap_or("spec").to_owned();
                (part, e["responseStatus"]["code"].as_u64().unwrap(), strict)
            })
            .collect()
    }

    /// The audit log is written behind the answers.
    async fn patches_when(&self, count: usize) -> Vec<(String, u64, bool)> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let seen = self.patches();
            if seen.len() >= count {
                return seen;
            }
            assert!(Instant::now() < deadline, "only {seen:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let down = Command::new(lab("kube-down.sh")).arg(self.dir.path()).status();
        if !down.is_ok_and(|status| status.success()) {
            eprintln!("kube-down.sh failed for {}", self.dir.path().display());
        }
    }
}

fn patch(part: &str, code: u64) -> (String, u64, bool) {
    (part.to_owned(), code, true)
}

#[tokio::test]
async fn the_object_is_created_strictly_and_patched_only_where_it_changed() {
    let Some(cluster) = Cluster::start().await else { return };
    let set = [cluster.kubeconfig(), "spacing_ms=0".to_owned(), "refresh_period_ms=1000".to_owned()];
    let mut bench = Bench::start(&set).await;

    assert_eq!(bench.published().await, 2);
    assert_eq!(cluster.patches_when(2).await, [patch("spec", 201), patch("status", 200)]);
    let object = cluster.object();
    assert_eq!(object["spec"]["nodeResourceProperties"].as_array().unwrap().len(), 3);
    assert_eq!(object["status"]["topologyPolicy"], "None");
    let numa = &object["status"]["topologyZone"][1]["children"][0];
    assert_eq!((numa["type"].as_str(), numa["name"].as_str()), (Some("Numa"), Some("1")));
    assert_eq!(numa["resources"]["capacity"], json!({ "cpu": "2", "memory": "2Gi" }));
    assert_eq!(numa["attributes"], json!([{ "name": "numa_distance", "value": "20,10" }]));
    println!("{}", cluster.kubectl(&["get", "kcnr"], None));

    // The ledger moves on without a change of the object, and a refresh passes: nothing is sent.
    let version = object["metadata"]["resourceVersion"].clone();
    bench.peers.exclusive(&[]);
    assert_eq!(bench.published().await, 2);
    assert_eq!(cluster.object()["metadata"]["resourceVersion"], version);

    // One pod gets a set: exactly one patch, of the status.
    bench.peers.exclusive(&[("u1", "3")]);
    assert_eq!(bench.published().await, 3);
    let seen = cluster.patches_when(3).await;
    assert_eq!(seen[2..], [patch("status", 200)]);
    let after = cluster.object();
    assert_ne!(after["metadata"]["resourceVersion"], version);
    assert_eq!(after["metadata"]["generation"], object["metadata"]["generation"]);
    assert_eq!(
        after["status"]["topologyZone"][1]["children"][0]["allocations"],
        json!([{ "consumer": "default/pod-u1/u1", "requests": { "cpu": "1" } }])
    );

    // A restarted reporter says the same again, which changes nothing.
    bench.child.kill().await.unwrap();
    bench.child = command(bench.run_dir.path(), &set).spawn().unwrap();
    assert_eq!(bench.published().await, 2);
    assert_eq!(cluster.object()["metadata"]["resourceVersion"], after["metadata"]["resourceVersion"]);
}

#[tokio::test]
async fn others_fields_survive_a_deleted_object_returns_and_a_conflict_is_told() {
    let Some(cluster) = Cluster::start().await else { return };
    let set = [cluster.kubeconfig(), "spacing_ms=0".to_owned(), "check_period_ms=1000".to_owned()];
    let object = |fields: Value| {
        let mut object = json!({
            "apiVersion": "node.katalyst.kubewharf.io/v1alpha1", "kind": "CustomNodeResource", "metadata": { "name": "node-a" },
        });
        object.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        object
    };
    let apply = |manager: &'static str, fields: Value| {
        let manager = format!("--field-manager={manager}");
        cluster.kubectl(
            &["apply", "--server-side", "--force-conflicts", &manager, "-f", "-"],
            Some(&object(fields)),
        );
    };

    // A controller has put a taint on the node before the reporter starts.
    let taint = json!([{ "key": "k", "effect": "NoSchedule", "qosLevel": "reclaimed_cores" }]);
    apply("controller", json!({ "spec": { "taints": taint } }));
    let mut bench = Bench::start(&set).await;
    bench.published().await;
    assert_eq!(cluster.object()["spec"]["taints"], taint);

    cluster.kubectl(&["delete", "kcnr", "node-a"], None);
    let deadline = Instant::now() + PATIENCE;
    while !cluster
        .try_kubectl(&["get", "kcnr", "node-a", "-o", "jsonpath={.status.topologyPolicy}"], None)
        .1
        .eq("None")
    {
        assert!(Instant::now() < deadline, "the object does not return");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }

    let foreign = json!({ "spec": { "nodeResourceProperties": [{ "propertyName": "cpu", "propertyQuantity": "99" }] } });
    apply("somebody", foreign);
    let detail = bench.pending("publish").await;
    assert!(detail.contains("conflict") && detail.contains("somebody"), "{detail}");

    // The operator decides: with force_ownership the reporter takes its field back.
    bench.child.kill().await.unwrap();
    let mut forced = set.to_vec();
    forced.push("force_ownership=true".to_owned());
    bench.child = command(bench.run_dir.path(), &forced).spawn().unwrap();
    bench.published().await;
    let properties = cluster.object()["spec"]["nodeResourceProperties"].clone();
    let cpu = properties.as_array().unwrap().iter().find(|p| p["propertyName"] == "cpu").unwrap();
    assert_eq!(cpu["propertyQuantity"], "4");
}

#[tokio::test]
async fn an_api_server_that_goes_away_is_one_line_and_the_change_arrives_when_it_is_back() {
    let Some(cluster) = Cluster::start().await else { return };
    let run_dir = tempfile::tempdir().unwrap();
    let peers = stand_in::Peers::start(run_dir.path());
    let set = [cluster.kubeconfig(), "spacing_ms=0".to_owned()];
    let mut child = command(run_dir.path(), &set).stderr(Stdio::piped()).spawn().unwrap();
    let lines = gather(&mut child);
    let mut bench = Bench::around(peers, run_dir, child);
    bench.published().await;

    // Stopped, not gone, would take the deadline; the process is away as in an upgrade, and comes back elsewhere.
    cluster.stop().await;
    bench.peers.exclusive(&[("u1", "0")]);
    bench.failures(3).await;
    let warnings =
        || lines.lock().unwrap().iter().filter(|l| l.contains("WARN") || l.contains("ERROR")).count();
    assert_eq!(warnings(), 1, "{:?}", lines.lock().unwrap());
    let detail = bench.pending("publish").await;
    assert!(detail.contains("cannot reach the API server at https://127.0.0.1:"), "{detail}");

    let second = Cluster::start().await.unwrap();
    std::fs::copy(second.dir.path().join("kubeconfig"), cluster.dir.path().join("kubeconfig")).unwrap();
    let deadline = Instant::now() + 2 * PATIENCE;
    while second.patches().len() < 2 {
        assert!(Instant::now() < deadline, "nothing arrives: {:?}", lines.lock().unwrap());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    bench.status_when("ready", |s| s.ready).await;
}
