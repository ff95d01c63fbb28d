//! What is configured, or the machine, is another one under pods that run: what fits is kept, what does not is flagged.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
// `Node` applies the plans that it hands back.
#![allow(unused_must_use)]

mod pods_support;

use oxalyst_planner::plan::Flag;
use oxalyst_planner::pods::{
    Asked, Class, CpuPolicy, KnownPod, Native, Role, Rules, SandboxRequest, Told, placements, record,
    take_over,
};
use oxalyst_planner::policy::{INTERRUPT, Wishes};
use oxalyst_planner::topology_manager::Policy;
use oxalyst_qos::QosLevel;
use oxalyst_topology::CpuSet;
use oxalyst_units::MilliCpu;
use pods_support::*;
use std::collections::{BTreeMap, BTreeSet};

/// A dedicated pod that somebody else has placed on these CPUs.
fn placed_before(uid: &str, cpus: &str, wishes: &[(&str, &str)]) -> KnownPod {
    let cpus = set(cpus);
    let cpu = Some(MilliCpu::cpus(cpus.len() as u64));
    let wishes: Wishes = wishes.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let asked = Asked {
        name: "main".into(),
        role: Role::App,
        cpu,
        limit: cpu,
        memory: None,
        huge_pages: BTreeMap::new(),
    };
    KnownPod {
        kept_labels: [].into(),
        uid: uid.into(),
        sandbox_id: format!("{uid}-1"),
        namespace: "default".into(),
        name: uid.into(),
        qos: QosLevel::Dedicated,
        class: Class::Guaranteed,
        wishes,
        node_agent: false,
        pool: None,
        main: "main".into(),
        containers: vec![(asked, Some(cpus))],
        told: Told { request: cpu, ..Told::default() },
        flags: BTreeSet::new(),
        since_unix_ms: 0,
    }
}

fn spans(node: &Node, uid: &str) -> bool {
    node.placement(uid).flags.contains(&Flag::NumaBindingSpans)
}

#[test]
fn l9_a_bound_pod_whose_cpus_lie_on_other_nodes_than_it_may_have_says_so() {
    const BOUND: (&str, &str) = ("numa_binding", "true");
    // CPUs, wishes, and whether it says so.
    type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], bool);
    let cases: &[Case<'_>] = &[
        ("0-1", &[BOUND], false),
        ("0-1,2", &[BOUND], true),
        ("0-1,2", &[], false),
        ("0-1,2", &[BOUND, ("numa_number", "2")], false),
        ("0-1,2,4", &[BOUND, ("numa_number", "2")], true),
        ("0-1,2", &[BOUND, ("numa_exclusive", "true")], false),
        ("0-1", &[BOUND, ("numa_ids", "1")], true),
        ("0-1,2", &[BOUND, ("numa_ids", "0-1")], false),
    ];
    for (cpus, wishes, expected) in cases {
        let mut node = Node::new(sixteen_cpus());
        let known = placed_before("d", cpus, wishes);
        let plan = take_over(&node.state, &node.machine, &node.rules, &[known]);
        node.hold(plan);
        assert_eq!(spans(&node, "d"), *expected, "{cpus} {wishes:?}");
        assert_eq!(node.placement("d").cpus, set(cpus), "it keeps what it has");
        // What is reserved, and what the root of the cgroup tree may use, is another question.
        node.state.cpus.reserved = set("0");
        node.replan();
        assert_eq!(spans(&node, "d"), *expected, "{cpus} {wishes:?}");
        assert!(node.placement("d").flags.contains(&Flag::OnReserved));
    }
}

#[test]
fn cpus_kept_for_interrupts_later_stay_with_the_set_that_has_them_and_nobody_else_runs_there() {
    for native in [false, true] {
        let mut node = Node::new(sixteen_cpus());
        if native {
            node.rules.cpu_policy = CpuPolicy::Native(Native::default());
        }
        let known = [placed_before("d", "0,8", &[]), placed_before("e", "1", &[])];
        let plan = take_over(&node.state, &node.machine, &node.rules, &known);
        node.hold(plan);
        assert!(node.placement("d").flags.is_empty());
        // As a start with another setting has it.
        node.state.cpus.pools.insert(INTERRUPT.to_owned(), set("8-9"));
        let before = node.state.clone();
        node.machine = node.machine.with_isolated(&set("8-9"));
        node.replan();
        assert_eq!(node.cpus("d"), "0,8", "it keeps what it has");
        assert_eq!(node.placement("d").flags, BTreeSet::from([Flag::OnReserved]));
        assert!(node.placement("e").flags.is_empty());
        assert_eq!(node.pool(INTERRUPT), set("9"));
        if !native {
            let named = r#"{"cpuset_pool":"interrupt"}"#;
            let irq = pod("irq", "system_cores", Some(100));
            node.admit(&annotated(irq, "katalyst.kubewharf.io/cpu_enhancement", named));
            let placed = node.placement("irq");
            assert_eq!((placed.cpus.to_string(), placed.flags), ("9".to_owned(), BTreeSet::new()));
        }
        node.release("d", "d-1");
        assert_eq!(node.pool(INTERRUPT), set("8-9"));
        // Whoever is told of what changes is told of the flag.
        let again = oxalyst_planner::pods::replan(&before, &node.machine, &node.rules);
        assert!(!again.after.cpus.pool(INTERRUPT).is_empty());
    }
}

