//! Memory under the native policy: as the kubelet's static memory manager places Guaranteed containers.

use super::{Refusal, Role, State, refuse};
use crate::{
    plan::{Reason, Rule},
    policy::{
        ContainerId,
        memory::{Resource, Supply},
    },
    topology_manager::{Hint, every_mask},
};
use oxalyst_topology::NumaMask;
use oxalyst_units::Bytes;
use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

/// Above so many nodes only masks of the smallest possible size and the next are offered.
const EVERY_MASK_NODES: usize = 16;

/// What a container may have: what is free, and what plain init containers of its pod lend it.
pub(super) struct Room<'a> {
    pub(super) state: &'a State,
    pub(super) supply: &'a Supply,
    /// Containers of the pod whose memory may be used again.
    pub(super) lenders: Vec<ContainerId>,
}

// === impl Room ===

impl<'a> Room<'a> {
    /// For a container of this pod.
    pub(super) fn of(state: &'a State, supply: &'a Supply, uid: &str) -> Self {
        let pod = state.pods.get(uid);
        let inits = pod.into_iter().flat_map(|pod| &pod.containers).filter(|c| c.role == Role::Init);
        let lenders = inits.map(|init| ContainerId::new(uid, init.name.as_str())).collect();
        Self { state, supply, lenders }
    }

    fn usable(&self, node: u32) -> u64 {
        self.state.memory.free(self.supply, node, Resource::Memory).0.saturating_add(self.lent(node))
    }

    fn lent(&self, node: u32) -> u64 {
        let taken = |id: &ContainerId| {
            let container = self.state.memory.containers.get(id)?;
            container.taken.get(&Resource::Memory)?.get(&node).map(|bytes| bytes.0)
        };
        self.lenders.iter().filter_map(taken).fold(0, u64::saturating_add)
    }

    fn capacity(&self, node: u32) -> u64 {
        self.supply.allocatable(node, Resource::Memory).0
    }

    fn room(&self, mask: &NumaMask) -> u64 {
        mask.iter().map(|node| self.usable(node)).fold(0, u64::saturating_add)
    }

    fn masks(&self, asked: Bytes) -> Vec<(NumaMask, bool)> {
        let all: NumaMask = self.supply.0.keys().copied().collect();
        let Some(least) = self.least(asked) else { return Vec::new() };
        let sizes = if all.len() > EVERY_MASK_NODES { least + 1 } else { all.len() };
        let masks = every_mask(&all, sizes).into_iter().filter(|mask| self.room(mask) >= asked.0);
        masks.map(|mask| (mask.len() == least, mask)).map(|(least, mask)| (mask, least)).collect()
    }

    /// Every set of nodes with room; preferred are those as small as the nodes' capacity allows.
    pub(super) fn hints(&self, asked: Bytes) -> Vec<Hint> {
        self.masks(asked).into_iter().map(|(mask, preferred)| Hint::on(mask, preferred)).collect()
    }

    /// On how few nodes so much could lie if all were free.
    fn least(&self, asked: Bytes) -> Option<usize> {
        let mut sizes: Vec<u64> = self.supply.0.keys().map(|node| self.capacity(*node)).collect();
        sizes.sort_unstable_by_key(|size| Reverse(*size));
        let mut held = 0u64;
        let last = sizes.iter().position(|size| {
            held = held.saturating_add(*size);
            held >= asked.0
        });
        last.map(|last| last + 1)
    }

    /// The nodes of the hint if they have room, else the fewest beside them that do, else the fewest of any.
    pub(super) fn nodes(&self, asked: Bytes, hint: Option<&NumaMask>) -> Result<NumaMask, Refusal> {
        if let Some(mask) = hint.filter(|mask| !mask.is_empty() && self.room(mask) >= asked.0) {
            return Ok(mask.clone());
        }
        let masks = self.masks(asked);
        let near = |mask: &NumaMask| hint.is_none_or(|hint| hint.is_subset(mask));
        let found = masks.iter().find(|(mask, _)| near(mask)).or(masks.first());
        found.map(|(mask, _)| mask.clone()).ok_or_else(|| self.short(asked))
    }

    pub(super) fn short(&self, asked: Bytes) -> Refusal {
        let free: Vec<_> =
            self.supply.0.keys().map(|node| format!("{} on {node}", Bytes(self.usable(*node)))).collect();
        refuse(
            Reason::Insufficient,
            Rule::MemoryRoom,
            format!("{asked} of memory is asked for; free by NUMA node: {}", free.join(", ")),
        )
    }

    /// What is taken of these nodes, from the lowest on.
    pub(super) fn taken(&self, asked: Bytes, nodes: &NumaMask) -> BTreeMap<u32, Bytes> {
        let mut rest = asked.0;
        let mut taken = BTreeMap::new();
        for node in nodes.iter() {
            let bytes = rest.min(self.usable(node));
            rest -= bytes;
            if bytes > 0 {
                taken.insert(node, Bytes(bytes));
            }
        }
        taken
    }
}

/// Takes this much off what the lenders have: it is used again.
pub(super) fn take_over(state: &mut State, lenders: &[ContainerId], taken: &BTreeMap<u32, Bytes>) {
    for (node, bytes) in taken {
        let mut rest = bytes.0;
        for id in lenders {
            let held = state
                .memory
                .containers
                .get_mut(id)
                .and_then(|container| Arc::make_mut(container).taken.get_mut(&Resource::Memory))
                .and_then(|taken| taken.get_mut(node));
            if let Some(held) = held {
                let off = rest.min(held.0);
                held.0 -= off;
                rest -= off;
            }
        }
    }
}
