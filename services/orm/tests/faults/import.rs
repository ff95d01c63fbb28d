//! A node that moves over from Katalyst.

use std::time::{Duration, Instant};

use oxalyst_proto::orm::v1::ReconcileRequest;
use oxalyst_proto::runtime::v1::Sandbox;
use oxalyst_topology::CpuSet;

use crate::host::{DEADLINE, Host, sandbox};
use crate::stopped;

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
