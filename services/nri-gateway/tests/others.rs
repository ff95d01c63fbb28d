//! Others that write, ask or adjust what the gateway does; and runtimes that know more events.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod support;

use nri_gateway::settings::OnDeadline;
use oxalyst_nri::api::*;
use oxalyst_nri::runtime::{RuntimeOptions, RuntimeSession, SessionError};
use oxalyst_proto::gateway::v1::gateway_client::GatewayClient;
use oxalyst_proto::gateway::v1::{DiagnoseRequest, Finding};
use support::node::{Node, adjusted, container, cpus_of, pod, running};
use support::until;
use tokio::net::UnixListener;

async fn finding(node: &Node, check: &str) -> Finding {
    let channel = oxalyst_mesh::connect(&node.run_dir(), "nri-gateway");
    let reply = GatewayClient::new(channel).diagnose(DiagnoseRequest {}).await.unwrap().into_inner();
    reply.findings.into_iter().find(|f| f.check == check).unwrap()
}

#[actix::test]
async fn a12_somebody_who_keeps_changing_a_container_is_mended_once_a_period_and_no_more() {
    let (node, session) = Node::up().await;
    node.run(&session, &pod("d", "dedicated_cores"), "d1").await.unwrap();
    let mut changes = 0;
    while !node.listed("d1").await.marks.contains(&"contended".to_owned()) {
        changes += 1;
        assert!(changes <= 20, "it is fought for ever");
        until("ours", async || node.listed("d1").await.kernel_cpus.filter(|cpus| cpus == "3")).await;
        node.cgroups.write("d1", "0");
        node.kernel_says("d1", "3").await;
    }
    assert!(changes >= 5, "{changes} changes are no contest yet");
    node.kernel_says("d1", "3").await;
    // A change that would wake a comparison of what differs: it does not hurry for this one.
    node.cgroups.write("d1", "0");
    let before = node.cgroups.calls().len();
    node.run(&session, &pod("a", "shared_cores"), "a1").await.unwrap();
    until("the other is compared", async || node.listed("a1").await.kernel_cpus).await;
    let fought = node.cgroups.calls()[before..].iter().filter(|ids| ids.contains(&"d1".to_owned())).count();
    assert!(fought <= 1, "once a period at most: {fought}");
    node.kernel_says("d1", "3").await;
    assert!(node.listed("d1").await.marks.contains(&"contended".to_owned()), "it stays marked");
}

#[actix::test]
async fn a_kubelet_with_a_cpu_manager_of_its_own_gets_our_cpus_and_its_other_wishes() {
    let (node, session) = Node::up().await;
    let dedicated = pod("d", "dedicated_cores");
    node.run(&session, &dedicated, "d1").await.unwrap();
    let cpu = LinuxCpu {
        cpus: "1".into(),
        shares: Some(OptionalUInt64 { value: 1_024 }),
        quota: Some(OptionalInt64 { value: 200_000 }),
        ..Default::default()
    };
    let asked = LinuxResources {
        cpu: Some(cpu),
        memory: Some(LinuxMemory { limit: Some(OptionalInt64 { value: 1 << 20 }), ..Default::default() }),
        ..Default::default()
    };
    let request = UpdateContainerRequest {
        pod: Some(dedicated),
        container: Some(running("d", "d1")),
        linux_resources: Some(asked),
    };
    let reply = session.update_container(request.clone()).await.unwrap();
    assert_eq!(reply.update.len(), 1);
    assert_eq!(cpus_of(&reply.update[0]).0, "3");
    let resources = reply.update[0].linux.clone().unwrap().resources.unwrap();
    let cpu = resources.cpu.unwrap();
    assert_eq!(
        (cpu.shares, cpu.quota, resources.memory),
        (None, None, None),
        "the rest passes as it was asked"
    );
    let found = finding(&node, "cpu-managers").await;
    assert!(found.verdict == "warning" && found.detail.contains("two CPU managers"), "{found:?}");
    assert_eq!(node.fact("foreign_cpusets").await, "1");
    // What does not name other CPUs is nobody's contest.
    let resize = UpdateContainerRequest { linux_resources: None, ..request };
    assert_eq!(cpus_of(&session.update_container(resize).await.unwrap().update[0]).0, "3");
    assert_eq!(node.fact("foreign_cpusets").await, "1");
}

