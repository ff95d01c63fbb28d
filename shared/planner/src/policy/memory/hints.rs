//! On which NUMA nodes there is memory for a container.

use super::{
    super::{
        ContainerKind, Refusal,
        subsets::{Place, each_enough, each_subset},
    },
    Container, Options, Request, Resource, State, Supply,
};
use crate::{
    grouped::at_most,
    topology_manager::{Budget, EVERY_SET_NODES, Enough, Hint, Hints, place_in_order},
};
use oxalyst_qos::QosLevel;
use oxalyst_topology::{Machine, NumaMask, NumaNode};
use oxalyst_units::Bytes;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
};

/// The NUMA nodes that would do for one resource of the container; `None` where it has no preference or asks for none of it.
///
/// # Errors
/// There is no room, or the request contradicts itself.
pub fn hints(
    state: &State,
    options: &Options,
    supply: &Supply,
    machine: &Machine,
    request: &Request,
    resource: Resource,
) -> Result<Hints, Refusal> {
    let nothing_to_say = request.kind == ContainerKind::Init
        || request.debug
        || request.asked(resource) == 0
        || request.qos == QosLevel::System;
    if nothing_to_say {
        return Ok(None);
    }
    let taken = state.taken_by_node(resource);
    let looking = Looking { state, options, supply, machine, request, resource, taken };
    let is_main = request.kind == ContainerKind::Main;
    match (request.qos, request.wishes.numa_binding()) {
        (QosLevel::Shared, false) => looking.common().map(|()| None),
        (QosLevel::Dedicated, false) => looking.at_all().map(|()| None),
        (QosLevel::Shared | QosLevel::Dedicated, true) if is_main => looking.bound(),
        (QosLevel::Reclaimed, true) if is_main && options.reclaim_numa_binding => looking.reclaimed(),
        _ => Ok(None),
    }
}

struct Looking<'a> {
    state: &'a State,
    options: &'a Options,
    supply: &'a Supply,
    machine: &'a Machine,
    request: &'a Request,
    resource: Resource,
    /// Bytes that are taken, by node.
    taken: BTreeMap<u32, u64>,
}

/// The memory of a NUMA node as a bound container sees it.
struct Offer {
    node: u32,
    /// Its socket, as one bit; none for a node without CPUs.
    socket: u64,
    /// Bytes that it could have.
    room: u64,
}

// === impl Looking ===

