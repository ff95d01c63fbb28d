//! Who waits is served in the order in which they came; and a pool that has CPUs refuses nobody who asks for none.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
// `Node` applies the plans that it hands back.
#![allow(unused_must_use)]

mod pods_support;

use oxalyst_topology::{Cpu, CpuSet, Machine};
use pods_support::{Node, bound, dedicated, pod, set};

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
