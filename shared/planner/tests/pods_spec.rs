//! Pods by their specs: containers one by one, before their sandbox starts or after.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
// `Node` applies the plans that it hands back.
#![allow(unused_must_use)]

mod pods_support;

use oxalyst_planner::plan::{DecidedBy, NativeOption, Reason, RequestSource};
use oxalyst_planner::pods::{
    self, ALL, Asked, Class, CpuPolicy, Native, Plan, PodRequest, Refusal, Request, Resize, Role, Rules,
    SandboxRequest, Told, admit_spec, placement_of, placements, refine,
};
use oxalyst_planner::topology_manager::Policy;
use oxalyst_qos::{QosLevel, enhancements};
use oxalyst_topology::CpuSet;
use oxalyst_units::{Bytes, MilliCpu};
use pods_support::{Node, annotated, bound, dedicated, in_sandbox, pod, shared, sixteen_cpus};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn asked(name: &str, role: Role, milli: u64) -> Asked {
    let cpu = Some(MilliCpu(milli)).filter(|cpu| cpu.0 > 0);
    Asked { name: name.to_owned(), role, cpu, limit: cpu, memory: None, huge_pages: Default::default() }
}

/// The same pod as its spec tells it.
fn spec(sandbox: &SandboxRequest, containers: Vec<Asked>) -> PodRequest {
    let (wishes, _) = enhancements(&sandbox.annotations);
    let qos = sandbox.annotations["katalyst.kubewharf.io/qos_level"].parse().unwrap();
    PodRequest {
        kept_labels: [].into(),
        plugins: oxalyst_planner::pods::Plugins::default(),
        uid: sandbox.pod_uid.clone(),
        sandbox_id: sandbox.sandbox_id.clone(),
        namespace: sandbox.namespace.clone(),
        name: sandbox.name.clone(),
        qos,
        class: Class::Guaranteed,
        wishes: wishes.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        node_agent: false,
        told: Told {
            request: sandbox.request,
            source: RequestSource::PodSpec,
            decided_by: DecidedBy::Admit,
            open: false,
        },
        flags: BTreeSet::new(),
        containers,
        now_unix_ms: sandbox.now_unix_ms,
    }
}

fn admit(node: &mut Node, request: &PodRequest) -> Plan {
    let plan = admit_spec(&node.state, &node.machine, &node.rules, request).unwrap();
    node.hold(plan)
}

fn refined(node: &mut Node, request: &PodRequest) -> Plan {
    let plan = refine(&node.state, &node.machine, &node.rules, request);
    node.hold(plan)
}

fn resized(node: &Node, uid: &str, container: &str, milli: u64) -> Result<Plan, Refusal> {
    let resize = Resize {
        uid: uid.to_owned(),
        container: container.to_owned(),
        cpu: Some(MilliCpu(milli)),
        limit: None,
        memory: None,
    };
    pods::plan(&node.state, &node.machine, &node.rules, &Request::Resize(resize))
}

fn by_container(node: &Node, uid: &str) -> BTreeMap<String, (CpuSet, bool)> {
    let placed = placement_of(&node.state, &node.machine, uid).unwrap();
    placed.containers.into_iter().map(|c| (c.name, (c.cpus, c.exclusive))).collect()
}

fn native() -> Node {
    let mut node = Node::new(sixteen_cpus());
    let native = Native { option: NativeOption::Packed, full_cores: false };
    node.rules = Rules { cpu_policy: CpuPolicy::Native(native), ..Rules::default() };
    node
}

#[test]
fn every_container_of_a_dedicated_pod_runs_in_its_main_containers_set() {
    let mut node = Node::new(sixteen_cpus());
    let containers = vec![
        asked("once", Role::Init, 3000),
        asked("side", Role::RestartableInit, 500),
        asked("app", Role::App, 2000),
        asked("more", Role::App, 1000),
        asked("debug", Role::Ephemeral, 0),
    ];
    admit(&mut node, &spec(&dedicated("d", 4), containers));
    let placed = by_container(&node, "d");
    let set = &placed["app"].0;
    assert_eq!(set.len(), 2);
    assert!(placed.values().all(|(cpus, exclusive)| cpus == set && *exclusive), "{placed:?}");
    assert_eq!(node.placement("d").request_source, RequestSource::PodSpec);
}

