//! Pods by their specs, and changes in place: the real binary, a meta-server that is this test, and a client.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod host;

use std::pin::Pin;
use std::time::{Duration, Instant};

use futures::Stream;
use host::{DEADLINE, Host, Orm, placed, refused, sandbox};
use oxalyst_planner::decision::{Decision, Recording, Replay};
use oxalyst_proto::meta::v1::meta_server::{Meta, MetaServer};
use oxalyst_proto::meta::v1::*;
use oxalyst_proto::orm::v1::decisions_client::DecisionsClient;
use oxalyst_proto::orm::v1::{
    AdmitReply, ListDecisionsRequest, PodPlacement, RecordRequest, ResizeContainerRequest,
};
use oxalyst_proto::runtime::v1::{Container, Resources, Sandbox};
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::{UnixListenerStream, WatchStream};
use tonic::{Request, Response, Status, Streaming};

/// Tells the pods that it is told to tell.
#[derive(Clone)]
struct Specs(watch::Sender<Vec<Pod>>);

impl Specs {
    fn serve(host: &Host) -> Self {
        let specs = Self(watch::Sender::default());
        let run = host.dir.path().join("run");
        std::fs::create_dir_all(&run).unwrap();
        let socket = UnixListener::bind(run.join("meta-server.sock")).unwrap();
        let server = tonic::transport::Server::builder().add_service(MetaServer::new(specs.clone()));
        tokio::spawn(server.serve_with_incoming(UnixListenerStream::new(socket)));
        specs
    }

    fn tell(&self, pods: &[Pod]) {
        self.0.send_replace(pods.to_vec());
    }
}

#[tonic::async_trait]
impl Meta for Specs {
    type WatchPodsStream = Pin<Box<dyn Stream<Item = Result<PodList, Status>> + Send>>;

    async fn watch_pods(
        &self,
        _: Request<WatchPodsRequest>,
    ) -> Result<Response<Self::WatchPodsStream>, Status> {
        let lists = WatchStream::new(self.0.subscribe());
        Ok(Response::new(Box::pin(lists.map(|pods| Ok(PodList { pods, ..PodList::default() })))))
    }

    async fn report_runtime(
        &self,
        _: Request<Streaming<RuntimeEvent>>,
    ) -> Result<Response<ReportRuntimeReply>, Status> {
        Err(Status::unimplemented("not asked here"))
    }

    async fn list_pods(&self, _: Request<ListPodsRequest>) -> Result<Response<PodList>, Status> {
        Err(Status::unimplemented("not asked here"))
    }

    async fn get_node(&self, _: Request<GetNodeRequest>) -> Result<Response<Node>, Status> {
        Err(Status::unimplemented("not asked here"))
    }
}

fn container(name: &str, kind: &str, milli: u64) -> PodContainer {
    let cpu = Some(milli).filter(|milli| *milli > 0);
    PodContainer {
        name: name.into(),
        r#type: kind.into(),
        request_milli_cpu: cpu,
        limit_milli_cpu: cpu,
        request_memory_bytes: Some(1 << 20),
        limit_memory_bytes: Some(1 << 20),
        ..PodContainer::default()
    }
}

fn spec(uid: &str, level: &str, containers: &[PodContainer]) -> Pod {
    Pod {
        uid: uid.into(),
        namespace: "default".into(),
        name: uid.into(),
        annotations: [("katalyst.kubewharf.io/qos_level".to_owned(), level.to_owned())].into(),
        kubernetes_qos: "Guaranteed".into(),
        told_by: vec!["kubelet".into()],
        containers: containers.to_vec(),
        ..Pod::default()
    }
}