#[test]
fn a_system_pod_does_not_run_on_the_set_of_another_where_its_pool_has_become_reserved_since() {
    let mut node = Node::new(sixteen_cpus());
    node.admit(&dedicated("d", 2));
    let named = r#"{"cpuset_pool":"reserve"}"#;
    node.state.cpus.reserved = set("0-1,8");
    node.replan();
    let system = |uid: &str| {
        annotated(pod(uid, "system_cores", Some(100)), "katalyst.kubewharf.io/cpu_enhancement", named)
    };
    node.admit(&system("s"));
    assert_eq!((node.cpus("d"), node.cpus("s")), ("0,8".to_owned(), "1".to_owned()));
    // Nothing of the pool is left: all CPUs, as one that names no pool.
    node.state.cpus.reserved = set("0,8");
    node.replan();
    let placed = node.placement("s");
    assert_eq!((placed.cpus.to_string(), placed.pool.as_deref()), ("0-15".to_owned(), Some("system")));
    assert!(placed.flags.contains(&Flag::PoolUnknown));
}

#[test]
fn a_pod_that_is_bound_to_a_node_without_memory_has_that_of_the_nearest_and_is_not_said_to_be_elsewhere() {
    let mut node = Node::new(sixteen_cpus_without_memory(&[1, 2]));
    for uid in ["a", "b", "c", "d"] {
        node.admit(&bound(dedicated(uid, 2)));
        let placed = node.placement(uid);
        let home = node.machine.nodes_of(&placed.cpus);
        let nearest: BTreeSet<u32> = home.iter().map(|home| [0, 0, 3, 3][home as usize]).collect();
        assert_eq!((home.len(), placed.mems.iter().collect::<BTreeSet<_>>()), (1, nearest), "{uid}");
        assert!(!spans(&node, uid), "{uid}");
    }
}

#[test]
fn every_change_of_settings_keeps_the_sets_that_fit_and_leaves_nobody_without_cpus() {
    let native = CpuPolicy::Native(Native::default());
    let policies = [Rules::default().cpu_policy, native];
    let topologies = ["none", "restricted", "single-numa-node"].map(|name| Policy::named(name, &[]).unwrap());
    let mut changes = Vec::new();
    for cpu_policy in &policies {
        for topology in &topologies {
            for (reserved, root) in [("", ""), ("0,8", ""), ("", "0-6,8-14"), ("5", "0-7")] {
                let root = Some(set(root)).filter(|root| !root.is_empty());
                let (cpu_policy, topology) = (cpu_policy.clone(), topology.clone());
                changes.push((Rules { cpu_policy, topology, root, ..Rules::default() }, set(reserved)));
            }
        }
    }
    for (first, _) in changes.iter().step_by(4) {
        for (then, reserved) in &changes {
            let mut node = Node::new(sixteen_cpus());
            node.rules = first.clone();
            let pods = [
                bound(dedicated("bound", 2)),
                dedicated("own", 3),
                bound(pod("together", "shared_cores", Some(1000))),
                shared("shared"),
                pod("reclaimed", "reclaimed_cores", Some(500)),
                pod("system", "system_cores", Some(500)),
                daemon(shared("agent")),
            ];
            for request in pods {
                node.admit(&SandboxRequest { class: Class::Guaranteed, ..request });
            }
            let own = |node: &Node| -> BTreeMap<String, CpuSet> {
                let placed = placements(&node.state, &node.rules.confine(&node.machine)).into_iter();
                let first = placed.map(|(uid, mut pod)| (uid, pod.containers.remove(0)));
                first.filter(|(_, own)| own.exclusive).map(|(uid, own)| (uid, own.cpus)).collect()
            };
            let before = own(&node);
            // As a start reads them.
            let records = record::whole(&node.state);
            let records =
                records.iter().map(|change| (change.key.as_str(), change.value.as_deref().unwrap()));
            let (state, faults) = record::load(records, &node.machine, then, reserved.clone());
            assert!(faults.is_empty());
            (node.state, node.rules) = (state, then.clone());
            node.replan();
            let machine = node.rules.confine(&node.machine).into_owned();
            let now = own(&node);
            for (uid, cpus) in &before {
                let left = cpus & machine.online();
                if !left.is_empty() {
                    assert_eq!(now.get(uid), Some(&left), "{uid} {first:?} {then:?}");
                }
                let flags = &placements(&node.state, &machine)[uid].containers[0].flags;
                // Under the dynamic policy those of other levels have no claim to a set.
                let claims = matches!(then.cpu_policy, CpuPolicy::Native(_))
                    || ["bound", "own"].contains(&uid.as_str());
                if claims && &left != cpus {
                    let told = flags.contains(&Flag::CpuOffline)
                        || now.get(uid).is_some_and(|now| now.len() == cpus.len());
                    assert!(told, "{uid} has {left} of {cpus}: {flags:?}");
                }
                assert_eq!(flags.contains(&Flag::OnReserved), !left.is_disjoint(reserved), "{uid} {left}");
            }
            for (uid, placed) in placements(&node.state, &machine) {
                for own in placed.containers {
                    assert!(!own.cpus.is_empty() && own.cpus.is_subset(machine.online()), "{uid} {then:?}");
                    let others = now.iter().filter(|(other, _)| **other != uid);
                    let all = others.fold(CpuSet::new(), |all, (_, cpus)| all | cpus);
                    let everywhere = own.pool.as_deref() == Some("system");
                    assert!(everywhere || own.cpus.is_disjoint(&all), "{uid} runs on others' CPUs: {then:?}");
                }
            }
        }
    }
}
