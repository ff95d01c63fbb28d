//! The native policy: a set that was given to a whole pod is divided among its containers, and a container that is without one gets
//! one back.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
// `Node` applies the plans that it hands back.
#![allow(unused_must_use)]

mod pods_support;

use oxalyst_planner::plan::{DecidedBy, Flag, NativeOption, RequestSource};
use oxalyst_planner::pods::{
    ALL, Asked, Class, CpuPolicy, Native, Plan, Plugins, PodRequest, Role, Rules, RunningSandbox,
    SandboxRequest, Told, admit_spec, placement_of, record, refine,
};
use oxalyst_planner::policy::ContainerId;
use oxalyst_qos::QosLevel;
use oxalyst_topology::CpuSet;
use oxalyst_units::{Bytes, MilliCpu};
use pods_support::{Node, pod, set, sixteen_cpus, two_cpus};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn asked(name: &str, role: Role, milli: u64) -> Asked {
    let cpu = Some(MilliCpu(milli)).filter(|cpu| cpu.0 > 0);
    Asked { name: name.to_owned(), role, cpu, limit: cpu, memory: None, huge_pages: BTreeMap::new() }
}

fn whole(uid: &str, milli: u64) -> SandboxRequest {
    SandboxRequest { class: Class::Guaranteed, ..pod(uid, "shared_cores", Some(milli)) }
}