impl Looking<'_> {
    /// Whether what shared containers that are not bound ask for is there, on nodes without bound pods.
    fn common(&self) -> Result<(), Refusal> {
        if !self.options.check_shared {
            return Ok(());
        }
        let common = |container: &Container| container.qos == QosLevel::Shared && !container.is_bound();
        let all: u128 = match self.resource {
            Resource::Memory => {
                let groups = self.state.containers.groups().filter(|group| common(&group.example));
                groups.map(|group| group.amount).sum()
            }
            resource => {
                let all = self.state.containers.of_kind(common);
                all.map(|(_, container)| u128::from(container.asked(resource))).sum()
            }
        };
        let own = self.state.of_pod(&self.request.id.pod).filter(|(_, container)| common(container));
        let own: u128 = own.map(|(_, container)| u128::from(container.asked(self.resource))).sum();
        let asked = at_most(all.saturating_sub(own)).saturating_add(self.request.asked(self.resource));
        let bound = self.state.bound();
        let nodes = self.supply.0.keys().filter(|node| !bound.contains(**node));
        let have: u64 = nodes.map(|node| self.free(*node)).fold(0, u64::saturating_add);
        if asked <= have {
            return Ok(());
        }
        Err(Refusal::insufficient(format!(
            "shared pods would ask for {} of {} and {} is there for them on NUMA nodes without bound pods; free by NUMA node: {}",
            Bytes(asked),
            self.resource,
            Bytes(have),
            self.free_by_node()
        )))
    }

    /// Whether the whole machine has what a dedicated container that is bound to no node asks for, whoever has taken some of it.
    fn at_all(&self) -> Result<(), Refusal> {
        let asked = self.request.asked(self.resource);
        let sizes = self.supply.0.keys().map(|node| self.supply.allocatable(*node, self.resource).0);
        let have = sizes.fold(0, u64::saturating_add);
        let runs = self.state.containers.contains_key(&self.request.id);
        if runs || self.supply.0.is_empty() || asked <= have {
            return Ok(());
        }
        Err(Refusal::insufficient(format!(
            "{} of {} is asked for and the whole machine has {}",
            Bytes(asked),
            self.resource,
            Bytes(have)
        )))
    }

    fn bound(&self) -> Result<Hints, Refusal> {
        if let Some(own) = self.known() {
            return self.keep(own);
        }
        let wishes = &self.request.wishes;
        let (number, ids) = (wishes.numa_number(self.machine)?, wishes.numa_ids(self.machine)?);
        let exclusive = wishes.numa_exclusive();
        let asked = self.request.asked(self.resource);
        let largest = self.supply.largest(self.resource).0;
        let least = if largest == 0 { usize::MAX } else { asked.div_ceil(largest).max(1) as usize };
        let nodes: Vec<&NumaNode> =
            self.machine.nodes().iter().filter(|node| self.supply.0.contains_key(&node.id)).collect();
        // As many nodes as the CPU's hints may have.
        let limit = if exclusive { nodes.len() } else { number.unwrap_or(1) };
        if least > limit {
            return Err(Refusal::insufficient(format!(
                "{} of {} would fill more than the {limit} NUMA node(s) that the container may have; the largest has {}; free by \
                 NUMA node: {}",
                Bytes(asked),
                self.resource,
                Bytes(largest),
                self.free_by_node()
            )));
        }
        let sockets: BTreeSet<u32> = nodes.iter().filter_map(|node| node.socket).collect();
        let others = exclusive.then(|| self.state.bound());
        let offers: Vec<Offer> = nodes
            .iter()
            .map(|node| Offer {
                node: node.id,
                socket: node.socket.map_or(0, |socket| 1 << (sockets.range(..socket).count() % 64)),
                room: self.free_for(node.id, others.as_ref()),
            })
            .collect();
        let mut hints = Vec::new();
        let a_socket = nodes.len() / sockets.len().max(1);
        let mut visit = |subset: &[usize]| {
            if subset.len() < least || ids.is_none() && number.is_some_and(|number| number != subset.len()) {
                return;
            }
            let chosen = || subset.iter().filter_map(|&index| offers.get(index));
            let over = chosen().fold(0u64, |bits, offer| bits | offer.socket).count_ones();
            let crosses = subset.len() <= a_socket && over > 1;
            let room = chosen().map(|offer| offer.room).fold(0, u64::saturating_add);
            if crosses || room < asked {
                return;
            }
            let mask: NumaMask = chosen().map(|offer| offer.node).collect();
            if ids.as_ref().is_none_or(|ids| *ids == mask) {
                let preferred = mask.len() == number.unwrap_or(least);
                hints.push(Hint::on(mask, preferred));
            }
        };
        if nodes.len() > EVERY_SET_NODES && limit > 1 {
            let sizes = match (&ids, number) {
                (Some(ids), _) => ids.len()..=ids.len(),
                (None, Some(number)) => number..=number,
                (None, None) => least..=limit,
            };
            self.each_roomy(&offers, ids.as_ref(), sizes, a_socket, &mut visit);
        } else {
            each_subset(nodes.len(), limit, &mut visit);
        }
        if hints.is_empty() { Err(self.nowhere()) } else { Ok(Some(hints)) }
    }

    /// Shows sets of nodes that have room of the smallest of these sizes that could do and the next, in ascending order, and that
    /// of all nodes with room. All memory of a container lies on the same nodes: sets that have room for all of it, if there are any.
    fn each_roomy(
        &self,
        offers: &[Offer],
        ids: Option<&NumaMask>,
        sizes: RangeInclusive<usize>,
        a_socket: usize,
        visit: &mut impl FnMut(&[usize]),
    ) {
        let own = (self.resource, self.request.asked(self.resource));
        let others = self.request.bytes.iter().filter(|(resource, _)| **resource != self.resource);
        let others: Vec<(Resource, BTreeMap<u32, u64>, u64)> = others
            .filter(|(_, bytes)| bytes.0 > 0)
            .map(|(resource, bytes)| (*resource, self.state.taken_by_node(*resource), bytes.0))
            .collect();
        let mut order: Vec<(usize, &Offer)> = offers.iter().enumerate().collect();
        order.retain(|(_, offer)| ids.is_none_or(|ids| ids.contains(offer.node)));
        order.sort_by_key(|(_, offer)| place_in_order(self.machine, offer.node, offer.room > 0));
        let mut shown = false;
        for others in [others.as_slice(), &[]] {
            let needs: Vec<u64> = std::iter::once(own.1).chain(others.iter().map(|other| other.2)).collect();
            let place = |(index, offer): &(usize, &Offer)| {
                let has = |(resource, taken, _): &(Resource, BTreeMap<u32, u64>, u64)| {
                    let all = self.supply.allocatable(offer.node, *resource).0;
                    all.saturating_sub(taken.get(&offer.node).copied().unwrap_or_default())
                };
                let room = std::iter::once(offer.room).chain(others.iter().map(has)).collect();
                Place { index: *index, socket: offer.socket, room }
            };
            let places: Vec<Place> = order.iter().map(place).collect();
            let rooms = places.iter().map(|place| place.room.clone()).collect();
            let Some(fewest) = Enough::new(needs.clone(), rooms).fewest() else { continue };
            let from = fewest.max(*sizes.start());
            let to = (from + 1).min(*sizes.end());
            let mut budget = Budget::new();
            for size in from..=to {
                let parts = to - size + 1;
                let mut part = budget.part(parts);
                let mut sets: Vec<Vec<usize>> = Vec::new();
                let within = size <= a_socket;
                each_enough(&places, &needs, size, within, &mut part, |set| sets.push(set.to_vec()));
                sets.sort_unstable();
                shown |= !sets.is_empty();
                sets.iter().for_each(|set| visit(set));
                budget.spend(&part, parts);
            }
            let roomy: Vec<usize> =
                offers.iter().enumerate().filter(|(_, o)| o.room > 0).map(|(i, _)| i).collect();
            if sizes.start() != sizes.end() && roomy.len() > to {
                shown = true;
                visit(&roomy);
            }
            if shown || others.is_empty() {
                return;
            }
        }
    }

    /// One that has its nodes already stays on them, if there is enough.
    fn keep(&self, own: &NumaMask) -> Result<Hints, Refusal> {
        let asked = self.request.asked(self.resource);
        let before =
            self.state.containers.get(&self.request.id).map_or(0, |known| known.asked(self.resource));
        let room: u64 = own.iter().map(|node| self.free(node)).fold(self.own_bytes(), u64::saturating_add);
        if self.request.resize && asked > before && asked > room {
            return Err(Refusal::insufficient(format!(
                "the container asks for {} of {}; with what it has it could have {} on NUMA node(s) {own}",
                Bytes(asked),
                self.resource,
                Bytes(room)
            )));
        }
        Ok(Some(vec![Hint::on(own.clone(), true)]))
    }

    /// Single nodes with headroom, the one where most is left first.
    fn reclaimed(&self) -> Result<Hints, Refusal> {
        if let Some(own) = self.known() {
            return Ok(Some(vec![Hint::on(own.clone(), true)]));
        }
        let asked = i128::from(self.request.asked(self.resource));
        let mut left: Vec<(u32, i128)> = self
            .options
            .numa_headroom
            .iter()
            .filter(|(node, headroom)| headroom.0 > 0 && self.supply.0.contains_key(*node))
            .map(|(node, headroom)| (*node, i128::from(headroom.0) - self.reclaimed_on(*node) - asked))
            .collect();
        left.sort_by_key(|(node, left)| (Reverse(*left), *node));
        if left.is_empty() {
            return if self.supply.0.len() > 1 { Err(self.nowhere()) } else { Ok(None) };
        }
        Ok(Some(left.into_iter().map(|(node, left)| Hint::on(NumaMask::only(node), left >= 0)).collect()))
    }

    fn reclaimed_on(&self, node: u32) -> i128 {
        let is_on = |nodes: &NumaMask| nodes.contains(node);
        let is_here = |container: &Container| {
            container.qos == QosLevel::Reclaimed && container.bound_to.as_ref().is_some_and(is_on)
        };
        let here = self.state.containers.of_kind(is_here);
        here.map(|(_, container)| i128::from(container.asked(self.resource))).sum()
    }

    /// The nodes that the container is bound to already.
    fn known(&self) -> Option<&NumaMask> {
        self.state.containers.get(&self.request.id).and_then(|known| known.bound_to.as_ref())
    }

    fn own_bytes(&self) -> u64 {
        let known = self.state.containers.get(&self.request.id);
        let taken = known.and_then(|known| known.taken.get(&self.resource));
        taken.map_or(0, |taken| taken.values().map(|bytes| bytes.0).fold(0, u64::saturating_add))
    }

    fn taken(&self, node: u32) -> u64 {
        self.taken.get(&node).copied().unwrap_or_default()
    }

    fn free(&self, node: u32) -> u64 {
        self.supply.allocatable(node, self.resource).0.saturating_sub(self.taken(node))
    }

    /// An exclusive container can have nothing of a node that others have taken from, or are bound to.
    fn free_for(&self, node: u32, others: Option<&NumaMask>) -> u64 {
        let is_others = others.is_some_and(|others| others.contains(node) || self.taken(node) > 0);
        if is_others { 0 } else { self.free(node) }
    }

    fn nowhere(&self) -> Refusal {
        Refusal::insufficient(format!(
            "no set of NUMA nodes gives {} of {} as asked; free by NUMA node: {}",
            Bytes(self.request.asked(self.resource)),
            self.resource,
            self.free_by_node()
        ))
    }

    fn free_by_node(&self) -> String {
        let free = self.supply.0.keys().map(|node| format!("{} on {node}", Bytes(self.free(*node))));
        free.collect::<Vec<_>>().join(", ")
    }
}
