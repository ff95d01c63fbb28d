//! What the topology manager weighed, and what became of each set of NUMA nodes.

use super::Given;
use crate::{
    pods::{Merge, free_per_node},
    policy::{Lack, memory::Resource},
    topology_manager::{Hint, Nodes, Offered, Provider},
};
use oxalyst_proto::orm::v1::{DecisionCandidate, DecisionFree, DecisionMerge, DecisionResource};
use oxalyst_topology::NumaMask;
use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
};

/// Candidates that are kept of each resource.
const KEPT: usize = 16;
/// Up to so many nodes it is told how many sets of them had no room: every one of them was looked at.
const EVERY_SET: usize = 16;

/// What is free on each NUMA node.
pub(super) struct Free {
    nodes: BTreeMap<u32, (u64, Option<u64>)>,
    rows: Vec<DecisionFree>,
}

/// One resource of a merge.
struct Weighed<'a> {
    hints: &'a [Hint],
    /// What came out, and whether all prefer it.
    chosen: Option<(NumaMask, bool)>,
    nodes: &'a Nodes,
    others: Others<'a>,
}

/// The other resources of one merge.
struct Others<'a> {
    lists: Vec<Offered<'a>>,
}

// === impl Free ===

impl Free {
    pub(super) fn of(given: Given<'_>) -> Self {
        let machine = given.rules.confine(given.machine);
        let supply = given.rules.supply(&machine);
        let cpus = free_per_node(given.state, &machine);
        let row = |node: &oxalyst_topology::NumaNode| {
            let set = cpus.iter().find(|free| free.node == node.id).map(|free| free.cpus.clone());
            let set = set.unwrap_or_default();
            let known = node.has_memory && node.memory.is_some();
            let memory = known.then(|| given.state.memory.free(&supply, node.id, Resource::Memory).0);
            DecisionFree {
                node: node.id,
                cpus: u32::try_from(set.len()).unwrap_or(u32::MAX),
                cpuset: set.to_string(),
                memory_bytes: memory,
                huge_pages: node
                    .huge_pages
                    .keys()
                    .map(|size| {
                        (size.0, given.state.memory.free(&supply, node.id, Resource::HugePages(*size)).0)
                    })
                    .collect(),
            }
        };
        let rows: Vec<DecisionFree> = machine.nodes().iter().map(row).collect();
        let nodes = rows.iter().map(|row| (row.node, (u64::from(row.cpus), row.memory_bytes))).collect();
        Self { nodes, rows }
    }

    pub(super) fn rows(self) -> Vec<DecisionFree> {
        self.rows
    }

    fn on(&self, mask: &NumaMask) -> (u64, Option<u64>) {
        let amounts = mask.iter().filter_map(|node| self.nodes.get(&node));
        amounts.fold((0, Some(0)), |(cpus, memory), (more, bytes)| {
            (cpus + more, memory.zip(*bytes).map(|(sum, more)| sum.saturating_add(more)))
        })
    }
}

/// One merge as it is told.
pub(super) fn merge(given: Given<'_>, free: &Free, merge: &Merge) -> DecisionMerge {
    let nodes = given.rules.nodes(given.machine);
    let resource = |(name, hints): (&String, &Option<Vec<Hint>>)| {
        let best = merge.merged.as_ref().and_then(|merged| merged.best.as_ref()?.get(name));
        let preferred = best.is_some_and(|hint| hint.preferred);
        let chosen = best.and_then(|hint| hint.mask.clone());
        let chosen = chosen.or_else(|| every_node(&nodes, hints.as_deref()).filter(|_| preferred));
        let mut told = DecisionResource {
            resource: name.clone(),
            indifferent: hints.is_none(),
            candidates: Vec::new(),
            left_out: BTreeMap::new(),
            chosen: chosen.as_ref().map(ToString::to_string),
            chosen_preferred: preferred,
        };
        let weighed = Weighed {
            hints: hints.as_deref().unwrap_or_default(),
            chosen: chosen.map(|mask| (mask, preferred)),
            nodes: &nodes,
            others: Others::of(&merge.providers, name),
        };
        list(&mut told, free, &weighed);
        told
    };
    let lacking = merge.lacking.iter().map(|(resource, nodes)| lacking(free, resource, nodes));
    DecisionMerge {
        pod_uid: String::new(),
        container: merge.container.clone().unwrap_or_default(),
        resources: merge.providers.iter().flatten().map(resource).chain(lacking).collect(),
        admitted: merge.merged.as_ref().map(|merged| merged.admit),
    }
}

