//! A runtime that refuses to update containers, or does not answer: what it leaves is written directly.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod support;

use oxalyst_nri::api::Event;
use oxalyst_proto::gateway::v1::gateway_client::GatewayClient;
use oxalyst_proto::gateway::v1::{DiagnoseRequest, Finding};
use support::node::{Node, container, pod};
use support::until;

#[actix::test]
async fn drift_is_mended_where_the_runtime_refuses_every_update() {
    let (node, session) = Node::up().await;
    node.run(&session, &pod("d", "dedicated_cores"), "d1").await.unwrap();
    node.kernel_says("d1", "3").await;
    node.cgroups.refuses();
    node.cgroups.write("d1", "0");
    node.kernel_says("d1", "3").await;
    assert!(node.fact("runtime_updates").await.contains("boom"));
}

#[actix::test]
async fn one_container_for_which_the_runtime_hangs_holds_up_no_other() {
    let (node, session) = Node::up().await;
    node.run(&session, &pod("d", "dedicated_cores"), "d1").await.unwrap();
    node.run(&session, &pod("e", "dedicated_cores"), "e1").await.unwrap();
    node.kernel_says("e1", "2").await;
    node.cgroups.hangs_for("e1");
    node.cgroups.write("e1", "0");
    node.cgroups.write("d1", "0");
    node.kernel_says("e1", "2").await;
    node.kernel_says("d1", "3").await;
}

#[actix::test]
async fn n07_a_containerd_that_may_stall_over_updates_is_never_called() {
    for version in ["v1.7.24", "v2.1.9"] {
        let (node, session) = Node::up_with(version).await;
        node.run(&session, &pod("a", "shared_cores"), "a1").await.unwrap();
        let dedicated = pod("d", "dedicated_cores");
        node.run(&session, &dedicated, "d1").await.unwrap();
        node.kernel_says("a1", "0-2").await;
        node.cgroups.write("d1", "0");
        node.kernel_says("d1", "3").await;
        session.tell(Event::StopPodSandbox, dedicated.clone(), None).await.unwrap();
        session.tell(Event::RemovePodSandbox, dedicated, None).await.unwrap();
        node.kernel_says("a1", "0-3").await;
        until("all are seen to hold", async || {
            let list = node.list().await?;
            list.containers.iter().all(|c| c.kernel_cpus.as_ref() == Some(&c.wanted_cpus)).then_some(())
        })
        .await;
        assert_eq!(node.cgroups.calls(), [[""; 0]; 0], "{version}");
        assert!(node.fact("runtime_updates").await.contains("may stall"));
    }
}

async fn finding(node: &Node, check: &str) -> Finding {
    let channel = oxalyst_mesh::connect(&node.run_dir(), nri_gateway::SERVICE);
    let reply = GatewayClient::new(channel).diagnose(DiagnoseRequest {}).await.unwrap();
    reply.into_inner().findings.into_iter().find(|f| f.check == check).unwrap()
}

fn without_cpuset(dir: &std::path::Path) {
    for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        if entry.file_type().unwrap().is_dir() {
            without_cpuset(&entry.path());
        } else if name.starts_with("cpuset.") {
            std::fs::remove_file(entry.path()).unwrap();
        } else if name == "cgroup.controllers" || name == "cgroup.subtree_control" {
            std::fs::write(entry.path(), "cpu io memory pids\n").unwrap();
        }
    }
}

#[actix::test]
async fn c07_cpuset_files_that_vanish_under_a_session_are_told() {
    let (node, session) = Node::up().await;
    node.run(&session, &pod("d", "dedicated_cores"), "d1").await.unwrap();
    node.kernel_says("d1", "3").await;
    without_cpuset(&node.dir.path().join("host/sys/fs/cgroup"));
    until("told", async || node.fact("kernel_files").await.contains("cpuset").then_some(())).await;
    let text = "controller cpuset is not available under";
    until("not ready, with the exact text", async || {
        let status = node.status().await?;
        status.pending.iter().any(|p| p.name == "kernel-files" && p.detail.contains(text)).then_some(())
    })
    .await;
    let marked = "not-adjusted".to_owned();
    until("marked", async || node.listed("d1").await.marks.contains(&marked).then_some(())).await;
    let doctor = finding(&node, "containers").await;
    assert!(doctor.verdict == "warning" && doctor.detail.contains(text), "{doctor:?}");

    // The controller is given back, as the kernel gives it: with nothing asked for.
    node.cgroups.make(&container("d", "d1"));
    node.kernel_says("d1", "3").await;
    node.ready("kernel-files").await;
    until("no mark", async || node.listed("d1").await.marks.is_empty().then_some(())).await;
}

#[actix::test]
async fn memory_nodes_are_written_where_the_runtime_refuses_every_update() {
    let (node, session) = Node::up().await;
    node.run(&session, &pod("d", "dedicated_cores"), "d1").await.unwrap();
    node.kernel_says("d1", "3").await;
    until("settled", async || (node.cgroups.file("d1", "cpuset.mems") == "0").then_some(())).await;
    node.cgroups.refuses();
    node.cgroups.write_mems("d1", "1");
    until("as decided", async || (node.cgroups.file("d1", "cpuset.mems") == "0").then_some(())).await;
    assert!(node.fact("runtime_updates").await.contains("boom"));
}

/// No runtime writes above a container: whatever it answers, the pod is widened past it.
#[actix::test]
async fn a_pod_that_somebody_narrows_under_a_session_is_widened() {
    for version in ["v2.4.0", "v2.1.9"] {
        let (node, session) = Node::up_with(version).await;
        node.run(&session, &pod("d", "dedicated_cores"), "d1").await.unwrap();
        node.kernel_says("d1", "3").await;
        until("settled", async || node.listed("d1").await.marks.is_empty().then_some(())).await;
        node.cgroups.narrow_pod("d1", "0");
        let pod = node.dir.path().join("host/sys/fs/cgroup/kubepods/podd/cpuset.cpus");
        until("the pod is widened", async || {
            (std::fs::read_to_string(&pod).unwrap().trim() == "0,3").then_some(())
        })
        .await;
        assert_eq!(node.cgroups.read("d1"), "3", "{version}");
    }
}
