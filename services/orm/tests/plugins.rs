//! Resource plugins: the real binary, plugins that are this test, and a client.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod host;
mod plugin;

use std::time::Duration;

use host::{Host, Orm, placed, refused, sandbox};
use oxalyst_planner::decision::{Recording, Replay};
use oxalyst_proto::meta::v1::Pod;
use oxalyst_proto::orm::v1::decisions_client::DecisionsClient;
use oxalyst_proto::orm::v1::{PodPlacement, ReconcileRequest, RecordRequest};
use oxalyst_proto::resourceplugin::v1alpha1::{ResourceAllocationInfo, TopologyHint};
use oxalyst_proto::runtime::v1::Sandbox;
use plugin::{Plugin, Specs, fact, spec, until};
use tonic::{Status, transport::Channel};

const GPU: &str = "vendor.io/gpu";
const DEDICATED: &str = "dedicated_cores";
const SHARED: &str = "shared_cores";
const MILLICPU: &str = "resource.katalyst.kubewharf.io/reclaimed_millicpu";
/// Enough for a busy machine, and far below the second within which a hanging plugin is told from a slow one.
const PATIENT: [&str; 2] = ["--set", "plugin_deadline_ms=1500"];

/// A node with a plugin for GPUs, which was found, and specs of these pods.
async fn node(gpu: &Plugin, more: &[&str], pods: &[Pod]) -> (Host, Specs, Orm, plugin::Serving) {
    let host = Host::with_machine(8, 2);
    let specs = Specs::serve(&host);
    let serving = gpu.found(&host);
    let mut orm = host.start(&[&PATIENT, more].concat()).await;
    fact(&mut orm, "plugins", |known| known == GPU).await;
    specs.tell(&mut orm, pods).await;
    (host, specs, orm, serving)
}

fn bound(uid: &str, milli: u64) -> (Pod, Sandbox) {
    let key = "katalyst.kubewharf.io/memory_enhancement".to_owned();
    let binding = r#"{"numa_binding": "true"}"#.to_owned();
    let mut pod = spec(uid, DEDICATED, milli, &[(GPU, 1)]);
    let mut sandbox = sandbox(uid, DEDICATED, Some(milli * 1024 / 1000));
    pod.annotations.insert(key.clone(), binding.clone());
    sandbox.annotations.insert(key, binding);
    (pod, sandbox)
}

async fn pod(orm: &mut Orm, uid: &str) -> Option<PodPlacement> {
    orm.state().await.pods.into_iter().find(|pod| pod.pod_uid == uid)
}

