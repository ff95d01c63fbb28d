//! Dedicated containers.

use super::{
    super::{
        Options, Refusal, Request,
        request::{fits, whole},
        subsets::{Place, each_enough, each_subset},
        view::{Node, View},
    },
    eligible::{Hindrance, weighed},
    existing,
    preference::prefer_existing,
    remembered,
};
use crate::topology_manager::{Budget, EVERY_SET_NODES, Enough, Hint, Hints, place_in_order};
use oxalyst_topology::{CpuSet, NumaMask};
use oxalyst_units::MilliCpu;
use std::collections::{BTreeMap, BTreeSet};

/// What is asked, understood.
struct Asked {
    request: MilliCpu,
    /// Whole CPUs of the request.
    cpus: usize,
    /// NUMA nodes of average size that would hold it.
    least: usize,
    exclusive: bool,
    number: Option<usize>,
    ids: Option<NumaMask>,
    even: bool,
    paired: bool,
    by_socket: bool,
}

/// A NUMA node as a dedicated container sees it.
struct Offer {
    node: u32,
    /// Its socket, as one bit.
    socket: u64,
    /// What of it can be had: not what bound shared pods there ask for.
    room: MilliCpu,
    whole_cores: usize,
    /// What keeps the container from it, and what could be had otherwise.
    hindrance: Option<(Hindrance, MilliCpu)>,
}

/// Sizes of the machine, on average, as integer arithmetic has them.
struct Sizes {
    nodes: usize,
    nodes_a_socket: usize,
    cpus_a_socket: usize,
    cpus_a_core: usize,
}

/// A container that is bound to no node has no preference, if there is room.
pub(super) fn unbound(view: &View<'_>, request: &Request) -> Result<Hints, Refusal> {
    if let Some(known) = existing::known(view, request) {
        if request.resize {
            existing::resized_dedicated(view, request, known)?;
        }
        return Ok(None);
    }
    let free = unbound_free(view).len();
    if fits(request.aggregated(), free) {
        return Ok(None);
    }
    Err(Refusal::insufficient(format!(
        "{} CPUs are asked for and {free} are free on NUMA nodes without exclusive and bound shared pods",
        request.aggregated()
    )))
}

/// What an unbound dedicated container may have: it keeps off nodes that are somebody's own, and those of bound shared pods.
pub(in super::super) fn unbound_free(view: &View<'_>) -> CpuSet {
    view.free_where(|node| !node.exclusive && !node.bound_shared)
}

/// Every set of NUMA nodes that would do, the smaller first. Of more than 16 nodes: sets of the smallest size with room and the next,
/// as many as can be looked at, and that of all nodes with room.
pub(super) fn bound(view: &View<'_>, options: &Options, request: &Request) -> Result<Hints, Refusal> {
    if let (true, Some(known)) = (request.resize, existing::known(view, request)) {
        return existing::resized_dedicated(view, request, known).map(existing::only);
    }
    if let Some(hints) = existing::keep(view, request) {
        return Ok(hints);
    }
    let sizes = Sizes::of(view);
    let asked = Asked::of(view, request, &sizes)?;
    let offers = offers(view, request, &asked);
    let mut hints = Vec::new();
    let mut least_affinity = None;
    let mut chosen: Vec<&Offer> = Vec::new();
    let mut visit = |subset: &[usize]| {
        chosen.clear();
        chosen.extend(subset.iter().filter_map(|&index| offers.get(index)));
        if !asked.has_room(&chosen) {
            return;
        }
        // Sizes ascend: the first that has room is the least, whether or not that set is well shaped.
        let least = *least_affinity.get_or_insert(chosen.len());
        if asked.is_well_shaped(&chosen, &sizes) {
            let mask = chosen.iter().map(|offer| offer.node).collect();
            hints.push(Hint::on(mask, chosen.len() == asked.number.unwrap_or(least)));
        }
    };
    let mut cut = false;
    match asked.may_span() {
        false => each_subset(offers.len(), 1, &mut visit),
        true if sizes.nodes > EVERY_SET_NODES => {
            cut = asked.each_roomy(view, &offers, &sizes, &mut visit);
        }
        true => each_subset(offers.len(), sizes.nodes, &mut visit),
    }
    if hints.is_empty() {
        return Err(asked.nowhere(&offers, cut));
    }
    if asked.exclusive {
        remembered::prefer(view.state, request, &mut hints);
    } else {
        prefer_existing(options, request, &mut hints)?;
    }
    Ok(Some(hints))
}

