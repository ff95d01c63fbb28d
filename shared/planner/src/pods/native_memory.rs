//! Memory under the native policy: as the kubelet's static memory manager places Guaranteed containers.

use super::{Refusal, Role, State, amounts::Amounts, refuse};
use crate::{
    plan::{Reason, Rule},
    policy::{
        ContainerId,
        memory::{Resource, Supply},
    },
    topology_manager::{Budget, EVERY_SET_NODES, Enough, Hint, every_mask, place_in_order},
};
use oxalyst_topology::{Machine, NumaMask};
use oxalyst_units::Bytes;
use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

/// Bytes by resource and NUMA node.
pub(super) type Taken = BTreeMap<Resource, BTreeMap<u32, Bytes>>;

/// What a container may have: what is free, and what plain init containers of its pod lend it.
pub(super) struct Room<'a> {
    pub(super) state: &'a State,
    pub(super) supply: &'a Supply,
    machine: &'a Machine,
    /// Containers of the pod whose memory may be used again.
    pub(super) lenders: Vec<ContainerId>,
}

// === impl Room ===

impl<'a> Room<'a> {
    /// For a container of this pod.
    pub(super) fn of(state: &'a State, supply: &'a Supply, machine: &'a Machine, uid: &str) -> Self {
        let pod = state.pods.get(uid);
        let inits = pod.into_iter().flat_map(|pod| &pod.containers).filter(|c| c.role == Role::Init);
        let lenders = inits.map(|init| ContainerId::new(uid, init.name.as_str())).collect();
        Self { state, supply, machine, lenders }
    }

    fn usable(&self, node: u32, resource: Resource) -> u64 {
        self.state.memory.free(self.supply, node, resource).0.saturating_add(self.lent(node, resource))
    }

    fn lent(&self, node: u32, resource: Resource) -> u64 {
        let taken = |id: &ContainerId| {
            let container = self.state.memory.containers.get(id)?;
            container.taken.get(&resource)?.get(&node).map(|bytes| bytes.0)
        };
        self.lenders.iter().filter_map(taken).fold(0, u64::saturating_add)
    }

    fn capacity(&self, node: u32, resource: Resource) -> u64 {
        self.supply.allocatable(node, resource).0
    }

    /// Whether these nodes have enough of every resource.
    fn fits(&self, mask: &NumaMask, asked: &Amounts) -> bool {
        Rows::of(self.supply, asked, |node, resource| self.usable(node, resource)).hold(mask)
    }

    fn masks(&self, asked: &Amounts) -> Vec<(NumaMask, bool)> {
        let all: NumaMask = self.supply.0.keys().copied().collect();
        let Some(least) = self.least(&all, asked) else { return Vec::new() };
        let masks = if all.len() > EVERY_SET_NODES {
            let (enough, ids, roomy) = self.enough(asked, |node, resource| self.usable(node, resource));
            enough.masks(&ids, least, roomy, &mut Budget::new())
        } else {
            every_mask(&all, all.len())
        };
        let usable = Rows::of(self.supply, asked, |node, resource| self.usable(node, resource));
        let masks = masks.into_iter().filter(|mask| usable.hold(mask));
        masks.map(|mask| (mask.len() == least, mask)).map(|(least, mask)| (mask, least)).collect()
    }

    /// What is asked for, and what nodes have of it, in the order in which they are tried; and those that have anything.
    fn enough(&self, asked: &Amounts, has: impl Fn(u32, Resource) -> u64) -> (Enough, Vec<u32>, NumaMask) {
        let row = |node: &u32| asked.keys().map(|resource| has(*node, *resource)).collect::<Vec<u64>>();
        let mut nodes: Vec<(u32, Vec<u64>)> = self.supply.0.keys().map(|node| (*node, row(node))).collect();
        let has_room = |row: &[u64]| row.iter().any(|bytes| *bytes > 0);
        nodes.sort_by_key(|(node, row)| place_in_order(self.machine, *node, has_room(row)));
        let roomy = nodes.iter().filter(|(_, row)| has_room(row)).map(|(node, _)| *node).collect();
        let (ids, rooms) = nodes.into_iter().unzip();
        (Enough::new(asked.values().map(|bytes| bytes.0).collect(), rooms), ids, roomy)
    }

    /// Every set of nodes with room for all that is asked for; preferred are those as small as the nodes' capacity allows. Of more
    /// than 16 nodes as many as can be looked at: see [`Enough::masks`].
    pub(super) fn hints(&self, asked: &Amounts) -> Vec<Hint> {
        self.masks(asked).into_iter().map(|(mask, preferred)| Hint::on(mask, preferred)).collect()
    }

    /// On how few nodes so much could lie if all were free.
    fn least(&self, all: &NumaMask, asked: &Amounts) -> Option<usize> {
        let mut least = 1;
        for (resource, bytes) in asked {
            least = least.max(self.least_of(*resource, *bytes)?);
        }
        if asked.len() < 2 {
            return Some(least);
        }
        if all.len() > EVERY_SET_NODES {
            return self.least_of_many(least, all, asked);
        }
        // The nodes that are large in one resource need not be large in the other.
        let capacity = Rows::of(self.supply, asked, |node, resource| self.capacity(node, resource));
        let masks = every_mask(all, all.len());
        masks.iter().find(|mask| mask.len() >= least && capacity.hold(mask)).map(NumaMask::len)
    }

