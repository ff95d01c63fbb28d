//! The merge against an oracle that walks the whole product, and what must hold of any merge.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use oxalyst_planner::topology_manager::{
    Containers, Hint, Merged, Nodes, Policy, Provider, Scope, Subject, Unaligned, align, every_mask, merge,
};
use oxalyst_topology::{Cpu, Machine, NumaMask, NumaNode};
use proptest::prelude::*;
use std::{cmp::Ordering, collections::BTreeMap, slice::from_ref};

// === The oracle: section 2 word by word, over the product ===

type List = (String, Vec<Hint>);

fn filtered(providers: &[Provider]) -> Vec<List> {
    let mut lists = Vec::new();
    for provider in providers {
        if provider.is_empty() {
            lists.push(("*".to_owned(), vec![Hint::anywhere(true)]));
        }
        for (name, hints) in provider {
            let list = match hints.as_deref() {
                None => vec![Hint::anywhere(true)],
                Some([]) => vec![Hint::anywhere(false)],
                Some(hints) => hints.to_vec(),
            };
            lists.push((name.clone(), list));
        }
    }
    lists
}

fn product(lists: &[List]) -> Vec<Vec<Hint>> {
    lists.iter().fold(vec![Vec::new()], |prefixes, (_, list)| {
        let longer = |prefix: &Vec<Hint>| {
            list.iter().map(|hint| [prefix.as_slice(), from_ref(hint)].concat()).collect::<Vec<_>>()
        };
        prefixes.iter().flat_map(longer).collect()
    })
}

fn bits(mask: &NumaMask) -> u64 {
    mask.words().first().copied().unwrap_or(0)
}

fn narrower(machine: Option<&Machine>, a: &NumaMask, b: &NumaMask) -> bool {
    let average = |mask: &NumaMask| match machine {
        None => 0,
        Some(machine) => {
            let row = |id| machine.node(id).unwrap();
            mask.iter().flat_map(|a| mask.iter().map(move |b| row(a).distances[b as usize])).sum()
        }
    };
    (a.len(), average(a), bits(a)).cmp(&(b.len(), average(b), bits(b))) == Ordering::Less
}

fn best_of_product(all: &NumaMask, closest: Option<&Machine>, lists: &[List]) -> Hint {
    let narrowest =
        |list: &List| list.1.iter().filter_map(|hint| hint.mask.as_ref()).map(NumaMask::len).min();
    let wanted = lists.iter().filter_map(narrowest).max().unwrap_or(0);
    let mut current: Option<(NumaMask, bool)> = None;
    for permutation in product(lists) {
        let masks: Vec<&NumaMask> = permutation.iter().filter_map(|hint| hint.mask.as_ref()).collect();
        let mask = masks.iter().fold(all.clone(), |merged, mask| &merged & mask);
        let preferred =
            permutation.iter().all(|hint| hint.preferred) && masks.windows(2).all(|pair| pair[0] == pair[1]);
        if mask.is_empty() {
            continue;
        }
        let take = match &current {
            None => true,
            Some((_, was)) if *was != preferred => preferred,
            Some((best, true)) => narrower(closest, &mask, best),
            Some((best, false)) => {
                let (c, d, narrow) = (best.len(), mask.len(), narrower(closest, &mask, best));
                match c.cmp(&wanted) {
                    Ordering::Greater => narrow,
                    Ordering::Equal => d == wanted && narrow,
                    Ordering::Less => d <= wanted && (d == wanted || d > c || (d == c && narrow)),
                }
            }
        };
        if take {
            current = Some((mask, preferred));
        }
    }
    let (mask, preferred) = current.unwrap_or((all.clone(), false));
    Hint { mask: Some(mask), preferred }
}

