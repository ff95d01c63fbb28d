//! Who waits is served in the order in which they came; and a pool that has CPUs refuses nobody who asks for none.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
// `Node` applies the plans that it hands back.
#![allow(unused_must_use)]

mod pods_support;

use oxalyst_planner::{
    plan::Flag,
    pods::{CpuPolicy, Native, Plan, Rules},
    policy::{Options, Preference},
};
use oxalyst_topology::{Cpu, CpuSet, Machine};
use pods_support::{Node, bound, dedicated, pod, set};
use std::collections::BTreeSet;

/// Two nodes of this many CPUs each.
fn two_nodes(cpus: u32) -> Machine {
    let row = |id: u32| Cpu { id, core: id, socket: id / cpus, numa: id / cpus, l3: Some(id / cpus) };
    Machine::from_rows((0..2 * cpus).map(row).collect(), &[]).unwrap()
}

#[test]
fn those_who_wait_do_not_keep_an_older_bound_pod_off_its_node() {
    let mut node = Node::new(two_nodes(8));
    let old = [dedicated("d1", 4), bound(dedicated("d2", 4))];
    // With those who wait these would fill the other node; without them they do not.
    let shared = ["s1", "s2"].map(|uid| pod(uid, "shared_cores", Some(2000)));
    let new = [dedicated("d3", 3), dedicated("d4", 1), dedicated("d5", 1)];
    for (at, mut request) in old.into_iter().chain(shared).chain(new).enumerate() {
        request.now_unix_ms = at as i64;
        node.admit(&request);
    }
    node.machine = node.machine.with_offline(&set("1-15"));
    node.replan();
    let has_set = |node: &Node, uid: &str| node.placement(uid).exclusive;
    assert!(["d1", "d2", "d3", "d4", "d5"].iter().filter(|uid| has_set(&node, uid)).count() <= 1);
    node.machine = two_nodes(8);
    node.replan();
    node.promote();
    for uid in ["d1", "d2", "d3", "d4", "d5"] {
        assert!(has_set(&node, uid), "{uid} waits on: {:?}", node.placement(uid));
    }
    let own: CpuSet = node.placement("d2").cpus;
    assert!(own.is_subset(&set("0-7")) || own.is_subset(&set("8-15")), "{own}");
    // Each asks for what it asked for: nobody is left with the nothing that those who wait count for.
    for (id, own) in &node.state.cpus.containers {
        assert!(own.request.0 > 0, "{id:?}");
    }
}

#[test]
fn a_pod_without_requests_runs_beside_bound_dedicated_pods_on_every_node_and_one_with_is_told_why_not() {
    let mut node = Node::new(two_nodes(16));
    node.admit(&bound(dedicated("a", 12)));
    node.admit(&bound(dedicated("b", 12)));
    let refusal = node.refusal(&pod("asks", "shared_cores", Some(1000)));
    let told = "8 more that bound dedicated pods leave on their nodes are used by the shared pool and not counted on";
    assert!(refusal.message.contains(told), "{}", refusal.message);
    node.admit(&pod("asks-nothing", "shared_cores", None));
    let placed = node.placement("asks-nothing");
    assert!(!placed.cpus.is_empty() && placed.cpus.is_subset(&node.pool("share")), "{placed:?}");
    assert!(placed.cpus.is_disjoint(&(&node.placement("a").cpus | &node.placement("b").cpus)));
}

#[test]
fn an_older_pod_is_served_once_a_younger_one_has_left_the_pool_that_it_needs_the_cpus_of() {
    // Six CPUs on the first node, of which one is reserved, and four on the other.
    let row = |id: u32| Cpu { id, core: id, socket: id / 6, numa: id / 6, l3: Some(id / 6) };
    let whole = Machine::from_rows((0..10).map(row).collect(), &[]).unwrap();
    let mut node = Node::reserving(whole.clone(), "0");
    let options = Options { serve_all: true, preference: Preference::Packing, ..Options::default() };
    node.rules.cpu_policy = CpuPolicy::Dynamic(options);
    let bound_shared = |uid| bound(pod(uid, "shared_cores", Some(2000)));
    let pods = [bound_shared("first"), dedicated("older", 5), bound_shared("younger")];
    for (at, mut request) in pods.into_iter().enumerate() {
        request.now_unix_ms = at as i64;
        node.admit(&request);
    }
    let before = ["first", "older", "younger"].map(|uid| node.cpus(uid));
    assert_eq!(before, ["6-9", "1-5", "6-9"]);
    node.machine = whole.clone().with_offline(&set("1-9"));
    node.replan();
    let waits = |node: &Node, uid: &str| node.placement(uid).pool.as_deref() == Some("share");
    assert!(["first", "older", "younger"].iter().all(|uid| waits(&node, uid)));
    node.machine = whole;
    node.replan();
    // The older one would leave the pool without CPUs as long as the younger one is in it.
    node.promote();
    assert_eq!(["first", "older", "younger"].map(|uid| node.cpus(uid)), before);
    assert!(node.placement("older").exclusive, "{:?}", node.placement("older"));
}

/// Dedicated pods that have lost their CPUs, on a machine that has them again.
fn waiting(rules: Rules, count: u32) -> Node {
    let row = |id: u32| Cpu { id, core: id, socket: 0, numa: 0, l3: Some(0) };
    let whole = Machine::from_rows((0..=count).map(row).collect(), &[]).unwrap();
    let mut node = Node::new(whole.clone());
    node.rules = rules;
    for at in 0..count {
        let mut request = dedicated(&format!("d{at:03}"), 1);
        request.class = oxalyst_planner::pods::Class::Guaranteed;
        request.now_unix_ms = i64::from(at);
        node.admit(&request);
    }
    node.machine = whole.clone().with_offline(&(0..count).collect());
    node.replan();
    node.machine = whole;
    node.replan();
    node
}

#[test]
fn a_plan_serves_some_the_oldest_first_and_the_next_ones_the_others() {
    for rules in
        [Rules::default(), Rules { cpu_policy: CpuPolicy::Native(Native::default()), ..Rules::default() }]
    {
        let mut node = waiting(rules, 40);
        let lost = |node: &Node| -> Vec<String> {
            let uids = (0..40).map(|at| format!("d{at:03}"));
            uids.filter(|uid| node.placement(uid).flags.contains(&Flag::CpuOffline)).collect()
        };
        let all = lost(&node);
        assert!(all.len() > 32, "{all:?}");
        let served = |plan: &Plan| plan.pods.keys().cloned().collect::<BTreeSet<String>>();
        let plan = node.promote();
        assert_eq!(served(&plan), all[..16].iter().cloned().collect(), "the oldest");
        while !node.promote().is_empty() {}
        assert_eq!(lost(&node), [""; 0]);
    }
}
