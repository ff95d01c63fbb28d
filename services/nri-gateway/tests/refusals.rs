//! Refusals on a runtime that cannot bear one at the sandbox.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod support;

use nri_gateway::settings::OnDeadline;
use oxalyst_nri::api::*;
use oxalyst_nri::runtime::RuntimeSession;
use support::node::{Node, adjusted, pod};
use support::until;

const NUMBERS: &str = "asked 1 CPU, NUMA node 0 has 0 free";

/// Three of the four CPUs are exclusive; a fourth dedicated pod's sandbox is let in.
async fn full() -> (Node, RuntimeSession, PodSandbox) {
    let (node, session) = Node::up_with("v2.1.9").await;
    for uid in ["d1", "d2", "d3"] {
        node.run(&session, &pod(uid, "dedicated_cores"), uid).await.unwrap();
    }
    let refused = pod("d4", "dedicated_cores");
    session.tell(Event::RunPodSandbox, refused.clone(), None).await.unwrap();
    (node, session, refused)
}

#[actix::test]
async fn its_containers_are_refused_with_the_numbers_until_there_is_room() {
    let (node, session, refused) = full().await;
    for _ in 0..2 {
        let answer = node.create(&session, &refused, "c4").await.unwrap_err().to_string();
        assert!(answer.contains(NUMBERS) && answer.contains("insufficient"), "{answer}");
    }
    let listed = node.list().await.unwrap();
    assert_eq!(listed.refused.len(), 1);
    assert_eq!((listed.refused[0].name.as_str(), listed.refused[0].sandbox_id.as_str()), ("d4", "s-d4"));
    assert!(listed.refused[0].message.contains(NUMBERS), "{listed:?}");
    assert!(listed.containers.iter().all(|c| c.pod_uid != "d4"));

    session.tell(Event::StopPodSandbox, pod("d1", "dedicated_cores"), None).await.unwrap();
    let reply = node.create(&session, &refused, "c4").await.unwrap();
    assert_eq!(adjusted(&reply).0, "3");
    assert!(node.list().await.unwrap().refused.is_empty());
}

#[actix::test]
async fn without_an_orm_its_last_word_stands() {
    let (mut node, session, refused) = full().await;
    node.stop_orm().await;
    let answer = node.create(&session, &refused, "c4").await.unwrap_err().to_string();
    assert!(answer.contains(NUMBERS), "{answer}");
}

#[actix::test]
async fn what_closed_refuses_gets_its_sandbox_too() {
    let mut node = Node::bare();
    node.version = "v2.1.9";
    node.start_gateway(OnDeadline::Closed);
    let (session, _) = node.session(vec![], vec![]).await;
    let shared = pod("a", "shared_cores");
    session.tell(Event::RunPodSandbox, shared.clone(), None).await.unwrap();
    let answer = node.create(&session, &shared, "a1").await.unwrap_err().to_string();
    assert!(answer.contains("on_deadline is closed"), "{answer}");
}

#[actix::test]
async fn it_is_forgotten_with_its_sandbox() {
    let (node, session, refused) = full().await;
    session.tell(Event::RemovePodSandbox, refused, None).await.unwrap();
    until("it is not listed", async || node.list().await.unwrap().refused.is_empty().then_some(())).await;
}