#[test]
fn each_guaranteed_container_has_a_set_of_its_own_under_the_native_policy() {
    let mut node = native();
    let containers = vec![
        asked("once", Role::Init, 2000),
        asked("side", Role::RestartableInit, 1000),
        asked("app", Role::App, 2000),
        asked("part", Role::App, 500),
    ];
    admit(&mut node, &spec(&dedicated("d", 4), containers));
    let placed = by_container(&node, "d");
    let (once, side, app) = (&placed["once"].0, &placed["side"].0, &placed["app"].0);
    assert_eq!((once.len(), side.len(), app.len()), (2, 1, 2));
    assert!(side.is_disjoint(app), "a restartable one keeps its own for life");
    assert!(once.is_subset(&(side | app)), "a plain init container lends its CPUs to those after it");
    assert!(!placed["part"].1);
}

#[test]
fn a_bound_pods_memory_is_accounted_to_its_node() {
    let mut node = Node::new(sixteen_cpus());
    let containers = vec![Asked { memory: Some(Bytes(1 << 30)), ..asked("app", Role::App, 2000) }];
    let sandbox = bound(dedicated("d", 2));
    node.admit(&sandbox);
    let (cpus, mems) = (node.cpus("d"), node.mems("d"));
    refined(&mut node, &spec(&sandbox, containers));
    assert_eq!((node.cpus("d"), node.mems("d")), (cpus, mems));
    let taken: u64 = node
        .state
        .memory
        .containers
        .values()
        .flat_map(|own| own.taken.values())
        .flat_map(|by_node| by_node.values())
        .map(|bytes| bytes.0)
        .sum();
    assert_eq!(taken, 1 << 30);
}

#[test]
fn a_spec_that_comes_later_moves_nobody() {
    let mut node = Node::new(sixteen_cpus());
    node.admit(&shared("s"));
    let sandbox = dedicated("d", 3);
    node.admit(&sandbox);
    let before = placements(&node.state, &node.machine);
    let request = spec(&sandbox, vec![asked("app", Role::App, 2000), asked("side", Role::App, 1000)]);
    let plan = refined(&mut node, &request);
    assert_eq!(plan.pods.keys().collect::<Vec<_>>(), ["d"]);
    let cpus = before["d"].containers[0].cpus.clone();
    assert!(by_container(&node, "d").values().all(|(own, exclusive)| *own == cpus && *exclusive));
    assert_eq!(placements(&node.state, &node.machine)["s"], before["s"]);
    assert_eq!(node.placement("d").request_source, RequestSource::PodSpec);
    assert!(refined(&mut node, &request).is_empty(), "the same again changes nothing");
    // From now on its containers are resized one by one.
    let plan = resized(&node, "d", "app", 4000).unwrap();
    node.hold(plan);
    let grown = &by_container(&node, "d")["app"].0;
    assert!(cpus.is_subset(grown) && grown.len() == 4);
}

#[test]
fn a_pod_known_by_its_total_is_resized_by_its_total() {
    let mut node = Node::new(sixteen_cpus());
    node.admit(&dedicated("d", 2));
    let before = node.placement("d").cpus;
    let plan = resized(&node, "d", ALL, 3000).unwrap();
    node.hold(plan);
    let grown = node.placement("d");
    assert!(before.is_subset(&grown.cpus) && grown.cpus.len() == 3);
    assert_eq!(grown.request, Some(MilliCpu(3000)));
    let plan = resized(&node, "d", ALL, 2000).unwrap();
    node.hold(plan);
    assert_eq!(node.placement("d").cpus, before);
    let refusal = resized(&node, "d", ALL, 40_000).unwrap_err();
    assert_eq!(refusal.reason, Reason::Insufficient);
    let ends = "asks for 40 CPUs; with the 2 that it has it could have 16 on NUMA nodes without exclusive and bound shared pods";
    assert!(refusal.message.ends_with(ends), "16 are not on its NUMA node alone: {}", refusal.message);
    node.admit(&bound(dedicated("b", 2)));
    let refusal = resized(&node, "b", ALL, 40_000).unwrap_err();
    let ends = "asks for 40 CPUs; with the 2 that it has it could have 2 on NUMA node(s) 0";
    assert!(refusal.message.ends_with(ends), "{}", refusal.message);
}

