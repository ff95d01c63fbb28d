//! By QoS level.

use super::*;
use oxalyst_planner::{
    plan::{Flag, Reason},
    rules::{self, RuleSettings},
    topology_manager::{Hint, Nodes, Provider, Scope, merge},
};

#[test]
fn a01_a_dedicated_pod_has_exactly_what_it_asks_for_and_nobody_else_is_there() {
    let mut node = Node::new(two_sockets(), Rules::default(), "");
    node.admit(shared("s", 1000));
    node.admit(pod("r", QosLevel::Reclaimed, &[asks("main", 1000)]));
    node.admit(dedicated("g", 4));
    let own = node.container("g", "main");
    assert_eq!((own.cpus.len(), own.exclusive, own.pool), (4, true, None));
    for other in ["s", "r"] {
        assert!(node.cpus(other).is_disjoint(&own.cpus), "{other} runs on {}", node.cpus(other));
    }
}

#[test]
fn a02_the_plan_that_makes_cpus_exclusive_takes_them_from_the_others() {
    let mut node = Node::new(two_sockets(), Rules::default(), "");
    node.admit(shared("s", 1000));
    assert_eq!(node.cpus("s"), set("0-15"));
    let plan = node.try_admit(&dedicated("g", 4)).unwrap();
    assert!(plan.affected.contains("s"), "who shrinks is named in the same plan: {:?}", plan.affected);
    node.hold(plan);
    assert_eq!(node.cpus("s").len(), 12);
    assert!(node.cpus("s").is_disjoint(&node.cpus("g")));
}

#[test]
fn a07_the_cpus_of_a_pod_are_taken_until_it_is_said_to_be_gone() {
    let mut node = Node::new(two_sockets(), Rules::default(), "");
    node.admit(dedicated("a", 10));
    // Whatever the API server says of its end: time alone frees nothing.
    node.does(&Request::Elapse { now_unix_ms: 3_600_000 });
    assert_eq!(node.try_admit(&dedicated("b", 10)).unwrap_err().reason, Reason::Insufficient);
    node.remove("a");
    node.admit(dedicated("b", 10));
}

#[test]
fn a11_no_request_of_any_level_is_a_panic_and_every_refusal_names_its_fault() {
    let levels = [QosLevel::Dedicated, QosLevel::Shared, QosLevel::Reclaimed, QosLevel::System];
    let amounts = [None, Some(0), Some(1), Some(500), Some(2000), Some(2500), Some(16_000), Some(u64::MAX)];
    let wishes: [&[(&str, &str)]; 6] = [
        &[],
        &[("numa_binding", "true")],
        &[("numa_binding", "true"), ("numa_exclusive", "true")],
        &[("numa_binding", "true"), ("numa_number", "2"), ("distribute_evenly_across_numa", "true")],
        &[("numa_binding", "true"), ("numa_number", "-1")],
        &[("numa_binding", "true"), ("numa_ids", "0-99999")],
    ];
    let classes = [Class::Guaranteed, Class::Burstable, Class::BestEffort];
    let mut seen = 0;
    for rules in [Rules::default(), under(Policy::SingleNumaNode), kubelets(Policy::Restricted)] {
        let mut node = Node::new(two_sockets(), rules, "0");
        node.admit(shared("s", 500));
        for qos in levels {
            for (request, limit, memory) in amounts.iter().flat_map(|request| {
                amounts.iter().flat_map(move |limit| {
                    [None, Some(1), Some(u64::MAX)].map(|bytes| (*request, *limit, bytes))
                })
            }) {
                for (class, wishes) in
                    classes.iter().flat_map(|class| wishes.iter().map(move |w| (*class, *w)))
                {
                    let container = Asked {
                        cpu: request.map(MilliCpu),
                        limit: limit.map(MilliCpu),
                        memory: memory.map(Bytes),
                        ..asks("main", 0)
                    };
                    let pod = PodRequest { class, ..wishing(pod("p", qos, &[container]), wishes) };
                    seen += 1;
                    match node.try_admit(&pod) {
                        Ok(plan) => assert!(
                            !placement_of(&plan.after, &node.machine, "p").unwrap().containers[0]
                                .cpus
                                .is_empty()
                        ),
                        Err(refusal) => assert!(!refusal.message.is_empty()),
                    }
                }
            }
        }
    }
    assert_eq!(seen, 3 * 4 * 8 * 8 * 3 * 3 * 6);
}