/// The nodes that a resource means that offered sets of them and came out with none in particular: `single-numa-node` says so of
/// all nodes, which a machine of one node has as a single one.
fn every_node(nodes: &Nodes, hints: Option<&[Hint]>) -> Option<NumaMask> {
    let all = nodes.all();
    let offers = hints?.iter().any(|hint| hint.preferred && hint.mask.as_ref() == Some(all));
    (offers && all.len() == 1).then(|| all.clone())
}

/// A resource for which no nodes would do.
fn lacking(free: &Free, resource: &str, nodes: &[(NumaMask, Lack)]) -> DecisionResource {
    let candidate = |(mask, lack): &(NumaMask, Lack)| {
        let (free_cpus, free_memory_bytes) = free.on(mask);
        let (nodes, verdict) = (mask.to_string(), lack.as_str().to_owned());
        DecisionCandidate { nodes, preferred: false, free_cpus, free_memory_bytes, verdict }
    };
    let mut left_out = BTreeMap::new();
    for (_, lack) in nodes.iter().skip(KEPT) {
        *left_out.entry(lack.as_str().to_owned()).or_default() += 1;
    }
    DecisionResource {
        resource: resource.to_owned(),
        indifferent: false,
        candidates: nodes.iter().take(KEPT).map(candidate).collect(),
        left_out,
        chosen: None,
        chosen_preferred: false,
    }
}

fn list(told: &mut DecisionResource, free: &Free, weighed: &Weighed<'_>) {
    let masks = weighed.hints.iter().filter_map(|hint| Some((hint.mask.as_ref()?, hint.preferred)));
    let is_chosen =
        |hint: &Hint| weighed.chosen.as_ref().is_some_and(|(mask, _)| hint.mask.as_ref() == Some(mask));
    let offers_chosen = weighed.hints.iter().any(is_chosen);
    let mut judged: Vec<_> = masks
        .map(|(mask, preferred)| (mask, preferred, verdict(weighed, offers_chosen, preferred, mask)))
        .collect();
    // Among masks of one size as the merge has them: the highest id in which they differ decides.
    judged.sort_by_cached_key(|(mask, preferred, verdict)| {
        (*verdict != "chosen", !*preferred, mask.len(), mask.iter().rev().collect::<Vec<_>>())
    });
    for (mask, preferred, verdict) in judged.iter().take(KEPT) {
        let (cpus, memory) = free.on(mask);
        told.candidates.push(DecisionCandidate {
            nodes: mask.to_string(),
            preferred: *preferred,
            free_cpus: cpus,
            free_memory_bytes: memory,
            verdict: (*verdict).to_owned(),
        });
    }
    for (_, _, verdict) in judged.iter().skip(KEPT) {
        *told.left_out.entry((*verdict).to_owned()).or_default() += 1;
    }
    let all = weighed.nodes.all();
    if !told.indifferent && all.len() <= EVERY_SET {
        let offered: BTreeSet<String> = judged
            .iter()
            .filter(|(mask, ..)| mask.is_subset(all))
            .map(|(mask, ..)| mask.to_string())
            .collect();
        let without = ((1u64 << all.len()) - 1).saturating_sub(offered.len() as u64);
        if without > 0 {
            told.left_out.insert("no-room".to_owned(), without);
        }
    }
}

fn verdict(weighed: &Weighed<'_>, offers_chosen: bool, is_preferred: bool, mask: &NumaMask) -> &'static str {
    let Some((chosen, chosen_preferred)) = &weighed.chosen else {
        return if weighed.others.share(mask, is_preferred) { "not-preferred" } else { "not-shared" };
    };
    if mask == chosen {
        return "chosen";
    }
    if chosen.is_subset(mask) && !offers_chosen {
        return "holds-chosen";
    }
    if *chosen_preferred && !is_preferred {
        return "not-preferred";
    }
    if !weighed.others.share(mask, is_preferred) {
        return "not-shared";
    }
    match mask.len().cmp(&chosen.len()) {
        Ordering::Greater => "wider",
        Ordering::Less => "narrower",
        Ordering::Equal if weighed.nodes.distance(mask) > weighed.nodes.distance(chosen) => "farther",
        Ordering::Equal => "later",
    }
}

// === impl Others ===

impl<'a> Others<'a> {
    fn of(providers: &'a [Provider], resource: &str) -> Self {
        let others = providers.iter().flatten().filter(|(name, _)| name.as_str() != resource);
        Self {
            lists: others.filter_map(|(_, hints)| hints.as_ref()).map(|hints| Offered::of(hints)).collect(),
        }
    }

    /// Whether every other resource could have these nodes as well, and would prefer them where this one does.
    fn share(&self, mask: &NumaMask, preferred: bool) -> bool {
        let would = |offered: Option<bool>| offered.is_some_and(|other| other || !preferred);
        self.lists.iter().all(|list| would(list.prefers(mask)))
    }
}
