//! Plugins and pods that have their places already: specs that come later, and resizes. The real binary, plugins that are this
//! test, and a client.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod host;
mod plugin;

use std::collections::BTreeMap;

use host::{Host, Orm, placed, refused, sandbox};
use oxalyst_planner::decision::{Decision, Recording, Replay};
use oxalyst_proto::meta::v1::{Pod, PodContainer};
use oxalyst_proto::orm::v1::decisions_client::DecisionsClient;
use oxalyst_proto::orm::v1::{
    AdmitReply, ListDecisionsRequest, PodPlacement, RecordRequest, ResizeContainerRequest, State,
};
use oxalyst_proto::resourceplugin::v1alpha1::{ResourceAllocationInfo, ResourceRequest, TopologyHint};
use oxalyst_proto::runtime::v1::{Container, Resources, Sandbox};
use plugin::{Plugin, Specs, fact, spec, until};
use tonic::Status;

const GPU: &str = "vendor.io/gpu";
const DEDICATED: &str = "dedicated_cores";
const SHARED: &str = "shared_cores";
const RESIZING: &str = "pod.kubernetes.io/inplace-update-resizing";
/// Enough for a busy machine.
const PATIENT: [&str; 2] = ["--set", "plugin_deadline_ms=1500"];

/// A node with one plugin, which was found; no spec is known.
async fn node(plugin: &Plugin) -> (Host, Specs, Orm, plugin::Serving) {
    let host = Host::with_machine(8, 2);
    let specs = Specs::serve(&host);
    let serving = plugin.found(&host);
    let mut orm = host.start(&PATIENT).await;
    fact(&mut orm, "plugins", |known| known == plugin.name).await;
    (host, specs, orm, serving)
}

fn bound(uid: &str, milli: u64, extended: &[(&str, u64)]) -> (Pod, Sandbox) {
    let key = "katalyst.kubewharf.io/memory_enhancement".to_owned();
    let binding = r#"{"numa_binding": "true"}"#.to_owned();
    let mut pod = spec(uid, DEDICATED, milli, extended);
    let mut sandbox = sandbox(uid, DEDICATED, Some(milli * 1024 / 1000));
    pod.annotations.insert(key.clone(), binding.clone());
    sandbox.annotations.insert(key, binding);
    (pod, sandbox)
}

async fn pod(orm: &mut Orm, uid: &str) -> Option<PodPlacement> {
    orm.state().await.pods.into_iter().find(|pod| pod.pod_uid == uid)
}

