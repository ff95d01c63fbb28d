//! Bound reclaimed containers.

use super::{
    super::{
        Container, Options, Refusal, Request,
        view::{Node, View},
    },
    existing,
};
use crate::{
    grouped::at_most,
    topology_manager::{Hint, Hints},
};
use oxalyst_topology::NumaMask;
use oxalyst_units::MilliCpu;
use std::cmp::Reverse;

/// Single NUMA nodes with headroom, the one where most is left first.
pub(super) fn bound(view: &View<'_>, options: &Options, request: &Request) -> Result<Hints, Refusal> {
    let headroom = |node: &Node<'_>| options.numa_headroom.get(&node.id).map_or(0, |headroom| headroom.0);
    if let (true, Some(known)) = (request.resize, existing::known(view, request)) {
        return resized(view, options, request, known);
    }
    if let Some(hints) = existing::keep(view, request) {
        return Ok(hints);
    }
    let unbound = || view.nodes.iter().filter(|node| !node.bound_reclaimed);
    let headroom_unbound: u64 = unbound().map(headroom).fold(0, u64::saturating_add);
    let spare_one = unbound().count() > 1;
    let asked_unbound = unbound_request(view);
    let spares = |node: &Node<'_>| {
        node.bound_reclaimed || spare_one || asked_unbound.0 <= headroom_unbound - headroom(node)
    };
    let mut candidates: Vec<_> = view
        .nodes
        .iter()
        .filter(|node| headroom(node) > 0 && spares(node))
        .map(|node| {
            let asked = i128::from(node.bound_reclaimed_request.0) + i128::from(request.aggregated().0);
            (node, i128::from(headroom(node)) - asked)
        })
        .collect();
    candidates
        .sort_by_key(|(node, left)| (Reverse(*left), !node.is_bound(), Reverse(headroom(node)), node.id));
    if candidates.is_empty() {
        // A machine of one node has nothing to choose.
        return if view.nodes.len() > 1 { Err(nowhere(request)) } else { Ok(None) };
    }
    let hint = |(node, left): (&Node<'_>, i128)| Hint::on(NumaMask::only(node.id), left >= 0);
    Ok(Some(candidates.into_iter().map(hint).collect()))
}

/// A container that is to have more or less: its NUMA node, if the headroom there is enough.
fn resized(
    view: &View<'_>,
    options: &Options,
    request: &Request,
    known: &Container,
) -> Result<Hints, Refusal> {
    let Some(node) = known.numa_hint.and_then(|id| view.node(id)) else { return Ok(None) };
    let headroom = options.numa_headroom.get(&node.id).copied().unwrap_or_default();
    let others = node.bound_reclaimed_request.0.saturating_sub(known.request.0);
    let asked = MilliCpu(others.saturating_add(request.aggregated().0));
    if asked <= headroom {
        return Ok(existing::only(NumaMask::only(node.id)));
    }
    Err(Refusal::insufficient(format!(
        "bound reclaimed pods on NUMA node {} would ask for {asked} CPUs and its headroom is {headroom}",
        node.id
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
