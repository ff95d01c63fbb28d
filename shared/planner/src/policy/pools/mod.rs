//! Pools follow from who is there: how large they are, which CPUs they have, and who runs on them.

mod containers;
mod overlap;
mod proportion;
mod quantity;
mod reclaim;
mod share;

pub(super) use containers::{reclaim_cpus, system_cpus};
pub(super) use reclaim::reserved as reserved_reclaim;

use super::{ContainerId, Options, RECLAIM, RESERVE, Refusal, State, state::RESIDENT, view::View};
use oxalyst_topology::{CpuSet, Machine};
use quantity::Placed;
use std::collections::BTreeSet;

/// What a recomputation could not do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recomputed {
    /// Containers that are left without any CPU.
    pub starved: Vec<ContainerId>,
    /// Bound reclaimed containers that have lost their binding, because no CPU is left for them on their NUMA node.
    pub unbound: Vec<ContainerId>,
}

/// Computes all pools anew, and who runs on them; exclusive sets stay as they are.
pub fn recompute(state: &mut State, options: &Options, machine: &Machine) -> Recomputed {
    recompute_for(state, options, machine, Placed::Counted)
}

fn recompute_for(state: &mut State, options: &Options, machine: &Machine, placed: Placed<'_>) -> Recomputed {
    let shares = share::Shares::of(state, options, machine, placed);
    let reclaim = reclaim::pool(state, machine, &shares);
    let ramp_up = shares.ramp_up.clone();
    state.pools.retain(|name, _| RESIDENT.contains(&name.as_str()));
    state.pools.insert(RESERVE.to_owned(), state.reserved.clone());
    state.pools.extend(shares.pools);
    state.pools.insert(RECLAIM.to_owned(), reclaim);
    let unbound = containers::place_all(state, machine, &ramp_up);
    // What is set aside for containers that ramp up is no pool before one of them has joined it.
    let owned: BTreeSet<&str> =
        state.containers.kinds().filter_map(|container| container.owner.as_deref()).collect();
    state.pools.retain(|name, _| RESIDENT.contains(&name.as_str()) || owned.contains(name.as_str()));
    let starved = state.containers.of_kind(|container| container.cpus.is_empty());
    Recomputed { starved: starved.map(|(id, _)| id.clone()).collect(), unbound }
}

/// The same after `placed` has been put in, refused where that leaves it or a container that has CPUs without any. If it `joins`
/// its pool, that takes it in without growing; else the pool grows by what it asks for. Where all shared containers are served, that
/// is counted together with what the others ask for, so that nothing moves when the pools are next computed.
pub(super) fn recompute_strictly(
    state: &mut State,
    options: &Options,
    machine: &Machine,
    placed: &ContainerId,
    joins: bool,
) -> Result<(), Refusal> {
    let without =
        state.containers.of_kind(|container| container.cpus.is_empty()).filter(|(id, _)| *id != placed);
    let without: BTreeSet<ContainerId> = without.map(|(id, _)| id.clone()).collect();
    let counted = match joins {
        true => Placed::Joins(placed),
        false if options.serve_all => Placed::Counted,
        false => Placed::Grows(placed),
    };
    let recomputed = recompute_for(state, options, machine, counted);
    let Some(id) = recomputed.starved.iter().find(|id| !without.contains(id)) else { return Ok(()) };
    let (pod, level) = match state.containers.get(id) {
        Some(container) => (container.pod_name.as_str(), container.qos),
        None => (&*id.pod, oxalyst_qos::QosLevel::Shared),
    };
    Err(Refusal::starving(format!("pod {pod} ({level}) would be left without any CPU")))
}

/// CPUs that pools may have: free ones, on nodes that are not somebody's own.
fn available(view: &View<'_>) -> CpuSet {
    view.free_where(|node| !node.exclusive)
}