#[test]
fn a15_o3_a_daemon_sets_pod_takes_no_part_in_placement_and_runs_where_nobody_has_cpus_of_its_own() {
    let mut node = Node::new(two_sockets(), under(Policy::SingleNumaNode), "");
    for uid in ["agent-0", "agent-1"] {
        node.admit(PodRequest { node_agent: true, ..shared(uid, 3000) });
    }
    node.admit(bound(dedicated("g", 6)));
    let own = node.cpus("g");
    assert_eq!((own.len(), node.machine.nodes_of(&own).len()), (6, 1));
    let agent = node.container("agent-0", "main");
    assert_eq!(agent.cpus, node.machine.online() - &own);
    assert!(agent.flags.contains(&Flag::NodeAgent), "{:?}", agent.flags);
    // It is not asked for again and again: it is known, and saying it once more writes nothing.
    assert_eq!(node.admit(PodRequest { node_agent: true, ..shared("agent-0", 3000) }), Vec::<String>::new());
}

#[test]
fn o4_a_daemon_sets_pod_of_the_system_level_is_admitted_as_any_other() {
    let mut node = Node::new(two_sockets(), Rules::default(), "0,8");
    let system = pod("sys", QosLevel::System, &[asks("main", 100)]);
    let system = PodRequest { node_agent: true, ..wishing(system, &[("cpuset_pool", "reserve")]) };
    node.admit(system);
    let placed = node.container("sys", "main");
    assert_eq!((placed.cpus, placed.pool.as_deref()), (set("0,8"), Some("reserve")));
    assert!(!placed.flags.contains(&Flag::NodeAgent), "{:?}", placed.flags);
}

#[test]
fn o6_best_effort_admits_where_one_resource_is_impossible_and_prefers_nothing() {
    let provider = Provider::from([
        ("cpu".to_owned(), Some(vec![Hint::on("1".parse().unwrap(), true)])),
        ("memory".to_owned(), Some(Vec::new())),
    ]);
    let nodes = Nodes::new((0..2).collect());
    let merged = |policy| merge(&policy, &nodes, std::slice::from_ref(&provider)).unwrap();
    let best = merged(Policy::BestEffort);
    assert!(best.admit);
    assert_eq!(best.hint("cpu"), Hint::on("1".parse().unwrap(), false));
    assert_eq!(best.hint("memory"), best.hint("cpu"));
    let alone = Provider::from([("memory".to_owned(), Some(Vec::new()))]);
    let all = merge(&Policy::BestEffort, &nodes, &[alone]).unwrap();
    assert_eq!((all.admit, all.hint("memory")), (true, Hint::on((0..2).collect(), false)));
    for strict in
        [Policy::Restricted, Policy::SingleNumaNode, Policy::named("numeric", &["cpu".into()]).unwrap()]
    {
        assert!(!merged(strict.clone()).admit, "{strict:?}");
    }
}

#[test]
fn o11_a_pod_that_nobody_can_place_runs_in_the_shared_pool_and_says_so() {
    let mut node = Node::new(two_sockets(), Rules::default(), "0");
    node.admit(dedicated("g", 4));
    // Of a dedicated pod nothing is known that it could have.
    node.admit(pod("unknown", QosLevel::Dedicated, &[Asked { cpu: None, ..asks("main", 0) }]));
    let placed = node.container("unknown", "main");
    assert_eq!((placed.pool.as_deref(), placed.exclusive), (Some("share"), false));
    assert!(placed.flags.contains(&Flag::NoRequest), "{:?}", placed.flags);
    assert!(!placed.cpus.is_empty() && placed.cpus.is_disjoint(&node.cpus("g")));
}

#[test]
fn a18_a_refusal_tells_what_is_free_on_each_node() {
    let mut node = Node::new(flat(2, 4), under(Policy::Restricted), "0,4");
    let refusal = node.try_admit(&bound(dedicated("g", 4))).unwrap_err();
    let free: Vec<usize> = refusal.free.iter().map(|node| node.cpus.len()).collect();
    assert_eq!((free, refusal.reason), (vec![3, 3], Reason::Insufficient));
    assert!(
        refusal.message.contains("3 on NUMA node 0 (1-3), 3 on NUMA node 1 (5-7)"),
        "{}",
        refusal.message
    );
    // The replica set tries again and again: it leaves nothing behind.
    let before = node.state.clone();
    for nth in 0..100 {
        assert!(node.try_admit(&bound(dedicated(&format!("g-{nth}"), 4))).is_err());
    }
    assert_eq!(node.state, before);
    node.admit(bound(dedicated("fits", 3)));
}

