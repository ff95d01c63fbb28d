//! Containers that get other resources while they run, between an imitated runtime and an imitated orm.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod support;

use oxalyst_nri::api::*;
use oxalyst_nri::runtime::{RuntimeSession, SessionError};
use support::node::{Node, cpus_of, pod, running};
use support::until;

fn shares(value: u64) -> LinuxResources {
    let cpu = LinuxCpu {
        shares: Some(OptionalUInt64 { value }),
        quota: Some(OptionalInt64 { value: 0 }),
        period: Some(OptionalUInt64 { value: 0 }),
        ..Default::default()
    };
    LinuxResources { cpu: Some(cpu), ..Default::default() }
}

/// As a runtime does it: the updates of others, then the container's own.
async fn update(
    node: &Node,
    session: &RuntimeSession,
    uid: &str,
    id: &str,
    told: LinuxResources,
) -> Result<Vec<ContainerUpdate>, SessionError> {
    let request = UpdateContainerRequest {
        pod: Some(pod(uid, "dedicated_cores")),
        container: Some(running(uid, id)),
        linux_resources: Some(told),
    };
    let reply = session.update_container(request).await?;
    reply.update.iter().for_each(|update| node.cgroups.apply(update));
    Ok(reply.update)
}

fn resizes(node: &Node) -> Vec<String> {
    node.orm.log().into_iter().filter(|call| call.starts_with("resize")).collect()
}

#[actix::test]
async fn a_container_that_grows_gets_its_cpus_in_the_reply_after_the_others_have_left_them() {
    let (node, session) = Node::up().await;
    node.run(&session, &pod("a", "shared_cores"), "a1").await.unwrap();
    node.run(&session, &pod("d", "dedicated_cores"), "d1").await.unwrap();
    let told = update(&node, &session, "d", "d1", shares(2048)).await.unwrap();
    let told: Vec<_> = told.iter().map(|u| (u.container_id.as_str(), cpus_of(u).0)).collect();
    assert_eq!(told, [("a1", "0-1".to_owned()), ("d1", "2-3".to_owned())]);
    assert_eq!((node.cgroups.read("a1"), node.cgroups.read("d1")), ("0-1".into(), "2-3".into()));
    // The same again asks nobody and changes nothing.
    update(&node, &session, "d", "d1", shares(2048)).await.unwrap();
    assert_eq!(resizes(&node), ["resize d1 1 2048"]);
}

#[actix::test]
async fn a_container_that_shrinks_keeps_its_first_cpu_and_the_pool_gets_the_rest_after_the_reply() {
    let (node, session) = Node::up().await;
    node.run(&session, &pod("a", "shared_cores"), "a1").await.unwrap();
    node.run(&session, &pod("d", "dedicated_cores"), "d1").await.unwrap();
    update(&node, &session, "d", "d1", shares(2048)).await.unwrap();
    let told = update(&node, &session, "d", "d1", shares(1024)).await.unwrap();
    let told: Vec<_> = told.iter().map(|u| (u.container_id.as_str(), cpus_of(u).0)).collect();
    assert_eq!(told, [("d1", "3".to_owned())], "nobody is given a CPU that another still has");
    node.kernel_says("a1", "0-2").await;
}

#[actix::test]
async fn a_refused_resize_fails_the_call_with_the_reason_and_changes_nothing() {
    let (node, session) = Node::up().await;
    node.run(&session, &pod("a", "shared_cores"), "a1").await.unwrap();
    node.run(&session, &pod("d", "dedicated_cores"), "d1").await.unwrap();
    let refused = update(&node, &session, "d", "d1", shares(4096)).await.unwrap_err().to_string();
    assert!(
        refused.contains("insufficient") && refused.contains("the last one is not given away"),
        "{refused}"
    );
    assert_eq!((node.cgroups.read("a1"), node.cgroups.read("d1")), ("0-2".into(), "3".into()));
    // It was not taken up: asked again, the orm is asked again.
    update(&node, &session, "d", "d1", shares(4096)).await.unwrap_err();
    assert_eq!(resizes(&node).len(), 2);
}

