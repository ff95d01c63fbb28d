//! The gateway between an imitated runtime and an imitated orm.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod support;

use std::time::Duration;

use nri_gateway::settings::OnDeadline;
use oxalyst_nri::api::*;
use oxalyst_nri::runtime::RuntimeSession;
use support::node::{Node, adjusted, container, cpus_of, own_calls, pod, running};
use support::orm::UNSETTLED;
use support::until;
use tokio::net::UnixListener;

fn both(cpus: &str) -> (String, String) {
    (cpus.to_owned(), "0".to_owned())
}

#[actix::test]
async fn a_shared_pod_gets_the_pool_and_a_dedicated_one_carves_in_the_same_reply() {
    let (node, session) = Node::up().await;
    let reply = node.run(&session, &pod("a", "shared_cores"), "a1").await.unwrap();
    assert_eq!(adjusted(&reply), both("0-3"));
    assert!(reply.update.is_empty());
    let reply = node.run(&session, &pod("d", "dedicated_cores"), "d1").await.unwrap();
    assert_eq!(adjusted(&reply), both("3"));
    assert_eq!(reply.update.len(), 1);
    assert_eq!(cpus_of(&reply.update[0]), ("0-2".to_owned(), String::new()), "memory nodes stay");
    assert!(reply.update[0].ignore_failure);
    assert_eq!(node.cgroups.read("a1"), "0-2");
    let listed = node.listed("d1").await;
    assert_eq!((listed.wanted_cpus.as_str(), listed.marks.is_empty()), ("3", true));
}

#[actix::test]
async fn a_runtime_with_calls_of_their_own_is_served_the_same() {
    let mut node = Node::bare();
    node.options = own_calls();
    node.start_orm();
    node.start_gateway(OnDeadline::Open);
    node.ready("orm-stream").await;
    let (session, _) = node.session(vec![], vec![]).await;
    let reply = node.run(&session, &pod("d", "dedicated_cores"), "d1").await.unwrap();
    assert_eq!(adjusted(&reply), both("3"));
}

#[actix::test]
async fn a_refusal_reaches_the_runtime_with_its_numbers() {
    let (node, session) = Node::up().await;
    for uid in ["d1", "d2", "d3"] {
        node.run(&session, &pod(uid, "dedicated_cores"), uid).await.unwrap();
    }
    let refused = session.tell(Event::RunPodSandbox, pod("d4", "dedicated_cores"), None).await.unwrap_err();
    let text = refused.to_string();
    assert!(text.contains("asked 1 CPU, NUMA node 0 has 0 free"), "{text}");
    assert!(text.contains("insufficient"), "{text}");
    node.run(&session, &pod("a", "shared_cores"), "a1").await.unwrap();
}

#[actix::test]
async fn a_pod_without_a_told_request_is_admitted_with_its_container() {
    let (node, session) = Node::up().await;
    let mut bare = pod("d", "dedicated_cores");
    bare.annotations.insert(UNSETTLED.into(), "1".into());
    let reply = node.run(&session, &bare, "d1").await.unwrap();
    assert_eq!(adjusted(&reply), both("3"));
    assert!(node.orm.log().contains(&"admit container d1".to_owned()));
}

#[actix::test]
async fn what_is_released_is_given_back_after_the_reply() {
    let (node, session) = Node::up().await;
    node.run(&session, &pod("a", "shared_cores"), "a1").await.unwrap();
    let dedicated = pod("d", "dedicated_cores");
    node.run(&session, &dedicated, "d1").await.unwrap();
    assert_eq!(node.cgroups.read("a1"), "0-2");
    // A crash frees nothing.
    session.stop_container(dedicated.clone(), container("d", "d1")).await.unwrap();
    session.tell(Event::RemoveContainer, dedicated.clone(), Some(container("d", "d1"))).await.unwrap();
    let reply = node.create(&session, &dedicated, "d2").await.unwrap();
    assert_eq!(adjusted(&reply), both("3"));
    session.tell(Event::StopPodSandbox, dedicated.clone(), None).await.unwrap();
    session.tell(Event::RemovePodSandbox, dedicated, None).await.unwrap();
    node.kernel_says("a1", "0-3").await;
    assert!(node.orm.log().contains(&"release d s-d".to_owned()));
    assert!(node.cgroups.calls().contains(&vec!["a1".to_owned()]));
}

#[actix::test]
async fn a_release_waits_for_an_orm_that_is_away() {
    let (mut node, session) = Node::up().await;
    node.run(&session, &pod("d", "dedicated_cores"), "d1").await.unwrap();
    node.stop_orm().await;
    session.tell(Event::RemovePodSandbox, pod("d", "dedicated_cores"), None).await.unwrap();
    assert!(!node.orm.log().contains(&"release d s-d".to_owned()));
    node.start_orm();
    until("the orm hears the release", async || node.orm.cpus("d").is_none().then_some(())).await;
}