fn numeric_of_product(align: &[String], providers: &[Provider]) -> Option<Vec<Hint>> {
    if providers.iter().flatten().any(|(_, hints)| hints.as_ref().is_some_and(Vec::is_empty)) {
        return None;
    }
    let lists = filtered(providers);
    let place = |name: &String| lists.iter().position(|(other, _)| other == name);
    let aligned: Vec<usize> = align.iter().filter_map(place).collect();
    let mut best: Option<(Vec<Hint>, usize, usize)> = None;
    for permutation in product(&lists) {
        let go_together = |pair: &[usize]| {
            let (a, b) = (&permutation[pair[0]], &permutation[pair[1]]);
            match (&a.mask, &b.mask) {
                (None, None) => a.preferred == b.preferred,
                (None, Some(_)) => a.preferred,
                (Some(_), None) => b.preferred,
                (Some(a), Some(b)) => a == b,
            }
        };
        let one_preferred = aligned.is_empty() || aligned.iter().any(|index| permutation[*index].preferred);
        let mut masks: Vec<&NumaMask> = permutation.iter().filter_map(|hint| hint.mask.as_ref()).collect();
        masks.sort_by_key(|mask| mask.len());
        let chain = masks.windows(2).all(|pair| pair[0].is_subset(pair[1]));
        if !aligned.windows(2).all(go_together) || !one_preferred || !chain {
            continue;
        }
        let others = permutation.iter().enumerate().filter(|(index, _)| !aligned.contains(index));
        let preferred = others.filter(|(_, hint)| hint.preferred).count();
        let widest = masks.last().map_or(0, |mask| mask.len());
        if best.as_ref().is_none_or(|best| preferred > best.1 || widest < best.2) {
            best = Some((permutation, preferred, widest));
        }
    }
    best.map(|(permutation, ..)| permutation)
}

fn oracle(policy: &Policy, all: &NumaMask, closest: Option<&Machine>, providers: &[Provider]) -> Merged {
    let mut lists = filtered(providers);
    let for_all = |hint: Hint, admit| {
        let named = filtered(providers).into_iter().map(|(name, _)| name);
        let mut best: BTreeMap<String, Hint> = named.map(|name| (name, hint.clone())).collect();
        if best.is_empty() {
            best.insert("*".to_owned(), hint);
        }
        Merged { admit, best: Some(best) }
    };
    match policy {
        Policy::None => Merged { admit: true, best: Some(BTreeMap::new()) },
        Policy::InCommon => panic!("has no product"),
        Policy::BestEffort => for_all(best_of_product(all, closest, &lists), true),
        Policy::Restricted => {
            let best = best_of_product(all, closest, &lists);
            let admit = best.preferred;
            for_all(best, admit)
        }
        Policy::SingleNumaNode => {
            for (_, list) in &mut lists {
                list.retain(|hint| hint.preferred && hint.mask.as_ref().is_none_or(|mask| mask.len() == 1));
            }
            let mut best = best_of_product(all, closest, &lists);
            best.mask = best.mask.filter(|mask| mask != all);
            let admit = best.preferred;
            for_all(best, admit)
        }
        Policy::Numeric { .. } if lists.is_empty() => for_all(Hint::anywhere(true), true),
        Policy::Numeric { align } => {
            let best = numeric_of_product(align, providers);
            let named = |best: Vec<Hint>| lists.iter().map(|(name, _)| name.clone()).zip(best).collect();
            Merged { admit: best.is_some(), best: best.map(named) }
        }
    }
}

/// A pod that hints by list, whatever was placed before, and keeps what each container was given.
struct Listed<'a> {
    each: &'a [Provider],
    whole: &'a Provider,
    placed: Vec<Merged>,
}

impl Containers<usize> for Listed<'_> {
    type Error = std::convert::Infallible;

    fn hints(&mut self, subject: Subject<'_, usize>) -> Result<Vec<Provider>, Self::Error> {
        Ok(vec![match subject {
            Subject::Container(index) => self.each[*index].clone(),
            Subject::Pod(_) => self.whole.clone(),
        }])
    }

    fn place(&mut self, _: &usize, merged: &Merged) -> Result<(), Self::Error> {
        self.placed.push(merged.clone());
        Ok(())
    }
}

// === Strategies ===

const NAMES: [&str; 4] = ["cpu", "gpu", "memory", "net"];

fn policies() -> Vec<Policy> {
    let aligned = |names: &[&str]| Policy::Numeric { align: names.iter().map(ToString::to_string).collect() };
    vec![
        Policy::None,
        Policy::BestEffort,
        Policy::Restricted,
        Policy::SingleNumaNode,
        aligned(&["cpu", "memory"]),
        aligned(&["memory", "net", "cpu"]),
        aligned(&["gpu"]),
        aligned(&[]),
    ]
}

/// Masks may name nodes that the machine does not have, and no nodes at all.
fn hint(ids: &'static [u32]) -> impl Strategy<Value = Hint> {
    let mask = prop::sample::subsequence(ids, 0..=ids.len()).prop_map(|ids| ids.into_iter().collect());
    let narrow = prop::sample::select(ids).prop_map(NumaMask::only);
    let mask = prop_oneof![1 => Just(None), 6 => mask.prop_map(Some), 4 => narrow.prop_map(Some)];
    (mask, any::<bool>()).prop_map(|(mask, preferred)| Hint { mask, preferred })
}

