//! Bound reclaimed containers.

use super::{
    super::{
        Container, Options, Refusal, Request,
        view::{Node, View, cpus_on},
    },
    existing,
    preference::prefer_existing,
};
use crate::{
    grouped::at_most,
    topology_manager::{Hint, Hints},
};
use oxalyst_qos::QosLevel;
use oxalyst_topology::NumaMask;
use oxalyst_units::MilliCpu;
use std::cmp::Reverse;

/// Single NUMA nodes with headroom, the one where most is left first.
pub(super) fn bound(view: &View<'_>, options: &Options, request: &Request) -> Result<Hints, Refusal> {
    if let (true, Some(known)) = (request.resize, existing::known(view, request)) {
        return resized(view, options, request, known);
    }
    if let Some(hints) = existing::keep(view, request) {
        return Ok(hints);
    }
    let mut candidates: Vec<_> = candidates(view, options)
        .into_iter()
        .map(|node| {
            let asked = i128::from(node.bound_reclaimed_request.0) + i128::from(request.aggregated().0);
            (node, i128::from(headroom(options, node)) - asked)
        })
        .collect();
    candidates.sort_by_key(|(_, left)| Reverse(*left));
    if candidates.is_empty() {
        // A machine of one node that no bound one is on has nothing to choose.
        let choice = view.nodes.len() > 1 || view.nodes.iter().any(|node| node.bound_reclaimed);
        return if choice { Err(nowhere(request)) } else { Ok(None) };
    }
    let hint = |(node, left): (&Node<'_>, i128)| Hint::on(NumaMask::only(node.id), left >= 0);
    let mut hints: Vec<_> = candidates.into_iter().map(hint).collect();
    prefer_existing(options, request, &mut hints)?;
    Ok(Some(hints))
}

/// The nodes with headroom, those of other bound pods first, then those with more of it. Reclaimed containers that are not bound
/// keep a node without bound ones: where what they ask for does not fit beside a node, it is offered only if another such node
/// is left that has not been offered.
fn candidates<'v, 'a>(view: &'v View<'a>, options: &Options) -> Vec<&'v Node<'a>> {
    let unbound = || view.nodes.iter().filter(|node| !node.bound_reclaimed);
    let headroom_unbound: u64 = unbound().map(|node| headroom(options, node)).fold(0, u64::saturating_add);
    let asked_unbound = unbound_request(view);
    let mut left = unbound().count();
    let mut nodes: Vec<_> = view.nodes.iter().filter(|node| headroom(options, node) > 0).collect();
    nodes.sort_by_key(|node| (!node.is_bound(), Reverse(headroom(options, node)), node.id));
    nodes.retain(|node| {
        let fits = || asked_unbound.0 <= headroom_unbound.saturating_sub(headroom(options, node));
        let offered = node.bound_reclaimed || left > 1 || fits();
        left -= usize::from(offered && !node.bound_reclaimed);
        offered
    });
    nodes
}

/// CPUs of the node that reclaimed containers may use, in thousandths.
fn headroom(options: &Options, node: &Node<'_>) -> u64 {
    options.numa_headroom.get(&node.id).map_or(0, |headroom| headroom.0)
}

/// A container that is to have more or less: its NUMA nodes, if the headroom there is enough for more.
fn resized(
    view: &View<'_>,
    options: &Options,
    request: &Request,
    known: &Container,
) -> Result<Hints, Refusal> {
    let mask = view.machine.nodes_of(&known.cpus);
    if request.aggregated() <= known.request {
        return Ok(existing::only(mask));
    }
    let on = || view.nodes.iter().filter(|node| mask.contains(node.id));
    let there = on().map(|node| headroom(options, node)).fold(0, u64::saturating_add);
    let cpus = cpus_on(view.machine, &mask);
    let neighbour =
        |container: &Container| container.qos == QosLevel::Reclaimed && !container.cpus.is_disjoint(&cpus);
    let groups = view.state.containers.groups().filter(|group| neighbour(&group.example));
    let all: u128 = groups.map(|group| group.amount).sum();
    let others = at_most(all.saturating_sub(u128::from(known.request.0)));
    let asked = MilliCpu(others.saturating_add(request.aggregated().0));
    if asked.0 <= there {
        return Ok(existing::only(mask));
    }
    Err(Refusal::insufficient(format!(
        "reclaimed pods on NUMA node(s) {mask} would ask for {asked} CPUs and the headroom there is {}",
        MilliCpu(there)
    )))
}

/// What reclaimed containers that are not bound ask for.
fn unbound_request(view: &View<'_>) -> MilliCpu {
    let unbound = view.state.containers.groups().filter(|group| group.example.is_unbound_reclaimed());
    MilliCpu(at_most(unbound.map(|group| group.amount).sum()))
}

fn nowhere(request: &Request) -> Refusal {
    Refusal::insufficient(format!(
        "no NUMA node has headroom for {} CPUs of a bound reclaimed pod",
        request.aggregated()
    ))
}
