//! Containers that run already.

use super::super::{
    Container, Refusal, Request, State,
    request::{fits, whole},
    view::{View, node_of},
};
use super::dedicated::unbound_free;
use crate::topology_manager::{Hint, Hints};
use oxalyst_topology::NumaMask;
use oxalyst_units::MilliCpu;

/// The state without the request's container, if that has CPUs and they are too few for what it asks for: it is treated as one
/// that is new. `None` where the state holds as it is.
pub(super) fn outgrown(state: &State, request: &Request) -> Option<State> {
    let known = state.containers.get(&request.id)?;
    if request.resize || known.cpus.len() >= whole(request.cpu) {
        return None;
    }
    let mut without = state.clone();
    without.containers.remove(&request.id);
    Some(without)
}

/// What holds for a container that has CPUs already: where it is, and nowhere else. `None` for one that is new.
pub(super) fn keep(view: &View<'_>, request: &Request) -> Option<Hints> {
    let known = known(view, request)?;
    let mask = match known.numa_hint {
        Some(node) => NumaMask::only(node),
        None => view.machine.nodes_of(&known.cpus),
    };
    Some(only(mask))
}

/// A bound shared container that is to have more or less: its NUMA node, if the others there leave enough.
pub(super) fn resized_shared(
    view: &View<'_>,
    request: &Request,
    known: &Container,
) -> Result<Hints, Refusal> {
    if !known.is_bound_shared() {
        return Err(Refusal::invalid("a resize cannot bind a shared container to a NUMA node"));
    }
    let node = node_of(known, view.machine).and_then(|id| view.node(id));
    let node = node.ok_or_else(|| Refusal::invalid("the container to resize is on no NUMA node"))?;
    let own = known.pod_request.unwrap_or(known.request);
    let others = node.bound_shared_request.0.saturating_sub(own.0);
    let asked = MilliCpu(others.saturating_add(request.aggregated().0));
    if fits(asked, node.free.len()) {
        return Ok(only(NumaMask::only(node.id)));
    }
    Err(Refusal::insufficient(format!(
        "bound shared pods on NUMA node {} would ask for {asked} CPUs and {} are there for them",
        node.id,
        node.free.len()
    )))
}

/// A dedicated container that is to have more or less: its NUMA nodes, if there is enough beside what it has.
pub(super) fn resized_dedicated(
    view: &View<'_>,
    request: &Request,
    known: &Container,
) -> Result<NumaMask, Refusal> {
    let mask = view.machine.nodes_of(&known.cpus);
    let bound = known.wishes.numa_binding();
    let (have, place) = if bound {
        (view.free_on(&mask), format!("NUMA node(s) {mask}"))
    } else {
        (unbound_free(view), "NUMA nodes without exclusive and bound shared pods".to_owned())
    };
    let could = &have | &known.cpus;
    if fits(request.aggregated(), could.len()) {
        return Ok(mask);
    }
    Err(Refusal::insufficient(format!(
        "the container asks for {} CPUs; with the {} that it has it could have {} on {place}",
        request.aggregated(),
        known.cpus.len(),
        could.len()
    )))
}

/// The entry of the request's container, if it has CPUs.
pub(super) fn known<'a>(view: &View<'a>, request: &Request) -> Option<&'a Container> {
    view.state.containers.get(&request.id).map(|known| &**known).filter(|known| !known.cpus.is_empty())
}

/// These nodes and no others.
pub(super) fn only(mask: NumaMask) -> Hints {
    Some(vec![Hint::on(mask, true)])
}
