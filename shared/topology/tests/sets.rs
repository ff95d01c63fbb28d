//! Sets against the standard library's, and the text format.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use oxalyst_topology::{CpuSet, NumaMask, ParseFault};
use proptest::{collection::btree_set, prelude::*};
use std::collections::BTreeSet;

fn set(text: &str) -> CpuSet {
    text.parse().unwrap()
}

fn model(set: &CpuSet) -> BTreeSet<u32> {
    set.iter().collect()
}

#[test]
fn lists_print_as_the_kernel_does() {
    assert_eq!(CpuSet::from_iter([8, 3, 2, 1, 0]).to_string(), "0-3,8");
    assert_eq!(CpuSet::from_iter([63, 64, 65]).to_string(), "63-65");
    assert_eq!(CpuSet::from_iter([0, 1]).to_string(), "0-1");
    assert_eq!(CpuSet::new().to_string(), "");
}

#[test]
fn overlapping_and_unsorted_elements_are_one_set() {
    assert_eq!(set("5,0-3,2-4,5").to_string(), "0-5");
    assert_eq!(set("007"), CpuSet::only(7));
}

#[test]
fn what_is_no_list_is_refused() {
    for text in [
        ",", "1,", ",1", "1,,2", "-", "1-", "-1", "1-2-3", "a", "0x1", "+1", " 1", "1 ", "1\n", "1;2",
        "0-7:1/2", "١", "0–3", "\u{0}",
    ] {
        let error = text.parse::<CpuSet>().unwrap_err();
        assert!(matches!(error.fault, ParseFault::NotANumber(_)), "{text:?}: {error}");
    }
    assert_eq!("3-1".parse::<CpuSet>().unwrap_err().fault, ParseFault::Backwards(3, 1));
}

#[test]
fn huge_ids_and_ranges_are_refused_without_being_built() {
    for text in ["8192", "0-4294967295", "4294967296", "0-99999999999999999999999", "8191-8192"] {
        let error = text.parse::<CpuSet>().unwrap_err();
        assert!(matches!(error.fault, ParseFault::BeyondLimit { limit: 8192, .. }), "{text:?}: {error}");
    }
    assert_eq!(set("0-8191").len(), 8192);
    assert!("1024".parse::<NumaMask>().is_err());
}

#[test]
fn an_error_names_kind_text_and_fault() {
    let error = "0-3,x".parse::<NumaMask>().unwrap_err().to_string();
    assert_eq!(
        error,
        r#""0-3,x" is not a list of NUMA nodes such as "0-3,8": element "x" is neither a number nor a range"#
    );
    assert!("9".repeat(10_000).parse::<CpuSet>().unwrap_err().to_string().len() < 400);
}

#[test]
fn equality_ignores_how_a_set_came_about() {
    let mut grown = CpuSet::only(1);
    grown.insert(500);
    grown.remove(500);
    assert_eq!(grown, CpuSet::only(1));
    assert!((CpuSet::only(500) - &CpuSet::only(500)).is_empty());
}

#[test]
fn sets_order_by_their_ids() {
    let mut sets = [set("2"), set("0,70"), set(""), set("0-1")];
    sets.sort();
    assert_eq!(sets.map(|s| s.to_string()), ["", "0-1", "0,70", "2"]);
}

proptest! {
    #[test]
    fn printing_and_reading_gives_the_set_back(ids in btree_set(0u32..8192, 0..200)) {
        let set: CpuSet = ids.iter().copied().collect();
        prop_assert_eq!(set.to_string().parse::<CpuSet>().unwrap(), set.clone());
        prop_assert_eq!(model(&set), ids);
    }

    #[test]
    fn the_algebra_is_that_of_sets(a in btree_set(0u32..300, 0..80), b in btree_set(0u32..300, 0..80), id in 0u32..300) {
        let (x, y): (CpuSet, CpuSet) = (a.iter().copied().collect(), b.iter().copied().collect());
        prop_assert_eq!(model(&(&x | &y)), &a | &b);
        prop_assert_eq!(model(&(&x & &y)), &a & &b);
        prop_assert_eq!(model(&(&x - &y)), &a - &b);
        prop_assert_eq!(&x - &y, x.clone() - &y);
        prop_assert_eq!(x.is_subset(&y), a.is_subset(&b));
        prop_assert_eq!(x.is_disjoint(&y), a.is_disjoint(&b));
        prop_assert_eq!(x.len(), a.len());
        prop_assert_eq!(x.is_empty(), a.is_empty());
        prop_assert_eq!(x.first(), a.first().copied());
        prop_assert_eq!(x.last(), a.last().copied());
        prop_assert_eq!(x.contains(id), a.contains(&id));
        prop_assert_eq!(x.cmp(&y), a.iter().cmp(b.iter()));
        prop_assert_eq!(x == y, a == b);
        prop_assert!((&x & &y).is_subset(&x));
        let (mut with, mut without) = (x.clone(), x.clone());
        prop_assert_eq!(with.insert(id), !a.contains(&id));
        prop_assert_eq!(without.remove(id), a.contains(&id));
        prop_assert_eq!(with - &CpuSet::only(id), without);
    }

    #[test]
    fn no_text_makes_the_parser_fail_otherwise_than_by_an_error(text in "[-0-9, a:/]{0,24}") {
        if let Ok(set) = text.parse::<CpuSet>() {
            prop_assert_eq!(set.to_string().parse::<CpuSet>().unwrap(), set);
        }
    }
}
