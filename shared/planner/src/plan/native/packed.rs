//! Packed: whole NUMA nodes and sockets, then whole cores, then single threads, always where least is free.

use super::groups;
use crate::plan::NotEnoughCpus;
use oxalyst_topology::{Cpu, CpuSet, Machine};

pub(super) fn take(machine: &Machine, available: &CpuSet, need: usize) -> Result<CpuSet, NotEnoughCpus> {
    let free = available & machine.online();
    if need > free.len() {
        return Err(NotEnoughCpus { need, available: free.len() });
    }
    let mut taking = Taking { machine, levels: Levels::of(machine), free, need, taken: CpuSet::new() };
    let outer = taking.outer_order();
    taking.take_whole(&outer, taking.levels.outer);
    let inner = taking.inner_order();
    taking.take_whole(&inner, taking.levels.inner);
    let cores = taking.core_order();
    taking.take_whole(&cores, |cpu| cpu.core);
    taking.take_threads();
    Ok(taking.taken)
}

/// The nodes of `machine` with CPUs in `available`, where least is free first.
pub(super) fn node_order(machine: &Machine, available: &CpuSet) -> Vec<u32> {
    let levels = Levels::of(machine);
    let nodes_first = levels.nodes_first;
    let taking = Taking { machine, levels, free: available.clone(), need: 0, taken: CpuSet::new() };
    if nodes_first { taking.outer_order() } else { taking.inner_order() }
}

/// Which of NUMA nodes and sockets contains the other.
#[derive(Clone, Copy)]
struct Levels {
    nodes_first: bool,
    outer: fn(&Cpu) -> u32,
    inner: fn(&Cpu) -> u32,
}

struct Taking<'a> {
    machine: &'a Machine,
    levels: Levels,
    free: CpuSet,
    need: usize,
    taken: CpuSet,
}

// === impl Levels ===

impl Levels {
    fn of(machine: &Machine) -> Self {
        let node: fn(&Cpu) -> u32 = |cpu| cpu.numa;
        let socket: fn(&Cpu) -> u32 = |cpu| cpu.socket;
        let count = |key| groups(machine.cpus().iter(), key).len();
        let nodes_first = count(socket) >= count(node);
        let (outer, inner) = if nodes_first { (node, socket) } else { (socket, node) };
        Self { nodes_first, outer, inner }
    }
}

// === impl Taking ===

impl Taking<'_> {
    fn take_whole(&mut self, order: &[u32], key: impl Fn(&Cpu) -> u32) {
        let whole = groups(self.machine.cpus().iter(), key);
        for cpus in order.iter().filter_map(|id| whole.get(id)) {
            if cpus.len() <= self.need && cpus.is_subset(&self.free) {
                self.take(cpus);
            }
        }
    }

    fn take_threads(&mut self) {
        for core in self.core_order() {
            let threads: Vec<u32> =
                self.free_rows().filter(|cpu| cpu.core == core).map(|cpu| cpu.id).collect();
            for cpu in threads.into_iter().take(self.need) {
                self.take(&CpuSet::only(cpu));
            }
        }
    }

    fn take(&mut self, cpus: &CpuSet) {
        self.need = self.need.saturating_sub(cpus.len());
        self.free -= cpus;
        self.taken |= cpus;
    }

    fn outer_order(&self) -> Vec<u32> {
        fewest_first(self.free_rows(), self.levels.outer)
    }

    /// The inner groups of the first outer group, then those of the second, and so on.
    fn inner_order(&self) -> Vec<u32> {
        let Levels { outer, inner, .. } = self.levels;
        let within = |id| fewest_first(self.free_rows().filter(move |cpu| outer(cpu) == id), inner);
        self.outer_order().into_iter().flat_map(within).collect()
    }

    fn core_order(&self) -> Vec<u32> {
        let inner = self.levels.inner;
        let within = |id| fewest_first(self.free_rows().filter(move |cpu| inner(cpu) == id), |cpu| cpu.core);
        self.inner_order().into_iter().flat_map(within).collect()
    }

    fn free_rows(&self) -> impl Iterator<Item = &Cpu> {
        self.machine.cpus().iter().filter(|cpu| self.free.contains(cpu.id))
    }
}

fn fewest_first<'a>(free: impl Iterator<Item = &'a Cpu>, key: impl Fn(&Cpu) -> u32) -> Vec<u32> {
    let mut groups: Vec<_> = groups(free, key).into_iter().collect();
    groups.sort_by_key(|(id, cpus)| (cpus.len(), *id));
    groups.into_iter().map(|(id, _)| id).collect()
}