async fn until<T>(what: &str, mut holds: impl AsyncFnMut() -> Option<T>) -> T {
    let end = Instant::now() + DEADLINE;
    loop {
        if let Some(it) = holds().await {
            return it;
        }
        assert!(Instant::now() < end, "never: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn known(orm: &mut Orm, specs: usize) {
    until("the specs are known", async || {
        let facts = orm.status().await.ok()?.facts;
        (facts.get("specs").map(String::as_str) == Some(specs.to_string().as_str())).then_some(())
    })
    .await;
}

async fn pod(orm: &mut Orm, uid: &str) -> PodPlacement {
    orm.state().await.pods.into_iter().find(|pod| pod.pod_uid == uid).unwrap()
}

fn cpus(text: &str) -> oxalyst_topology::CpuSet {
    text.parse().unwrap()
}

/// As the gateway asks when the runtime is told of other shares.
async fn resize(
    orm: &mut Orm,
    sandbox: &Sandbox,
    running: &[(&str, u64)],
    name: &str,
    shares: u64,
) -> AdmitReply {
    let container = |name: &str, shares: u64| Container {
        container_id: name.into(),
        name: name.into(),
        resources: Some(Resources {
            cpu_shares: Some(shares),
            cpu_quota_us: i64::try_from(shares * 100_000 / 1024).ok(),
            cpu_period_us: Some(100_000),
            memory_limit_bytes: Some(1 << 20),
            ..Resources::default()
        }),
        ..Container::default()
    };
    let request = ResizeContainerRequest {
        sandbox: Some(sandbox.clone()),
        container: Some(container(name, shares)),
        running: running.iter().map(|(name, shares)| container(name, *shares)).collect(),
        ..ResizeContainerRequest::default()
    };
    orm.client.resize_container(request).await.unwrap().into_inner()
}

#[tokio::test]
async fn a_pod_whose_spec_is_known_is_decided_container_by_container() {
    let host = Host::with_machine(8, 1);
    let specs = Specs::serve(&host);
    let mut orm = host.start(&[]).await;
    let containers = [
        container("once", "init", 3000),
        container("side", "restartable-init", 500),
        container("app", "app", 2000),
    ];
    specs.tell(&[spec("d", "dedicated_cores", &containers)]);
    known(&mut orm, 1).await;
    let reply = orm.admit(&sandbox("d", "dedicated_cores", Some(2560))).await;
    let placement = placed(&reply);
    assert_eq!((placement.request_source.as_str(), placement.exclusive), ("pod-spec", true));
    assert_eq!(cpus(&placement.cpus).len(), 2, "its main container's set, not the pod's total");
    assert_eq!(placement.containers, [], "all of them run in it");
}

#[tokio::test]
async fn under_the_native_policy_each_guaranteed_container_is_told_its_own_set() {
    let host = Host::with_machine(8, 1);
    let specs = Specs::serve(&host);
    let mut orm = host.start(&["--set", "cpu_policy=native"]).await;
    let containers = [container("a", "app", 2000), container("b", "app", 1000), container("c", "app", 500)];
    specs.tell(&[spec("d", "shared_cores", &containers)]);
    known(&mut orm, 1).await;
    let reply = orm.admit(&sandbox("d", "shared_cores", Some(3584))).await;
    let placement = placed(&reply);
    let own: Vec<_> = placement.containers.iter().map(|c| (c.name.as_str(), c.exclusive)).collect();
    assert_eq!(own, [("b", true), ("c", false)]);
    let sets: Vec<_> =
        placement.containers.iter().map(|c| cpus(&c.cpus)).chain([cpus(&placement.cpus)]).collect();
    assert_eq!(sets.iter().map(|set| set.len()).collect::<Vec<_>>(), [1, 5, 2]);
    assert!(sets[0].is_disjoint(&sets[1]) && sets[1].is_disjoint(&sets[2]) && sets[0].is_disjoint(&sets[2]));
    assert_eq!(placement.containers[0].requested_milli_cpu, 1000);
}

#[tokio::test]
async fn a_spec_that_comes_later_refines_and_moves_nobody_and_a_restart_remembers_it() {
    let host = Host::with_machine(8, 1);
    let specs = Specs::serve(&host);
    let mut orm = host.start(&[]).await;
    let before = placed(&orm.admit(&sandbox("d", "dedicated_cores", Some(3072))).await).clone();
    assert_eq!(before.request_source, "sandbox-resources");
    specs.tell(&[spec(
        "d",
        "dedicated_cores",
        &[container("app", "app", 2000), container("side", "app", 1000)],
    )]);
    let after = until("the spec is taken up", async || {
        let pod = pod(&mut orm, "d").await;
        (pod.request_source == "pod-spec").then_some(pod)
    })
    .await;
    assert_eq!((after.cpus.as_str(), after.mems.as_str()), (before.cpus.as_str(), before.mems.as_str()));
    drop(orm);
    let mut orm = host.start(&[]).await;
    let again = pod(&mut orm, "d").await;
    assert_eq!((again.request_source.as_str(), again.cpus.as_str()), ("pod-spec", before.cpus.as_str()));
}

#[tokio::test]
async fn a_spec_that_grows_keeps_the_set_and_one_that_shrinks_gives_the_rest_back_at_once() {
    let host = Host::with_machine(8, 1);
    let specs = Specs::serve(&host);
    let mut orm = host.start(&[]).await;
    specs.tell(&[spec("d", "dedicated_cores", &[container("app", "app", 2000)])]);
    known(&mut orm, 1).await;
    let first = placed(&orm.admit(&sandbox("d", "dedicated_cores", Some(2048))).await).cpus.clone();
    orm.admit(&sandbox("s", "shared_cores", Some(102))).await;
    let told = async |orm: &mut Orm, milli: u64, count: usize| {
        specs.tell(&[spec("d", "dedicated_cores", &[container("app", "app", milli)])]);
        until("the set has the size", async || {
            let state = orm.state().await;
            let own = state.pods.iter().find(|pod| pod.pod_uid == "d").unwrap().cpus.clone();
            let others = state.pods.iter().find(|pod| pod.pod_uid == "s").unwrap().cpus.clone();
            assert!(cpus(&own).is_disjoint(&cpus(&others)), "{own} and {others}");
            (cpus(&own).len() == count).then_some((own, others))
        })
        .await
    };
    let (grown, _) = told(&mut orm, 4000, 4).await;
    assert!(cpus(&first).is_subset(&cpus(&grown)));
    let (shrunk, others) = told(&mut orm, 2000, 2).await;
    assert_eq!(shrunk, first, "the CPUs of its first admission stay");
    assert_eq!(cpus(&others).len(), 6);
    assert_eq!(pod(&mut orm, "d").await.requested_milli_cpu, 2000);
}

#[tokio::test]
async fn a_resize_told_by_both_sources_happens_once_in_either_order() {
    let host = Host::with_machine(8, 1);
    let specs = Specs::serve(&host);
    let mut orm = host.start(&[]).await;
    let of = |milli| spec("d", "dedicated_cores", &[container("app", "app", milli)]);
    specs.tell(&[of(2000)]);
    known(&mut orm, 1).await;
    let pod_of_d = sandbox("d", "dedicated_cores", Some(2048));
    orm.admit(&pod_of_d).await;
    // The runtime first; a list from before the change changes nothing, and then the spec has it too.
    let reply = resize(&mut orm, &pod_of_d, &[("app", 2048)], "app", 3072).await;
    let grown = placed(&reply).cpus.clone();
    assert_eq!(cpus(&grown).len(), 3);
    let generation = orm.state().await.generation;
    specs.tell(&[of(2000), spec("x", "shared_cores", &[])]);
    known(&mut orm, 2).await;
    specs.tell(&[of(3000), spec("x", "shared_cores", &[])]);
    let other = spec("y", "shared_cores", &[]);
    specs.tell(&[of(3000), spec("x", "shared_cores", &[]), other]);
    known(&mut orm, 3).await;
    assert_eq!(placed(&resize(&mut orm, &pod_of_d, &[("app", 2048)], "app", 3072).await).cpus, grown);
    let state = orm.state().await;
    assert_eq!(
        (state.generation, pod(&mut orm, "d").await.cpus),
        (generation, grown.clone()),
        "nothing is written"
    );
    // The spec first.
    specs.tell(&[of(1000)]);
    until("the spec shrinks it", async || (cpus(&pod(&mut orm, "d").await.cpus).len() == 1).then_some(()))
        .await;
    let generation = orm.state().await.generation;
    let reply = resize(&mut orm, &pod_of_d, &[("app", 3072)], "app", 1024).await;
    assert_eq!(cpus(&placed(&reply).cpus).len(), 1);
    assert_eq!(orm.state().await.generation, generation);
}

#[tokio::test]
async fn a_resize_without_room_is_refused_with_numbers_and_changes_nothing() {
    let host = Host::with_machine(4, 1);
    let specs = Specs::serve(&host);
    let mut orm = host.start(&[]).await;
    let of = |milli| spec("d", "dedicated_cores", &[container("app", "app", milli)]);
    specs.tell(&[of(2000)]);
    known(&mut orm, 1).await;
    let pod_of_d = sandbox("d", "dedicated_cores", Some(2048));
    orm.admit(&pod_of_d).await;
    orm.admit(&sandbox("s", "shared_cores", Some(102))).await;
    let before = orm.state().await;
    let reply = resize(&mut orm, &pod_of_d, &[("app", 2048)], "app", 4096).await;
    let refusal = refused(&reply);
    assert_eq!((refusal.reason.as_str(), refusal.asked_milli_cpu), ("insufficient", 4000));
    assert_eq!(refusal.free[0].cpus, 2, "{refusal:?}");
    assert_eq!(orm.state().await, before);
    // A spec that cannot be met is met as soon as there is room.
    specs.tell(&[of(4000), spec("x", "shared_cores", &[])]);
    known(&mut orm, 2).await;
    assert_eq!(pod(&mut orm, "d").await.cpus, before.pods[0].cpus);
    assert!(orm.release("s", "s-1").await);
    until("there is room", async || (cpus(&pod(&mut orm, "d").await.cpus).len() == 4).then_some(())).await;
}

#[tokio::test]
async fn a_resize_that_is_not_made_is_not_said_to_be_made() {
    let host = Host::with_machine(8, 1);
    let mut orm = host.start(&[]).await;
    let pod_of_d = sandbox("d", "dedicated_cores", Some(2048));
    placed(&orm.admit(&pod_of_d).await);
    for reply in [
        resize(&mut orm, &pod_of_d, &[("main", 2048)], "nope", 3072).await,
        resize(&mut orm, &pod_of_d, &[], "main", 3072).await,
    ] {
        let refusal = refused(&reply);
        assert_eq!((refusal.reason.as_str(), refusal.rule.as_str()), ("unsupported", "understood"));
    }
    let older = Sandbox { sandbox_id: "d-0".into(), ..pod_of_d.clone() };
    assert_eq!(resize(&mut orm, &older, &[("main", 2048)], "main", 3072).await.outcome, None);
    let unknown = sandbox("u", "dedicated_cores", Some(2048));
    assert_eq!(resize(&mut orm, &unknown, &[("main", 2048)], "main", 3072).await.outcome, None);
    let refusals = until("the refusals are written", async || {
        let all = explained(&host).await;
        let refusals: Vec<_> = all.into_iter().filter_map(|decision| decision.refused).collect();
        (refusals.len() == 2).then_some(refusals)
    })
    .await;
    assert!(refusals.iter().all(|refusal| refusal.reason == "unsupported"), "{refusals:?}");
    assert_eq!(cpus(&pod(&mut orm, "d").await.cpus).len(), 2);
}

/// Every decision that is kept, and that all of them come out again.
async fn explained(host: &Host) -> Vec<Decision> {
    let mut client = DecisionsClient::new(oxalyst_mesh::connect(&host.dir.path().join("run"), "orm"));
    let reply = client.list_decisions(ListDecisionsRequest::default()).await.unwrap().into_inner();
    let mut stream = client.record(RecordRequest {}).await.unwrap().into_inner();
    let mut recording = Recording { written_by: String::new(), frames: Vec::new() };
    while let Some(message) = stream.message().await.unwrap() {
        recording.frames.extend(message.frame);
    }
    assert_eq!(Replay::of(&recording).unwrap().differences, []);
    reply.decisions.into_iter().filter_map(|entry| entry.decision).collect()
}

#[tokio::test]
async fn a_spec_and_a_refused_resize_are_explained_and_replay() {
    let host = Host::with_machine(8, 2);
    let specs = Specs::serve(&host);
    specs.tell(&[spec("db", "dedicated_cores", &[container("a", "app", 2000), container("b", "app", 1000)])]);
    let mut orm = host.start(&[]).await;
    known(&mut orm, 1).await;
    placed(&orm.admit(&sandbox("db", "dedicated_cores", Some(3072))).await);
    specs.tell(&[spec(
        "db",
        "dedicated_cores",
        &[container("a", "app", 90_000), container("b", "app", 1000)],
    )]);
    let resize = until("the resize is explained", async || {
        explained(&host).await.into_iter().find(|decision| decision.kind == "resize")
    })
    .await;
    let rule = resize.refused.unwrap().rule;
    assert_eq!((resize.name.as_str(), rule.as_str()), ("db", "cpu-room"));
    assert_eq!(resize.asked.unwrap().containers[0].milli_cpu, Some(90_000));
    let all = explained(&host).await;
    let admitted = all.iter().find(|decision| decision.kind == "admit").unwrap();
    assert_eq!(admitted.asked.as_ref().unwrap().source, "pod-spec");
    let names: Vec<&str> = admitted.chosen.iter().map(|own| own.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
}

#[tokio::test]
async fn without_any_spec_one_container_of_a_pod_is_resized_by_the_total() {
    let host = Host::with_machine(8, 1);
    let mut orm = host.start(&[]).await;
    let pod_of_d = sandbox("d", "dedicated_cores", Some(3072));
    let first = placed(&orm.admit(&pod_of_d).await).cpus.clone();
    let runs = [("app", 2048), ("side", 1024)];
    let grown = placed(&resize(&mut orm, &pod_of_d, &runs, "app", 4096).await).clone();
    assert!(cpus(&first).is_subset(&cpus(&grown.cpus)));
    assert_eq!((cpus(&grown.cpus).len(), grown.requested_milli_cpu), (5, 5000));
    assert_eq!(placed(&resize(&mut orm, &pod_of_d, &runs, "app", 4096).await).cpus, grown.cpus);
    let reply = resize(&mut orm, &pod_of_d, &[("app", 4096)], "app", 6144).await;
    assert_eq!(refused(&reply).reason, "unsupported", "side is missing, and so is its part");
    // An older sandbox, and a pod that nobody knows, change nothing.
    let older = Sandbox { sandbox_id: "d-0".into(), ..pod_of_d };
    assert_eq!(resize(&mut orm, &older, &runs, "app", 1024).await.outcome, None);
    assert_eq!(pod(&mut orm, "d").await.cpus, grown.cpus);
    let reply = resize(&mut orm, &sandbox("z", "shared_cores", None), &[], "app", 1024).await;
    assert_eq!((reply.outcome, reply.changed), (None, vec![]));
}

#[tokio::test]
async fn a_shared_container_that_has_just_started_may_be_told_of_other_shares() {
    let host = Host::with_machine(4, 1);
    let mut orm = host.start(&[]).await;
    let pod_of_s = sandbox("s", "shared_cores", Some(1024));
    let first = placed(&orm.admit(&pod_of_s).await).clone();
    let generation = orm.state().await.generation;
    // Far more than there is: what it asks for decides where it runs only once it has started.
    let reply = resize(&mut orm, &pod_of_s, &[("app", 1024)], "app", 64 * 1024).await;
    assert_eq!(placed(&reply), &first);
    assert_eq!(orm.state().await.generation, generation);
}

#[tokio::test]
async fn what_ramp_up_has_put_off_is_refused_aloud_once_it_is_over_if_there_is_no_room() {
    let host = Host::with_machine(4, 1);
    let mut orm = host.start(&["--set", "ramp_up_s=30", "--set", "watch_period_s=1"]).await;
    let pod_of_s = sandbox("s", "shared_cores", Some(1024));
    placed(&orm.admit(&pod_of_s).await);
    placed(&resize(&mut orm, &pod_of_s, &[("app", 1024)], "app", 64 * 1024).await);
    let refused = async || {
        let all = explained(&host).await;
        all.into_iter().filter_map(|decision| decision.refused).collect::<Vec<_>>()
    };
    assert!(refused().await.is_empty(), "it is barred, not refused");
    tokio::time::sleep(Duration::from_secs(30)).await;
    let refusals = until("it is refused", async || Some(refused().await).filter(|all| !all.is_empty())).await;
    assert_eq!(refusals[0].reason, "insufficient");
    assert_eq!(pod(&mut orm, "s").await.requested_milli_cpu, 1000);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(refused().await.len(), 1, "told once, however often it is tried again");
}

#[tokio::test]
async fn what_the_kubelet_has_not_taken_up_is_not_followed() {
    let host = Host::with_machine(8, 1);
    let specs = Specs::serve(&host);
    let mut orm = host.start(&[]).await;
    specs.tell(&[spec("d", "dedicated_cores", &[container("app", "app", 2000)])]);
    known(&mut orm, 1).await;
    orm.admit(&sandbox("d", "dedicated_cores", Some(2048))).await;
    let wanted = PodContainer { allocated_milli_cpu: Some(2000), ..container("app", "app", 4000) };
    let deferred = Pod {
        resize_status: "deferred".into(),
        ..spec("d", "dedicated_cores", std::slice::from_ref(&wanted))
    };
    specs.tell(&[deferred, spec("x", "shared_cores", &[])]);
    known(&mut orm, 2).await;
    assert_eq!(cpus(&pod(&mut orm, "d").await.cpus).len(), 2);
    specs.tell(&[Pod { resize_status: "in-progress".into(), ..spec("d", "dedicated_cores", &[wanted]) }]);
    until("the kubelet takes it up", async || {
        (cpus(&pod(&mut orm, "d").await.cpus).len() == 4).then_some(())
    })
    .await;
}

#[tokio::test]
async fn o2_a_pod_that_asks_for_cpus_under_two_names_is_refused_with_both() {
    let host = Host::with_machine(8, 1);
    let specs = Specs::serve(&host);
    let mut orm = host.start(&[]).await;
    let name = "resource.katalyst.kubewharf.io/reclaimed_millicpu";
    let twice = PodContainer { extended: [(name.to_owned(), 2000)].into(), ..container("app", "app", 1000) };
    specs.tell(&[spec("r", "reclaimed_cores", &[twice])]);
    known(&mut orm, 1).await;
    let reply = orm.admit(&sandbox("r", "reclaimed_cores", None)).await;
    let refusal = refused(&reply);
    assert!(refusal.reason == "invalid" && refusal.message.contains(name), "{refusal:?}");
}

#[tokio::test]
async fn o1_reclaimed_millicpu_count_as_cpus_and_settings_say_how_pods_are_read() {
    let host = Host::with_machine(8, 2);
    let specs = Specs::serve(&host);
    let set = [
        "--set",
        "qos_selectors=dedicated_cores:team.io/tier=gold",
        "--set",
        "enhancement_defaults=dedicated_cores:numa_binding=true",
    ];
    let mut orm = host.start(&set).await;
    let name = "resource.katalyst.kubewharf.io/reclaimed_millicpu";
    let asks = PodContainer { extended: [(name.to_owned(), 2000)].into(), ..container("app", "app", 0) };
    specs.tell(&[spec("r", "reclaimed_cores", &[asks])]);
    known(&mut orm, 1).await;
    let reply = orm.admit(&sandbox("r", "reclaimed_cores", None)).await;
    assert_eq!(placed(&reply).requested_milli_cpu, 2000);
    let mut gold = sandbox("g", "shared_cores", Some(2048));
    gold.annotations = [("team.io/tier".to_owned(), "gold".to_owned())].into();
    let reply = orm.admit(&gold).await;
    let placement = placed(&reply);
    assert_eq!((placement.qos_level.as_str(), placement.exclusive), ("dedicated_cores", true));
    assert!(["0", "1"].contains(&placement.mems.as_str()), "bound by default: {placement:?}");
    let both = Sandbox {
        annotations: gold
            .annotations
            .into_iter()
            .chain(sandbox("b", "shared_cores", None).annotations)
            .collect(),
        ..sandbox("b", "shared_cores", None)
    };
    assert_eq!(placed(&orm.admit(&both).await).flags, ["qos-invalid"]);
}

#[tokio::test]
async fn without_a_meta_server_nothing_waits_and_its_return_is_noticed() {
    let host = Host::with_machine(4, 1);
    let mut orm = host.start(&[]).await;
    let reply = orm.admit(&sandbox("d", "dedicated_cores", Some(1024))).await;
    assert_eq!(placed(&reply).request_source, "sandbox-resources");
    let specs = Specs::serve(&host);
    specs.tell(&[spec("d", "dedicated_cores", &[container("app", "app", 1000)])]);
    until("the spec is taken up", async || {
        (pod(&mut orm, "d").await.request_source == "pod-spec").then_some(())
    })
    .await;
}