fn provider(ids: &'static [u32]) -> impl Strategy<Value = Provider> {
    let list = prop::collection::vec(hint(ids), 0..=6);
    let hints = prop_oneof![1 => Just(None), 8 => list.prop_map(Some)];
    let name = prop::sample::select(&NAMES[..]).prop_map(str::to_owned);
    prop::collection::btree_map(name, hints, 0..=4)
}

fn case(ids: &'static [u32]) -> impl Strategy<Value = (NumaMask, Provider, bool)> {
    let all = prop::sample::subsequence(ids, 1..=ids.len()).prop_map(|ids| ids.into_iter().collect());
    (all, provider(ids), prop::bool::weighted(0.2))
}

/// Two resources with at least so many of the masks of so many nodes.
fn long_lists(nodes: u32, least: usize) -> impl Strategy<Value = Vec<Vec<Hint>>> {
    let all: NumaMask = (0..nodes).collect();
    let masks = every_mask(&all, all.len());
    let list = prop::sample::subsequence(masks.clone(), least..=masks.len());
    let list = list.prop_flat_map(|masks| {
        let preferred = prop::collection::vec(prop::bool::weighted(0.1), masks.len());
        preferred.prop_map(move |preferred| {
            let hint = |(mask, preferred): (&NumaMask, bool)| Hint { mask: Some(mask.clone()), preferred };
            masks.iter().zip(preferred).map(hint).collect::<Vec<_>>()
        })
    });
    prop::collection::vec(list, 2)
}

fn four_apart(distances: &[u32]) -> Machine {
    apart(4, distances)
}

/// So many nodes; how far a is from b is one of the first n·n distances.
fn apart(n: u32, distances: &[u32]) -> Machine {
    let row = |a: u32| {
        (0..n).map(|b| if a == b { 10 } else { distances[(a.min(b) * n + a.max(b)) as usize] }).collect()
    };
    let nodes = (0..n).map(|id| NumaNode { distances: row(id), ..NumaNode::new(id) });
    let cpus = (0..n).map(|id| Cpu { id, core: id, socket: 0, numa: id, l3: None });
    Machine::new(cpus.collect(), nodes.collect()).unwrap()
}

/// Two resources that prefer nothing and have at least so many of the masks of so many nodes that are no narrower than this.
fn wide_lists(nodes: u32, narrowest: usize, least: usize) -> impl Strategy<Value = (u32, Vec<Vec<Hint>>)> {
    let all: NumaMask = (0..nodes).collect();
    let masks: Vec<NumaMask> =
        every_mask(&all, all.len()).into_iter().filter(|mask| mask.len() >= narrowest).collect();
    let list = prop::sample::subsequence(masks.clone(), least..=masks.len());
    let list = list.prop_map(|masks| masks.into_iter().map(|mask| Hint::on(mask, false)).collect::<Vec<_>>());
    prop::collection::vec(list, 2).prop_map(move |lists| (nodes, lists))
}