#[actix::test]
async fn an_update_that_the_runtime_drops_is_made_good_before_the_exclusive_container_runs() {
    let (node, session) = Node::up().await;
    node.run(&session, &pod("a", "shared_cores"), "a1").await.unwrap();
    node.kernel_says("a1", "0-3").await;
    let dedicated = pod("d", "dedicated_cores");
    session.tell(Event::RunPodSandbox, dedicated.clone(), None).await.unwrap();
    node.cgroups.deaf(true);
    node.create(&session, &dedicated, "d1").await.unwrap();
    let created = container("d", "d1");
    session.tell(Event::StartContainer, dedicated.clone(), Some(created)).await.unwrap();
    assert_eq!(node.cgroups.read("a1"), "0-2");
    assert_eq!(node.cgroups.read("d1"), "3");
}

#[actix::test]
async fn a_shared_container_held_before_its_start_does_not_start_on_a_cpu_given_away_meanwhile() {
    let (node, session) = Node::up().await;
    let shared = pod("a", "shared_cores");
    session.tell(Event::RunPodSandbox, shared.clone(), None).await.unwrap();
    node.create(&session, &shared, "a1").await.unwrap();
    node.cgroups.deaf(true);
    node.run(&session, &pod("d", "dedicated_cores"), "d1").await.unwrap();
    session.tell(Event::StartContainer, shared.clone(), Some(container("a", "a1"))).await.unwrap();
    assert_eq!(node.cgroups.read("a1"), "0-2");
    // The runtime hears of what was written past it.
    node.cgroups.deaf(false);
    let before = node.cgroups.calls().len();
    session.tell(Event::PostStartContainer, shared, Some(running("a", "a1"))).await.unwrap();
    until("the runtime is told", async || {
        node.cgroups.calls()[before..].iter().flatten().any(|id| id == "a1").then_some(())
    })
    .await;
}

#[actix::test]
async fn the_cpuset_stands_against_an_update_by_the_kubelet() {
    let (node, session) = Node::up().await;
    node.run(&session, &pod("d", "dedicated_cores"), "d1").await.unwrap();
    let cpu = Some(LinuxCpu { cpus: "0-1".into(), ..Default::default() });
    let request = UpdateContainerRequest {
        pod: Some(pod("d", "dedicated_cores")),
        container: Some(running("d", "d1")),
        linux_resources: Some(LinuxResources { cpu, ..Default::default() }),
    };
    let answer = session.update_container(request).await.unwrap();
    assert_eq!(answer.update.len(), 1);
    assert_eq!(answer.update[0].container_id, "d1");
    assert_eq!(cpus_of(&answer.update[0]), both("3"));
}

#[actix::test]
async fn without_an_orm_containers_start_unpinned_and_are_pinned_when_it_comes() {
    let mut node = Node::bare();
    node.start_gateway(OnDeadline::Open);
    let (session, _) = node.session(vec![], vec![]).await;
    node.connected().await;
    let reply = node.run(&session, &pod("d", "dedicated_cores"), "d1").await.unwrap();
    assert!(reply.adjust.is_none());
    let marks = node.listed("d1").await.marks;
    assert_eq!(marks, ["unpinned", "answered-by-policy"]);
    node.start_orm();
    node.kernel_says("d1", "3").await;
    until("the marks go", async || node.listed("d1").await.marks.is_empty().then_some(())).await;
}

#[actix::test]
async fn an_orm_that_went_away_is_answered_for_with_the_last_known_pool() {
    let (mut node, session) = Node::up().await;
    node.run(&session, &pod("d", "dedicated_cores"), "d1").await.unwrap();
    node.stop_orm().await;
    let reply = node.run(&session, &pod("a", "shared_cores"), "a1").await.unwrap();
    assert_eq!(adjusted(&reply), both("0-2"));
    assert_eq!(node.listed("a1").await.marks, ["answered-by-policy"]);
    node.start_orm();
    until("the orm takes it in", async || node.listed("a1").await.marks.is_empty().then_some(())).await;
}

#[actix::test]
async fn what_policy_placed_follows_the_pool_and_stays_marked_while_the_orm_fails_for_it() {
    let (node, session) = Node::up().await;
    let unlucky = pod("a", "shared_cores");
    node.orm.fails_for("a");
    assert_eq!(adjusted(&node.run(&session, &unlucky, "a1").await.unwrap()), both("0-3"));
    let dedicated = pod("d", "dedicated_cores");
    let reply = node.run(&session, &dedicated, "d1").await.unwrap();
    assert_eq!(reply.update.len(), 1);
    assert_eq!((node.cgroups.read("a1").as_str(), node.cgroups.read("d1").as_str()), ("0-2", "3"));
    assert_eq!(node.listed("a1").await.marks, ["answered-by-policy"]);
    session.tell(Event::RemovePodSandbox, dedicated, None).await.unwrap();
    node.kernel_says("a1", "0-3").await;
    assert_eq!(node.listed("a1").await.marks, ["answered-by-policy"]);
}