fn offers(view: &View<'_>, request: &Request, asked: &Asked) -> Vec<Offer> {
    let mut cores: BTreeMap<u32, usize> = BTreeMap::new();
    for cpu in view.machine.cpus() {
        *cores.entry(cpu.core).or_default() += 1;
    }
    let sockets: BTreeSet<u32> = view.nodes.iter().map(|node| node.socket).collect();
    let offer = |(node, hindrance): (&Node<'_>, Option<Hindrance>)| {
        let socket = sockets.range(..node.socket).count() % 64;
        let taken = asked.exclusive && node.allocated;
        let could = MilliCpu(if taken { 0 } else { node.unasked() });
        let hindrance = hindrance.map(|hindrance| (hindrance, could));
        let room = if hindrance.is_some() { MilliCpu(0) } else { could };
        let mut free_of: BTreeMap<u32, usize> = BTreeMap::new();
        for cpu in node.free.iter().filter_map(|id| view.machine.cpu(id)) {
            *free_of.entry(cpu.core).or_default() += 1;
        }
        let whole_cores = free_of.iter().filter(|(core, free)| cores.get(core) == Some(free)).count();
        Offer { node: node.id, socket: 1 << socket, room, whole_cores, hindrance }
    };
    // An exclusive container would take the node from under bound shared pods.
    let weighed = weighed(view, request).into_iter();
    weighed.filter(|(node, _)| !(asked.exclusive && node.bound_shared)).map(offer).collect()
}

// === impl Sizes ===

impl Sizes {
    fn of(view: &View<'_>) -> Self {
        let cpus = view.machine.cpus();
        let distinct = |ids: Vec<u32>| ids.into_iter().collect::<BTreeSet<_>>().len().max(1);
        let sockets = distinct(cpus.iter().map(|cpu| cpu.socket).collect());
        let cores = distinct(cpus.iter().map(|cpu| cpu.core).collect());
        let nodes = view.nodes.len().max(1);
        Self {
            nodes,
            nodes_a_socket: (nodes / sockets).max(1),
            cpus_a_socket: (cpus.len() / sockets).max(1),
            cpus_a_core: (cpus.len() / cores).max(1),
        }
    }

    fn cpus_a_node(&self, view: &View<'_>) -> usize {
        view.machine.cpus().len().div_ceil(self.nodes).max(1)
    }
}

// === impl Asked ===

impl Asked {
    fn of(view: &View<'_>, request: &Request, sizes: &Sizes) -> Result<Self, Refusal> {
        let wishes = &request.wishes;
        let least = whole(request.aggregated()).div_ceil(sizes.cpus_a_node(view)).max(1);
        if least > sizes.nodes {
            return Err(Self::too_much(request.aggregated(), least, sizes.nodes, view, sizes));
        }
        let asked = Self {
            request: request.aggregated(),
            cpus: usize::try_from(request.aggregated().0 / 1000).unwrap_or(usize::MAX),
            least,
            exclusive: wishes.numa_exclusive(),
            number: wishes.numa_number(view.machine)?,
            ids: wishes.numa_ids(view.machine)?,
            even: wishes.distribute_evenly(),
            paired: wishes.full_pcpus_pairing(),
            by_socket: wishes.align_by_socket(),
        };
        wishes.agree()?;
        if asked.least > 1 && !asked.may_span() {
            return Err(Self::too_much(asked.request, asked.least, 1, view, sizes));
        }
        Ok(asked)
    }

    fn too_much(request: MilliCpu, least: usize, limit: usize, view: &View<'_>, sizes: &Sizes) -> Refusal {
        Refusal::insufficient(format!(
            "{request} CPUs would fill {least} NUMA nodes of {} CPUs, and the container may have {limit}",
            sizes.cpus_a_node(view)
        ))
    }

    fn may_span(&self) -> bool {
        self.exclusive || self.number.is_some_and(|number| number > 1)
    }

    fn has_room(&self, chosen: &[&Offer]) -> bool {
        let room: u64 = chosen.iter().map(|offer| offer.room.0).fold(0, u64::saturating_add);
        chosen.len() >= self.least && self.request.0 <= room
    }

    fn is_well_shaped(&self, chosen: &[&Offer], sizes: &Sizes) -> bool {
        let size = chosen.len();
        let sockets = chosen.iter().fold(0, |bits, offer| bits | offer.socket).count_ones() as usize;
        if size <= sizes.nodes_a_socket && sockets > 1 {
            return false;
        }
        let whole_cores = || chosen.iter().map(|offer| offer.whole_cores).sum::<usize>();
        let aligned = !self.by_socket || sockets == self.cpus.div_ceil(sizes.cpus_a_socket);
        let even = !self.even || self.is_even(chosen, sizes);
        let paired = !self.paired || self.even || whole_cores() >= self.cpus / sizes.cpus_a_core;
        let named = match (&self.ids, self.number) {
            (Some(ids), _) => ids.iter().eq(chosen.iter().map(|offer| offer.node)),
            (None, Some(number)) => number == size,
            (None, None) => true,
        };
        aligned && even && paired && named
    }