#[test]
fn a_refusal_tells_what_the_set_would_be_as_large_as() {
    let node = Node::new(sixteen_cpus());
    let apps = vec![asked("main", Role::App, 20_000), asked("side", Role::App, 1500)];
    let of_both = spec(&pod("d", "dedicated_cores", Some(21_500)), apps);
    let refusal = admit_spec(&node.state, &node.machine, &node.rules, &of_both).unwrap_err();
    let starts =
        "20 CPUs of its own are needed (request 21.5 CPUs, of which 20 CPUs count for it), 16 CPUs are free";
    assert!(refusal.message.starts_with(starts), "{}", refusal.message);
    assert_eq!(refusal.asked, Some(MilliCpu(21_500)));
    // Without a request of the main container the total counts.
    let apps = vec![asked("main", Role::App, 0), asked("side", Role::App, 21_500)];
    let of_one = spec(&pod("d", "dedicated_cores", Some(21_500)), apps);
    let refusal = admit_spec(&node.state, &node.machine, &node.rules, &of_one).unwrap_err();
    assert!(
        refusal.message.starts_with("22 CPUs of its own are needed (request 21.5 CPUs), "),
        "{}",
        refusal.message
    );
    let refusal = admit_spec(&native().state, &node.machine, &native().rules, &of_both).unwrap_err();
    assert!(refusal.message.starts_with(starts), "{}", refusal.message);
}

#[test]
fn what_cannot_be_distributed_evenly_is_no_request_that_any_node_could_serve() {
    let policies = ["none", "best-effort", "restricted", "numeric"];
    for topology in
        policies.map(|name| Policy::named(name, &["cpu".to_owned(), "memory".to_owned()]).unwrap())
    {
        let mut node = Node::new(sixteen_cpus());
        node.rules.topology = topology;
        let evenly = |uid: &str, milli| {
            let wishes =
                r#"{"numa_binding": "true", "numa_number": "2", "distribute_evenly_across_numa": "true"}"#;
            annotated(
                pod(uid, "dedicated_cores", Some(milli)),
                "katalyst.kubewharf.io/memory_enhancement",
                wishes,
            )
        };
        let refusal = node.refusal(&evenly("d", 2500));
        assert_eq!(refusal.reason, Reason::Invalid, "{refusal}");
        let ends = "2500m CPUs are asked for, and 3 cannot be distributed evenly over the 2 NUMA nodes 0-1";
        assert!(refusal.message.ends_with(ends), "{refusal}");
        node.admit(&evenly("e", 4000));
        let refusal = resized(&node, "e", ALL, 4500).unwrap_err();
        assert_eq!(refusal.reason, Reason::Invalid, "{refusal}");
    }
}

#[test]
fn a_shared_pod_is_resized_once_it_has_joined_its_pool() {
    let mut node = Node::new(sixteen_cpus());
    node.admit(&shared("s"));
    assert!(pods::is_ramping_up(&node.state, "s", ALL));
    assert!(resized(&node, "s", ALL, 4000).is_err());
    let elapsed = Request::Elapse { now_unix_ms: 1000 + node.rules.ramp_up_ms };
    let plan = pods::plan(&node.state, &node.machine, &node.rules, &elapsed).unwrap();
    node.hold(plan);
    assert!(!pods::is_ramping_up(&node.state, "s", ALL));
    let plan = resized(&node, "s", ALL, 4000).unwrap();
    node.hold(plan);
    assert_eq!(node.placement("s").request, Some(MilliCpu(4000)));
}

#[test]
fn ramp_up_bars_a_resize_of_shared_pods_that_are_not_bound_and_of_no_other() {
    let mut node = Node::new(sixteen_cpus());
    let of = |uid, level| pod(uid, level, Some(1000));
    let pods = [
        of("shared", "shared_cores"),
        bound(of("bound", "shared_cores")),
        of("own", "dedicated_cores"),
        bound(of("own-bound", "dedicated_cores")),
        of("reclaimed", "reclaimed_cores"),
        of("system", "system_cores"),
    ];
    for request in &pods {
        node.admit(request);
    }
    for uid in pods.iter().map(|request| &request.pod_uid) {
        let barred = pods::is_ramping_up(&node.state, uid, ALL);
        assert_eq!(
            (barred, resized(&node, uid, ALL, 2000).is_err()),
            (uid == "shared", uid == "shared"),
            "{uid}"
        );
    }
}