/// Waits until the pod has something of plugins, and its flags say nothing of them.
async fn has(orm: &mut Orm, uid: &str) -> PodPlacement {
    until("it has what it asks of plugins", async || {
        let pod = pod(orm, uid).await?;
        (!pod.plugins.is_empty() && pod.flags.is_empty()).then_some(pod)
    })
    .await
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

async fn decision(host: &Host, kind: &str, is: impl Fn(&Decision) -> bool) -> Decision {
    until("it is explained", async || {
        explained(host).await.into_iter().find(|decision| decision.kind == kind && is(decision))
    })
    .await
}

#[tokio::test]
async fn a_pod_whose_spec_comes_late_has_what_it_asks_of_plugins_then_and_its_cpus_stay() {
    let gpu = Plugin::new(GPU, &[(&[1], true), (&[0], false)]);
    let (pod_of_d, sandbox_of_d) = bound("d", 2000, &[(GPU, 1)]);
    let (host, specs, mut orm, serving) = node(&gpu).await;
    let before = placed(&orm.admit(&sandbox_of_d).await).clone();
    assert_eq!((before.flags.as_slice(), before.mems.as_str()), (&["plugins-unasked".to_owned()][..], "0"));

    specs.tell(&mut orm, std::slice::from_ref(&pod_of_d)).await;
    let after = has(&mut orm, "d").await;

    assert_eq!((&after.cpus, &after.mems), (&before.cpus, &before.mems), "hints move nobody any more");
    let hint = gpu.now(|gpu| gpu.allocated[0].hint.clone());
    assert_eq!(hint, Some(TopologyHint { nodes: vec![0], preferred: false }), "where its CPUs are");
    assert_eq!(after.plugins[0].nodes, [0]);
    assert_eq!(after.properties[0].oci_properties, [("Env/VISIBLE".to_owned(), "dev-1".to_owned())].into());
    let told = decision(&host, "plugins", |_| true).await;
    assert_eq!((told.pod_uid.as_str(), told.outcome.as_str()), ("d", "kept"));
    assert_eq!(told.merges[0].resources[0].resource, GPU);
    let page = oxalyst_planner::decision::page(
        &oxalyst_planner::decision::DecisionEntry { decision: Some(told), ..Default::default() },
        &|_| String::new(),
    );
    assert!(page.contains("their hints can move none of them"), "{page}");

    // It is remembered, and not asked for again.
    drop(orm);
    serving.stop();
    let mut orm = host.start(&PATIENT).await;
    specs.tell(&mut orm, &[pod_of_d]).await;
    assert_eq!(pod(&mut orm, "d").await.unwrap().plugins, after.plugins);
    let _serving = gpu.found(&host);
    fact(&mut orm, "plugins", |known| known == GPU).await;
    assert!(orm.release("d", "d-1").await);
    until("RemovePod", async || gpu.now(|gpu| gpu.removed == ["d"]).then_some(())).await;
    assert_eq!(gpu.now(|gpu| gpu.allocated.len()), 1);
}

#[tokio::test]
async fn a_plugin_that_fails_a_late_pod_is_asked_again_and_the_flag_stays_until_it_gives() {
    let gpu = Plugin::new(GPU, &[(&[0], true)]);
    gpu.now(|gpu| gpu.allocate_fails = Some(Status::resource_exhausted("none left")));
    let (_host, specs, mut orm, _serving) = node(&gpu).await;
    placed(&orm.admit(&sandbox("s", SHARED, Some(512))).await);
    specs.tell(&mut orm, &[spec("s", SHARED, 500, &[(GPU, 1)])]).await;
    until("asked twice", async || gpu.now(|gpu| gpu.allocated.len() >= 2).then_some(())).await;
    let waits = pod(&mut orm, "s").await.unwrap();
    assert_eq!((waits.flags.as_slice(), waits.plugins.len()), (&["plugins-unasked".to_owned()][..], 0));
    gpu.now(|gpu| gpu.allocate_fails = None);
    assert_eq!(has(&mut orm, "s").await.plugins.len(), 1);
}

#[tokio::test]
async fn a_late_pod_that_asks_nothing_of_plugins_loses_the_flag_and_no_plugin_is_asked() {
    let gpu = Plugin::new(GPU, &[(&[0], true)]);
    let (_host, specs, mut orm, _serving) = node(&gpu).await;
    placed(&orm.admit(&sandbox("plain", SHARED, Some(512))).await);
    specs.tell(&mut orm, &[spec("plain", SHARED, 500, &[])]).await;
    until("no flag", async || pod(&mut orm, "plain").await.filter(|pod| pod.flags.is_empty())).await;
    assert!(gpu.now(|gpu| gpu.asked_hints.is_empty() && gpu.allocated.is_empty()));
}

#[tokio::test]
async fn a_native_set_given_by_its_total_is_divided_and_plugins_are_asked_once_it_is() {
    let gpu = Plugin::new(GPU, &[(&[1], true), (&[0], false)]);
    let host = Host::with_machine(8, 2);
    let specs = Specs::serve(&host);
    let _serving = gpu.found(&host);
    let keys = "pod_label_kept_keys=team";
    let mut orm = host.start(&[&PATIENT[..], &["--set", "cpu_policy=native", "--set", keys]].concat()).await;
    fact(&mut orm, "plugins", |known| known == GPU).await;
    let team = ("team".to_owned(), "blue".to_owned());
    let labels: BTreeMap<_, _> = [team.clone(), ("noise".to_owned(), "x".to_owned())].into();
    let mut whole = sandbox("n", SHARED, Some(3072));
    whole.cgroup_parent = "/kubepods/podn".into();
    whole.labels = labels.clone();
    let before = placed(&orm.admit(&whole).await).clone();
    assert_eq!((before.cpus.as_str(), before.exclusive), ("0-2", true));
    assert_eq!(
        (before.flags.as_slice(), &before.kept_labels),
        (&["plugins-unasked".to_owned()][..], &[team.clone()].into())
    );
    assert!(gpu.now(|gpu| gpu.asked_hints.is_empty()));

    let mut told = spec("n", SHARED, 2000, &[(GPU, 1)]);
    (told.kubernetes_qos, told.labels) = ("Guaranteed".into(), labels);
    told.containers[0].limit_milli_cpu = Some(2000);
    let side = PodContainer {
        name: "side".into(),
        request_milli_cpu: Some(1000),
        limit_milli_cpu: Some(1000),
        ..told.containers[0].clone()
    };
    told.containers.push(side);
    specs.tell(&mut orm, &[told]).await;
    let after = has(&mut orm, "n").await;

    let side = after.containers.iter().find(|own| own.name == "side").unwrap();
    let sets: [std::collections::BTreeSet<u32>; 2] = [&after.cpus, &side.cpus]
        .map(|set| set.parse::<oxalyst_topology::CpuSet>().unwrap().iter().collect());
    assert_eq!((sets[0].len(), sets[1].len(), sets[0].is_disjoint(&sets[1])), (2, 1, true));
    assert_eq!((&sets[0] | &sets[1]).into_iter().collect::<Vec<_>>(), [0, 1, 2], "out of what it had");
    let allocated = gpu.now(|gpu| gpu.allocated.clone());
    let by: Vec<_> = allocated.iter().map(|asked| asked.container_name.as_str()).collect();
    assert_eq!(by, ["app", "side"], "each once, by name");
    for asked in &allocated {
        assert_eq!(asked.hint, Some(TopologyHint { nodes: vec![0], preferred: false }), "where its CPUs are");
        assert_eq!(asked.labels, [team.clone()].into(), "the kept ones alone");
    }
    assert_eq!(after.kept_labels, [team].into());
    let state = orm.state().await;
    assert_eq!(state.cpu_policy, "native");

    // The other policy takes it as it is.
    drop(orm);
    let mut orm = host.start(&PATIENT).await;
    let state = orm.state().await;
    let kept = &state.pods[0];
    assert_eq!(
        (state.cpu_policy.as_str(), kept.flags.as_slice()),
        ("mixed", &["other-policy".to_owned()][..])
    );
    assert_eq!(
        (&kept.cpus, &kept.plugins, &kept.kept_labels),
        (&after.cpus, &after.plugins, &after.kept_labels)
    );
}

fn visible(device: &str, property: &str, value: &str) -> ResourceAllocationInfo {
    ResourceAllocationInfo {
        is_scalar_resource: true,
        allocated_quantity: 1.0,
        oci_property_name: property.into(),
        allocation_result: value.into(),
        envs: [("VISIBLE".to_owned(), device.to_owned())].into(),
        ..ResourceAllocationInfo::default()
    }
}

fn of_three(uid: &str) -> Pod {
    let mut pod = spec(uid, SHARED, 500, &[(GPU, 1)]);
    let app = pod.containers[0].clone();
    let named =
        |name: &str, kind: &str| PodContainer { name: name.into(), r#type: kind.into(), ..app.clone() };
    pod.containers = vec![
        named("once", "init"),
        named("side", "restartable-init"),
        app.clone(),
        PodContainer { extended: BTreeMap::new(), ..named("plain", "app") },
    ];
    pod
}

#[tokio::test]
async fn each_container_is_told_what_plugins_gave_it_whether_the_spec_comes_early_or_late() {
    let gpu = Plugin::new(GPU, &[(&[0], true)]);
    gpu.now(|gpu| {
        gpu.infos = [
            ("once".to_owned(), visible("0", "", "")),
            ("side".to_owned(), visible("1", "PidsLimit", "99")),
            ("app".to_owned(), visible("2", "CpusetCpus", "7")),
        ]
        .into();
    });
    let (_host, specs, mut orm, _serving) = node(&gpu).await;
    placed(&orm.admit(&sandbox("late", SHARED, Some(1024))).await);
    specs.tell(&mut orm, &[of_three("late"), of_three("early")]).await;
    let early = placed(&orm.admit(&sandbox("early", SHARED, Some(1024))).await).clone();
    let late = has(&mut orm, "late").await;
    let env = |device: &str| ("Env/VISIBLE".to_owned(), device.to_owned());
    for pod in [early, late] {
        let told: Vec<_> =
            pod.properties.iter().map(|own| (own.container.as_str(), &own.oci_properties)).collect();
        let pids = ("PidsLimit".to_owned(), "99".to_owned());
        // CPUs are decided here.
        let expected =
            [("app", [env("2")].into()), ("once", [env("0")].into()), ("side", [env("1"), pids].into())];
        assert_eq!(told, expected.each_ref().map(|(name, own)| (*name, own)), "{}", pod.pod_uid);
        assert!(pod.oci_properties.is_empty(), "nothing is for all of them");
    }
}

#[tokio::test]
async fn o3_a_daemon_sets_pod_is_placed_as_a_node_agent_and_no_plugin_is_asked() {
    let gpu = Plugin::new(GPU, &[(&[0], true)]);
    let (_host, specs, mut orm, _serving) = node(&gpu).await;
    let agent = |uid: &str| Pod {
        owner: Some(oxalyst_proto::meta::v1::Owner { kind: "DaemonSet".into(), name: "d".into() }),
        ..spec(uid, SHARED, 500, &[(GPU, 1)])
    };
    placed(&orm.admit(&sandbox("late", SHARED, Some(512))).await);
    specs.tell(&mut orm, &[agent("early"), agent("late")]).await;
    let early = placed(&orm.admit(&sandbox("early", SHARED, Some(512))).await).clone();
    assert_eq!((early.flags.as_slice(), early.cpus.as_str()), (&["node-agent".to_owned()][..], "0-7"));
    let late = until("the late one is known", async || {
        pod(&mut orm, "late").await.filter(|pod| !pod.flags.contains(&"plugins-unasked".to_owned()))
    })
    .await;
    assert_eq!((early.plugins.len(), late.plugins.len()), (0, 0));
    assert!(gpu.now(|gpu| gpu.asked_hints.is_empty() && gpu.allocated.is_empty()));
}

#[tokio::test]
async fn o4_a_daemon_sets_pod_of_the_system_level_is_admitted_with_its_plugins() {
    let gpu = Plugin::new(GPU, &[(&[0], true)]);
    let (_host, specs, mut orm, _serving) = node(&gpu).await;
    let system = Pod {
        owner: Some(oxalyst_proto::meta::v1::Owner { kind: "DaemonSet".into(), name: "d".into() }),
        ..spec("s", "system_cores", 500, &[(GPU, 1)])
    };
    specs.tell(&mut orm, &[system]).await;
    let reply = orm.admit(&sandbox("s", "system_cores", Some(512))).await;
    assert_eq!((placed(&reply).plugins.len(), placed(&reply).flags.len()), (1, 0));
    assert_eq!(gpu.now(|gpu| gpu.allocated.len()), 1);
}

/// As the gateway asks when the runtime is told of other shares for the container `app`.
async fn resize(orm: &mut Orm, sandbox: &Sandbox, before: u64, milli: u64) -> AdmitReply {
    let container = |milli: u64| Container {
        container_id: "app".into(),
        name: "app".into(),
        resources: Some(Resources { cpu_shares: Some(milli * 1024 / 1000), ..Resources::default() }),
        ..Container::default()
    };
    let request = ResizeContainerRequest {
        sandbox: Some(sandbox.clone()),
        container: Some(container(milli)),
        running: vec![container(before)],
        ..ResizeContainerRequest::default()
    };
    orm.client.resize_container(request).await.unwrap().into_inner()
}

/// A plugin of CPUs, and a dedicated pod of 2 CPUs that has something of it.
async fn resizable() -> (Plugin, Host, Specs, Orm, plugin::Serving, Sandbox) {
    let cpu = Plugin::new("cpu", &[(&[0], true)]);
    let (host, specs, mut orm, serving) = node(&cpu).await;
    let (pod_of_d, sandbox_of_d) = bound("d", 2000, &[]);
    specs.tell(&mut orm, &[pod_of_d]).await;
    assert_eq!(placed(&orm.admit(&sandbox_of_d).await).plugins.len(), 1);
    cpu.now(|cpu| {
        cpu.asked_hints.clear();
        cpu.allocated.clear();
    });
    (cpu, host, specs, orm, serving, sandbox_of_d)
}

fn quantities(asked: &[ResourceRequest]) -> Vec<f64> {
    asked.iter().map(|asked| asked.resource_requests["cpu"]).collect()
}

fn held(state: &State) -> (Vec<PodPlacement>, Vec<oxalyst_proto::orm::v1::NumaFree>) {
    (state.pods.clone(), state.free.clone())
}

#[tokio::test]
async fn a_resize_is_told_to_the_plugin_with_its_mark_and_what_it_gives_takes_the_place_of_what_it_gave() {
    let (cpu, host, _specs, mut orm, _serving, sandbox) = resizable().await;
    cpu.now(|cpu| cpu.info.allocation_result = "grown".into());
    let reply = resize(&mut orm, &sandbox, 2000, 3000).await;
    let placement = placed(&reply);
    assert_eq!((placement.cpus.as_str(), placement.requested_milli_cpu), ("0-2", 3000));
    let given: Vec<_> = placement.plugins.iter().map(|given| given.result.as_str()).collect();
    assert_eq!(given, ["grown"]);
    let (hints, allocated) = cpu.now(|cpu| (cpu.asked_hints.clone(), cpu.allocated.clone()));
    assert_eq!((quantities(&hints), quantities(&allocated)), (vec![3.0], vec![3.0]));
    for asked in hints.iter().chain(&allocated) {
        assert_eq!(asked.annotations[RESIZING], "true");
        let all = &asked.annotations["pod.kubernetes.io/pod-aggregated-requests"];
        assert_eq!(all, r#"{"cpu":"3000m","memory":"1048576"}"#);
    }
    assert_eq!(allocated[0].hint, Some(TopologyHint { nodes: vec![0], preferred: true }));
    // The same again is no resize.
    placed(&resize(&mut orm, &sandbox, 3000, 3000).await);
    assert_eq!(cpu.now(|cpu| cpu.allocated.len()), 1);
    let told = decision(&host, "resize", |_| true).await;
    assert_eq!(told.asked.unwrap().containers[0].milli_cpu, Some(3000));
    // A restart keeps all of it.
    let before = held(&orm.state().await);
    drop(orm);
    let mut orm = host.start(&PATIENT).await;
    assert_eq!(held(&orm.state().await), before);
}

#[tokio::test]
async fn a_resize_that_a_plugin_refuses_changes_nothing() {
    let (cpu, host, _specs, mut orm, _serving, sandbox) = resizable().await;
    let before = held(&orm.state().await);

    cpu.now(|cpu| cpu.hints_fail = Some(Status::resource_exhausted("none left")));
    let reply = resize(&mut orm, &sandbox, 2000, 3000).await;
    assert_eq!((refused(&reply).reason.as_str(), refused(&reply).rule.as_str()), ("insufficient", "plugin"));
    assert_eq!(held(&orm.state().await), before);
    assert!(cpu.now(|cpu| cpu.allocated.is_empty()), "it said no before it was to give");

    cpu.now(|cpu| {
        cpu.hints_fail = None;
        cpu.allocate_fails = Some(Status::resource_exhausted("none left after all"));
    });
    let reply = resize(&mut orm, &sandbox, 2000, 3000).await;
    assert_eq!(refused(&reply).rule, "plugin");
    assert!(refused(&reply).message.contains("none left after all"), "{}", refused(&reply).message);
    assert_eq!(held(&orm.state().await), before);
    // Whether it has counted it nobody knows: it is told what holds until it says that it has heard it.
    cpu.now(|cpu| cpu.allocate_fails = None);
    let heard = |cpu: &Plugin| cpu.now(|cpu| quantities(&cpu.allocated).last() == Some(&2.0));
    until("it is told the old amount", async || heard(&cpu).then_some(())).await;
    let refusals = decision(&host, "resize", |decision| decision.refused.is_some()).await;
    assert_eq!(refusals.refused.unwrap().rule, "plugin");

    assert_eq!(placed(&resize(&mut orm, &sandbox, 2000, 3000).await).requested_milli_cpu, 3000);
}

#[tokio::test]
async fn a_resize_that_there_is_no_room_for_is_refused_without_asking_the_plugin() {
    let (cpu, _host, _specs, mut orm, _serving, sandbox) = resizable().await;
    let before = held(&orm.state().await);
    let reply = resize(&mut orm, &sandbox, 2000, 7000).await;
    assert_ne!(refused(&reply).rule, "plugin");
    assert_eq!(held(&orm.state().await), before);
    assert!(cpu.now(|cpu| cpu.asked_hints.is_empty() && cpu.allocated.is_empty()));
}

#[tokio::test]
async fn a_plugin_that_is_away_refuses_a_resize_and_other_pods_are_resized() {
    let (_cpu, _host, _specs, mut orm, serving, sandbox_of_d) = resizable().await;
    serving.stop();
    fact(&mut orm, "plugins", |known| known.contains("away")).await;
    let before = held(&orm.state().await);
    let reply = resize(&mut orm, &sandbox_of_d, 2000, 3000).await;
    assert_eq!((refused(&reply).reason.as_str(), refused(&reply).rule.as_str()), ("unavailable", "plugin"));
    assert_eq!(held(&orm.state().await), before);
    let other = sandbox("other", DEDICATED, Some(1024));
    placed(&orm.admit(&other).await);
    assert_eq!(placed(&resize(&mut orm, &other, 1000, 2000).await).requested_milli_cpu, 2000);
}

#[tokio::test]
async fn a_resize_by_the_pods_spec_waits_until_the_plugin_says_yes() {
    let (cpu, _host, specs, mut orm, _serving, _) = resizable().await;
    cpu.now(|cpu| cpu.hints_fail = Some(Status::resource_exhausted("none left")));
    let (grown, _) = bound("d", 3000, &[]);
    specs.tell(&mut orm, &[grown]).await;
    until("it is asked twice", async || cpu.now(|cpu| cpu.asked_hints.len() >= 2).then_some(())).await;
    assert_eq!(pod(&mut orm, "d").await.unwrap().requested_milli_cpu, 2000);
    cpu.now(|cpu| cpu.hints_fail = None);
    until("it is resized", async || {
        pod(&mut orm, "d").await.filter(|pod| pod.requested_milli_cpu == 3000 && pod.cpus == "0-2")
    })
    .await;
    assert_eq!(cpu.now(|cpu| quantities(&cpu.allocated)), [3.0]);
}

#[tokio::test]
async fn o17_nine_numa_nodes_are_served_under_every_policy() {
    for policy in ["none", "best-effort", "restricted", "single-numa-node", "numeric"] {
        let host = Host::with_machine(18, 9);
        let mut orm = host.start(&["--set", &format!("topology_policy={policy}")]).await;
        let (_, sandbox) = bound("d", 2000, &[]);
        assert_eq!(placed(&orm.admit(&sandbox).await).cpus, "0-1", "{policy}");
    }
}

#[tokio::test]
async fn o18_a_topology_policy_without_a_name_ends_the_start_and_names_its_key() {
    let host = Host::new();
    let output = host.fails("run", &["--set", "topology_policy="]).await;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("topology_policy"), "{said}");
}
