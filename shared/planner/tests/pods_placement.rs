//! Where pods of each kind run.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
// `Node` applies the plans that it hands back.
#![allow(unused_must_use)]

mod pods_support;

use oxalyst_planner::plan::{Flag, NumaFree, Reason, Rule};
use oxalyst_planner::pods::{SandboxRequest, free_per_node, shown_pools};
use oxalyst_qos::QosLevel;
use oxalyst_topology::CpuSet;
use pods_support::*;
use std::collections::BTreeSet;

const CPU_ENHANCEMENT: &str = "katalyst.kubewharf.io/cpu_enhancement";
const MEMORY_ENHANCEMENT: &str = "katalyst.kubewharf.io/memory_enhancement";

fn flags(node: &Node, uid: &str) -> Vec<Flag> {
    node.placement(uid).flags.into_iter().collect()
}

#[test]
fn an_exclusive_set_is_carved_out_of_the_pools_and_comes_back() {
    let mut node = Node::new(two_cpus());
    node.admit(&shared("s1"));
    node.admit(&pod("r1", "reclaimed_cores", None));
    let plan = node.admit(&dedicated("d", 1));
    assert_eq!(plan.affected, BTreeSet::from(["d", "s1"].map(str::to_owned)));
    assert_eq!(
        (node.cpus("d").as_str(), node.cpus("s1").as_str(), node.cpus("r1").as_str()),
        ("0", "1", "1")
    );
    assert!(node.placement("d").exclusive && node.placement("d").settled);
    let plan = node.release("d", "d-1");
    assert_eq!(plan.affected, BTreeSet::from(["s1"].map(str::to_owned)));
    assert_eq!(node.cpus("s1"), "0-1");
}

#[test]
fn the_last_cpu_of_shared_pods_is_not_given_away() {
    let mut node = Node::new(two_cpus());
    node.admit(&shared("s1"));
    node.admit(&dedicated("d1", 1));
    let refusal = node.refusal(&dedicated("d2", 1));
    assert_eq!(refusal.reason, Reason::Insufficient);
    assert_eq!(refusal.free, [NumaFree { node: 0, cpus: set("1") }]);
    assert_eq!(
        refusal.message,
        "1 CPU of its own is needed (request 1 CPU), 1 CPU is free on NUMA node 0 (1); the last one stays with the 1 pod that runs \
         in the shared and reclaim pools; refused because pod default/pod-s1 (shared_cores) would be left without any CPU"
    );
}

#[test]
fn a_request_beyond_the_machine_is_refused_with_numbers() {
    let mut node = Node::reserving(sixteen_cpus(), "0");
    node.admit(&bound(dedicated("a", 3)));
    let refusal = node.refusal(&dedicated("b", 13));
    assert_eq!(
        refusal.message,
        "13 CPUs of its own are needed (request 13 CPUs), 12 CPUs are free: none on NUMA node 0, 4 on NUMA node 1 (2-3,10-11), \
         4 on NUMA node 2 (4-5,12-13), 4 on NUMA node 3 (6-7,14-15); refused because 13 CPUs are asked for and 12 are free on \
         NUMA nodes without exclusive and bound shared pods"
    );
    assert_eq!(refusal.free.iter().map(|free| free.cpus.len()).collect::<Vec<_>>(), [0, 4, 4, 4]);
    assert_eq!(refusal.free, free_per_node(&node.state, &node.machine));
}

#[test]
fn without_other_pods_all_cpus_may_be_exclusive() {
    let mut node = Node::new(two_cpus());
    node.admit(&dedicated("d", 2));
    assert_eq!(node.cpus("d"), "0-1");
    for request in [shared("s"), pod("r", "reclaimed_cores", None), pod("d2", "dedicated_cores", None)] {
        let refusal = node.refusal(&request);
        assert_eq!(refusal.reason, Reason::Insufficient, "{refusal}");
    }
}

#[test]
fn a_pool_without_pods_and_without_a_cpu_for_them_is_empty() {
    let mut node = Node::reserving(two_cpus(), "");
    node.admit(&dedicated("d1", 1));
    node.admit(&dedicated("d2", 1));
    assert_eq!((node.pool("share"), node.pool("reclaim")), (CpuSet::new(), CpuSet::new()));
    node.release("d2", "d2-1");
    assert_eq!(node.pool("share"), set("1"));

    let mut node = Node::reserving(two_cpus(), "0");
    node.admit(&dedicated("d", 1));
    assert_eq!(
        (node.pool("share"), node.pool("reserve")),
        (CpuSet::new(), set("0")),
        "reserved CPUs are no substitute"
    );

    let node = Node::new(sixteen_cpus().with_isolated(&set("0-15")));
    assert_eq!((node.pool("share"), node.pool("system")), (CpuSet::new(), set("0-15")));
}

