//! What the orm is told to be running.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod support;

use nri_gateway::settings::OnDeadline;
use oxalyst_nri::api::*;
use support::node::{Node, container, pod, running};
use support::until;

/// What the next whole list tells of sandboxes.
async fn told(node: &Node) -> Vec<String> {
    let seen = node.orm.log().len();
    until("a whole list", async || {
        let log = node.orm.log();
        let list = log[seen..].iter().find_map(|line| line.strip_prefix("reconcile").map(str::to_owned));
        list.map(|list| list.split_whitespace().map(str::to_owned).collect())
    })
    .await
}

fn stopped(uid: &str, id: &str) -> Container {
    Container { state: ContainerState::ContainerStopped.into(), ..container(uid, id) }
}

fn below(parent: &str, pod: PodSandbox) -> PodSandbox {
    let linux = Some(LinuxPodSandbox { cgroup_parent: parent.into(), ..Default::default() });
    PodSandbox { linux, ..pod }
}

#[actix::test]
async fn a_listed_sandbox_in_which_nothing_runs_and_that_nobody_admitted_is_not_told() {
    let mut node = Node::bare();
    node.start_orm();
    node.start_gateway(OnDeadline::Open);
    node.ready("orm-stream").await;
    let refused = pod("r", "dedicated_cores");
    let crashed = pod("c", "dedicated_cores");
    let live = pod("l", "dedicated_cores");
    node.cgroups.make(&container("l", "l1"));
    let containers = vec![stopped("c", "c1"), running("l", "l1")];
    let (session, _) = node.session(vec![refused.clone(), crashed, live], containers).await;
    node.connected().await;
    assert_eq!(told(&node).await, ["s-l"]);
    assert_eq!((node.orm.cpus("r"), node.orm.cpus("c")), (None, None));
    assert_eq!(node.orm.cpus("l").as_deref(), Some("3"));

    node.create(&session, &refused, "r1").await.unwrap();
    assert_eq!(told(&node).await, ["s-l", "s-r"], "its container was admitted");
}

#[actix::test]
async fn an_admitted_sandbox_is_told_before_its_containers_even_to_an_orm_that_forgot_it() {
    let (node, session) = Node::up().await;
    session.tell(Event::RunPodSandbox, pod("a", "shared_cores"), None).await.unwrap();
    node.orm.remove("a");
    until("the orm takes it in again", async || node.orm.cpus("a").map(drop)).await;
}

#[actix::test]
async fn a_sandbox_that_got_in_refused_or_by_policy_is_not_told() {
    let (mut node, session) = Node::up_with("v2.1.9").await;
    for uid in ["d1", "d2", "d3", "d4"] {
        session.tell(Event::RunPodSandbox, pod(uid, "dedicated_cores"), None).await.unwrap();
    }
    node.stop_orm().await;
    session.tell(Event::RunPodSandbox, pod("p", "dedicated_cores"), None).await.unwrap();
    node.start_orm();
    node.ready("orm-stream").await;
    assert_eq!(told(&node).await, ["s-d1", "s-d2", "s-d3"]);
}

#[actix::test]
async fn a_pod_that_was_there_before_the_session_and_whose_cgroup_is_gone_has_ended() {
    let mut node = Node::bare();
    node.start_orm();
    node.start_gateway(OnDeadline::Open);
    node.ready("orm-stream").await;
    node.cgroups.make_parent("/kubepods/podc");
    let pods = [("f", "/kubepods/podf"), ("c", "/kubepods/podc")]
        .map(|(uid, parent)| below(parent, pod(uid, "shared_cores")));
    let listed = [running("f", "f1"), running("c", "c1")];
    node.cgroups.make(&listed[1]);
    let (session, _) = node.session(pods.to_vec(), listed.to_vec()).await;
    node.connected().await;
    assert_eq!(told(&node).await, ["s-c", "s-f"]);
    // The one is in a crash loop, the other has ended. containerd tells of neither sandbox.
    for (pod, container) in pods.into_iter().zip(listed) {
        session.stop_container(pod, container).await.unwrap();
    }
    assert_eq!(told(&node).await, ["s-c"]);
}

#[actix::test]
async fn what_was_refused_and_ended_unheard_is_forgotten() {
    let (node, session) = Node::up_with("v2.1.9").await;
    for uid in ["d1", "d2", "d3", "d4"] {
        session.tell(Event::RunPodSandbox, pod(uid, "dedicated_cores"), None).await.unwrap();
    }
    drop(session);
    let listed = below("/kubepods/podd4", pod("d4", "dedicated_cores"));
    let (_session, _) = node.session(vec![listed], vec![]).await;
    until("it is forgotten", async || node.list().await.unwrap().refused.is_empty().then_some(())).await;
}
