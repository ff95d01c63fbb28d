//! The policy that gives out CPUs is another one under pods that run: they keep what they have and say so, until they end.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
// `Node` applies the plans that it hands back.
#![allow(unused_must_use)]

mod pods_support;

use oxalyst_planner::plan::Flag;
use oxalyst_planner::pods::{
    Class, CpuPolicy, Native, PolicyName, Rules, SandboxRequest, placements, policy_in_force, record, release,
};
use oxalyst_topology::CpuSet;
use pods_support::*;
use std::collections::BTreeMap;

fn dynamic() -> Rules {
    Rules::default()
}

fn native() -> Rules {
    Rules { cpu_policy: CpuPolicy::Native(Native::default()), ..Rules::default() }
}

/// Every kind of pod: each level, bound and not, of each class, and a node agent.
fn every_kind() -> Vec<SandboxRequest> {
    let of_level = |level: &str, class: Class, milli: u64, is_bound: bool| {
        let uid = format!("{level}-{class}-{}", if is_bound { "bound" } else { "free" });
        let pod = SandboxRequest { class, ..pod(&uid, level, Some(milli)) };
        if is_bound { bound(pod) } else { pod }
    };
    let mut pods = Vec::new();
    for class in [Class::Guaranteed, Class::Burstable] {
        for (level, milli) in [("dedicated_cores", 1000), ("shared_cores", 1000), ("reclaimed_cores", 500)] {
            pods.push(of_level(level, class, milli, false));
        }
        pods.push(of_level("system_cores", class, 500, false));
        pods.push(of_level("dedicated_cores", class, 1000, true));
    }
    pods.push(of_level("shared_cores", Class::Burstable, 500, true));
    pods.push(SandboxRequest { class: Class::BestEffort, request: None, ..shared("nothing") });
    pods.push(daemon(shared("agent")));
    pods
}

/// As a start under other rules reads what is held.
fn restarted(node: &mut Node, rules: Rules) {
    let records = record::whole(&node.state);
    let records = records.iter().map(|change| (change.key.as_str(), change.value.as_deref().unwrap()));
    let reserved = node.state.cpus.reserved.clone();
    let (state, faults) = record::load(records, &node.machine, &rules, reserved);
    assert!(faults.is_empty(), "{faults:?}");
    (node.state, node.rules) = (state, rules);
    node.replan();
}

fn own(node: &Node) -> BTreeMap<String, CpuSet> {
    let placed = placements(&node.state, &node.machine).into_iter();
    let first = placed.map(|(uid, mut pod)| (uid, pod.containers.remove(0)));
    first.filter(|(_, own)| own.exclusive).map(|(uid, own)| (uid, own.cpus)).collect()
}

fn flagged(node: &Node) -> Vec<String> {
    let is = |uid: &String| node.placement(uid).flags.contains(&Flag::OtherPolicy);
    node.state.pods.keys().filter(|uid| is(uid)).cloned().collect()
}

#[test]
fn r03_a_changed_policy_moves_nobodys_own_cpus_and_every_pod_of_the_other_says_so_until_it_is_drained() {
    for (first, then) in [(native(), dynamic()), (dynamic(), native())] {
        let name = then.policy_name();
        let mut node = Node::new(sixteen_cpus());
        node.rules = first.clone();
        let pods = every_kind();
        for request in &pods {
            node.admit(request);
        }
        assert_eq!(policy_in_force(&node.state, &node.rules), first.policy_name().to_string());
        let before = own(&node);
        assert!(!before.is_empty());

        restarted(&mut node, then.clone());
        assert_eq!(own(&node), before, "to {name}");
        let mut old: Vec<String> = pods.iter().map(|pod| pod.pod_uid.clone()).collect();
        old.retain(|uid| uid != "agent");
        old.sort();
        assert_eq!(flagged(&node), old, "to {name}");
        assert_eq!(policy_in_force(&node.state, &node.rules), "mixed");
        for (uid, placed) in placements(&node.state, &node.machine) {
            for container in placed.containers {
                assert!(!container.cpus.is_empty(), "{uid} to {name}");
            }
        }

        // A new one is the new policy's, and another start tells the same of all of them.
        node.admit(&SandboxRequest { class: Class::Guaranteed, ..dedicated("new", 1) });
        restarted(&mut node, then.clone());
        assert_eq!(flagged(&node), old, "to {name}");

        // Back again it is the new one that is another's.
        let held = own(&node);
        restarted(&mut node, first);
        assert_eq!(flagged(&node), ["new"]);
        restarted(&mut node, then);
        assert_eq!(own(&node), held, "to {name}");

        for uid in old {
            assert_eq!(policy_in_force(&node.state, &node.rules), "mixed");
            let sandbox = format!("{uid}-1");
            let plan = release(&node.state, &node.machine, &node.rules, &uid, &sandbox);
            node.hold(plan);
        }
        assert_eq!(policy_in_force(&node.state, &node.rules), name.to_string(), "drained");
    }
}

#[test]
fn what_another_policy_placed_and_labels_are_told_by_the_record_and_one_from_before_tells_neither() {
    let mut node = Node::new(sixteen_cpus());
    let kept = [("team".to_owned(), "blue".to_owned())].into();
    node.admit(&SandboxRequest { kept_labels: kept, ..dedicated("d", 1) });
    restarted(&mut node, dynamic());
    let pod = node.state.pods.get("d").unwrap();
    assert_eq!((pod.kept_labels["team"].as_str(), pod.placed_under), ("blue", Some(PolicyName::Dynamic)));

    // As the version before wrote it.
    let golden = include_bytes!("golden/allocation-without-huge-pages.bin").as_slice();
    for rules in [dynamic(), native()] {
        let records = std::iter::once(("allocation/a", golden));
        let (state, faults) = record::load(records, &node.machine, &rules, CpuSet::new());
        assert!(faults.is_empty(), "{faults:?}");
        let pod = state.pods.get("a").unwrap();
        assert_eq!((pod.kept_labels.len(), pod.flags.contains(&Flag::OtherPolicy)), (0, false));
    }
}
