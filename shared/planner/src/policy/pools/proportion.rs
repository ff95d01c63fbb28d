//! Sharing CPUs out among pools.

use crate::plan::{End, Spread, proportional, take_by_numa_balance};
use oxalyst_topology::{CpuSet, Machine};
use std::collections::BTreeMap;

/// Takes what the pools need out of the CPUs, pools ascending by name; what is left of them is given back.
pub(super) fn take_exactly(
    machine: &Machine,
    needs: &BTreeMap<String, usize>,
    available: &CpuSet,
) -> (BTreeMap<String, CpuSet>, CpuSet) {
    let mut left = available.clone();
    let mut pools = BTreeMap::new();
    for (name, need) in needs {
        let need = (*need).min(left.len());
        let cpus = take_by_numa_balance(machine, &left, need, Spread::Cores, End::Lowest).unwrap_or_default();
        left -= &cpus;
        pools.insert(name.clone(), cpus);
    }
    (pools, left)
}

/// Shares all CPUs out in proportion to what the pools need.
pub(super) fn take_in_proportion(
    machine: &Machine,
    needs: &BTreeMap<String, usize>,
    available: &CpuSet,
) -> (BTreeMap<String, CpuSet>, CpuSet) {
    let shares = proportional(needs, available.len());
    if shares.total > available.len() {
        // There are fewer CPUs than pools: every pool has all of them.
        let all = needs.keys().map(|name| (name.clone(), available.clone())).collect();
        return (all, CpuSet::new());
    }
    take_exactly(machine, &shares.sizes, available)
}