#[test]
fn an_open_pod_is_settled_by_its_spec() {
    let mut node = Node::new(sixteen_cpus());
    let open = pod("d", "dedicated_cores", None);
    node.admit(&open);
    assert!(!node.placement("d").settled);
    refined(&mut node, &spec(&dedicated("d", 2), vec![asked("app", Role::App, 2000)]));
    let placed = node.placement("d");
    assert_eq!((placed.exclusive, placed.cpus.len(), placed.settled), (true, 2, true));
}

#[test]
fn a_known_pod_moves_to_its_new_sandbox_and_an_ended_one_does_not_come_back() {
    let mut node = Node::new(sixteen_cpus());
    let request = spec(&dedicated("d", 2), vec![asked("app", Role::App, 2000)]);
    admit(&mut node, &request);
    let cpus = node.cpus("d");
    let again = spec(&in_sandbox(dedicated("d", 2), "d-2"), request.containers.clone());
    admit(&mut node, &again);
    assert_eq!((node.cpus("d"), node.placement("d").sandbox_id.as_str()), (cpus, "d-2"));
    let refusal = admit_spec(&node.state, &node.machine, &node.rules, &request).unwrap_err();
    assert_eq!(refusal.reason, Reason::Expired);
}

#[test]
fn containers_that_the_spec_gains_join() {
    let mut node = Node::new(sixteen_cpus());
    let sandbox = dedicated("d", 2);
    admit(&mut node, &spec(&sandbox, vec![asked("app", Role::App, 2000)]));
    let cpus = by_container(&node, "d")["app"].clone();
    let more = vec![asked("app", Role::App, 2000), asked("debug", Role::Ephemeral, 0)];
    refined(&mut node, &spec(&sandbox, more));
    assert_eq!(by_container(&node, "d")["debug"], cpus);
}

fn containers() -> impl Strategy<Value = Vec<Asked>> {
    let role = prop_oneof![
        3 => Just(Role::App),
        1 => Just(Role::Init),
        1 => Just(Role::RestartableInit),
        1 => Just(Role::Ephemeral)
    ];
    prop::collection::vec((role, 0u64..5000, prop::option::of(0u64..(1 << 33))), 1..5).prop_map(|all| {
        let named = all.into_iter().enumerate().map(|(n, (role, milli, memory))| Asked {
            memory: memory.map(Bytes),
            ..asked(&format!("c{n}"), role, if role == Role::Ephemeral { 0 } else { milli })
        });
        named.chain([asked("app", Role::App, 500)]).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn refining_keeps_every_exclusive_set_and_tells_every_container(
        levels in prop::collection::vec((0usize..4, any::<bool>(), 1u64..6000, containers()), 1..5),
        native_policy: bool,
    ) {
        let mut node = if native_policy { native() } else { Node::new(sixteen_cpus()) };
        for (n, (level, binds, milli, containers)) in levels.into_iter().enumerate() {
            let sandbox = pod(&n.to_string(), QosLevel::ALL[level].as_str(), Some(milli));
            let sandbox = if binds { bound(sandbox) } else { sandbox };
            let sandbox = SandboxRequest { class: Class::Guaranteed, ..sandbox };
            let Ok(plan) = node.plan(&sandbox) else { continue };
            node.hold(plan);
            let exclusive = |node: &Node| {
                let placed = placements(&node.state, &node.machine);
                let own = placed.into_iter().map(|(uid, pod)| {
                    let own = pod.containers.into_iter().filter(|c| c.exclusive);
                    (uid, own.fold(CpuSet::new(), |all, c| all | &c.cpus))
                });
                own.collect::<BTreeMap<_, _>>()
            };
            let before = exclusive(&node);
            let request = spec(&sandbox, containers);
            let plan = refined(&mut node, &request);
            if native_policy {
                let others = |mut all: BTreeMap<String, CpuSet>| {
                    all.remove(&sandbox.pod_uid);
                    all
                };
                prop_assert_eq!(others(exclusive(&node)), others(before));
            } else {
                prop_assert_eq!(exclusive(&node), before);
            }
            prop_assert!(plan.removed().next().is_none());
            if !native_policy && !plan.is_empty() {
                let told: Vec<_> = by_container(&node, &sandbox.pod_uid).into_keys().collect();
                let mut expected: Vec<_> = request.containers.iter().map(|c| c.name.clone()).collect();
                expected.sort();
                prop_assert_eq!(told, expected);
            }
            prop_assert!(refined(&mut node, &request).is_empty());
        }
    }
}
