//! TakeByNUMABalance and its kin: spread what is taken evenly over the NUMA nodes.

use super::NotEnoughCpus;
use oxalyst_topology::{CpuSet, Machine, NumaNode};
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
    let mut rest = need;
    if spread == Spread::Cores && need > 0 {
        let mut cores = whole_cores(machine, &free);
        for core in round_robin(machine, |node| on_node(&mut cores, node, end)) {
            if core.len() <= rest {
                rest -= core.len();
                taken |= &core;
            }
        }
        free -= &taken;
    }
    if rest == 0 {
        return Ok(taken);
    }
    let threads = round_robin(machine, |node| threads(&(&free & &node.cpus), end));
    taken.extend(threads.into_iter().take(rest));
    Ok(taken)
}

/// The first of each node, then the second of each node, and so on, as long as any node has one.
fn round_robin<T>(machine: &Machine, of_node: impl FnMut(&NumaNode) -> Vec<T>) -> Vec<T> {
    let mut nodes: Vec<_> = machine.nodes().iter().map(of_node).map(Vec::into_iter).collect();
    let mut order = Vec::new();
    loop {
        let before = order.len();
        order.extend(nodes.iter_mut().filter_map(Iterator::next));
        if order.len() == before {
            return order;
        }
    }
}

/// The cores of which every CPU is free, ascending, by the NUMA node that they lie in.
fn whole_cores(machine: &Machine, free: &CpuSet) -> BTreeMap<u32, Vec<CpuSet>> {
    let mut rows: Vec<_> = machine.cpus().iter().map(|cpu| (cpu.core, cpu.numa, cpu.id)).collect();
    rows.sort_unstable();
    let mut whole: BTreeMap<u32, Vec<CpuSet>> = BTreeMap::new();
    for core in rows.chunk_by(|a, b| a.0 == b.0) {
        let Some((_, node, _)) = core.first() else { continue };
        if core.iter().all(|(_, numa, id)| numa == node && free.contains(*id)) {
            whole.entry(*node).or_default().push(core.iter().map(|(.., id)| *id).collect());
        }
    }
    whole
}

fn on_node(cores: &mut BTreeMap<u32, Vec<CpuSet>>, node: &NumaNode, end: End) -> Vec<CpuSet> {
    let mut whole = cores.remove(&node.id).unwrap_or_default();
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