// === Properties ===

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn merge_equals_the_walk_over_the_product((all, provider, silent) in case(&[0, 1, 2, 3])) {
        let providers = if silent { vec![Provider::new(), provider] } else { vec![provider] };
        for policy in policies() {
            let got = merge(&policy, &Nodes::new(all.clone()), &providers).unwrap();
            prop_assert_eq!(got, oracle(&policy, &all, None, &providers), "{:?}", policy);
        }
    }

    #[test]
    fn merge_equals_the_walk_over_the_product_with_gaps_between_ids((all, provider, _) in case(&[0, 3, 7, 40, 63])) {
        for policy in policies() {
            let got = merge(&policy, &Nodes::new(all.clone()), from_ref(&provider)).unwrap();
            prop_assert_eq!(got, oracle(&policy, &all, None, from_ref(&provider)), "{:?}", policy);
        }
    }

    #[test]
    fn above_sixteen_nodes_short_lists_merge_exactly(
        (all, provider, _) in case(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19]),
    ) {
        for policy in policies() {
            let got = merge(&policy, &Nodes::new(all.clone()), from_ref(&provider)).unwrap();
            prop_assert_eq!(got, oracle(&policy, &all, None, from_ref(&provider)), "{:?}", policy);
        }
    }

    #[test]
    fn the_closest_of_equally_wide_masks_is_preferred(
        provider in provider(&[0, 1, 2, 3]),
        distances in prop::collection::vec(prop::sample::select(&[11u32, 12, 21, 31][..]), 16),
    ) {
        let machine = four_apart(&distances);
        let nodes = Nodes::of(&machine).prefer_closest(&machine);
        let providers = [provider];
        for policy in [Policy::BestEffort, Policy::Restricted, Policy::SingleNumaNode] {
            let got = merge(&policy, &nodes, &providers).unwrap();
            prop_assert_eq!(got, oracle(&policy, nodes.all(), Some(&machine), &providers), "{:?}", policy);
        }
    }

    #[test]
    fn a_pod_is_aligned_container_by_container_or_as_a_whole(
        all in prop::sample::subsequence(&[0u32, 1, 2, 3, 4, 5, 6, 7, 8, 9][..], 1..=10),
        each in prop::collection::vec(provider(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]), 1..4),
        whole in provider(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
    ) {
        let all: NumaMask = all.into_iter().collect();
        let order: Vec<usize> = (0..each.len()).collect();
        for policy in policies() {
            for scope in [Scope::Container, Scope::Pod] {
                let of = |index: &usize| match scope {
                    Scope::Container => oracle(&policy, &all, None, from_ref(&each[*index])),
                    Scope::Pod => oracle(&policy, &all, None, from_ref(&whole)),
                };
                let expected: Vec<Merged> = order.iter().map(of).collect();
                let refused = expected.iter().position(|merged| !merged.admit);
                let mut pod = Listed { each: &each, whole: &whole, placed: Vec::new() };
                let outcome = align(scope, &policy, &Nodes::new(all.clone()), &order, &mut pod);
                match (refused, outcome) {
                    (None, Ok(())) => prop_assert_eq!(pod.placed, expected),
                    (Some(at), Err(Unaligned::Refused { container, merged, .. })) => {
                        prop_assert_eq!(container, (scope == Scope::Container).then_some(at));
                        prop_assert_eq!(&merged, &expected[at]);
                        prop_assert_eq!(&pod.placed[..], &expected[..at], "{:?}", policy);
                    }
                    (refused, outcome) => prop_assert!(false, "{policy:?} {scope:?}: {refused:?}, {outcome:?}"),
                }
            }
        }
    }

    #[test]
    fn the_order_of_resources_does_not_matter((all, provider, _) in case(&[0, 1, 2, 3, 4]), shuffled in Just([2usize, 0, 3, 1]).prop_shuffle()) {
        let renamed = |name: &String| format!("{}", shuffled[NAMES.iter().position(|other| other == name).unwrap()]);
        let other: Provider = provider.iter().map(|(name, hints)| (renamed(name), hints.clone())).collect();
        for policy in [Policy::BestEffort, Policy::Restricted, Policy::SingleNumaNode] {
            let merged = |provider: &Provider| merge(&policy, &Nodes::new(all.clone()), from_ref(provider)).unwrap();
            let (one, other) = (merged(&provider), merged(&other));
            prop_assert_eq!(one.admit, other.admit);
            for name in provider.keys() {
                prop_assert_eq!(one.hint(name), other.hint(&renamed(name)));
            }
        }
    }

    #[test]
    fn merging_twice_gives_the_same((all, provider, _) in case(&[0, 1, 2, 3, 4, 5])) {
        for policy in policies() {
            let merged = || merge(&policy, &Nodes::new(all.clone()), from_ref(&provider)).unwrap();
            prop_assert_eq!(format!("{:?}", merged()), format!("{:?}", merged()));
        }
    }

    #[test]
    fn numeric_masks_form_a_chain_and_aligned_ones_are_equal(provider in provider(&[0, 1, 2, 3])) {
        let policy = Policy::Numeric { align: vec!["cpu".to_owned(), "memory".to_owned()] };
        let nodes = Nodes::new((0..4).collect());
        let merged = merge(&policy, &nodes, &[provider]).unwrap();
        let mut masks: Vec<_> = merged.best.iter().flatten().filter_map(|(_, hint)| hint.mask.clone()).collect();
        masks.sort_by_key(NumaMask::len);
        prop_assert!(masks.windows(2).all(|pair| pair[0].is_subset(&pair[1])));
        if let (Some(cpu), Some(memory)) = (merged.hint("cpu").mask, merged.hint("memory").mask) {
            prop_assert_eq!(cpu, memory);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Lists so long that masks are met by the transform and not pair by pair.
    #[test]
    fn long_lists_merge_as_the_walk_over_the_product(
        lists in prop_oneof![long_lists(4, 10), long_lists(5, 16)],
    ) {
        let all: NumaMask = lists.iter().flatten().filter_map(|hint| hint.mask.as_ref()).flat_map(NumaMask::iter).collect();
        let named = NAMES.iter().map(ToString::to_string).zip(lists.into_iter().map(Some));
        let provider: Provider = named.collect();
        for policy in policies() {
            let got = merge(&policy, &Nodes::new(all.clone()), from_ref(&provider)).unwrap();
            prop_assert_eq!(got, oracle(&policy, &all, None, from_ref(&provider)), "{:?}", policy);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Which mask wins follows from the distances, so that each mask that the transform finds wins in some case.
    #[test]
    fn of_long_lists_whichever_mask_is_the_closest_is_found(
        (nodes, lists) in prop_oneof![
            wide_lists(4, 1, 11), wide_lists(4, 2, 10), wide_lists(5, 2, 16), wide_lists(5, 1, 18),
            wide_lists(6, 3, 25),
        ],
        distances in prop::collection::vec(11u32..200, 36),
        narrow in prop::option::weighted(0.5, 0u32..6),
    ) {
        let machine = apart(nodes, &distances);
        let nodes = Nodes::of(&machine).prefer_closest(&machine);
        let mut named: Provider =
            NAMES.iter().map(ToString::to_string).zip(lists.into_iter().map(Some)).collect();
        // A third one that does not want one of the nodes cuts what the two have reached.
        if let Some(without) = narrow {
            let rest: NumaMask = nodes.all().iter().filter(|node| *node != without).collect();
            named.insert("net".to_owned(), Some(vec![Hint::on(rest, false)]));
        }
        for policy in [Policy::BestEffort, Policy::Restricted] {
            let got = merge(&policy, &nodes, from_ref(&named)).unwrap();
            prop_assert_eq!(got, oracle(&policy, nodes.all(), Some(&machine), from_ref(&named)), "{:?}", policy);
        }
    }
}

// === Size ===

/// Every mask, preferred where it is as narrow as `preferred`.
fn every_hint(nodes: &NumaMask, preferred: usize) -> Option<Vec<Hint>> {
    let hint = |mask: NumaMask| Hint { preferred: mask.len() == preferred, mask: Some(mask) };
    Some(every_mask(nodes, nodes.len()).into_iter().map(hint).collect())
}

#[test]
fn a24_k26_sixteen_nodes_with_every_mask_of_three_resources() {
    let all: NumaMask = (0..16).collect();
    let of = |preferred: [usize; 3]| -> Provider {
        let names = ["cpu", "memory", "net"].map(str::to_owned);
        names.into_iter().zip(preferred.map(|size| every_hint(&all, size))).collect()
    };
    let merged =
        |sizes| merge(&Policy::BestEffort, &Nodes::new(all.clone()), &[of(sizes)]).unwrap().hint("cpu");
    assert_eq!(merged([2, 2, 2]), Hint::on("0-1".parse().unwrap(), true));
    assert_eq!(merged([1, 2, 3]), Hint::on("0".parse().unwrap(), false));
}

#[test]
fn every_mask_lists_each_once_by_size_then_as_numbers() {
    let text: Vec<String> =
        every_mask(&"0,2-4".parse().unwrap(), 4).iter().map(ToString::to_string).collect();
    let want = "0 2 3 4 0,2 0,3 2-3 0,4 2,4 3-4 0,2-3 0,2,4 0,3-4 2-4 0,2-4";
    assert_eq!(text.join(" "), want);
    assert_eq!(every_mask(&(0..16).collect(), 16).len(), 65_535);
    assert_eq!(every_mask(&(0..32).collect(), 2).len(), 32 + 496);
}

#[test]
fn more_than_sixty_four_nodes_are_refused_with_their_number() {
    let nodes = Nodes::new((0..65).collect());
    let error = merge(&Policy::Restricted, &nodes, &[]).unwrap_err();
    assert_eq!(error.nodes, 65);
    assert!(merge(&Policy::None, &nodes, &[]).unwrap().admit);
}
