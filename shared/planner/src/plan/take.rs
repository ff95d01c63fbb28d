//! TakeByTopology: whole sockets, then (if aligned) whole L3 groups, then whole cores, then single threads.

use super::NotEnoughCpus;
use oxalyst_topology::{Cpu, CpuSet, Machine};
use std::collections::BTreeMap;

/// Whether L3 groups are respected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum L3 {
    /// Take whole groups, and the rest out of one group that is as small as possible.
    Aligned,
    /// Sockets, cores and threads only.
    Ignored,
}

/// `need` CPUs out of `available` that lie as close together as possible and break up as little as possible. Ties are broken
/// by id. Nothing needed is the empty set.
///
/// # Errors
/// `available` holds fewer online CPUs than needed.
pub fn take_by_topology(
    machine: &Machine,
    available: &CpuSet,
    need: usize,
    l3: L3,
) -> Result<CpuSet, NotEnoughCpus> {
    let mut taking = Taking::new(machine, available, need)?;
    taking.whole_sockets();
    if l3 == L3::Aligned {
        taking.l3_groups();
    }
    taking.whole_cores();
    taking.threads();
    Ok(taking.taken)
}

/// What is left to take, where, and what has been taken.
struct Taking<'a> {
    machine: &'a Machine,
    free: CpuSet,
    need: usize,
    taken: CpuSet,
}

// === impl Taking ===

impl<'a> Taking<'a> {
    fn new(machine: &'a Machine, available: &CpuSet, need: usize) -> Result<Self, NotEnoughCpus> {
        let free = available & machine.online();
        if need > free.len() {
            return Err(NotEnoughCpus { need, available: free.len() });
        }
        Ok(Self { machine, free, need, taken: CpuSet::new() })
    }

    fn take(&mut self, cpus: &CpuSet) {
        self.need = self.need.saturating_sub(cpus.len());
        self.free -= cpus;
        self.taken |= cpus;
    }

    /// Takes the group if all of it is free and needed.
    fn take_whole(&mut self, whole: &CpuSet) {
        if whole.is_subset(&self.free) && self.need >= whole.len() {
            self.take(whole);
        }
    }

    fn whole_sockets(&mut self) {
        let sockets = groups(self.machine.cpus().iter(), |cpu| cpu.socket);
        for socket in self.fewest_free_first(sockets) {
            self.take_whole(&socket);
        }
    }

    fn l3_groups(&mut self) {
        while self.need > 0 {
            let groups = groups(self.free_rows(), |cpu| cpu.l3);
            let exact = groups.values().find(|group| group.len() == self.need);
            // `min_by_key` gives the first of equals and `max_by_key` the last, hence the reversed walk.
            let larger =
                || groups.values().filter(|group| group.len() > self.need).min_by_key(|group| group.len());
            let largest = || groups.values().rev().max_by_key(|group| group.len());
            let Some(group) = exact.or_else(larger).or_else(largest) else { return };
            if self.need < group.len() {
                self.free = group.clone();
                return;
            }
            self.take(group);
        }
    }

    fn whole_cores(&mut self) {
        let whole = groups(self.machine.cpus().iter(), |cpu| cpu.core);
        for core in self.core_names() {
            if let Some(core) = whole.get(&core) {
                self.take_whole(core);
            }
        }
    }

    fn threads(&mut self) {
        let free = groups(self.free_rows(), |cpu| cpu.core);
        for cpu in self.core_names().iter().filter_map(|core| free.get(core)).flat_map(CpuSet::iter) {
            if self.need == 0 {
                return;
            }
            self.take(&CpuSet::only(cpu));
        }
    }

    /// Cores with free CPUs: by socket, within it by core, each with the fewest free CPUs first, then by id.
    fn core_names(&self) -> Vec<u32> {
        let mut order = Vec::new();
        let mut sockets: Vec<_> = groups(self.free_rows(), |cpu| cpu.socket).into_iter().collect();
        sockets.sort_by_key(|(id, cpus)| (cpus.len(), *id));
        for (socket, _) in sockets {
            let rows = self.free_rows().filter(|cpu| cpu.socket == socket);
            let mut cores: Vec<_> = groups(rows, |cpu| cpu.core).into_iter().collect();
            cores.sort_by_key(|(id, cpus)| (cpus.len(), *id));
            order.extend(cores.into_iter().map(|(id, _)| id));
        }
        order
    }

    fn free_rows(&self) -> impl Iterator<Item = &'a Cpu> {
        self.machine.cpus().iter().filter(|cpu| self.free.contains(cpu.id))
    }

    fn fewest_free_first(&self, groups: BTreeMap<u32, CpuSet>) -> Vec<CpuSet> {
        let mut groups: Vec<_> = groups.into_iter().collect();
        groups.sort_by_key(|(id, cpus)| ((cpus & &self.free).len(), *id));
        groups.into_iter().map(|(_, cpus)| cpus).collect()
    }
}

fn groups<'a, K: Ord>(cpus: impl Iterator<Item = &'a Cpu>, key: impl Fn(&Cpu) -> K) -> BTreeMap<K, CpuSet> {
    let mut groups: BTreeMap<K, CpuSet> = BTreeMap::new();
    for cpu in cpus {
        groups.entry(key(cpu)).or_default().insert(cpu.id);
    }
    groups
}