#[test]
fn a20_cpus_that_go_and_come_leave_containers_whole_or_flagged_and_new_ones_are_shared() {
    let twelve = flat(1, 12);
    let mut node = Node::new(twelve.clone().with_offline(&set("8-11")), Rules::default(), "");
    node.admit(dedicated("g", 4));
    node.admit(shared("s", 500));
    let own = node.cpus("g");
    assert!(own.contains(3), "{own}");
    node.machine = twelve.clone().with_offline(&set("3,8-11"));
    node.does(&Request::TakeUp { reserved: None });
    let now = node.container("g", "main");
    assert_eq!(now.cpus, &own - &set("3"));
    assert!(now.flags.contains(&Flag::CpuOffline), "{:?}", now.flags);
    assert!(!node.cpus("s").contains(3));
    node.machine = twelve.with_offline(&set("3"));
    node.does(&Request::TakeUp { reserved: None });
    assert!(set("8-11").is_subset(&node.cpus("s")), "{}", node.cpus("s"));
}

#[test]
fn a24_k26_sixteen_nodes_start_and_place_under_every_policy() {
    let numeric = Policy::named("numeric", &["cpu".into(), "memory".into()]).unwrap();
    for topology in [Policy::None, Policy::BestEffort, Policy::Restricted, Policy::SingleNumaNode, numeric] {
        let mut node = Node::new(flat(16, 4), under(topology.clone()), "");
        node.admit(bound(dedicated("one", 3)));
        let one = node.cpus("one");
        assert_eq!((one.len(), node.machine.nodes_of(&one).len()), (3, 1), "{topology:?}");
        if topology != Policy::SingleNumaNode {
            let two = wishing(dedicated("two", 8), &[("numa_binding", "true"), ("numa_exclusive", "true")]);
            node.admit(two);
            assert_eq!(node.machine.nodes_of(&node.cpus("two")).len(), 2, "{topology:?}");
        }
    }
}

#[test]
fn a25_k12_growing_keeps_what_there_is_and_shrinking_gives_back_at_once() {
    for rules in [Rules::default(), kubelets(Policy::BestEffort)] {
        let mut node = Node::new(two_sockets(), rules, "");
        node.admit(PodRequest { class: Class::Burstable, ..shared("s", 1000) });
        node.admit(dedicated("g", 4));
        let (four, free) = (node.cpus("g"), node.free());
        node.resize("g", 6);
        let six = node.cpus("g");
        assert!(four.is_subset(&six) && six.len() == 6 && node.free() == free - 2, "{four} to {six}");
        node.resize("g", 2);
        let two = node.cpus("g");
        assert!(two.is_subset(&four) && two.len() == 2 && node.free() == free + 2, "{six} to {two}");
        assert_eq!(
            node.cpus("s"),
            node.machine.online() - &two,
            "what is given back is shared in the same plan"
        );
    }
}

#[test]
fn a26_a_container_that_is_made_anew_keeps_its_set() {
    let mut node = Node::new(two_sockets(), Rules::default(), "");
    node.admit(dedicated("g", 4));
    let before = node.state.clone();
    for _ in 0..3 {
        assert_eq!(node.does(&restart("g", "main")), Vec::<String>::new());
        assert_eq!(node.state, before);
    }
}

#[test]
fn a27_the_last_cpu_of_shared_pods_is_not_given_away() {
    let mut node = Node::new(flat(1, 4), Rules::default(), "");
    node.admit(shared("s", 100));
    node.admit(dedicated("g", 3));
    let refusal = node.try_admit(&dedicated("h", 1)).unwrap_err();
    assert_eq!(refusal.reason, Reason::Insufficient);
    assert!(refusal.message.contains("default/s"), "who would be left without is named: {}", refusal.message);
    assert_eq!(node.cpus("s").len(), 1);
    node.remove("s");
    node.admit(dedicated("h", 1));
}