#[actix::test]
async fn an_update_of_somebody_elses_cpuset_asks_nobody_and_ours_stands() {
    let (node, session) = Node::up().await;
    node.run(&session, &pod("d", "dedicated_cores"), "d1").await.unwrap();
    let cpu = LinuxCpu { cpus: "0".into(), ..shares(0).cpu.unwrap() };
    let told = LinuxResources { cpu: Some(cpu), ..Default::default() };
    let told = update(&node, &session, "d", "d1", told).await.unwrap();
    assert_eq!(told.iter().map(|u| cpus_of(u).0).collect::<Vec<_>>(), ["3"]);
    assert_eq!(resizes(&node), [""; 0]);
}

#[actix::test]
async fn without_the_orm_the_update_passes_and_the_orm_hears_the_newest_later() {
    let (mut node, session) = Node::up().await;
    node.run(&session, &pod("a", "shared_cores"), "a1").await.unwrap();
    node.run(&session, &pod("d", "dedicated_cores"), "d1").await.unwrap();
    node.stop_orm().await;
    for value in [3072, 2048] {
        let told = update(&node, &session, "d", "d1", shares(value)).await.unwrap();
        assert_eq!(told.iter().map(|u| cpus_of(u).0).collect::<Vec<_>>(), ["3"], "it keeps what it has");
    }
    node.start_orm();
    until("the orm hears the resize", async || (!resizes(&node).is_empty()).then_some(())).await;
    node.kernel_says("d1", "2-3").await;
    node.kernel_says("a1", "0-1").await;
    assert_eq!(resizes(&node), ["resize d1 1 2048"]);
}

#[actix::test]
async fn an_orm_that_is_stopped_holds_no_update_up_and_one_that_fails_is_not_asked_for_ever() {
    let (node, session) = Node::up().await;
    node.run(&session, &pod("d", "dedicated_cores"), "d1").await.unwrap();
    node.orm.stall(true);
    // The session would be closed past the runtime's patience.
    let told = update(&node, &session, "d", "d1", shares(2048)).await.unwrap();
    assert_eq!(told.iter().map(|u| cpus_of(u).0).collect::<Vec<_>>(), ["3"]);
    node.orm.stall(false);
    node.kernel_says("d1", "2-3").await;

    node.orm.fails_for("d");
    update(&node, &session, "d", "d1", shares(3072)).await.unwrap();
    until("it was asked again, once", async || {
        (resizes(&node).iter().filter(|call| call.ends_with(" 3072")).count() == 2).then_some(())
    })
    .await;
    // The next duty is done: what failed for this pod does not stand in the way.
    session.tell(Event::StopPodSandbox, pod("d", "dedicated_cores"), None).await.unwrap();
    until("the release is heard", async || node.orm.cpus("d").is_none().then_some(())).await;
    assert_eq!(resizes(&node).iter().filter(|call| call.ends_with(" 3072")).count(), 2);
}

#[actix::test]
async fn a_resize_that_is_refused_afterwards_is_marked_until_one_is_accepted() {
    let (mut node, session) = Node::up().await;
    node.run(&session, &pod("a", "shared_cores"), "a1").await.unwrap();
    node.run(&session, &pod("d", "dedicated_cores"), "d1").await.unwrap();
    node.stop_orm().await;
    // More than there is: the runtime is let do it, for nobody says no.
    update(&node, &session, "d", "d1", shares(20 * 1024)).await.unwrap();
    assert_eq!(node.listed("d1").await.marks, [""; 0], "nobody has refused it yet");
    node.start_orm();
    until("the refusal is marked", async || {
        (node.listed("d1").await.marks == ["resize-refused"]).then_some(())
    })
    .await;
    // One that is refused at once fails the call, and nothing is better for it.
    update(&node, &session, "d", "d1", shares(10 * 1024)).await.unwrap_err();
    assert_eq!(node.listed("d1").await.marks, ["resize-refused"]);
    update(&node, &session, "d", "d1", shares(2048)).await.unwrap();
    node.kernel_says("d1", "2-3").await;
    assert_eq!(node.listed("d1").await.marks, [""; 0]);
}
