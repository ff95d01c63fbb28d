//! CPUs of shared pools on which reclaimed containers may run, too.

use super::super::{
    Container, RECLAIM, State,
    state::{ISOLATION, RESIDENT},
};
use crate::plan::{End, Spread, take_by_numa_balance};
use oxalyst_qos::QosLevel;
use oxalyst_topology::{CpuSet, Machine};
use std::collections::BTreeMap;

/// Which part of each pool is shared: as much as is now, or where no pool is, what its containers do not ask for.
pub(super) fn ratios(state: &State) -> BTreeMap<String, f64> {
    let reclaim = state.pool(RECLAIM);
    let shared = |name: &str| !RESIDENT.contains(&name) && !name.starts_with(ISOLATION);
    let now: BTreeMap<_, _> = state
        .pools
        .iter()
        .filter(|(name, cpus)| shared(name) && !cpus.is_disjoint(&reclaim))
        .map(|(name, cpus)| (name.clone(), (cpus & &reclaim).len() as f64 / cpus.len() as f64))
        .collect();
    if !now.is_empty() {
        return now;
    }
    let mut idle: BTreeMap<String, f64> = BTreeMap::new();
    // One that is about to get CPUs says nothing of those that its pool leaves idle.
    let runs = |container: &Container| container.qos == QosLevel::Shared && !container.cpus.is_empty();
    for container in state.containers.values().filter(|container| runs(container)) {
        let asked = container.request.0 as f64 / (container.cpus.len() as f64 * 1000.0);
        *idle.entry(container.pool().to_owned()).or_insert(1.0) -= asked;
    }
    idle
}

/// The CPUs of the pools that reclaimed containers may run on: the highest of each.
pub(super) fn shared(
    machine: &Machine,
    pools: &BTreeMap<String, CpuSet>,
    ratios: &BTreeMap<String, f64>,
) -> CpuSet {
    let mut union = CpuSet::new();
    for (name, cpus) in pools {
        let ratio = ratios.get(name).copied().filter(|ratio| *ratio > 0.0).unwrap_or_default();
        let count = ((cpus.len() as f64 * ratio).ceil() as usize).min(cpus.len());
        union |= &take_by_numa_balance(machine, cpus, count, Spread::Cores, End::Highest).unwrap_or_default();
    }
    union
}