    /// [`least`](Self::least) where not every set can be tried: the smallest size of which one was found.
    fn least_of_many(&self, least: usize, all: &NumaMask, asked: &Amounts) -> Option<usize> {
        let (enough, ..) = self.enough(asked, |node, resource| self.capacity(node, resource));
        let mut budget = Budget::new();
        for size in least..all.len() {
            let mut part = budget.part(all.len() - size);
            let mut found = false;
            enough.each(size..=size, &mut part, &mut |_| found = true);
            if found {
                return Some(size);
            }
            budget.spend(&part, all.len() - size);
        }
        enough.fewest().map(|_| all.len())
    }

    fn least_of(&self, resource: Resource, asked: Bytes) -> Option<usize> {
        let mut sizes: Vec<u64> = self.supply.0.keys().map(|node| self.capacity(*node, resource)).collect();
        sizes.sort_unstable_by_key(|size| Reverse(*size));
        let mut held = 0u64;
        let last = sizes.iter().position(|size| {
            held = held.saturating_add(*size);
            held >= asked.0
        });
        last.map(|last| last + 1)
    }

    /// The nodes of the hint if they have room, else the fewest beside them that do, else the fewest of any.
    pub(super) fn nodes(&self, asked: &Amounts, hint: Option<&NumaMask>) -> Result<NumaMask, Refusal> {
        if let Some(mask) = hint.filter(|mask| !mask.is_empty() && self.fits(mask, asked)) {
            return Ok(mask.clone());
        }
        let masks = self.masks(asked);
        let near = |mask: &NumaMask| hint.is_none_or(|hint| hint.is_subset(mask));
        let found = masks.iter().find(|(mask, _)| near(mask)).or(masks.first());
        found.map(|(mask, _)| mask.clone()).ok_or_else(|| self.short(asked))
    }

    /// Names what there is too little of on all nodes together, or where there is enough of each, all that is asked for.
    pub(super) fn short(&self, asked: &Amounts) -> Refusal {
        let all: NumaMask = self.supply.0.keys().copied().collect();
        let lacks = |resource: Resource, bytes: Bytes| !self.fits(&all, &[(resource, bytes)].into());
        let some = asked.iter().any(|(resource, bytes)| lacks(*resource, *bytes));
        let told = asked.iter().filter(|(resource, bytes)| !some || lacks(**resource, **bytes));
        let told: Vec<_> = told
            .map(|(resource, bytes)| {
                let usable = |node| format!("{} on {node}", Bytes(self.usable(node, *resource)));
                let free: Vec<_> = self.supply.0.keys().map(|node| usable(*node)).collect();
                format!("{bytes} of {resource} is asked for; free by NUMA node: {}", free.join(", "))
            })
            .collect();
        refuse(Reason::Insufficient, Rule::MemoryRoom, told.join("; and "))
    }

    /// What is taken of these nodes, from the lowest on.
    pub(super) fn taken(&self, asked: &Amounts, nodes: &NumaMask) -> Taken {
        let of = |(resource, bytes): (&Resource, &Bytes)| {
            let mut rest = bytes.0;
            let mut taken = BTreeMap::new();
            for node in nodes.iter() {
                let bytes = rest.min(self.usable(node, *resource));
                rest -= bytes;
                if bytes > 0 {
                    taken.insert(node, Bytes(bytes));
                }
            }
            (*resource, taken)
        };
        asked.iter().map(of).collect()
    }
}

/// What each node has of what is asked for: looked up once, since there can be very many sets of nodes.
struct Rows {
    asked: Vec<u64>,
    nodes: Vec<(u32, Vec<u64>)>,
}

// === impl Rows ===

impl Rows {
    fn of(supply: &Supply, asked: &Amounts, has: impl Fn(u32, Resource) -> u64) -> Self {
        let row = |node: &u32| (*node, asked.keys().map(|resource| has(*node, *resource)).collect());
        Self {
            asked: asked.values().map(|bytes| bytes.0).collect(),
            nodes: supply.0.keys().map(row).collect(),
        }
    }

    /// Whether these nodes have enough of every resource.
    fn hold(&self, mask: &NumaMask) -> bool {
        self.asked.iter().enumerate().all(|(at, asked)| {
            let chosen = self.nodes.iter().filter(|(node, _)| mask.contains(*node));
            chosen.filter_map(|(_, row)| row.get(at)).copied().fold(0, u64::saturating_add) >= *asked
        })
    }
}

/// Takes this much off what the lenders have: it is used again.
pub(super) fn take_over(state: &mut State, lenders: &[ContainerId], taken: &Taken) {
    for (resource, taken) in taken {
        for (node, bytes) in taken {
            let mut rest = bytes.0;
            for id in lenders {
                let held = state
                    .memory
                    .containers
                    .get_mut(id)
                    .and_then(|container| Arc::make_mut(container).taken.get_mut(resource))
                    .and_then(|taken| taken.get_mut(node));
                if let Some(held) = held {
                    let off = rest.min(held.0);
                    held.0 -= off;
                    rest -= off;
                }
            }
        }
    }
}