    /// Whether every node gives the same, in whole cores if the container wants those.
    fn is_even(&self, chosen: &[&Offer], sizes: &Sizes) -> bool {
        let share = self.cpus / chosen.len();
        let gives = |offer: &&Offer| {
            let room = offer.room.0.saturating_mul(chosen.len() as u64);
            room >= self.request.0 && (!self.paired || offer.whole_cores >= share / sizes.cpus_a_core)
        };
        self.cpus.is_multiple_of(chosen.len()) && chosen.iter().all(gives)
    }

    /// Shows sets that have room of the smallest size that could do and the next, in ascending order, and that of all nodes with
    /// room. Whether others that have room were left out.
    fn each_roomy(
        &self,
        view: &View<'_>,
        offers: &[Offer],
        sizes: &Sizes,
        visit: &mut impl FnMut(&[usize]),
    ) -> bool {
        // Whole cores matter where the set must have them together; where it is shared out, each node must have its part.
        let in_cores = self.paired && !self.even;
        let cores = if in_cores { self.cpus / sizes.cpus_a_core } else { 0 };
        let needs = [self.request.0, cores as u64];
        let mut order: Vec<(usize, &Offer)> = offers.iter().enumerate().collect();
        order.retain(|(_, offer)| self.ids.as_ref().is_none_or(|ids| ids.contains(offer.node)));
        order.sort_by_key(|(_, offer)| place_in_order(view.machine, offer.node, offer.room.0 > 0));
        let places = |fits: &dyn Fn(&Offer) -> bool| -> Vec<Place> {
            let fitting = order.iter().filter(|(_, offer)| fits(offer));
            let place = |(index, offer): &(usize, &Offer)| Place {
                index: *index,
                socket: offer.socket,
                room: vec![offer.room.0, offer.whole_cores as u64],
            };
            fitting.map(place).collect()
        };
        let rooms = places(&|_| true).into_iter().map(|place| place.room).collect();
        let Some(fewest) = Enough::new(needs.to_vec(), rooms).fewest() else { return false };
        let smallest = fewest.max(self.least);
        let (from, to) = match (&self.ids, self.number) {
            (Some(ids), _) => (ids.len(), ids.len()),
            (None, Some(number)) => (number, number),
            // Equal shares may need more nodes than there would have to be.
            (None, None) if self.even => (smallest, offers.len()),
            (None, None) => (smallest, smallest + 1),
        };
        let mut budget = Budget::new();
        let to = to.min(order.len());
        for size in from..=to {
            let parts = to - size + 1;
            let mut part = budget.part(parts);
            let gives = |offer: &Offer| !self.even || self.is_even(&vec![offer; size], sizes);
            let mut sets: Vec<Vec<usize>> = Vec::new();
            let within = size <= sizes.nodes_a_socket;
            each_enough(&places(&gives), &needs, size, within, &mut part, |set| sets.push(set.to_vec()));
            sets.sort_unstable();
            sets.iter().for_each(|set| visit(set));
            budget.spend(&part, parts);
        }
        let roomy: Vec<usize> =
            offers.iter().enumerate().filter(|(_, offer)| offer.room.0 > 0).map(|(index, _)| index).collect();
        if self.number.is_none() && self.ids.is_none() && roomy.len() > to {
            visit(&roomy);
        }
        budget.cut
    }

    fn nowhere(&self, offers: &[Offer], cut: bool) -> Refusal {
        let words = |offer: &Offer| match &offer.hindrance {
            Some((why, _)) => format!("{} on {} ({why})", offer.room, offer.node),
            None => format!("{} on {}", offer.room, offer.node),
        };
        let free: Vec<_> = offers.iter().map(words).collect();
        let free = if free.is_empty() { "none".to_owned() } else { free.join(", ") };
        let cut = if cut { " (not every set was tried: there are too many)" } else { "" };
        let message = format!(
            "no set of NUMA nodes gives {} CPUs as asked{cut}; CPUs for this pod by NUMA node: {free}",
            self.request
        );
        // What there would be if shared pods did not need a node for themselves.
        let could = offers.iter().filter_map(|offer| match offer.hindrance {
            Some((Hindrance::SharedPods { .. }, could)) => Some(could.0),
            Some((Hindrance::Neighbour, _)) => None,
            None => Some(offer.room.0),
        });
        let most =
            if self.may_span() { could.fold(0, u64::saturating_add) } else { could.max().unwrap_or(0) };
        let spared =
            offers.iter().any(|offer| matches!(offer.hindrance, Some((Hindrance::SharedPods { .. }, _))));
        if spared && most >= self.request.0 {
            Refusal::starving(message)
        } else {
            Refusal::insufficient(message)
        }
    }
}