#[test]
fn k10_a_pod_of_which_the_third_container_does_not_fit_leaves_nothing() {
    let mut node = Node::new(two_sockets(), kubelets(Policy::BestEffort), "");
    node.admit(dedicated("other", 4));
    let (before, free) = (node.clone(), free_per_node(&node.state, &node.machine));
    let three = [asks("a", 4000), asks("b", 4000), asks("c", 8000)];
    assert_eq!(
        node.try_admit(&pod("p", QosLevel::Dedicated, &three)).unwrap_err().reason,
        Reason::Insufficient
    );
    assert_eq!(free_per_node(&node.state, &node.machine), free);
    assert_eq!((&node.state, &node.records), (&before.state, &before.records));
    node.admit(pod("p", QosLevel::Dedicated, &three[..2]));
    assert_eq!(node.free(), 4);
}

#[test]
fn k13_a_thousand_times_the_same_gives_the_same_bytes() {
    let mut node = Node::new(two_sockets(), under(Policy::Restricted), "0,8");
    node.admit(shared("s", 1000));
    node.admit(bound(shared("b", 500)));
    node.admit(dedicated("g", 2));
    let request = bound(dedicated("new", 3));
    let bytes = || {
        let plan = node.try_admit(&request).unwrap();
        let records: Vec<_> =
            record::changes(&plan, &node.rules).into_iter().map(|c| (c.key, c.value)).collect();
        (records, format!("{plan:?}"))
    };
    let first = bytes();
    for nth in 1..1000 {
        assert_eq!(bytes(), first, "{nth}");
    }
}

#[test]
fn k28_pod_scope_puts_both_containers_on_one_node() {
    for (reserved, nodes) in [("", (4, 4)), ("0", (3, 4))] {
        for topology in [Policy::BestEffort, Policy::Restricted, Policy::SingleNumaNode] {
            let rules = Rules { scope: Scope::Pod, ..kubelets(topology.clone()) };
            let mut node = Node::new(flat(2, 4), rules, reserved);
            let free = free_per_node(&node.state, &node.machine);
            assert_eq!((free[0].cpus.len(), free[1].cpus.len()), nodes);
            node.admit(pod("p", QosLevel::Dedicated, &[asks("a", 2000), asks("b", 2000)]));
            let both = node.container("p", "a").cpus | &node.container("p", "b").cpus;
            assert_eq!(
                (both.len(), node.machine.nodes_of(&both).len()),
                (4, 1),
                "{topology:?} {nodes:?}: {both}"
            );
        }
    }
    // 3 and 5 free.
    let machine = flat(2, 5);
    let rules = Rules { scope: Scope::Pod, ..kubelets(Policy::BestEffort) };
    let mut node = Node::new(machine, rules, "0-1");
    node.admit(pod("p", QosLevel::Dedicated, &[asks("a", 2000), asks("b", 2000)]));
    let both = node.container("p", "a").cpus | &node.container("p", "b").cpus;
    assert!(both.is_subset(&set("5-9")), "{both}");
}

#[test]
fn a09_a_fraction_of_a_cpu_that_is_reserved_sets_a_whole_one_aside_and_shared_pods_may_ask_for_the_rest_of_it()
 {
    let settings = RuleSettings { reserved_cpus: "750m".into(), ..RuleSettings::default() };
    let machine = flat(2, 8);
    let reserved = rules::reserved(&settings, &machine).unwrap().to_string();
    assert_eq!(reserved, "0");
    let node = || Node::new(machine.clone(), rules::rules(&settings).unwrap(), &reserved);

    // Accounting is in thousandths: 15.25 CPUs for shared pods, of which the pool has the 15 whole ones.
    let mut shares = node();
    shares.admit(shared("s", 15_000));
    shares.admit(shared("t", 250));
    assert_eq!(shares.cpus("s"), set("1-15"));
    let refusal = shares.try_admit(&shared("u", 1)).unwrap_err();
    assert_eq!(refusal.reason, Reason::Insufficient);
    assert!(
        refusal.message.contains("15 are there for them") && refusal.message.contains("250m of a reserved")
    );

    // Exclusive ones are whole: 15, and the fraction makes no sixteenth.
    let mut owns = node();
    assert_eq!(owns.free(), 15);
    assert!(owns.try_admit(&dedicated("g", 16)).is_err());
    owns.admit(dedicated("g", 15));
    assert_eq!(owns.cpus("g"), set("1-15"));

    // A bound pod leaves shared ones what they ask for, to the thousandth.
    for (asked, fits) in [(7250, true), (7251, false)] {
        let mut mixed = node();
        mixed.admit(shared("s", asked));
        assert_eq!(mixed.try_admit(&bound(dedicated("g", 8))).is_ok(), fits, "beside {asked}m");
    }
}
