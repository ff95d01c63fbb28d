//! Every kind of decision tells what it weighed: refusals for want of room, pods that were taken in, refined, promoted, placed anew.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
// `Node` applies the plans that it hands back.
#![allow(unused_must_use)]

mod pods_support;

use oxalyst_planner::{
    decision::{Decision, DecisionEntry, Given, Step, decide, page},
    plan::{DecidedBy, RequestSource},
    pods::{Asked, Class, PodRequest, Role, RunningSandbox, SandboxRequest, Told},
};
use oxalyst_qos::{QosLevel, enhancements};
use oxalyst_units::MilliCpu;
use pods_support::{Node, alone, bound, dedicated, pod, set, shared, sixteen_cpus};
use std::collections::BTreeSet;

fn decision(node: &Node, step: &Step) -> Decision {
    let Node { state, machine, rules, .. } = node;
    let given = Given { state, machine, rules, generation: 1, overruled: None };
    let once = decide(given, step);
    assert_eq!(once, decide(given, step), "the same again");
    once.decision
}

fn text(decision: &Decision) -> String {
    let entry = DecisionEntry { decision: Some(decision.clone()), ..DecisionEntry::default() };
    page(&entry, &|_| String::new())
}

/// Resource, nodes, free CPUs and verdict of every candidate.
fn candidates(decision: &Decision) -> Vec<String> {
    let mut rows = Vec::new();
    for told in decision.merges.iter().flat_map(|merge| &merge.resources) {
        for one in &told.candidates {
            rows.push(format!("{} {} {} {}", told.resource, one.nodes, one.free_cpus, one.verdict));
        }
    }
    rows
}

fn spec(sandbox: &SandboxRequest, containers: &[(&str, Role, u64)]) -> PodRequest {
    let (wishes, _) = enhancements(&sandbox.annotations);
    let asked = |(name, role, cpus): &(&str, Role, u64)| {
        let cpu = Some(MilliCpu::cpus(*cpus)).filter(|cpu| cpu.0 > 0);
        Asked { name: (*name).to_owned(), role: *role, cpu, limit: cpu, memory: None, huge_pages: [].into() }
    };
    PodRequest {
        kept_labels: [].into(),
        plugins: oxalyst_planner::pods::Plugins::default(),
        uid: sandbox.pod_uid.clone(),
        sandbox_id: sandbox.sandbox_id.clone(),
        namespace: sandbox.namespace.clone(),
        name: sandbox.name.clone(),
        qos: sandbox.annotations["katalyst.kubewharf.io/qos_level"].parse::<QosLevel>().unwrap(),
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
        containers: containers.iter().map(asked).collect(),
        now_unix_ms: sandbox.now_unix_ms,
    }
}

fn running(request: SandboxRequest, cpus: &str) -> RunningSandbox {
    RunningSandbox { request, cpus: Some(cpus).filter(|cpus| !cpus.is_empty()).map(set) }
}

#[test]
fn a_shared_pod_that_finds_no_room_is_told_which_nodes_it_could_have_run_on_and_which_not() {
    let mut node = Node::new(sixteen_cpus());
    drop(node.admit(&bound(dedicated("own", 2))));
    drop(node.admit(&pod("first", "shared_cores", Some(10_000))));
    let decision = decision(&node, &Step::Admit(pod("second", "shared_cores", Some(4000))));
    assert_eq!(decision.refused.as_ref().unwrap().rule, "cpu-room");
    assert_eq!(candidates(&decision), ["cpu 1-3 12 no-room", "cpu 0 2 bound-pods"]);
    let page = text(&decision);
    assert!(page.contains("nowhere to be had") && page.contains("bound pods are there"), "{page}");
}

#[test]
fn a_bound_pod_that_finds_no_node_is_told_what_each_lacks() {
    let mut node = Node::new(sixteen_cpus());
    for uid in ["a", "b", "c", "d"] {
        drop(node.admit(&bound(dedicated(uid, 3))));
    }
    let lacks = |level: &str| {
        let request = bound(pod("late", level, Some(2000)));
        let decision = decision(&node, &Step::Admit(request));
        assert!(decision.refused.is_some());
        candidates(&decision)
    };
    let each = ["0", "1", "2", "3"].map(|node| format!("cpu {node} 1 no-room"));
    assert_eq!(lacks("dedicated_cores"), each);
    assert_eq!(lacks("shared_cores"), each);
}

#[test]
fn a_bound_pod_that_would_starve_shared_ones_is_told_that_they_need_the_node() {
    let mut node = Node::new(sixteen_cpus());
    for uid in ["a", "b", "c"] {
        drop(node.admit(&bound(dedicated(uid, 4))));
    }
    drop(node.admit(&shared("s")));
    let decision = decision(&node, &Step::Admit(bound(dedicated("late", 2))));
    assert_eq!(decision.refused.as_ref().unwrap().rule, "others-keep-cpus");
    let last = candidates(&decision).pop().unwrap();
    assert_eq!(last, "cpu 3 4 shared-pods");
}

#[test]
fn a_resize_without_room_is_told_what_the_nodes_lack() {
    let mut node = Node::new(sixteen_cpus());
    let sandbox = pod("s", "shared_cores", Some(2000));
    let plan = oxalyst_planner::pods::admit_spec(
        &node.state,
        &node.machine,
        &node.rules,
        &spec(&sandbox, &[("app", Role::App, 2)]),
    );
    node.hold(plan.unwrap());
    let elapsed = oxalyst_planner::pods::Request::Elapse { now_unix_ms: 100_000 };
    let plan = oxalyst_planner::pods::plan(&node.state, &node.machine, &node.rules, &elapsed);
    node.hold(plan.unwrap());
    let resize = oxalyst_planner::pods::Resize {
        uid: "s".into(),
        container: "app".into(),
        cpu: Some(MilliCpu::cpus(17)),
        limit: None,
        memory: None,
    };
    let decision = decision(&node, &Step::Whole(oxalyst_planner::pods::Request::Resize(resize)));
    assert_eq!(decision.refused.as_ref().unwrap().reason, "insufficient");
    assert_eq!(candidates(&decision), ["cpu 0-3 16 no-room"]);
}

