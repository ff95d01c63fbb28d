//! The process starts anew.

use super::*;
use oxalyst_planner::pods::placements;

fn busy() -> Node {
    let mut node = Node::new(two_sockets(), Rules::default(), "0,8");
    node.admit(shared("s", 1500));
    node.admit(bound(pod("g", QosLevel::Dedicated, &[with_memory(asks("main", 2000), 3)])));
    node.admit(bound(pod("h", QosLevel::Dedicated, &[with_memory(asks("main", 2000), 4)])));
    node.admit(pod("r", QosLevel::Reclaimed, &[asks("main", 500)]));
    node.does(&Request::Elapse { now_unix_ms: 60_000 });
    node
}

#[test]
fn a06_o10_ten_restarts_change_no_cpu_and_write_nothing() {
    let mut node = busy();
    let before = placements(&node.state, &node.machine);
    for _ in 0..10 {
        node.restart();
        assert_eq!(placements(&node.state, &node.machine), before);
        assert_eq!(node.does(&Request::TakeUp { reserved: None }), Vec::<String>::new());
        for uid in ["s", "g", "h", "r"] {
            let known = node.state.pods.get(uid).unwrap().clone();
            let again = PodRequest { qos: known.qos, ..pod(uid, known.qos, &known.containers) };
            assert_eq!(node.admit(again), Vec::<String>::new(), "{uid}");
        }
        assert_eq!(placements(&node.state, &node.machine), before);
    }
}

#[test]
fn r05_memory_that_pods_have_taken_is_taken_after_a_restart() {
    let mut node = busy();
    let mems = |node: &Node| ["g", "h"].map(|uid| node.container(uid, "main").mems.to_string());
    let (before, memory) = (mems(&node), node.state.memory.clone());
    let more = bound(pod("more", QosLevel::Dedicated, &[with_memory(asks("main", 1000), 6)]));
    let refused = node.try_admit(&more).map(|_| ()).map_err(|refusal| refusal.message);
    node.restart();
    assert_eq!((mems(&node), &node.state.memory), (before, &memory));
    assert_eq!(node.try_admit(&more).map(|_| ()).map_err(|refusal| refusal.message), refused);
}

#[test]
fn r03_under_another_policy_who_runs_keeps_its_set_and_who_comes_follows_the_new_one() {
    let mut node = busy();
    let before = ["g", "h"].map(|uid| node.cpus(uid));
    node.rules = under(Policy::SingleNumaNode);
    node.restart();
    node.does(&Request::TakeUp { reserved: None });
    assert_eq!(["g", "h"].map(|uid| node.cpus(uid)), before);
    node.rules = kubelets(Policy::Restricted);
    node.restart();
    node.does(&Request::TakeUp { reserved: None });
    assert_eq!(["g", "h"].map(|uid| node.cpus(uid)), before);
    node.admit(pod("new", QosLevel::Shared, &[asks("main", 1000)]));
    let new = node.container("new", "main");
    assert!(new.exclusive && new.cpus.len() == 1, "guaranteed and whole: {new:?}");
    for other in &before {
        assert!(new.cpus.is_disjoint(other));
    }
    node.remove("g");
    node.restart();
    assert_eq!(node.cpus("h"), before[1]);
}

#[test]
fn k16_what_changes_nothing_writes_nothing() {
    let mut node = busy();
    for minute in 2..12 {
        assert_eq!(node.does(&Request::Elapse { now_unix_ms: minute * 60_000 }), Vec::<String>::new());
        assert_eq!(node.does(&Request::TakeUp { reserved: None }), Vec::<String>::new());
        assert_eq!(node.does(&restart("g", "main")), Vec::<String>::new());
        assert_eq!(node.remove("nobody"), Vec::<String>::new());
    }
}

#[test]
fn a03_every_record_is_whole_or_absent_and_what_is_left_adds_up() {
    // A commit is one record: cut off after any of them, the rest is a state of its own.
    let node = busy();
    let keys: Vec<String> = node.records.keys().cloned().collect();
    for cut in 0..=keys.len() {
        let mut rest = node.clone();
        rest.records.retain(|key, _| keys[..cut].contains(key));
        rest.restart();
        let seen = placements(&rest.state, &rest.machine);
        let own = seen.values().flat_map(|pod| &pod.containers).filter(|container| container.exclusive);
        let own = own.fold(CpuSet::new(), |union, container| union | &container.cpus);
        let free = free_per_node(&rest.state, &rest.machine);
        let free = free.iter().fold(CpuSet::new(), |union, node| union | &node.cpus);
        assert!(own.is_disjoint(&free));
        assert_eq!(own | &free | &rest.reserved, *rest.machine.online());
        assert!(rest.pool("share").is_disjoint(&rest.reserved) || rest.pool("share").is_empty());
    }
}
