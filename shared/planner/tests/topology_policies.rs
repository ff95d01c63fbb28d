//! Cases of the specification's section 10 on merging that the vectors do not hold, by their ids, and both scopes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use oxalyst_planner::topology_manager::{
    Containers, Hint, Hints, Merged, Nodes, Policy, Provider, Scope, Subject, Unaligned, align, impossible,
    merge, minima,
};
use oxalyst_topology::NumaMask;

/// `01T` is nodes 0 and 1, preferred; `nilF` any node, not preferred; words are separated by spaces.
fn list(text: &str) -> Hints {
    let hint = |word: &str| {
        let (mask, preferred) = word.split_at(word.len() - 1);
        let mask = (mask != "nil").then(|| mask.chars().map(|digit| digit.to_digit(10).unwrap()).collect());
        Hint { mask, preferred: preferred == "T" }
    };
    Some(text.split_whitespace().map(hint).collect())
}

fn provider(lists: &[(&str, Hints)]) -> Provider {
    lists.iter().map(|(name, hints)| ((*name).to_owned(), hints.clone())).collect()
}

fn on(count: u32) -> Nodes {
    Nodes::new((0..count).collect())
}

fn merged(policy: &Policy, nodes: u32, lists: &[(&str, Hints)]) -> Merged {
    merge(policy, &on(nodes), &[provider(lists)]).unwrap()
}

fn only(hints: Hints) -> Hint {
    hints.unwrap().pop().unwrap()
}

/// Two lists whose intersections are `candidates`, all of them not preferred, where the size wanted is `wanted`.
fn best_of(wanted: usize, candidates: &str) -> Hint {
    let of_that_size = Hint::on((0..wanted as u32).map(|id| 10 + id).collect(), false);
    // Decoys, which meet nothing, set the narrowest size of either list; the wide mask lets every candidate through.
    let decoy = Hint::on(NumaMask::only(9), false);
    let wide = Hint::on((0..5).collect(), false);
    let a = list(candidates).unwrap().into_iter().chain([decoy]).collect();
    let lists = [("a", Some(a)), ("b", Some(vec![of_that_size, wide]))];
    let nodes = Nodes::new((0..5).collect());
    merge(&Policy::BestEffort, &nodes, &[provider(&lists)]).unwrap().hint("a")
}

#[test]
fn comparison_of_masks_10_2() {
    let rows = [
        (1, "12F 01F", "01F"),
        (1, "01F 12F", "01F"),
        (2, "01F 0F", "01F"),
        (2, "12F 01F", "01F"),
        (2, "0F 012F", "0F"),
        (2, "0F 01F", "01F"),
        (3, "0F 12F", "12F"),
        (4, "01F 123F", "123F"),
        (4, "123F 01F", "123F"),
        (4, "123F 012F", "012F"),
    ];
    for (wanted, candidates, best) in rows {
        assert_eq!(best_of(wanted, candidates), only(list(best)), "wanted {wanted}: {candidates}");
    }
}

#[test]
fn preferred_beats_what_is_not_and_then_the_narrower_wins_10_2() {
    for (candidates, best) in [("0F 0T", "0T"), ("0T 0F", "0T"), ("01T 0T", "0T"), ("0T 01T", "0T")] {
        let got = merged(&Policy::BestEffort, 5, &[("a", list(candidates))]);
        assert_eq!(got.hint("a"), only(list(best)), "{candidates}");
    }
}

#[test]
fn an_empty_mask_is_no_candidate_10_2() {
    let got = merged(&Policy::BestEffort, 2, &[("a", Some(vec![Hint::on(NumaMask::new(), false)]))]);
    assert_eq!(got.hint("a"), only(list("01F")));
}

#[test]
fn widest_of_the_narrowest_masks_10_2() {
    // What is wanted shows in which of {0}, {01}, {012}, {0123} is chosen, where all can be reached.
    let rows = [
        (vec!["0F 01F 012F 0123F"], "0F"),
        (vec!["0F 01F 012F 0123F", "01F 0123F"], "01F"),
        (vec!["0F 01F 012F 0123F", "01F 012F 0123F", "012F 0123F"], "012F"),
        (vec!["0F 01F 012F 0123F", "01F 012F", "012F 0123F"], "012F"),
    ];
    for (lists, best) in rows {
        let names = ["a", "b", "c"];
        let lists: Vec<_> = names.into_iter().zip(lists.iter().map(|text| list(text))).collect();
        assert_eq!(merged(&Policy::BestEffort, 4, &lists).hint("a"), only(list(best)), "{lists:?}");
    }
}

#[test]
fn single_numa_node_on_a_machine_of_one_node_gives_any_node_2_5() {
    let got = merged(&Policy::SingleNumaNode, 1, &[("cpu", list("0T"))]);
    assert_eq!((got.admit, got.hint("cpu")), (true, Hint::anywhere(true)));
}

#[test]
fn best_effort_admits_an_impossible_resource_where_the_other_wants_to_be_2_5() {
    let got = merged(&Policy::BestEffort, 2, &[("cpu", list("")), ("memory", list("0T"))]);
    assert_eq!((got.admit, got.hint("cpu")), (true, only(list("0F"))));
}

