//! What pods of the reclaim pool keep, and what others keep beside them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
// `Node` applies the plans that it hands back.
#![allow(unused_must_use)]

mod pods_support;

use pods_support::*;

/// Shared pods come one by one until no more is admitted: neither do they squeeze the reclaim pool below its floor (a CPU), nor does
/// anybody touch the guaranteed pod's set.
#[test]
fn a13_reclaimed_pods_keep_their_floor_and_a_guaranteed_set_stays_as_it_is() {
    let mut node = Node::new(sixteen_cpus());
    node.admit(&pod("batch", "reclaimed_cores", None));
    node.admit(&dedicated("g", 8));
    let own = node.cpus("g");
    assert_eq!(set(&own).len(), 8);
    for n in 0.. {
        let request = pod(&format!("s{n}"), "shared_cores", Some(1000));
        if node.plan(&request).is_err() {
            assert!(n >= 4, "shared pods are refused although there is room: {n} run");
            break;
        }
        node.admit(&request);
        node.replan();
        let reclaim = node.pool("reclaim");
        assert!(!reclaim.is_empty(), "{n} shared pods have left nothing to the reclaim pool");
        assert_eq!(node.cpus("batch"), reclaim.to_string());
        assert!((reclaim & &set(&own)).is_empty());
        assert_eq!(node.cpus("g"), own);
    }
}