#[actix::test]
async fn updates_out_of_turn_come_in_batches_and_only_for_what_differs() {
    const CONTAINERS: usize = 200;
    let mut node = Node::bare();
    node.start_orm();
    node.start_gateway(OnDeadline::Open);
    node.ready("orm-stream").await;
    let ids: Vec<String> = (0..CONTAINERS).map(|n| format!("a{n}")).collect();
    let all: Vec<_> = ids.iter().map(|id| running("a", id)).collect();
    all.iter().for_each(|c| node.cgroups.make(c));
    let pods = vec![pod("a", "shared_cores"), pod("d", "dedicated_cores")];
    let d1 = running("d", "d1");
    node.cgroups.make(&d1);
    let (_session, updates) = node.session(pods, all.into_iter().chain([d1]).collect()).await;
    assert_eq!(updates.len(), CONTAINERS + 1);
    node.kernel_says("d1", "3").await;
    until("all are seen to hold", async || {
        let list = node.list().await?;
        list.containers.iter().all(|c| c.kernel_cpus.as_ref() == Some(&c.wanted_cpus)).then_some(())
    })
    .await;
    let before = node.cgroups.calls().len();
    node.orm.remove("d");
    for id in &ids {
        node.kernel_says(id, "0-3").await;
    }
    let calls = node.cgroups.calls()[before..].to_vec();
    assert!(calls.iter().all(|ids| ids.len() <= 128), "{:?}", calls.iter().map(Vec::len).collect::<Vec<_>>());
    for id in &ids {
        assert_eq!(calls.iter().flatten().filter(|told| *told == id).count(), 1, "{id}");
    }
}

#[actix::test]
async fn k8_what_is_decided_beside_cpus_is_told_at_creation_and_written_where_the_runtime_cannot() {
    let (node, session) = Node::up().await;
    node.orm.properties(&[
        ("PidsLimit", "99"),
        ("CpuBurst", "5000"),
        ("Env/A", "b"),
        ("MemoryMinInBytes", "4096"),
    ]);
    let reply = node.create_after_sandbox(&session, &pod("a", "shared_cores"), "a1").await;
    let adjust = reply.adjust.clone().unwrap();
    assert_eq!((adjust.env[0].key.as_str(), adjust.env[0].value.as_str()), ("A", "b"));
    let resources = adjust.linux.unwrap().resources.unwrap();
    assert_eq!(resources.pids, None, "containerd 1.7 would drop it");
    assert_eq!(resources.unified["cpu.max.burst"], "5000", "the tree is v2");
    assert_eq!(adjusted(&reply), ("0-3".to_owned(), "0".to_owned()));
    // This runtime set the cpuset alone: the rest is written before the program begins.
    node.start(&session, &pod("a", "shared_cores"), "a1").await;
    assert_eq!(node.cgroups.file("a1", "pids.max"), "99");
}

/// A runtime that knows events up to `last` and tells a version of NRI.
async fn newer(node: &Node, last: Event) -> (RuntimeSession, Result<i32, SessionError>) {
    let (socket, _) = node.listener.as_ref().unwrap().accept().await.unwrap();
    let options = RuntimeOptions { last_event: last, ..Default::default() };
    let mut session = RuntimeSession::start(socket, node.cgroups.clone(), options);
    session.registered().await.unwrap();
    let mask = session.configure("containerd", "v2.4.0").await;
    (session, mask)
}

#[actix::test]
async fn newer_events_are_asked_for_where_they_are_known_and_not_again_where_they_are_refused() {
    let mut node = Node::bare();
    node.start_orm();
    node.start_gateway(OnDeadline::Open);
    node.ready("orm-stream").await;
    // It tells a version, and knows nothing beyond UpdatePodSandbox.
    let (session, mask) = newer(&node, Event::UpdatePodSandbox).await;
    assert!(matches!(mask, Err(SessionError::InvalidEvents(13))), "{mask:?}");
    drop(session);
    let (session, mask) = newer(&node, Event::UpdatePodSandbox).await;
    assert!(matches!(mask, Err(SessionError::InvalidEvents(13))), "{mask:?}");
    drop(session);
    let (session, mask) = newer(&node, Event::UpdatePodSandbox).await;
    assert_eq!(mask.unwrap(), 0xfff, "all that it knows");
    session.synchronize(vec![], vec![]).await.unwrap();
    node.connected().await;

    // Another runtime at the same place may know more.
    drop(session);
    drop(node.listener.take());
    std::fs::remove_file(node.socket()).unwrap();
    node.listener = Some(UnixListener::bind(node.socket()).unwrap());
    let (_session, mask) = newer(&node, Event::ValidateContainerAdjustment).await;
    assert_eq!(mask.unwrap(), 0x3fff);
}

