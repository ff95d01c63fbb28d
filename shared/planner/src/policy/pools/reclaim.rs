//! The reclaim pool: what is left, and never nothing as long as there is any CPU for it.

use super::{
    super::{
        Container, State,
        view::{blocked, bound_reclaimed, cpus_on},
    },
    share::Shares,
};
use crate::plan::{End, Spread, take_by_numa_balance};
use oxalyst_topology::{CpuSet, Machine};

/// CPUs that the reclaim pool always has, others' or not.
pub(super) fn size(machine: &Machine) -> usize {
    machine.nodes().iter().filter(|node| !node.cpus.is_empty()).count().max(4)
}

/// CPUs that the reclaim pool always has: spread over the NUMA nodes, none of them exclusive. Empty only where all CPUs are
/// exclusive or reserved.
pub(in super::super) fn reserved(state: &State, machine: &Machine) -> CpuSet {
    let exclusive = state.exclusive();
    let open = machine.online() - &blocked(state, machine);
    let always = spread(machine, &open) - &exclusive;
    if always.is_empty() { spread(machine, &(&open - &exclusive)) } else { always }
}

fn spread(machine: &Machine, from: &CpuSet) -> CpuSet {
    let need = size(machine).min(from.len());
    take_by_numa_balance(machine, from, need, Spread::Threads, End::Lowest).unwrap_or_default()
}

/// The pool: what the shared ones leave, else what it always has. Bound reclaimed containers and all others each find a CPU
/// where they may run, as far as there is any that is not exclusive.
pub(super) fn pool(state: &State, machine: &Machine, shares: &Shares) -> CpuSet {
    let always = reserved(state, machine);
    let mut pool = if shares.left.is_empty() { always.clone() } else { shares.left.clone() };
    let bound = bound_reclaimed(state);
    for node in machine.nodes().iter().filter(|node| bound.contains(node.id)) {
        if pool.is_disjoint(&node.cpus) {
            pool |= &within(state, machine, &always, &node.cpus);
        }
    }
    let others = machine.online() - &cpus_on(machine, &bound);
    let has_others = state.containers.kinds().any(Container::is_unbound_reclaimed);
    if has_others && pool.is_disjoint(&others) {
        pool |= &within(state, machine, &always, &others);
    }
    pool
}

/// What the pool always has of these CPUs, else some of them that are nobody's own.
fn within(state: &State, machine: &Machine, always: &CpuSet, cpus: &CpuSet) -> CpuSet {
    let part = always & cpus;
    if !part.is_empty() {
        return part;
    }
    let open = machine.online() - &blocked(state, machine) - &state.exclusive();
    spread(machine, &(&open & cpus))
}
