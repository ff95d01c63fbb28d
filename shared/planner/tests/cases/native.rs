//! As the kubelet does it.

use super::*;
use oxalyst_planner::plan::Reason;

#[test]
fn a04_k27_an_init_container_lends_its_cpus_and_restarts_of_it_cost_nothing() {
    let mut node = Node::new(flat(1, 6), kubelets(Policy::BestEffort), "0");
    node.admit(PodRequest { class: Class::Burstable, ..shared("s", 100) });
    node.admit(pod("p", QosLevel::Dedicated, &[init("setup", 4000), asks("main", 2000)]));
    let (setup, main) = (node.container("p", "setup").cpus, node.container("p", "main").cpus);
    assert_eq!((setup.len(), main.len()), (4, 2));
    assert!(main.is_subset(&setup), "{main} of {setup}");
    assert_eq!(node.free(), 1, "what is used is the larger of the two");
    for _ in 0..3 {
        assert_eq!(node.does(&restart("p", "setup")), Vec::<String>::new());
        assert_eq!((node.container("p", "setup").cpus, node.free()), (setup.clone(), 1));
    }
    node.remove("p");
    assert_eq!(node.free(), 5);
}

#[test]
fn a19_memory_that_no_node_has_alone_spans_or_is_refused_with_numbers() {
    let busy = |topology| {
        let mut node = Node::new(flat(2, 4), kubelets(topology), "");
        for uid in ["a", "b"] {
            node.admit(pod(uid, QosLevel::Dedicated, &[with_memory(asks("main", 1000), 6)]));
        }
        node
    };
    let new = pod("new", QosLevel::Dedicated, &[with_memory(asks("main", 1000), 4)]);
    let mut node = busy(Policy::BestEffort);
    let nodes = |uid: &str, node: &Node| node.container(uid, "main").mems.to_string();
    assert_eq!((nodes("a", &node), nodes("b", &node)), ("0".into(), "1".into()));
    node.admit(new.clone());
    assert_eq!(nodes("new", &node), "0-1");
    let refusal = busy(Policy::Restricted).try_admit(&new).unwrap_err();
    assert_eq!(refusal.reason, Reason::Affinity);
    assert!(refusal.message.contains("memory on 2"), "{}", refusal.message);
}

#[test]
fn a19_memory_exactly_at_the_limit_fits_and_a_byte_more_does_not() {
    let mut node = Node::new(flat(1, 4), kubelets(Policy::SingleNumaNode), "");
    let of = |uid: &str, bytes: u64| {
        pod(uid, QosLevel::Dedicated, &[Asked { memory: Some(Bytes(bytes)), ..asks("main", 1000) }])
    };
    assert_eq!(node.try_admit(&of("a", 8 * GIB + 1)).unwrap_err().reason, Reason::Insufficient);
    node.admit(of("a", 8 * GIB - 1));
    assert!(node.try_admit(&of("b", 2)).is_err());
    node.admit(of("b", 1));
}
