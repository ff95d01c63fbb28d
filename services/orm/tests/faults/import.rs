//! A node that moves over from Katalyst.

use std::time::{Duration, Instant};

use oxalyst_proto::orm::v1::{GetStateRequest, ReconcileRequest};
use oxalyst_proto::runtime::v1::Sandbox;
use oxalyst_topology::CpuSet;

use crate::host::{DEADLINE, Host, sandbox};
use crate::{assert_disjoint, stopped};

#[tokio::test]
async fn a_node_moves_over_from_katalyst_without_being_drained() {
    let host = Host::with_machine(16, 2);
    let import = format!("import_katalyst_dir={}/testdata/katalyst", env!("CARGO_MANIFEST_DIR"));
    let more = ["--set", import.as_str(), "--set", "reserved_cpus=0,8"];
    let mut orm = host.start(&more).await;
    let cpus = orm.cpus().await;
    assert_eq!((cpus.len(), cpus["aaaa-bound"].as_str(), cpus["gggg-free"].as_str()), (7, "2-5", "10-11"));
    let parts =
        ["bbbb-shared", "cccc-batch", "dddd-reclaimed"].map(|uid| cpus[uid].parse::<CpuSet>().unwrap());
    let all = parts.iter().fold(CpuSet::new(), |all, part| &all | part);
    assert_eq!(
        all.to_string(),
        "1,6-7,9,12-15",
        "the pools divide what is neither reserved nor exclusive: {parts:?}"
    );
    assert_eq!(all.len(), parts.iter().map(CpuSet::len).sum::<usize>(), "{parts:?}");
    let fact = orm.status().await.unwrap().facts["import.katalyst"].clone();
    assert!(fact.starts_with("7 pods taken over, 2 of them with CPUs of their own; 1 thing"), "{fact}");

    // The runtime tells the sandboxes; who runs keeps what it has, and the rest is freed.
    let list: Vec<Sandbox> =
        ["aaaa-bound", "gggg-free"].map(|uid| sandbox(uid, "dedicated_cores", None)).into();
    let request = ReconcileRequest { sandboxes: list, containers: Vec::new() };
    let reply = orm.client.reconcile(request.clone()).await.unwrap().into_inner();
    assert_eq!(reply.adopted_pod_uids, Vec::<String>::new());
    assert_eq!(orm.cpus().await["aaaa-bound"], "2-5");
    let end = Instant::now() + DEADLINE;
    while orm.cpus().await.len() > 2 {
        assert!(Instant::now() < end, "what does not run was not freed");
        orm.client.reconcile(request.clone()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(orm.release("gggg-free", "gggg-free-1").await);

    // Once, and never again: what Katalyst wrote is older than what is known here.
    stopped(orm).await;
    let mut orm = host.start(&more).await;
    assert_eq!(orm.cpus().await, [("aaaa-bound".to_owned(), "2-5".to_owned())].into());
    assert_eq!(orm.status().await.unwrap().facts["import.katalyst"], "not needed: the ledger is not new");
}

/// A copy that came too early, a file of something else: what is repaired later is taken over later, beside what has been decided since.
#[tokio::test]
async fn what_cannot_be_understood_at_first_is_taken_over_once_it_is_repaired() {
    let sample = format!("{}/testdata/katalyst/cpu_plugin_state", env!("CARGO_MANIFEST_DIR"));
    let sample = std::fs::read_to_string(sample).unwrap();
    for broken in ["", &sample[..sample.len() / 2], "{\"policyName\": \"dynamic\"}"] {
        let host = Host::with_machine(16, 2);
        let import = format!("import_katalyst_dir={}", host.dir.path().join("katalyst").display());
        let more = ["--set", import.as_str(), "--set", "reserved_cpus=0,8"];
        host.write("katalyst/cpu_plugin_state", broken);
        let mut orm = host.start(&more).await;
        let status = orm.status().await.unwrap();
        let fact = &status.facts["import.katalyst"];
        assert!(status.ready && fact.starts_with("incomplete: cpu_plugin_state cannot be"), "{fact}");
        // Decided since: one that the file knows otherwise, and one on CPUs that the file gives to another.
        orm.admit(&sandbox("gggg-free", "dedicated_cores", Some(1024))).await;
        let own = orm.cpus().await["gggg-free"].clone();
        orm.admit(&sandbox("new", "dedicated_cores", Some(4096))).await;
        let new = orm.cpus().await["new"].clone();
        assert!(!new.parse::<CpuSet>().unwrap().is_disjoint(&"2-5".parse().unwrap()), "{new}");
        stopped(orm).await;

        // Not repaired yet, and not there at all: it stays open.
        std::fs::remove_file(host.dir.path().join("katalyst/cpu_plugin_state")).unwrap();
        let mut orm = host.start(&more).await;
        let fact = orm.status().await.unwrap().facts["import.katalyst"].clone();
        assert!(fact.starts_with("incomplete: cpu_plugin_state is not there"), "{fact}");
        stopped(orm).await;

        host.write("katalyst/cpu_plugin_state", &sample);
        let mut orm = host.start(&more).await;
        let fact = orm.status().await.unwrap().facts["import.katalyst"].clone();
        assert!(fact.starts_with("5 pods taken over, 0 of them with CPUs of their own"), "{fact}");
        let cpus = orm.cpus().await;
        assert_eq!((&cpus["gggg-free"], &cpus["new"]), (&own, &new), "what is recorded wins");
        assert!(cpus.contains_key("bbbb-shared") && !cpus.contains_key("aaaa-bound"), "{cpus:?}");
        // A system pod runs on all CPUs.
        let mut state = orm.state().await;
        state.pods.retain(|pod| pod.qos_level != "system_cores");
        assert_disjoint(&state);
        stopped(orm).await;

        let mut orm = host.start(&more).await;
        let fact = orm.status().await.unwrap().facts["import.katalyst"].clone();
        assert_eq!(fact, "not needed: the ledger is not new");
    }
}

#[tokio::test]
async fn that_no_import_is_needed_stands_in_the_log_once() {
    let host = Host::new();
    stopped(host.start(&[]).await).await;
    let import = format!("import_katalyst_dir={}", host.dir.path().join("katalyst").display());
    let log = host.dir.path().join("log");
    let mut command = host.command("run", &["--set", import.as_str()]);
    let mut orm = host.attach(command.stderr(std::fs::File::create(&log).unwrap()).spawn().unwrap());
    let end = Instant::now() + DEADLINE;
    while orm.client.get_state(GetStateRequest::default()).await.is_err() {
        assert!(Instant::now() < end, "orm did not answer in time");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    stopped(orm).await;
    let log = std::fs::read_to_string(log).unwrap();
    assert_eq!(log.matches("not needed: the ledger is not new").count(), 1, "{log}");
}