#[test]
fn pods_that_are_taken_in_tell_each_what_was_asked_weighed_and_given() {
    let node = Node::new(sixteen_cpus());
    let step = Step::Adopt(vec![
        running(bound(dedicated("stays", 2)), "2,10"),
        running(bound(dedicated("new", 4)), ""),
        running(shared("s"), "0-15"),
    ]);
    let decision = decision(&node, &step);
    let names: Vec<&str> = decision.pods.iter().map(|pod| pod.pod_uid.as_str()).collect();
    assert_eq!(names, ["new", "s", "stays"]);
    for pod in &decision.pods {
        assert!(pod.asked.as_ref().unwrap().milli_cpu.is_some() && !pod.placed_by.is_empty(), "{pod:?}");
        let merges: Vec<_> = decision.merges.iter().filter(|merge| merge.pod_uid == pod.pod_uid).collect();
        assert_eq!(merges.len(), 1, "{}", pod.pod_uid);
        assert_eq!(merges[0].admitted, Some(true));
        let chosen = merges[0].resources.iter().find_map(|told| told.chosen.clone());
        let expected = match pod.pod_uid.as_str() {
            "stays" => (Some("1"), "2,10"),
            "new" => (Some("0"), "0-1,8-9"),
            // Not bound to any, and off the exclusive sets.
            _ => (None, "3-7,11-15"),
        };
        assert_eq!((chosen.as_deref(), pod.chosen[0].cpus.as_str()), expected);
    }
    let page = text(&decision);
    for part in ["  pod       default/pod-stays (uid stays)\n", "all containers: CPUs 2,10 (its own)"] {
        assert!(page.contains(part), "{part:?} is not in\n{page}");
    }
}

#[test]
fn more_pods_than_are_told_one_by_one_are_counted() {
    let node = Node::new(sixteen_cpus());
    let all = (0..70).map(|number| running(shared(&format!("s{number:02}")), "")).collect();
    let decision = decision(&node, &Step::Adopt(all));
    assert_eq!((decision.pods.len(), decision.pods_more), (64, 6));
    assert_eq!((decision.merges.len(), decision.merges_more), (64, 6));
}

#[test]
fn a_pod_that_is_refined_tells_where_it_stays() {
    let mut node = Node::new(sixteen_cpus());
    let sandbox = bound(dedicated("a", 3));
    drop(node.admit(&sandbox));
    let containers = [("app", Role::App, 2), ("side", Role::RestartableInit, 1)];
    let decision = decision(&node, &Step::Refine(spec(&sandbox, &containers)));
    assert_eq!(decision.outcome, "placed");
    assert_eq!(candidates(&decision), ["cpu 0 1 chosen"]);
    assert_eq!(decision.merges[0].container, "app");
    assert_eq!(decision.chosen.len(), 2);
}

#[test]
fn a_refinement_of_which_nothing_comes_weighs_nothing() {
    let mut node = Node::new(sixteen_cpus());
    let sandbox = bound(dedicated("a", 3));
    drop(node.admit(&sandbox));
    let known = spec(&sandbox, &[("app", Role::App, 3)]);
    let plan = oxalyst_planner::pods::refine(&node.state, &node.machine, &node.rules, &known);
    node.hold(plan);
    let decision = decision(&node, &Step::Refine(known));
    assert_eq!((decision.outcome.as_str(), decision.merges.len()), ("kept", 0));
}

#[test]
fn pods_that_are_promoted_tell_what_was_weighed_and_those_that_wait_on_tell_nothing() {
    let mut node = Node::new(sixteen_cpus());
    for uid in ["a", "b", "c", "d"] {
        drop(node.admit(&bound(dedicated(uid, 3))));
    }
    drop(node.take_in(&[
        running(bound(dedicated("small", 2)), "7"),
        running(alone(dedicated("w1", 1)), "7"),
        running(alone(dedicated("w2", 1)), "7"),
    ]));
    drop(node.release("c", "c-1"));
    drop(node.release("d", "d-1"));
    let decision = decision(&node, &Step::Promote);
    let promoted: Vec<&str> = decision.pods.iter().map(|pod| pod.pod_uid.as_str()).collect();
    // What `w2` asks for does not keep `w1` off the last node, and then there is none for itself.
    assert_eq!(promoted, ["small", "w1"]);
    let weighed: Vec<_> = decision.merges.iter().map(|merge| merge.pod_uid.as_str()).collect();
    assert_eq!(weighed, ["small", "w1"]);
    assert_eq!(candidates(&decision)[0], "cpu 2 4 chosen");
    assert_eq!(decision.pods[0].placed_by, "dedicated-numa-bound");
}

#[test]
fn pods_that_are_placed_anew_on_another_machine_tell_what_was_weighed() {
    let mut node = Node::new(sixteen_cpus());
    drop(node.admit(&bound(dedicated("a", 2))));
    node.machine = node.machine.with_offline(&set("0-1,8-9"));
    let decision = decision(&node, &Step::Replan);
    assert_eq!(decision.pods[0].pod_uid, "a");
    assert!(candidates(&decision)[0].ends_with("chosen"));
}