#[actix::test]
async fn a_runtime_that_goes_at_another_moment_is_asked_for_all_events_again() {
    let mut node = Node::bare();
    node.start_orm();
    node.start_gateway(OnDeadline::Open);
    node.ready("orm-stream").await;
    for _ in 0..2 {
        let (socket, _) = node.listener.as_ref().unwrap().accept().await.unwrap();
        let mut session = RuntimeSession::start(socket, node.cgroups.clone(), RuntimeOptions::default());
        session.registered().await.unwrap();
    }
    let (_session, mask) = newer(&node, Event::ValidateContainerAdjustment).await;
    assert_eq!(mask.unwrap(), 0x3fff);
}

#[actix::test]
async fn n21_another_plugins_cpus_are_told_and_not_refused() {
    let mut node = Node::bare();
    node.start_orm();
    node.start_gateway(OnDeadline::Open);
    node.ready("orm-stream").await;
    let (session, mask) = newer(&node, Event::ValidateContainerAdjustment).await;
    assert_eq!(mask.unwrap(), 0x7ff | 1 << 11 | 1 << 12 | 1 << 13);
    session.synchronize(vec![], vec![]).await.unwrap();
    node.connected().await;
    let dedicated = pod("d", "dedicated_cores");
    let reply = node.create_after_sandbox(&session, &dedicated, "d1").await;
    let validate = |cpus: &str| {
        let cpu = Some(LinuxCpu { cpus: cpus.into(), ..Default::default() });
        let resources = Some(LinuxResources { cpu, ..Default::default() });
        let linux = Some(LinuxContainerAdjustment { resources, ..Default::default() });
        let simple = [(i32::from(Field::CpuSetCpUs), "other-plugin".to_owned())].into();
        let of = FieldOwners { simple, ..Default::default() };
        ValidateContainerAdjustmentRequest {
            pod: Some(dedicated.clone()),
            container: Some(container("d", "d1")),
            adjust: Some(ContainerAdjustment { linux, ..Default::default() }),
            owners: Some(OwningPlugins { owners: [("d1".to_owned(), of)].into() }),
            ..Default::default()
        }
    };
    assert!(!session.validate_adjustment(validate(&adjusted(&reply).0)).await.unwrap().reject);
    assert_eq!(finding(&node, "nri-plugins").await.verdict, "ok");
    assert!(!session.validate_adjustment(validate("0-1")).await.unwrap().reject);
    let found = finding(&node, "nri-plugins").await;
    assert!(found.verdict == "warning" && found.detail.contains("other-plugin set CPUs 0-1"), "{found:?}");
    // A pod that is resized is told to whoever asks.
    session.tell(Event::PostUpdatePodSandbox, dedicated, None).await.unwrap();
}

#[actix::test]
async fn n12_readiness_names_the_setting_of_the_runtime_that_stands_in_the_way() {
    let mut node = Node::bare();
    node.listener = None;
    std::fs::remove_file(node.socket()).unwrap();
    let config = node.dir.path().join("host/etc/containerd/config.toml");
    std::fs::create_dir_all(config.parent().unwrap()).unwrap();
    std::fs::write(&config, "[plugins.'io.containerd.nri.v1.nri']\ndisable_connections = true\n").unwrap();
    node.start_gateway(OnDeadline::Open);
    until("the setting is named", async || {
        let status = node.status().await?;
        let detail = &status.pending.iter().find(|p| p.name == "nri-session")?.detail;
        (detail.contains("/etc/containerd/config.toml lets no plugin connect")
            && detail.contains("set disable_connections = false"))
        .then_some(())
    })
    .await;
    assert_eq!(finding(&node, "nri-connections").await.verdict, "fault");
}