#[actix::test]
async fn pods_without_a_uid_are_told_apart_by_their_sandboxes() {
    let (node, session) = Node::up().await;
    for id in ["s-1", "s-2"] {
        let bare = PodSandbox { id: id.into(), uid: String::new(), ..pod("x", "dedicated_cores") };
        session.tell(Event::RunPodSandbox, bare, None).await.unwrap();
    }
    assert_eq!((node.orm.cpus("s-1").as_deref(), node.orm.cpus("s-2").as_deref()), (Some("3"), Some("2")));
    let bare = PodSandbox { id: "s-1".into(), uid: String::new(), ..pod("x", "dedicated_cores") };
    session.tell(Event::StopPodSandbox, bare, None).await.unwrap();
    until("it is released", async || node.orm.cpus("s-1").is_none().then_some(())).await;
}

#[actix::test]
async fn a_stalled_orm_costs_its_deadline_twice_and_then_nothing() {
    let (node, session) = Node::up().await;
    node.orm.stall(true);
    for uid in ["a", "b", "c"] {
        session.tell(Event::RunPodSandbox, pod(uid, "shared_cores"), None).await.unwrap();
    }
    let asked = |log: &[String]| log.iter().filter(|l| l.starts_with("admit")).count();
    assert_eq!(asked(&node.orm.log()), 2, "the third is not asked");
    assert!(session.end_reason().is_none());
    node.orm.stall(false);
    until("it is asked again", async || {
        session.tell(Event::RunPodSandbox, pod("e", "shared_cores"), None).await.unwrap();
        node.orm.log().contains(&"admit e".to_owned()).then_some(())
    })
    .await;
}

#[actix::test]
async fn closed_refuses_what_is_not_needed_to_start_the_node() {
    let mut node = Node::bare();
    node.version = "v1.7.28";
    node.start_gateway(OnDeadline::Closed);
    let (session, _) = node.session(vec![], vec![]).await;
    let refused = session.tell(Event::RunPodSandbox, pod("a", "shared_cores"), None).await.unwrap_err();
    assert!(refused.to_string().contains("on_deadline is closed"), "{refused}");
    session.tell(Event::RunPodSandbox, pod("s", "system_cores"), None).await.unwrap();
    let mut own = pod("own", "shared_cores");
    own.labels.insert("app.kubernetes.io/part-of".into(), "oxalyst".into());
    session.tell(Event::RunPodSandbox, own, None).await.unwrap();
}

#[actix::test]
async fn a_synchronisation_pins_exactly_what_differs() {
    let mut node = Node::bare();
    node.start_orm();
    let pods = vec![pod("a", "shared_cores"), pod("b", "shared_cores"), pod("d", "dedicated_cores")];
    let containers = [("a", "a1"), ("b", "b1"), ("d", "d1")].map(|(uid, id)| running(uid, id));
    containers.iter().for_each(|c| node.cgroups.make(c));
    node.start_gateway(OnDeadline::Open);
    let (session, updates) = node.session(pods.clone(), containers.to_vec()).await;
    let mut pinned: Vec<_> = updates.iter().map(|u| (u.container_id.clone(), cpus_of(u).0)).collect();
    pinned.sort();
    let expected = [("a1", "0-2"), ("b1", "0-2"), ("d1", "3")].map(|(i, c)| (i.to_owned(), c.to_owned()));
    assert_eq!(pinned, expected);
    node.connected().await;
    assert_eq!(node.fact("sync_pinned").await, "3");
    assert_eq!(node.fact("runtime").await, "containerd v2.4.0");
    // The runtime goes and comes: the same process, and nothing to do but for the one that somebody changed.
    drop(session);
    node.cgroups.write("b1", "0-3");
    let listed: Vec<_> = containers.into_iter().map(|c| node.cgroups.listed(c)).collect();
    let (_session, updates) = node.session(pods, listed).await;
    let ids: Vec<_> = updates.iter().map(|u| u.container_id.as_str()).collect();
    assert_eq!(ids, ["b1"]);
    until("it counts the reconnection", async || (node.fact("reconnects").await == "1").then_some(())).await;
}