fn spec(sandbox: &SandboxRequest, containers: Vec<Asked>) -> PodRequest {
    PodRequest {
        kept_labels: [].into(),
        plugins: Plugins::default(),
        uid: sandbox.pod_uid.clone(),
        sandbox_id: sandbox.sandbox_id.clone(),
        namespace: sandbox.namespace.clone(),
        name: sandbox.name.clone(),
        qos: QosLevel::Shared,
        class: Class::Guaranteed,
        wishes: [].into_iter().collect(),
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

fn native(mut node: Node) -> Node {
    let native = Native { option: NativeOption::Packed, full_cores: false };
    node.rules = Rules { cpu_policy: CpuPolicy::Native(native), ..Rules::default() };
    node.hold(oxalyst_planner::pods::replan(&node.state, &node.machine, &node.rules));
    node
}

fn refined(node: &mut Node, request: &PodRequest) -> Plan {
    let plan = refine(&node.state, &node.machine, &node.rules, request);
    node.hold(plan)
}

fn placed(node: &Node, uid: &str) -> BTreeMap<String, (CpuSet, bool)> {
    let placed = placement_of(&node.state, &node.machine, uid).unwrap();
    placed.containers.into_iter().map(|own| (own.name, (own.cpus, own.exclusive))).collect()
}

fn waits(node: &Node, uid: &str) -> bool {
    node.placement(uid).flags.contains(&Flag::AdoptedWithoutRoom)
}

#[test]
fn each_container_gets_its_part_of_the_pods_set_once_its_spec_is_known() {
    let mut node = native(Node::new(sixteen_cpus()));
    let sandbox = whole("d", 6000);
    node.admit(&sandbox);
    let before = node.placement("d").cpus;
    let containers = vec![
        asked("once", Role::Init, 4000),
        asked("side", Role::RestartableInit, 1000),
        asked("app", Role::App, 3000),
        asked("more", Role::App, 1000),
        asked("part", Role::App, 500),
        asked("none", Role::App, 500),
        asked("debug", Role::Ephemeral, 0),
    ];
    refined(&mut node, &spec(&sandbox, containers.clone()));
    let placed = placed(&node, "d");
    for (name, count) in [("once", 4), ("side", 1), ("app", 3), ("more", 1)] {
        let (own, exclusive) = &placed[name];
        assert_eq!((own.len(), *exclusive), (count, true), "{name}");
        assert!(own.is_subset(&before), "{name}: nobody leaves {before} for {own}");
    }
    let lasting = ["side", "app", "more"].map(|name| placed[name].0.clone());
    let all = lasting.iter().fold(CpuSet::new(), |all, own| all | own);
    assert_eq!(all.len(), 5, "they share no CPU: {placed:?}");
    assert!(placed["once"].0.is_subset(&all), "what a plain init container has is used again: {placed:?}");
    assert!(["part", "none", "debug"].iter().all(|name| !placed[*name].1));
    assert!(!waits(&node, "d"));
    assert_eq!(node.state.cpus.exclusive(), all, "what is left over comes free");
    assert!(refined(&mut node, &spec(&sandbox, containers)).is_empty(), "the same again changes nothing");
    let records = record::whole(&node.state);
    let records = records.iter().map(|change| (change.key.as_str(), change.value.as_deref().unwrap()));
    let (read, faults) = record::load(records, &node.machine, &node.rules, CpuSet::new());
    assert!(faults.is_empty());
    assert_eq!(read, node.state);
}

#[test]
fn a_container_beside_one_that_asks_for_part_of_a_cpu_gets_a_set_although_the_total_was_no_whole_number() {
    let mut node = native(Node::new(sixteen_cpus()));
    let sandbox = whole("d", 2500);
    node.admit(&sandbox);
    assert!(!node.placement("d").exclusive);
    refined(&mut node, &spec(&sandbox, vec![asked("a", Role::App, 2000), asked("b", Role::App, 500)]));
    let placed = placed(&node, "d");
    assert_eq!((placed["a"].0.len(), placed["a"].1, placed["b"].1), (2, true, false));
    assert!(placed["b"].0.is_disjoint(&placed["a"].0));
}

#[test]
fn who_has_all_cpus_keeps_them_whole_rather_than_leave_a_part_of_itself_without_any() {
    let mut node = native(Node::new(two_cpus()));
    let sandbox = whole("d", 2000);
    node.admit(&sandbox);
    let before = node.state.clone();
    let containers = vec![asked("a", Role::App, 2000), asked("b", Role::App, 0)];
    refined(&mut node, &spec(&sandbox, containers));
    assert_eq!(node.state, before);
    assert_eq!(node.placement("d").cpus, set("0-1"));
    // One that leaves a CPU for the other can be divided.
    refined(&mut node, &spec(&sandbox, vec![asked("a", Role::App, 1000), asked("b", Role::App, 0)]));
    let placed = placed(&node, "d");
    assert_eq!((placed["a"].0.len(), placed["a"].1, placed["b"].0.len()), (1, true, 1));
}

#[test]
fn cpus_that_are_reserved_since_are_given_to_nobody_anew_and_come_free_first() {
    let mut node = native(Node::new(sixteen_cpus()));
    let sandbox = whole("d", 4000);
    node.admit(&sandbox);
    let before = node.placement("d").cpus;
    let reserved: CpuSet = before.iter().take(1).collect();
    node.state.cpus.reserved = reserved.clone();
    node.replan();
    refined(&mut node, &spec(&sandbox, vec![asked("a", Role::App, 2000), asked("b", Role::App, 1000)]));
    let placed = placed(&node, "d");
    assert!(placed["a"].0.is_disjoint(&reserved) && placed["b"].0.is_disjoint(&reserved), "{placed:?}");
    // Nothing else is free: what it has it keeps, and more than that it does not take of them.
    let mut node = native(Node::new(two_cpus()));
    let sandbox = whole("d", 1000);
    node.admit(&sandbox);
    node.state.cpus.reserved = set("1");
    node.replan();
    refined(&mut node, &spec(&sandbox, vec![asked("a", Role::App, 1000), asked("b", Role::App, 1000)]));
    let placed = self::placed(&node, "d");
    assert_eq!((placed["a"].0.clone(), placed["a"].1), (set("0"), true));
    assert_eq!((placed["b"].0.clone(), placed["b"].1), (set("1"), false));
    assert!(waits(&node, "d"));
}

#[test]
fn a_container_that_waits_gets_its_set_when_there_is_room() {
    let mut node = native(Node::new(sixteen_cpus()));
    node.admit(&whole("other", 12_000));
    let sandbox = whole("d", 2000);
    node.admit(&sandbox);
    refined(&mut node, &spec(&sandbox, vec![asked("a", Role::App, 2000), asked("b", Role::App, 4000)]));
    let own = placed(&node, "d")["a"].clone();
    assert!(own.1 && !placed(&node, "d")["b"].1 && waits(&node, "d"));
    assert!(node.promote().is_empty(), "there is no room yet");
    node.release("other", "other-1");
    let plan = node.promote();
    assert_eq!(plan.pods.keys().collect::<Vec<_>>(), ["d"]);
    let placed = placed(&node, "d");
    assert_eq!(placed["a"], own, "who has a set keeps it");
    assert_eq!((placed["b"].0.len(), placed["b"].1), (4, true));
    assert!(!waits(&node, "d"));
    assert!(node.promote().is_empty());
}

#[test]
fn a_pod_that_has_lost_its_set_under_native_gets_one_back() {
    let mut node = native(Node::new(sixteen_cpus()));
    let whole_machine = node.machine.clone();
    let sandbox = whole("d", 2000);
    let request = spec(&sandbox, vec![asked("a", Role::App, 2000), asked("b", Role::App, 500)]);
    let plan = admit_spec(&node.state, &node.machine, &node.rules, &request).unwrap();
    node.hold(plan);
    node.admit(&whole("other", 13_000));
    let own = placed(&node, "d")["a"].0.clone();
    node.machine = whole_machine.clone().with_offline(&own);
    node.replan();
    let now = node.placement("d");
    assert!(!now.exclusive && now.flags.contains(&Flag::CpuOffline), "{now:?}");
    assert!(node.promote().is_empty());
    node.release("other", "other-1");
    node.promote();
    let now = node.placement("d");
    assert_eq!((now.exclusive, now.cpus.len()), (true, 2));
    assert!(!now.flags.contains(&Flag::CpuOffline), "{now:?}");
    assert!(!placed(&node, "d")["b"].1);
}

#[test]
fn a_running_guaranteed_pod_is_taken_in_where_it_runs_and_else_waits() {
    let mut node = native(Node::new(sixteen_cpus()));
    let on =
        |uid: &str, milli, cpus: &str| RunningSandbox { request: whole(uid, milli), cpus: Some(set(cpus)) };
    node.take_in(&[on("a", 2000, "5,13"), on("b", 15_000, "0-15")]);
    assert_eq!((node.placement("a").cpus, node.placement("a").exclusive), (set("5,13"), true));
    let waiting = node.placement("b");
    assert!(!waiting.exclusive && waiting.flags.contains(&Flag::AdoptedWithoutRoom), "{waiting:?}");
    node.release("a", "a-1");
    node.promote();
    assert_eq!((node.placement("b").exclusive, node.placement("b").cpus.len()), (true, 15));
}

#[test]
fn memory_is_accounted_beside_the_cpus_of_each_container() {
    let mut node = native(Node::new(sixteen_cpus()));
    let sandbox = whole("d", 3000);
    node.admit(&sandbox);
    let with = |name, milli| Asked { memory: Some(Bytes(1 << 30)), ..asked(name, Role::App, milli) };
    refined(&mut node, &spec(&sandbox, vec![with("a", 2000), with("b", 1000)]));
    for name in ["a", "b"] {
        let own = node.state.memory.containers.get(&ContainerId::new("d", name)).unwrap();
        assert_eq!(own.bound_to, Some(node.machine.nodes_of(&placed(&node, "d")[name].0)), "{name}");
    }
}

fn containers() -> impl Strategy<Value = Vec<Asked>> {
    let role = prop_oneof![4 => Just(Role::App), 1 => Just(Role::Init), 1 => Just(Role::RestartableInit)];
    prop::collection::vec((role, 0u64..10), 1..5).prop_map(|all| {
        let all = all.into_iter().enumerate();
        all.map(|(n, (role, halves))| asked(&format!("c{n}"), role, halves * 500)).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn whatever_is_divided_everybody_has_cpus_and_nobody_those_of_others(
        small: bool,
        reserved in prop_oneof![Just(""), Just("0,8"), Just("1")],
        pods in prop::collection::vec((1u64..12, containers()), 1..6),
        late in any::<prop::sample::Index>(),
    ) {
        let mut node = native(Node::new(if small { two_cpus() } else { sixteen_cpus() }));
        let mut told = Vec::new();
        for (n, (halves, containers)) in pods.into_iter().enumerate() {
            let sandbox = whole(&n.to_string(), halves * 500);
            let Ok(plan) = node.plan(&sandbox) else { continue };
            node.hold(plan);
            told.push(spec(&sandbox, containers));
        }
        if !told.is_empty() {
            let at = late.index(told.len());
            told.rotate_left(at);
        }
        // Reserved only now: who has them keeps them.
        let kept = &(&set(reserved) & node.machine.online()) & &node.state.cpus.exclusive();
        node.state.cpus.reserved = set(reserved);
        node.replan();
        for request in &told {
            refined(&mut node, request);
            let mut owned: BTreeMap<String, CpuSet> = BTreeMap::new();
            let mut all = CpuSet::new();
            for uid in node.state.pods.keys() {
                let known = node.state.pods.get(uid).unwrap();
                let mut lasting = CpuSet::new();
                for own in placement_of(&node.state, &node.machine, uid).unwrap().containers {
                    prop_assert!(!own.cpus.is_empty(), "{uid}/{} has no CPU", own.name);
                    prop_assert!(own.cpus.is_subset(node.machine.online()));
                    if !own.exclusive {
                        prop_assert!(own.cpus.is_disjoint(&node.state.cpus.exclusive()));
                        continue;
                    }
                    let asked = known.container(&own.name).unwrap();
                    prop_assert_eq!(Some(MilliCpu::cpus(own.cpus.len() as u64)), asked.cpu);
                    if asked.role != Role::Init {
                        prop_assert!(lasting.is_disjoint(&own.cpus), "{uid}: two have {}", own.cpus);
                        lasting |= &own.cpus;
                    }
                    *owned.entry(uid.clone()).or_default() |= &own.cpus;
                }
            }
            for own in owned.values() {
                prop_assert!(all.is_disjoint(own));
                all |= own;
            }
            let on_reserved = &all & &node.state.cpus.reserved;
            prop_assert!(on_reserved.is_subset(&kept), "{on_reserved} were reserved, and nobody's");
            let known = node.state.pods.get(&request.uid).unwrap();
            if known.container(ALL).is_none() && !waits(&node, &request.uid) {
                for own in placement_of(&node.state, &node.machine, &request.uid).unwrap().containers {
                    let asked = known.container(&own.name).unwrap();
                    let wants = asked.cpu.is_some_and(|cpu| cpu.0 > 0 && cpu.0 % 1000 == 0);
                    prop_assert!(own.exclusive == wants || asked.role == Role::Init, "{}", own.name);
                }
            }
        }
    }
}
