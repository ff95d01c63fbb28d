//! Pool quantities beyond the vectors.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use oxalyst_planner::plan::{Demand, PoolFault, pool_sizes, proportional, suffices, whole_cpus};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn demand(pool: &str, nodes: Option<&str>, cores: f64) -> Demand {
    Demand { pool: pool.to_owned(), nodes: nodes.map(|nodes| nodes.parse().unwrap()), cores }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn pools_use_up_what_is_available_or_have_one_cpu_each(
        wanted in prop::collection::btree_map("[a-z]{1,6}", 1usize..200, 1..8),
        available in 0usize..400,
    ) {
        let got = proportional(&wanted, available);
        prop_assert_eq!(got.total, got.sizes.values().sum::<usize>());
        prop_assert_eq!(got.total, available.max(wanted.len()));
        prop_assert!(got.sizes.values().all(|size| *size >= 1));
        prop_assert!(got.sizes.keys().eq(wanted.keys()));
    }

    #[test]
    fn no_pool_gets_more_than_its_share_rounded_up(
        wanted in prop::collection::btree_map("[a-z]{1,6}", 1usize..200, 1..8),
        available in 0usize..400,
    ) {
        let sum: usize = wanted.values().sum();
        for (pool, size) in proportional(&wanted, available).sizes {
            prop_assert!(size <= (wanted[&pool] * available).div_ceil(sum).max(1));
        }
    }
}

#[test]
fn equal_pools_give_in_the_order_of_their_names_5_8() {
    let wanted: BTreeMap<String, usize> = ["c", "a", "b"].map(|name| (name.to_owned(), 5)).into();
    let got = proportional(&wanted, 10);
    assert_eq!(got.sizes, [("a".to_owned(), 3), ("b".to_owned(), 3), ("c".to_owned(), 4)].into());
}

#[test]
fn more_pools_than_cpus_share_the_whole_set_5_8() {
    let wanted: BTreeMap<String, usize> = ["a", "b", "c"].map(|name| (name.to_owned(), 5)).into();
    let got = proportional(&wanted, 2);
    assert_eq!((got.total, got.sizes["a"]), (3, 1));
    assert_eq!(proportional(&BTreeMap::new(), 4).total, 0);
}

#[test]
fn noise_does_not_make_a_request_too_large_5_10() {
    assert!(suffices(4.0, 4.0));
    assert!(suffices(4.0, 4.000_000_1));
    assert!(!suffices(4.0, 4.001));
}

#[test]
fn nothing_is_no_cpu_5_10() {
    assert_eq!([whole_cpus(0.0), whole_cpus(-1.0), whole_cpus(f64::NAN), whole_cpus(0.0004)], [0, 0, 0, 0]);
}

#[test]
fn a_pool_has_one_place_5_8() {
    let fault = |demands: &[Demand]| pool_sizes(demands).unwrap_err();
    let two = fault(&[demand("web", None, 1.0), demand("web", Some("1"), 1.0)]);
    assert!(matches!(two, PoolFault::TwoPlaces { one: None, other: Some(1), .. }), "{two}");
    let none = fault(&[demand("web", Some(""), 1.0)]);
    assert!(matches!(none, PoolFault::NotOneNode { .. }), "{none}");
}