#[actix::test]
async fn a_runtime_that_comes_back_on_a_new_socket_is_found_at_once_ten_times() {
    let (mut node, mut session) = Node::up().await;
    for _ in 0..10 {
        drop(session);
        drop(node.listener.take());
        std::fs::remove_file(node.socket()).unwrap();
        node.listener = Some(UnixListener::bind(node.socket()).unwrap());
        session = node.session(vec![], vec![]).await.0;
        node.connected().await;
    }
    assert_eq!(node.fact("reconnects").await, "10");
}

#[actix::test]
async fn a_connection_that_breaks_before_the_registration_is_made_anew() {
    let mut node = Node::bare();
    node.start_orm();
    node.start_gateway(OnDeadline::Open);
    let (socket, _) = node.listener.as_ref().unwrap().accept().await.unwrap();
    drop(socket);
    let (session, _) = node.session(vec![], vec![]).await;
    node.connected().await;
    assert!(session.end_reason().is_none());
}

#[actix::test]
async fn a_runtime_that_registers_and_never_configures_is_left() {
    let mut node = Node::bare();
    node.start_gateway(OnDeadline::Open);
    let (socket, _) = node.listener.as_ref().unwrap().accept().await.unwrap();
    let mut silent = RuntimeSession::start(socket, node.cgroups.clone(), node.options);
    silent.registered().await.unwrap();
    // Time flies while everybody waits.
    tokio::time::pause();
    assert_eq!(silent.ended().await.to_string(), "the peer closed the connection");
    tokio::time::resume();
    let _session = node.session(vec![], vec![]).await;
    node.connected().await;
}

#[actix::test]
async fn drift_is_seen_and_mended() {
    let (node, session) = Node::up().await;
    node.run(&session, &pod("d", "dedicated_cores"), "d1").await.unwrap();
    until("it was seen to agree", async || node.listed("d1").await.kernel_cpus.map(drop)).await;
    node.cgroups.write("d1", "0-3");
    node.kernel_says("d1", "3").await;
}

#[actix::test]
async fn an_older_sandbox_of_a_pod_frees_nothing() {
    let (node, session) = Node::up().await;
    let first = pod("d", "dedicated_cores");
    node.run(&session, &first, "d1").await.unwrap();
    let second = PodSandbox { id: "s-d-2".into(), ..first.clone() };
    session.tell(Event::RunPodSandbox, second, None).await.unwrap();
    session.tell(Event::RemovePodSandbox, first, None).await.unwrap();
    until("the orm hears of it", async || node.orm.log().contains(&"release d s-d".to_owned()).then_some(()))
        .await;
    tokio::time::timeout(Duration::from_secs(5), async {
        session.tell(Event::RunPodSandbox, pod("a", "shared_cores"), None).await.unwrap();
    })
    .await
    .unwrap();
    assert_eq!(node.orm.cpus("d").as_deref(), Some("3"));
}

/// The orm has not heard of the second sandbox when it hears that the first one has ended: it would give away what runs.
#[actix::test]
async fn a_sandbox_that_an_absent_orm_never_heard_of_is_told_before_the_end_of_the_one_before() {
    let (node, session) = Node::up().await;
    let first = pod("d", "dedicated_cores");
    node.run(&session, &first, "d1").await.unwrap();
    node.orm.stall(true);
    let second = PodSandbox { id: "s-d-2".into(), ..first.clone() };
    session.tell(Event::RunPodSandbox, second, None).await.unwrap();
    session.tell(Event::RemovePodSandbox, first, None).await.unwrap();
    let before = node.orm.log().len();
    node.orm.stall(false);
    let told = until("the orm hears of it", async || {
        let log = node.orm.log().split_off(before);
        log.iter().any(|call| call == "release d s-d").then_some(log)
    })
    .await;
    let position = |what: &str| told.iter().position(|call| call.starts_with(what));
    assert!(position("reconcile").unwrap() < position("release d s-d").unwrap(), "{told:?}");
}

#[actix::test]
async fn n09_a_synchronisation_asks_nothing_of_an_orm_that_does_not_answer() {
    let (node, session) = Node::up().await;
    node.run(&session, &pod("d", "dedicated_cores"), "d1").await.unwrap();
    node.orm.stall(true);
    for uid in ["a", "b"] {
        session.tell(Event::RunPodSandbox, pod(uid, "shared_cores"), None).await.unwrap();
    }
    drop(session);
    let before = node.orm.log().len();
    let listed = Container { state: ContainerState::ContainerRunning.into(), ..container("d", "d1") };
    let (_session, updates) = node.session(vec![pod("d", "dedicated_cores")], vec![listed]).await;
    assert_eq!(updates.iter().map(|u| cpus_of(u).0).collect::<Vec<_>>(), ["3"], "as last decided");
    let asked = node.orm.log().split_off(before);
    assert!(!asked.iter().any(|call| call.starts_with("reconcile")), "{asked:?}");
}