#[test]
fn none_merges_nothing_2_5() {
    let got = merged(&Policy::None, 2, &[("cpu", list(""))]);
    assert_eq!((got.admit, got.hint("cpu")), (true, Hint::anywhere(false)));
}

#[test]
fn numeric_remembers_an_earlier_preferred_hint_2_6() {
    let policy = Policy::Numeric { align: ["cpu", "gpu", "memory"].map(str::to_owned).to_vec() };
    let lists = [("cpu", list("0T")), ("gpu", list("0F")), ("memory", list("0F"))];
    assert!(merged(&policy, 2, &lists).admit);
}

#[test]
fn o18_a_policy_without_a_name_is_an_error() {
    let error = Policy::named("", &[]).unwrap_err();
    assert!(error.to_string().contains("\"\" is unknown"), "{error}");
    for name in ["none", "best-effort", "restricted", "single-numa-node", "numeric"] {
        assert_eq!(Policy::named(name, &[]).unwrap().name(), name);
    }
}

#[test]
fn o17_nine_nodes_are_merged_under_every_policy() {
    let lists = [("cpu", Some(vec![Hint::on(NumaMask::only(8), true)]))];
    let align = vec!["cpu".to_owned()];
    for name in ["best-effort", "restricted", "single-numa-node", "numeric"] {
        let got = merged(&Policy::named(name, &align).unwrap(), 9, &lists);
        assert_eq!(got.hint("cpu"), Hint::on(NumaMask::only(8), true), "{name}");
    }
}

#[test]
fn a17_a_pod_without_requests_is_admitted_by_every_policy() {
    for name in ["none", "best-effort", "restricted", "single-numa-node", "numeric"] {
        let policy = Policy::named(name, &["cpu".to_owned()]).unwrap();
        for providers in [vec![], vec![Provider::new()], vec![provider(&[("cpu", None)])]] {
            assert!(merge(&policy, &on(4), &providers).unwrap().admit, "{name}: {providers:?}");
        }
    }
}

#[test]
fn minima_that_differ_are_named() {
    let providers = [provider(&[("cpu", list("01T 23T")), ("memory", list("0T 01F")), ("net", None)])];
    assert_eq!(minima(&providers), [("cpu", 2), ("memory", 1)].into());
    assert_eq!(impossible(&providers), None);
    assert_eq!(impossible(&[provider(&[("cpu", None), ("net", list(""))])]), Some("net"));
}

// === Scopes ===

/// Two nodes that hold one container each; the pod as a whole fits on both only.
#[derive(Default)]
struct TwoNodes {
    asked: usize,
    placed: Vec<Hint>,
}

impl Containers<&'static str> for TwoNodes {
    type Error = &'static str;

    fn hints(&mut self, subject: Subject<'_, &'static str>) -> Result<Vec<Provider>, Self::Error> {
        self.asked += 1;
        let hints = match subject {
            Subject::Pod(_) => list("01T"),
            Subject::Container(_) if self.placed.is_empty() => list("0T 1T 01F"),
            Subject::Container(_) if self.placed.len() == 1 => list("1T 01F"),
            Subject::Container(_) => list(""),
        };
        Ok(vec![provider(&[("cpu", hints)])])
    }

    fn place(&mut self, container: &&'static str, merged: &Merged) -> Result<(), Self::Error> {
        self.placed.push(merged.hint("cpu"));
        if *container == "broken" { Err("broken") } else { Ok(()) }
    }
}

fn aligned(scope: Scope, containers: &[&'static str]) -> (TwoNodes, Result<(), Unaligned<&'static str>>) {
    let mut pod = TwoNodes::default();
    let outcome = align(scope, &Policy::Restricted, &on(2), containers, &mut pod);
    (pod, outcome)
}

#[test]
fn container_scope_asks_for_each_after_the_one_before_has_its_place() {
    let (pod, outcome) = aligned(Scope::Container, &["one", "two"]);
    assert_eq!(outcome, Ok(()));
    assert_eq!((pod.asked, pod.placed), (2, vec![only(list("0T")), only(list("1T"))]));
}

#[test]
fn pod_scope_asks_once_and_gives_every_container_the_answer() {
    let (pod, outcome) = aligned(Scope::Pod, &["one", "two", "three"]);
    assert_eq!(outcome, Ok(()));
    assert_eq!((pod.asked, pod.placed), (1, vec![only(list("01T")); 3]));
}

#[test]
fn the_container_that_is_refused_is_named() {
    let (pod, outcome) = aligned(Scope::Container, &["one", "two", "three", "four"]);
    assert!(matches!(outcome, Err(Unaligned::Refused { container: Some(2), .. })), "{outcome:?}");
    assert_eq!(pod.placed.len(), 2);
}

#[test]
fn a_container_that_cannot_be_placed_ends_it() {
    let (pod, outcome) = aligned(Scope::Container, &["broken", "two"]);
    assert_eq!(outcome, Err(Unaligned::Other("broken")));
    assert_eq!(pod.asked, 1);
}