#[tokio::test]
async fn resources_of_plugins_cpu_and_memory_go_through_one_merge() {
    let gpu = Plugin::new(GPU, &[(&[1], true), (&[0, 1], false)]);
    let (pod, sandbox) = bound("d", 2000);
    let (host, _specs, mut orm, _serving) =
        node(&gpu, &["--set", "topology_policy=restricted"], &[pod]).await;
    let reply = orm.admit(&sandbox).await;
    let placement = placed(&reply);
    // Alone, CPUs and memory would be given on node 0: the lowest of equals.
    assert_eq!((placement.cpus.as_str(), placement.mems.as_str()), ("4-5", "1"));
    let hint = gpu.now(|gpu| gpu.allocated[0].hint.clone());
    assert_eq!(hint, Some(TopologyHint { nodes: vec![1], preferred: true }));
    let given = &placement.plugins[0];
    assert_eq!((given.container.as_str(), given.resource.as_str()), ("app", GPU));
    assert_eq!((given.result.as_str(), &given.nodes[..]), ("dev-1", &[1][..]));
    assert_eq!(given.envs["VISIBLE"], "dev-1");
    assert_eq!(placement.oci_properties, [("Env/VISIBLE".to_owned(), "dev-1".to_owned())].into());
    let mut decisions = DecisionsClient::new(oxalyst_mesh::connect(&host.dir.path().join("run"), "orm"));
    // Decisions are written behind the admission.
    let recorded = tokio::time::timeout(Duration::from_secs(10), async {
        loop {
            let replay = replayed(&mut decisions).await;
            if replay.steps > 0 {
                break replay;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let replay = recorded.await.expect("the decision is recorded");
    assert!(replay.differences.is_empty(), "{:?}", replay.differences);
}

async fn replayed(decisions: &mut DecisionsClient<Channel>) -> Replay {
    let mut frames = decisions.record(RecordRequest::default()).await.unwrap().into_inner();
    let mut recording = Recording { written_by: String::new(), frames: Vec::new() };
    while let Some(message) = frames.message().await.unwrap() {
        recording.frames.extend(message.frame);
    }
    Replay::of(&recording).unwrap()
}

#[tokio::test]
async fn a_policy_refuses_what_a_plugin_and_the_cpus_cannot_have_together() {
    let gpu = Plugin::new(GPU, &[(&[0, 1], true)]);
    let (pod, sandbox) = bound("d", 2000);
    let (_host, _specs, mut orm, _serving) =
        node(&gpu, &["--set", "topology_policy=single-numa-node"], &[pod]).await;
    let reply = orm.admit(&sandbox).await;
    assert_eq!(refused(&reply).reason, "affinity");
    assert!(gpu.now(|gpu| gpu.allocated.is_empty() && gpu.removed.is_empty()));
}

#[tokio::test]
async fn o1_a_mapped_name_is_told_by_its_own_name_and_quantity_to_hints_and_to_allocate() {
    let cpu = Plugin::new("cpu", &[(&[0], true)]);
    let host = Host::with_machine(8, 2);
    let specs = Specs::serve(&host);
    let _serving = cpu.found(&host);
    let map = format!("orm_resource_names_map={MILLICPU}=cpu");
    let mut orm = host.start(&[&PATIENT[..], &["--set", &map]].concat()).await;
    fact(&mut orm, "plugins", |known| known == "cpu").await;
    specs.tell(&mut orm, &[spec("r", "reclaimed_cores", 0, &[(MILLICPU, 2000)])]).await;
    let reply = orm.admit(&sandbox("r", "reclaimed_cores", None)).await;
    assert_eq!(placed(&reply).requested_milli_cpu, 2000);
    let (hints, allocate) = cpu.now(|cpu| (cpu.asked_hints[0].clone(), cpu.allocated[0].clone()));
    for asked in [hints, allocate] {
        assert_eq!(asked.resource_name, "cpu");
        assert_eq!(asked.resource_requests, [(MILLICPU.to_owned(), 2000.0)].into());
    }
}

#[tokio::test]
async fn o2_one_resource_under_two_names_is_refused_and_no_plugin_is_asked() {
    let gpu = Plugin::new(GPU, &[(&[0], true)]);
    let map = format!("orm_resource_names_map=vendor.io/milligpu={GPU}");
    let twice = spec("t", SHARED, 500, &[(GPU, 1), ("vendor.io/milligpu", 500)]);
    let (_host, _specs, mut orm, _serving) = node(&gpu, &["--set", &map], &[twice]).await;
    let reply = orm.admit(&sandbox("t", SHARED, Some(512))).await;
    assert_eq!((refused(&reply).reason.as_str(), refused(&reply).rule.as_str()), ("invalid", "understood"));
    assert!(gpu.now(|gpu| gpu.asked_hints.is_empty() && gpu.allocated.is_empty()));
}

#[tokio::test]
async fn o6_under_best_effort_a_plugin_without_room_is_asked_to_give_by_a_hint_that_is_not_preferred() {
    let gpu = Plugin::new(GPU, &[]);
    gpu.now(|gpu| gpu.hints_fail = Some(Status::resource_exhausted("none left")));
    let shared = spec("s", SHARED, 500, &[(GPU, 1)]);
    let (_host, _specs, mut orm, _serving) =
        node(&gpu, &["--set", "topology_policy=best-effort"], &[shared]).await;
    let reply = orm.admit(&sandbox("s", SHARED, Some(512))).await;
    assert_eq!(placed(&reply).plugins.len(), 1);
    assert!(!gpu.now(|gpu| gpu.allocated[0].hint.clone()).unwrap().preferred);
}

#[tokio::test]
async fn under_restricted_a_plugin_without_room_refuses_the_pod() {
    let gpu = Plugin::new(GPU, &[]);
    gpu.now(|gpu| gpu.hints_fail = Some(Status::resource_exhausted("none left")));
    let shared = spec("s", SHARED, 500, &[(GPU, 1)]);
    let (_host, _specs, mut orm, _serving) =
        node(&gpu, &["--set", "topology_policy=restricted"], &[shared]).await;
    let reply = orm.admit(&sandbox("s", SHARED, Some(512))).await;
    assert_eq!((refused(&reply).reason.as_str(), refused(&reply).rule.as_str()), ("insufficient", "plugin"));
}

/// The case waits five minutes while the pod's cgroup is there. The mesh does not look at cgroups for that: a pod that the runtime
/// does not list is freed after `absent_grace_s`, 30 s by default and a second here, and plugins hear of it then.
#[tokio::test]
async fn o7_a_pod_that_is_not_listed_is_removed_from_plugins_after_the_grace_time() {
    let gpu = Plugin::new(GPU, &[(&[0], true)]);
    let shared = spec("s", SHARED, 500, &[(GPU, 1)]);
    let (_host, _specs, mut orm, _serving) = node(&gpu, &[], &[shared]).await;
    placed(&orm.admit(&sandbox("s", SHARED, Some(512))).await);
    let reply = orm.client.reconcile(ReconcileRequest::default()).await.unwrap().into_inner();
    assert_eq!((reply.freed_pod_uids.len(), gpu.now(|gpu| gpu.removed.len())), (0, 0), "not at once");
    until("RemovePod", async || gpu.now(|gpu| gpu.removed == ["s"]).then_some(())).await;
    assert!(pod(&mut orm, "s").await.is_none());
}

/// The case is about a pod whose cgroup is gone; here it is the end of its sandbox that tells that.
#[tokio::test]
async fn o8_plugins_hear_of_a_pod_whose_sandbox_has_ended_within_a_period() {
    let gpu = Plugin::new(GPU, &[(&[0], true)]);
    let shared = [spec("s", SHARED, 500, &[(GPU, 1)]), spec("plain", SHARED, 500, &[])];
    let (_host, _specs, mut orm, _serving) = node(&gpu, &[], &shared).await;
    for uid in ["plain", "s"] {
        placed(&orm.admit(&sandbox(uid, SHARED, Some(512))).await);
        assert!(orm.release(uid, &format!("{uid}-1")).await);
    }
    until("RemovePod", async || gpu.now(|gpu| !gpu.removed.is_empty()).then_some(())).await;
    assert_eq!(gpu.now(|gpu| gpu.removed.clone()), ["s"], "of the other they know nothing");
}

#[tokio::test]
async fn o9_remove_pod_is_told_to_all_plugins_again_each_period_until_all_have_heard_it() {
    let gpu = Plugin::new(GPU, &[(&[0], true)]);
    let nic = Plugin::new("vendor.io/nic", &[(&[0], true)]);
    nic.now(|nic| nic.remove_fails = Some(Status::internal("busy")));
    let both = spec("s", SHARED, 500, &[(GPU, 1), ("vendor.io/nic", 1)]);
    let (host, specs, mut orm, _serving) = node(&gpu, &[], &[both]).await;
    let _nic = nic.found(&host);
    fact(&mut orm, "plugins", |known| known.contains("nic")).await;
    assert_eq!(placed(&orm.admit(&sandbox("s", SHARED, Some(512))).await).plugins.len(), 2);
    assert!(orm.release("s", "s-1").await);
    until("twice", async || (gpu.now(|gpu| gpu.removed.len()) >= 2).then_some(())).await;
    drop(orm);
    // It is remembered.
    let mut orm = host.start(&PATIENT).await;
    let before = gpu.now(|gpu| gpu.removed.len());
    until("after a restart", async || (gpu.now(|gpu| gpu.removed.len()) > before).then_some(())).await;
    nic.now(|nic| nic.remove_fails = None);
    // Once both have heard it they are told of others only, by this process and by the next one.
    let next = spec("next", SHARED, 500, &[(GPU, 1), ("vendor.io/nic", 1)]);
    specs.tell(&mut orm, std::slice::from_ref(&next)).await;
    until("both have heard it", async || {
        told_of_s_until_next(&mut orm, &gpu, &nic).await.eq(&0).then_some(())
    })
    .await;
    drop(orm);
    let mut orm = host.start(&PATIENT).await;
    fact(&mut orm, "plugins", |known| known.split(", ").count() == 2 && !known.contains('(')).await;
    specs.tell(&mut orm, &[next]).await;
    assert_eq!(told_of_s_until_next(&mut orm, &gpu, &nic).await, 0);
}

/// How often the two are told of pod `s` until they have been told of another one that ends now.
async fn told_of_s_until_next(orm: &mut Orm, gpu: &Plugin, nic: &Plugin) -> usize {
    for plugin in [gpu, nic] {
        plugin.now(|plugin| plugin.removed.clear());
    }
    // A sandbox that has ended is not admitted again.
    let generation = orm.state().await.generation;
    let next = Sandbox { sandbox_id: format!("next-{generation}"), ..sandbox("next", SHARED, Some(512)) };
    placed(&orm.admit(&next).await);
    assert!(orm.release("next", &next.sandbox_id).await);
    let told = |uid: &str| {
        [gpu, nic]
            .map(|plugin| plugin.now(|plugin| plugin.removed.iter().filter(|told| *told == uid).count()))
    };
    until("they are told of the next one", async || (!told("next").contains(&0)).then_some(())).await;
    told("s").iter().sum()
}

#[tokio::test]
async fn o10_after_a_restart_what_plugins_gave_is_answered_before_any_of_them_is_back() {
    let gpu = Plugin::new(GPU, &[(&[1], true)]);
    let (pod, sandbox) = bound("d", 2000);
    let other = spec("other", SHARED, 500, &[(GPU, 1)]);
    let (host, specs, mut orm, serving) = node(&gpu, &[], &[pod.clone(), other.clone()]).await;
    let before = placed(&orm.admit(&sandbox).await).clone();
    drop(orm);
    serving.stop();
    let mut orm = host.start(&PATIENT).await;
    fact(&mut orm, "plugins", |known| known == format!("{GPU} (has not come back)")).await;
    specs.tell(&mut orm, &[pod, other]).await;
    assert_eq!(*placed(&orm.admit(&sandbox).await), before);
    assert_eq!(gpu.now(|gpu| gpu.allocated.len()), 1);
    // Who is new has to wait for it.
    let reply = orm.admit(&host::sandbox("other", SHARED, Some(512))).await;
    assert_eq!(refused(&reply).reason, "unavailable");
    let _serving = gpu.found(&host);
    fact(&mut orm, "plugins", |known| known == GPU).await;
    placed(&orm.admit(&host::sandbox("other", SHARED, Some(512))).await);
}

#[tokio::test]
async fn o13_what_accompanies_a_resource_is_kept_and_told_and_is_not_the_pods_memory() {
    let gpu = Plugin::new(GPU, &[(&[0], true)]);
    let limit = ResourceAllocationInfo {
        oci_property_name: "MemoryLimitInBytes".into(),
        allocation_result: "4096".into(),
        ..ResourceAllocationInfo::default()
    };
    gpu.now(|gpu| gpu.company = [("vendor.io/memory-limit".to_owned(), limit)].into());
    let shared = spec("s", SHARED, 500, &[(GPU, 1)]);
    let (host, specs, mut orm, _serving) = node(&gpu, &[], std::slice::from_ref(&shared)).await;
    let before = placed(&orm.admit(&sandbox("s", SHARED, Some(512))).await).clone();
    let company = before.plugins.iter().find(|given| given.resource != GPU).unwrap();
    assert_eq!((company.plugin.as_str(), company.oci_property_name.as_str()), (GPU, "MemoryLimitInBytes"));
    let applied: Vec<&String> = before.properties.iter().flat_map(|own| own.oci_properties.keys()).collect();
    assert_eq!(applied, ["Env/VISIBLE"], "what is applied is what was asked for");
    assert!(!before.oci_properties.contains_key("MemoryLimitInBytes"), "{:?}", before.oci_properties);
    drop(orm);
    let mut orm = host.start(&PATIENT).await;
    specs.tell(&mut orm, &[shared]).await;
    assert_eq!(pod(&mut orm, "s").await.unwrap().plugins, before.plugins);
}

#[tokio::test]
async fn o14_a_plugin_of_another_version_is_told_the_versions_that_are_supported() {
    let gpu = Plugin::new(GPU, &[(&[1], true)]);
    let host = Host::with_machine(8, 2);
    let mut orm = host.start(&PATIENT).await;
    let status = gpu.register(&host, "v2").await.err().unwrap();
    assert!(status.message().contains("v2") && status.message().contains("[v1alpha1]"), "{status}");
    let found = Plugin { versions: vec!["v2".into()], ..gpu.clone() };
    let _serving = found.found(&host);
    let told = until("told", async || gpu.now(|gpu| gpu.registered.first().cloned())).await;
    assert!(!told.plugin_registered && told.error.contains("[v1alpha1]"), "{told:?}");
    assert_eq!(orm.status().await.unwrap().facts["plugins"], "none");
}

#[tokio::test]
async fn a_plugin_that_registers_itself_is_asked_as_one_that_is_found() {
    let gpu = Plugin::new(GPU, &[(&[1], true)]);
    let host = Host::with_machine(8, 2);
    let specs = Specs::serve(&host);
    let mut orm = host.start(&PATIENT).await;
    let _serving = gpu.register(&host, "v1alpha1").await.unwrap();
    fact(&mut orm, "plugins", |known| known == GPU).await;
    specs.tell(&mut orm, &[spec("s", SHARED, 500, &[(GPU, 1)])]).await;
    assert_eq!(placed(&orm.admit(&sandbox("s", SHARED, Some(512))).await).plugins[0].nodes, [1]);
}

#[tokio::test]
async fn a_plugin_that_hangs_costs_those_alone_that_ask_for_its_resource() {
    let gpu = Plugin::new(GPU, &[(&[1], true)]);
    gpu.now(|gpu| gpu.hangs = true);
    let pods = [spec("g", SHARED, 500, &[(GPU, 1)]), spec("s", SHARED, 500, &[])];
    let (_host, _specs, mut orm, _serving) = node(&gpu, &[], &pods).await;
    let mut other = orm.client.clone();
    let hanging = tokio::spawn(async move {
        let request = oxalyst_proto::orm::v1::AdmitPodRequest {
            sandbox: Some(sandbox("g", SHARED, Some(512))),
            ..Default::default()
        };
        other.admit_pod(request).await.unwrap().into_inner()
    });
    until("it is asked", async || gpu.now(|gpu| !gpu.asked_hints.is_empty()).then_some(())).await;
    placed(&orm.admit(&sandbox("s", SHARED, Some(512))).await);
    assert!(!hanging.is_finished(), "the other one has been served meanwhile");
    let reply = hanging.await.unwrap();
    assert_eq!((refused(&reply).reason.as_str(), refused(&reply).rule.as_str()), ("unavailable", "plugin"));
    assert!(refused(&reply).message.contains(GPU));
}

#[tokio::test]
async fn a_plugin_that_fails_to_give_refuses_the_whole_pod_and_the_others_take_back() {
    let gpu = Plugin::new(GPU, &[(&[1], true)]);
    let nic = Plugin::new("vendor.io/nic", &[(&[1], true)]);
    let both = spec("d", DEDICATED, 2000, &[(GPU, 1), ("vendor.io/nic", 1)]);
    let (host, _specs, mut orm, _serving) = node(&gpu, &[], &[both]).await;
    let _nic = nic.found(&host);
    fact(&mut orm, "plugins", |known| known.contains("nic")).await;
    // It has hints, and by the time that it is to give it has no devices any more.
    nic.now(|nic| nic.allocate_fails = Some(Status::unavailable("the driver is gone")));
    let before = orm.state().await;
    let reply = orm.admit(&sandbox("d", DEDICATED, Some(2048))).await;
    assert_eq!(refused(&reply).reason, "unavailable");
    until("taken back", async || gpu.now(|gpu| gpu.removed == ["d"]).then_some(())).await;
    let after = orm.state().await;
    assert_eq!((after.pods, after.free), (before.pods, before.free));
    nic.now(|nic| nic.allocate_fails = None);
    assert_eq!(placed(&orm.admit(&sandbox("d", DEDICATED, Some(2048))).await).plugins.len(), 2);
}

#[tokio::test]
async fn a_plugin_that_dies_is_known_to_be_away_and_is_asked_again_once_it_is_back() {
    let gpu = Plugin::new(GPU, &[(&[1], true)]);
    let shared = spec("s", SHARED, 500, &[(GPU, 1)]);
    let (host, _specs, mut orm, serving) = node(&gpu, &[], &[shared]).await;
    serving.stop();
    fact(&mut orm, "plugins", |known| known.contains("away")).await;
    let reply = orm.admit(&sandbox("s", SHARED, Some(512))).await;
    assert_eq!(refused(&reply).reason, "unavailable");
    let _serving = gpu.found(&host);
    fact(&mut orm, "plugins", |known| known == GPU).await;
    placed(&orm.admit(&sandbox("s", SHARED, Some(512))).await);
}

#[tokio::test]
async fn a_plugin_that_dies_between_its_hints_and_giving_refuses_the_pod_and_hears_of_it_once_it_is_back() {
    let gpu = Plugin::new(GPU, &[(&[1], true)]);
    gpu.now(|gpu| gpu.hangs_in_allocate = true);
    let (pod, dying) = bound("d", 2000);
    let (host, _specs, mut orm, serving) = node(&gpu, &[], &[pod]).await;
    let before = orm.state().await;
    let (mut other, request) = (orm.client.clone(), dying.clone());
    let asked = tokio::spawn(async move {
        let request =
            oxalyst_proto::orm::v1::AdmitPodRequest { sandbox: Some(request), ..Default::default() };
        other.admit_pod(request).await.unwrap().into_inner()
    });
    until("it is to give", async || gpu.now(|gpu| !gpu.allocated.is_empty()).then_some(())).await;
    serving.stop();
    let reply = asked.await.unwrap();
    assert_eq!((refused(&reply).reason.as_str(), refused(&reply).rule.as_str()), ("unavailable", "plugin"));
    let after = orm.state().await;
    assert_eq!((after.pods, after.free), (before.pods, before.free));
    gpu.now(|gpu| gpu.hangs_in_allocate = false);
    let _serving = gpu.found(&host);
    until("it hears of the pod", async || gpu.now(|gpu| gpu.removed == ["d"]).then_some(())).await;
    fact(&mut orm, "plugins", |known| known == GPU).await;
    assert_eq!(placed(&orm.admit(&dying).await).plugins.len(), 1);
}
