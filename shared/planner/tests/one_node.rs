//! Machines of one NUMA node: a bound pod is placed on it, whatever the topology policy calls "all nodes".
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
// `Node` applies the plans that it hands back.
#![allow(unused_must_use)]

mod pods_support;

use oxalyst_planner::{
    decision::{DecisionEntry, Given, Step, decide, page},
    plan::{DecidedBy, RequestSource},
    pods::{self, Asked, Class, PodRequest, Request, Resize, Role, Told, admit_spec, placement_of},
    topology_manager::{Policy, Scope},
};
use oxalyst_qos::{QosLevel, enhancements};
use oxalyst_topology::{Cpu, Machine, NumaNode};
use oxalyst_units::{Bytes, MilliCpu};
use pods_support::{Node, alone, bound, pod};
use std::collections::BTreeSet;

const GIB: u64 = 1 << 30;
const POLICIES: [&str; 5] = ["none", "best-effort", "restricted", "single-numa-node", "numeric"];
const SCOPES: [Scope; 2] = [Scope::Container, Scope::Pod];

/// Six CPUs without threads and 8 GiB on one node of this id.
fn node_of(id: u32, policy: &str, scope: Scope) -> Node {
    let cpus = (0..6).map(|cpu| Cpu { id: cpu, core: cpu, socket: 0, numa: id, l3: Some(0) });
    let node = NumaNode { memory: Some(Bytes(8 * GIB)), ..NumaNode::new(id) };
    let mut node = Node::new(Machine::new(cpus.collect(), vec![node]).unwrap());
    node.rules.topology = Policy::named(policy, &["cpu".to_owned(), "memory".to_owned()]).unwrap();
    node.rules.scope = scope;
    node
}

/// A pod of an init container, a main one and another beside it, which ask for four CPUs and 3 GiB together.
fn spec(uid: &str, level: &str, wish: impl Fn(pods::SandboxRequest) -> pods::SandboxRequest) -> PodRequest {
    let sandbox = wish(pod(uid, level, Some(4000)));
    let (wishes, _) = enhancements(&sandbox.annotations);
    let container = |name: &str, role, milli, gib| Asked {
        name: name.to_owned(),
        role,
        cpu: Some(MilliCpu(milli)),
        limit: None,
        memory: Some(Bytes(gib * GIB)),
        huge_pages: [].into(),
    };
    PodRequest {
        kept_labels: [].into(),
        plugins: pods::Plugins::default(),
        uid: uid.to_owned(),
        sandbox_id: sandbox.sandbox_id,
        namespace: sandbox.namespace,
        name: sandbox.name,
        qos: level.parse::<QosLevel>().unwrap(),
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
        containers: vec![
            container("init", Role::Init, 2000, 1),
            container("main", Role::App, 3000, 2),
            container("side", Role::App, 1000, 1),
        ],
        now_unix_ms: 1000,
    }
}

fn each(mut test: impl FnMut(Node, &PodRequest, String)) {
    for (policy, scope, id) in POLICIES.iter().flat_map(|p| SCOPES.map(|s| [(p, s, 0), (p, s, 3)])).flatten()
    {
        for request in [
            spec("d", "dedicated_cores", bound),
            spec("d", "dedicated_cores", alone),
            spec("s", "shared_cores", bound),
        ] {
            let case = format!("{policy}, scope {scope:?}, node {id}, {}", request.qos);
            test(node_of(id, policy, scope), &request, case);
        }
    }
}

#[test]
fn a_bound_pod_is_placed_on_the_only_node_under_every_policy() {
    each(|mut node, request, case| {
        let planned = admit_spec(&node.state, &node.machine, &node.rules, request);
        node.hold(planned.unwrap_or_else(|refusal| panic!("{case}: {refusal}")));
        let only = node.machine.nodes()[0].id;
        let placed = placement_of(&node.state, &node.machine, &request.uid).unwrap();
        for container in &placed.containers {
            assert!(
                !container.cpus.is_empty()
                    && container.flags.iter().all(|flag| flag.as_str() == "set-below-total"),
                "{case}: {container:?}"
            );
            assert_eq!(container.mems.to_string(), only.to_string(), "{case}");
            assert_eq!(container.exclusive, request.qos == QosLevel::Dedicated, "{case}");
        }
        let memory = node.state.memory.containers.values().filter(|own| own.bound_to.is_some());
        assert!(memory.count() >= 2, "{case}: its memory is bound");
        let main = node.state.cpus.containers.values().find(|own| own.request == MilliCpu(3000)).unwrap();
        let is_one = main.wishes.numa_exclusive() || main.numa_hint == Some(only);
        assert!(is_one, "{case}: {main:?}");
    });
}

#[test]
fn what_is_told_of_it_names_the_node() {
    each(|node, request, case| {
        let Node { state, machine, rules, .. } = &node;
        let given = Given { state, machine, rules, generation: 1, overruled: None };
        let decision = decide(given, &Step::AdmitSpec(request.clone())).decision;
        assert!(decision.refused.is_none(), "{case}: {:?}", decision.refused);
        let told =
            page(&DecisionEntry { decision: Some(decision), ..DecisionEntry::default() }, &|_| String::new());
        let only = node.machine.nodes()[0].id;
        for resource in ["cpu", "memory"] {
            assert!(told.contains(&format!("{resource}: NUMA nodes {only}, preferred")), "{case}:\n{told}");
        }
        for wrong in ["in particular", ": not preferred", "not shared"] {
            assert!(!told.contains(wrong), "{case}:\n{told}");
        }
    });
}

#[test]
fn it_grows_and_shrinks_there() {
    each(|mut node, request, case| {
        let plan = admit_spec(&node.state, &node.machine, &node.rules, request).unwrap();
        node.hold(plan);
        for milli in [4000, 2000] {
            let resize = Resize {
                uid: request.uid.clone(),
                container: "main".to_owned(),
                cpu: Some(MilliCpu(milli)),
                limit: None,
                memory: Some(Bytes(GIB)),
            };
            let planned = pods::plan(&node.state, &node.machine, &node.rules, &Request::Resize(resize));
            node.hold(planned.unwrap_or_else(|refusal| panic!("{case}, {milli}: {refusal}")));
        }
    });
}

#[test]
fn reclaimed_pods_are_bound_there_where_that_is_configured_and_none_keeps_another_out() {
    for policy in ["restricted", "single-numa-node"] {
        let mut node = node_of(0, policy, Scope::Container);
        if let pods::CpuPolicy::Dynamic(options) = &mut node.rules.cpu_policy {
            options.reclaim_numa_binding = true;
            options.numa_headroom = [(0, MilliCpu::cpus(4))].into();
        }
        node.admit(&bound(pod("b", "reclaimed_cores", Some(1000))));
        node.admit(&pod("u", "reclaimed_cores", Some(1000)));
        node.admit(&bound(pod("c", "reclaimed_cores", Some(1000))));
        for uid in ["b", "u", "c"] {
            assert!(node.placement(uid).flags.is_empty(), "{policy} {uid}: {:?}", node.placement(uid).flags);
        }
    }
}
