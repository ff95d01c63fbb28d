//! TakeByNUMABalance and its kin: spread what is taken evenly over the NUMA nodes.

use super::NotEnoughCpus;
use oxalyst_topology::{CpuSet, Machine};
use std::collections::BTreeMap;

/// What is spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// Whole free cores first, single CPUs for the rest (TakeByNUMABalance).
    Cores,
    /// Single CPUs only (TakeHTByNUMABalance).
    Threads,
}

/// Which end of a NUMA node is taken from. The nodes themselves are always walked in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The lowest core or CPU first.
    Lowest,
    /// The highest core or CPU first (the "Reversely" variants).
    Highest,
}

/// `need` CPUs out of `available`, walking round the NUMA nodes and taking one core or CPU of each at a time. Ties are broken
/// by id. Nothing needed is the empty set.
///
/// # Errors
/// `available` holds fewer online CPUs than needed.
pub fn take_by_numa_balance(
    machine: &Machine,
    available: &CpuSet,
    need: usize,
    spread: Spread,
    end: End,
) -> Result<CpuSet, NotEnoughCpus> {
    let mut free = available & machine.online();
    if need > free.len() {
        return Err(NotEnoughCpus { need, available: free.len() });
    }
    let mut taken = CpuSet::new();
    if spread == Spread::Cores {
        let cores = whole_cores(machine, &free);
        for core in round_robin(machine, |node| on_node(&cores, node, end)) {
            if taken.len() + core.len() <= need {
                taken |= &core;
            }
        }
        free -= &taken;
    }
    let threads = round_robin(machine, |node| threads(&(&free & node), end));
    let rest = need.saturating_sub(taken.len());
    taken.extend(threads.into_iter().take(rest));
    Ok(taken)
}

/// The first of each node, then the second of each node, and so on, as long as any node has one.
fn round_robin<T>(machine: &Machine, of_node: impl Fn(&CpuSet) -> Vec<T>) -> Vec<T> {
    let mut nodes: Vec<_> = machine.nodes().iter().map(|node| of_node(&node.cpus).into_iter()).collect();
    let mut order = Vec::new();
    loop {
        let before = order.len();
        order.extend(nodes.iter_mut().filter_map(Iterator::next));
        if order.len() == before {
            return order;
        }
    }
}

/// The cores of which every CPU is free, ascending.
fn whole_cores(machine: &Machine, free: &CpuSet) -> Vec<CpuSet> {
    let nodes = machine.nodes_of(free);
    let mut cores: BTreeMap<u32, CpuSet> = BTreeMap::new();
    for cpu in machine.cpus().iter().filter(|cpu| nodes.contains(cpu.numa)) {
        cores.entry(cpu.core).or_default().insert(cpu.id);
    }
    cores.into_values().filter(|core| core.is_subset(free)).collect()
}

fn on_node(cores: &[CpuSet], node: &CpuSet, end: End) -> Vec<CpuSet> {
    let mut whole: Vec<_> = cores.iter().filter(|core| core.is_subset(node)).cloned().collect();
    if end == End::Highest {
        whole.reverse();
    }
    whole
}

fn threads(free: &CpuSet, end: End) -> Vec<u32> {
    match end {
        End::Lowest => free.iter().collect(),
        End::Highest => free.iter().rev().collect(),
    }
}