#[test]
fn parts_of_cpus_round_up() {
    let mut node = Node::new(sixteen_cpus());
    node.admit(&pod("d", "dedicated_cores", Some(2500)));
    assert_eq!(node.placement("d").cpus.len(), 3);
}

#[test]
fn reserved_cpus_are_for_system_pods_alone() {
    let mut node = Node::reserving(sixteen_cpus(), "0,8");
    node.admit(&shared("s"));
    node.admit(&dedicated("d", 2));
    let reserve = pod("y", "system_cores", None);
    node.admit(&annotated(reserve, CPU_ENHANCEMENT, r#"{"cpuset_pool": "reserve"}"#));
    assert_eq!(node.cpus("y"), "0,8");
    assert_eq!(node.placement("y").pool, Some("reserve".to_owned()));
    assert!(node.placement("s").cpus.is_disjoint(&set("0,8")));
    assert!(node.placement("d").cpus.is_disjoint(&set("0,8")));
    assert_eq!(node.pool("reserve"), set("0,8"));
}

#[test]
fn system_pods_without_a_pool_run_on_exclusive_cpus_too() {
    let mut node = Node::reserving(sixteen_cpus(), "0");
    node.admit(&dedicated("d", 4));
    node.admit(&pod("y", "system_cores", Some(1000)));
    assert_eq!(node.cpus("y"), "0-15");
    assert_eq!(node.placement("y").pool, Some("system".to_owned()));
}

#[test]
fn isolated_cpus_are_in_no_pool() {
    let mut node = Node::new(sixteen_cpus().with_isolated(&set("3,11")));
    node.admit(&shared("s"));
    node.admit(&daemon(shared("a")));
    node.admit(&pod("y", "system_cores", None));
    for uid in ["s", "a", "y"] {
        assert_eq!(node.cpus(uid), "0-2,4-10,12-15");
    }
    assert_eq!(node.refusal(&dedicated("d", 15)).reason, Reason::Insufficient);
}

#[test]
fn a_pool_tells_how_many_run_there() {
    let mut node = Node::new(sixteen_cpus());
    node.admit(&shared("s1"));
    node.admit(&shared("s2"));
    node.admit(&pod("d", "dedicated_cores", None));
    node.admit(&pod("y", "system_cores", None));
    node.admit(&daemon(shared("a")));
    let told: Vec<_> =
        shown_pools(&node.state, &node.machine).into_iter().map(|pool| (pool.name, pool.pods)).collect();
    // The dedicated pod is not settled yet and counts where it would go without a request.
    assert_eq!(
        told,
        [
            ("share".to_owned(), 3),
            ("reclaim".to_owned(), 0),
            ("reserve".to_owned(), 0),
            ("system".to_owned(), 1)
        ]
    );
}

#[test]
fn node_agents_are_never_refused() {
    let mut node = Node::new(two_cpus());
    node.admit(&dedicated("d", 2));
    node.admit(&daemon(shared("a")));
    assert_eq!(node.cpus("a"), "0-1");
    assert_eq!(flags(&node, "a"), [Flag::NodeAgent, Flag::NodeAgentOverlaps]);
    node.release("d", "d-1");
    assert_eq!(flags(&node, "a"), [Flag::NodeAgent]);
}

#[test]
fn node_agents_fall_back_to_the_reserved_cpus() {
    let mut node = Node::reserving(two_cpus(), "0");
    node.admit(&dedicated("d", 1));
    node.admit(&daemon(shared("a")));
    assert_eq!((node.cpus("d").as_str(), node.cpus("a").as_str()), ("1", "0"));
    assert_eq!(flags(&node, "a"), [Flag::NodeAgent]);
}

#[test]
fn a_node_agent_that_runs_keeps_a_cpu() {
    let mut node = Node::new(two_cpus());
    node.admit(&daemon(shared("a")));
    assert_eq!(node.refusal(&dedicated("d", 2)).reason, Reason::Insufficient);
    node.admit(&dedicated("d", 1));
    assert_eq!(node.cpus("a"), "1");
}

#[test]
fn a_critical_priority_or_a_static_pod_is_a_node_agent_unless_dedicated() {
    let mut node = Node::new(sixteen_cpus());
    node.admit(&SandboxRequest { priority: Some(2_000_001_000), ..shared("p") });
    node.admit(&annotated(shared("f"), "kubernetes.io/config.source", "file"));
    node.admit(&daemon(dedicated("d", 1)));
    assert_eq!((flags(&node, "p"), flags(&node, "f")), (vec![Flag::NodeAgent], vec![Flag::NodeAgent]));
    assert!(node.placement("d").exclusive && flags(&node, "d").is_empty());
}

#[test]
fn an_unknown_level_is_shared_and_flagged() {
    let mut node = Node::new(two_cpus());
    node.admit(&pod("x", "gold_cores", Some(2000)));
    let placement = node.placement("x");
    assert_eq!((placement.qos, placement.pool), (QosLevel::Shared, Some("share".to_owned())));
    assert_eq!(flags(&node, "x"), [Flag::QosInvalid]);
}

#[test]
fn what_cannot_be_understood_or_names_no_pool_is_flagged() {
    let mut node = Node::new(sixteen_cpus());
    let memory =
        |uid: &str, level: &str, json: &str| annotated(pod(uid, level, Some(1000)), MEMORY_ENHANCEMENT, json);
    let cpu =
        |uid: &str, level: &str, json: &str| annotated(pod(uid, level, Some(1000)), CPU_ENHANCEMENT, json);
    let cases = [
        (memory("a", "dedicated_cores", "{"), vec![Flag::EnhancementInvalid]),
        (memory("b", "dedicated_cores", r#"{"numa_binding": "maybe"}"#), vec![Flag::EnhancementInvalid]),
        (memory("c", "shared_cores", r#"{"numa_binding": "true"}"#), vec![]),
        (memory("d", "dedicated_cores", r#"{"numa_exclusive": "true"}"#), vec![Flag::WishesContradict]),
        (cpu("e", "dedicated_cores", r#"{"numa_number": "2"}"#), vec![]),
        (cpu("f", "shared_cores", r#"{"cpuset_pool": "batch"}"#), vec![]),
        (cpu("g", "shared_cores", r#"{"cpuset_pool": "share"}"#), vec![]),
        (cpu("h", "system_cores", r#"{"cpuset_pool": "batch"}"#), vec![Flag::PoolUnknown]),
        (memory("i", "dedicated_cores", r#"{"numa_binding": "false"}"#), vec![]),
    ];
    for (request, expected) in cases {
        node.admit(&request);
        assert_eq!(flags(&node, &request.pod_uid), expected, "{}", request.pod_uid);
    }
}

#[test]
fn a_bound_pod_is_on_one_node_and_others_leave_its_cpus() {
    let mut node = Node::new(sixteen_cpus());
    node.admit(&shared("s"));
    node.admit(&dedicated("u", 1));
    // Node 0 has 3 CPUs left, which suffice.
    node.admit(&bound(dedicated("b", 3)));
    assert_eq!((node.cpus("u").as_str(), node.cpus("b").as_str()), ("0", "1,8-9"));
    assert_eq!((node.mems("b").as_str(), node.mems("u").as_str()), ("0", "0"));
    assert_eq!((node.cpus("s").as_str(), node.mems("s").as_str()), ("2-7,10-15", "0-3"));
}

#[test]
fn others_leave_the_memory_of_a_pod_that_has_its_node_for_itself() {
    let mut node = Node::new(sixteen_cpus());
    node.admit(&shared("s"));
    let plan = node.admit(&alone(dedicated("b", 3)));
    assert_eq!((node.cpus("b").as_str(), node.mems("b").as_str()), ("0-1,8-9", "0"));
    assert_eq!(node.mems("s"), "1-3");
    assert!(plan.affected.contains("s"));
    node.release("b", "b-1");
    assert_eq!(node.mems("s"), "0-3");
}

#[test]
fn equal_nodes_are_taken_by_id() {
    let mut node = Node::new(sixteen_cpus());
    node.admit(&bound(dedicated("a", 2)));
    node.admit(&bound(dedicated("b", 4)));
    node.admit(&bound(dedicated("c", 2)));
    assert_eq!([node.cpus("a"), node.cpus("b"), node.cpus("c")], ["0,8", "2-3,10-11", "1,9"]);
}

#[test]
fn a_bound_pod_that_fits_no_node_is_refused() {
    let node = Node::new(sixteen_cpus());
    assert_eq!(node.refusal(&bound(dedicated("b", 6))).reason, Reason::Insufficient);
}

#[test]
fn where_every_node_is_somebodys_own_others_have_all_memory() {
    let mut node = Node::new(sixteen_cpus());
    for uid in ["a", "b", "c", "d"] {
        node.admit(&alone(dedicated(uid, 3)));
    }
    node.admit(&daemon(shared("s")));
    assert_eq!((node.cpus("s").as_str(), node.mems("s").as_str()), ("0-15", "0-3"));
}

#[test]
fn memory_of_a_node_without_any_comes_from_the_nearest() {
    let mut node = Node::new(sixteen_cpus_without_memory(&[0]));
    node.admit(&bound(dedicated("b", 4)));
    node.admit(&shared("s"));
    assert_eq!((node.cpus("b").as_str(), node.mems("b").as_str()), ("0-1,8-9", "1"));
    assert_eq!(node.mems("s"), "1-3");
}

#[test]
fn an_unbound_set_follows_the_l3_cache() {
    let mut node = Node::new(sixteen_cpus());
    node.admit(&dedicated("a", 1));
    node.admit(&dedicated("b", 4));
    assert_eq!((node.cpus("a").as_str(), node.cpus("b").as_str()), ("0", "2-3,10-11"));
    assert_eq!(node.mems("b"), "1");
}

#[test]
fn a_bound_pod_that_would_take_shared_pods_their_last_node_is_refused_by_that_rule() {
    let mut node = Node::new(two_cpus());
    node.admit(&shared("s"));
    for request in [bound(dedicated("d", 1)), bound(shared("b"))] {
        let refusal = node.refusal(&request);
        assert_eq!((refusal.reason, refusal.rule), (Reason::Insufficient, Rule::OthersKeepCpus));
        let why = "on 0 (shared pods that are not bound ask for 500m CPUs and need a node without bound pods; the others leave them 0)";
        assert!(refusal.message.contains(why), "{}", refusal.message);
    }
    // Where there is no room anyway, that is the rule.
    assert_eq!(node.refusal(&bound(dedicated("d", 2))).reason, Reason::Insufficient);
    node.release("s", "s-1");
    node.admit(&bound(dedicated("d", 1)));
}

#[test]
fn a_wish_that_makes_no_sense_is_refused_as_such() {
    let node = Node::new(sixteen_cpus());
    for (key, value) in [("numa_number", "many"), ("numa_number", "9"), ("numa_ids", "7"), ("numa_ids", "x")]
    {
        let wish = format!("{{\"{key}\": \"{value}\"}}");
        let request = annotated(bound(dedicated("d", 1)), "katalyst.kubewharf.io/cpu_enhancement", &wish);
        let refusal = node.refusal(&request);
        assert_eq!(
            (refusal.reason, refusal.rule),
            (Reason::Invalid, Rule::Understood),
            "{}",
            refusal.message
        );
        assert!(refusal.message.contains(key), "{}", refusal.message);
    }
    let maybe = r#"{"full_pcpus_pairing": "maybe"}"#;
    let request = annotated(bound(dedicated("d", 1)), "katalyst.kubewharf.io/cpu_enhancement", maybe);
    let plan = node.plan(&request).unwrap();
    assert!(plan.after.pods.get("d").unwrap().flags.contains(&Flag::EnhancementInvalid));
}

#[test]
fn a_shared_pod_cannot_name_a_pool_that_is_made_for_others_or_that_is_no_name() {
    let mut node = Node::new(sixteen_cpus());
    let long = "x".repeat(64);
    let names = [
        "reserve",
        "reclaim",
        "dedicated",
        "share-NUMA0",
        "isolation-1",
        "../../etc",
        "a\\u0007",
        &long,
        "..",
    ];
    for (nth, name) in names.iter().enumerate() {
        let uid = format!("s{nth}");
        let wish = format!("{{\"cpuset_pool\": \"{name}\"}}");
        node.admit(&annotated(shared(&uid), CPU_ENHANCEMENT, &wish));
        assert_eq!(node.placement(&uid).pool.as_deref(), Some("share"), "{name}");
        assert_eq!(flags(&node, &uid), [Flag::PoolUnknown], "{name}");
    }
    for (uid, name) in [("b", "batch"), ("f", "flink_2.x"), ("s", "share")] {
        let wish = format!("{{\"cpuset_pool\": \"{name}\"}}");
        node.admit(&annotated(shared(uid), CPU_ENHANCEMENT, &wish));
        assert_eq!(node.placement(uid).pool.as_deref(), Some(name));
        assert_eq!(flags(&node, uid), []);
    }
}

#[test]
fn a_pools_part_on_one_node_has_that_nodes_memory_as_its_pods_do() {
    let mut node = Node::new(sixteen_cpus());
    node.admit(&bound(shared("b")));
    node.admit(&shared("s"));
    let of = |name: &str| {
        let pools = shown_pools(&node.state, &node.machine);
        pools.into_iter().find(|pool| pool.name == name).unwrap().mems
    };
    let placed = node.placement("b");
    assert_eq!((of(&placed.pool.unwrap()), placed.mems.len()), (placed.mems, 1));
    assert_eq!(of("share"), node.placement("s").mems);
}
