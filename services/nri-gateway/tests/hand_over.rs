//! Two gateways while one is updated: one serves, and nothing that starts in between is missed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod support;

use nri_gateway::settings::Mode;
use oxalyst_nri::api::*;
use oxalyst_nri::runtime::{RuntimeOptions, RuntimeSession};
use oxalyst_proto::gateway::v1::gateway_client::GatewayClient;
use oxalyst_proto::gateway::v1::{DiagnoseRequest, Finding};
use support::bypass::Plain;
use support::node::{Node, cpus_of, pod, running};
use support::until;
use tokio::net::UnixListener;

/// What the doctor says of the way in which decisions are applied.
async fn mode_finding(node: &Plain) -> Finding {
    let channel = oxalyst_mesh::connect(&node.settings.common.run_dir, "nri-gateway");
    let reply = GatewayClient::new(channel).diagnose(DiagnoseRequest {}).await.unwrap().into_inner();
    reply.findings.into_iter().find(|f| f.check == "mode").unwrap()
}

/// Takes in whoever connects next; gives the updates of its synchronisation, applied.
async fn session(
    listener: &UnixListener,
    node: &Node,
    pods: Vec<PodSandbox>,
    containers: Vec<Container>,
) -> (RuntimeSession, Vec<ContainerUpdate>) {
    let connected = tokio::time::timeout(support::SOON, listener.accept()).await;
    let (socket, _) = connected.expect("nobody connects").unwrap();
    let mut session = RuntimeSession::start(socket, node.cgroups.clone(), RuntimeOptions::default());
    session.registered().await.unwrap();
    session.configure("containerd", "v2.2.6").await.unwrap();
    let updates = session.synchronize(pods, containers).await.unwrap();
    updates.iter().for_each(|update| node.cgroups.apply(update));
    (session, updates)
}

async fn ended(session: &RuntimeSession) {
    tokio::time::timeout(support::SOON, session.ended()).await.expect("the session goes on");
}

/// Two machines' worth of support share one folder here: the runtime with its cgroups, and the services.
fn machine() -> (Plain, Node, UnixListener) {
    let mut node = Plain::new(Mode::Auto);
    let runtime = Node::bare();
    node.settings.common.host_root = runtime.dir.path().join("host");
    // Long enough to see that nobody goes past the runtime meanwhile.
    node.settings.bypass_after_ms = 60_000;
    let listener = UnixListener::bind(&node.settings.nri_socket).unwrap();
    (node, runtime, listener)
}

#[actix::test]
async fn n11_the_old_one_hands_over_and_what_started_in_between_is_swept() {
    let (mut node, runtime, listener) = machine();
    node.start();
    until("the orm is heard", async || {
        node.status().await.filter(|s| s.pending.iter().all(|p| p.name != "orm-stream"))
    })
    .await;
    let (first, _) = session(&listener, &runtime, vec![], vec![]).await;
    node.mode("nri").await;
    let dedicated = pod("d", "dedicated_cores");
    runtime.run(&first, &dedicated, "d1").await.unwrap();
    assert_eq!(runtime.cgroups.read("d1"), "3");

    // The new one comes; the old one ends its session by itself.
    node.start_gateway();
    ended(&first).await;
    // In the gap the runtime starts a container that nobody adjusts.
    runtime.cgroups.make(&running("a", "a1"));
    let pods = vec![dedicated.clone(), pod("a", "shared_cores")];
    let d1 = runtime.cgroups.listed(running("d", "d1"));
    let (second, updates) = session(&listener, &runtime, pods, vec![d1, running("a", "a1")]).await;
    assert!(first.end_reason().is_some(), "never both at once");
    let swept: Vec<_> = updates.iter().map(|u| (u.container_id.as_str(), cpus_of(u).0)).collect();
    assert_eq!(swept, [("a1", "0-2".to_owned())], "what was missed, and nothing else");
    assert_eq!(node.orm.cpus("d").as_deref(), Some("3"));
    node.mode("nri").await;

    // The old one is done: it does not take back what it gave, and ends when it is told to.
    node.stop_first().await;
    assert!(second.end_reason().is_none());
    assert!(node.list().await.unwrap().connected);
}

#[actix::test]
async fn the_old_one_serves_again_if_the_new_one_ends() {
    let (mut node, runtime, listener) = machine();
    node.start();
    let (first, _) = session(&listener, &runtime, vec![], vec![]).await;
    node.start_gateway();
    ended(&first).await;
    let (second, _) = session(&listener, &runtime, vec![], vec![]).await;
    node.mode("nri").await;
    node.stop_last().await;
    ended(&second).await;
    let (third, _) = session(&listener, &runtime, vec![], vec![]).await;
    node.mode("nri").await;
    assert!(third.end_reason().is_none());
}

#[actix::test]
async fn n11_a_gateway_of_another_folder_waits_and_says_for_whom() {
    let (mut node, runtime, listener) = machine();
    node.start();
    let (first, _) = session(&listener, &runtime, vec![], vec![]).await;
    node.mode("nri").await;
    let mut other = Plain::new(Mode::Nri);
    other.settings.nri_socket.clone_from(&node.settings.nri_socket);
    other.start();
    other.lacks("nri-session", "another gateway holds").await;
    assert!(first.end_reason().is_none());
    node.stop_first().await;
    let (_second, _) = session(&listener, &runtime, vec![], vec![]).await;
    other.mode("nri").await;
}

#[actix::test]
async fn n11_in_auto_and_in_bypass_a_gateway_of_another_folder_writes_nothing() {
    for mode in [Mode::Auto, Mode::Bypass] {
        let (mut node, runtime, listener) = machine();
        node.start();
        let (first, _) = session(&listener, &runtime, vec![], vec![]).await;
        node.mode("nri").await;
        let mut other = Plain::new(mode);
        other.settings.common.host_root.clone_from(&node.settings.common.host_root);
        if mode == Mode::Auto {
            other.settings.nri_socket.clone_from(&node.settings.nri_socket);
        }
        other.start();
        other.lacks("bypass", "another gateway holds").await;
        other.mode("none").await;
        let told = mode_finding(&other).await;
        assert!(told.verdict == "fault" && told.detail.contains("another gateway holds"), "{told:?}");
        assert!(first.end_reason().is_none(), "{mode:?}");
        other.stop_first().await;
        node.stop_first().await;
    }
}
