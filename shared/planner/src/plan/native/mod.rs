//! The `native` policy: what the kubelet's static CPU manager does. A Guaranteed container that asks for whole CPUs has a set of
//! its own; everyone else runs on the CPUs that nobody has, the reserved ones included.

mod distributed;
mod hints;
mod packed;

use super::NotEnoughCpus;
use oxalyst_topology::{Cpu, CpuSet, Machine, NumaMask};
use oxalyst_units::MilliCpu;
use std::collections::BTreeMap;

pub use hints::native_hints;

/// How an exclusive set lies on the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NativeOption {
    /// On as few NUMA nodes and cores as possible.
    #[default]
    Packed,
    /// In equal shares on as few NUMA nodes as can hold it (KEP-2902).
    Distributed {
        /// CPUs that stay together: 1, or the threads of a core where only full cores are given out.
        group: usize,
    },
}

/// A request that cannot be met with full cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{need} CPUs are no multiple of the {threads} threads of a core, and only full cores are given out: request a multiple of \
     {threads}, or allow cores to be shared"
)]
pub struct SplitsCore {
    /// CPUs that are needed.
    pub need: usize,
    /// Threads of a core.
    pub threads: usize,
}

/// How many CPUs of its own a Guaranteed container gets that asks for so much; `None` if it is not a whole number of at least 1.
pub fn exclusive_cpus(request: MilliCpu) -> Option<usize> {
    let MilliCpu(milli) = request;
    (milli > 0 && milli % 1000 == 0).then(|| usize::try_from(milli / 1000).ok()).flatten()
}

/// Whether so many CPUs can be full cores (`full-physical-cpus-only`).
///
/// # Errors
/// They are no multiple of a core's threads.
pub fn fills_cores(machine: &Machine, need: usize) -> Result<(), SplitsCore> {
    let threads = groups(machine.cpus().iter(), |cpu| cpu.core).values().map(CpuSet::len).max().unwrap_or(1);
    if need.is_multiple_of(threads) { Ok(()) } else { Err(SplitsCore { need, threads }) }
}

/// Those of these CPUs whose whole core is among them: what may be given out under `full-physical-cpus-only`.
pub fn in_full_cores(machine: &Machine, cpus: &CpuSet) -> CpuSet {
    let cores = groups(machine.cpus().iter(), |cpu| cpu.core);
    cores.values().filter(|core| core.is_subset(cpus)).fold(CpuSet::new(), |full, core| full | core)
}

/// `need` CPUs out of `available`. Ties are broken by id. Nothing needed is the empty set.
///
/// # Errors
/// `available` holds fewer online CPUs than needed.
pub fn take_native(
    machine: &Machine,
    available: &CpuSet,
    need: usize,
    option: NativeOption,
) -> Result<CpuSet, NotEnoughCpus> {
    match option {
        NativeOption::Packed => packed::take(machine, available, need),
        NativeOption::Distributed { group } => distributed::take(machine, available, need, group.max(1)),
    }
}

/// `need` CPUs out of `available`, those on the nodes of `mask` first.
///
/// # Errors
/// `available` holds fewer online CPUs than needed.
pub fn place_native(
    machine: &Machine,
    available: &CpuSet,
    need: usize,
    option: NativeOption,
    mask: Option<&NumaMask>,
) -> Result<CpuSet, NotEnoughCpus> {
    let online = available & machine.online();
    if need > online.len() {
        return Err(NotEnoughCpus { need, available: online.len() });
    }
    let near = mask.map(|mask| &online & &cpus_of(machine, mask)).unwrap_or_default();
    let near = take_native(machine, &near, need.min(near.len()), option)?;
    let rest = take_native(machine, &(&online - &near), need - near.len(), option)?;
    Ok(near | &rest)
}

fn cpus_of(machine: &Machine, mask: &NumaMask) -> CpuSet {
    let nodes = mask.iter().filter_map(|id| machine.node(id));
    nodes.fold(CpuSet::new(), |cpus, node| cpus | &node.cpus)
}

fn groups<'a>(cpus: impl Iterator<Item = &'a Cpu>, key: impl Fn(&Cpu) -> u32) -> BTreeMap<u32, CpuSet> {
    let mut groups: BTreeMap<u32, CpuSet> = BTreeMap::new();
    for cpu in cpus {
        groups.entry(key(cpu)).or_default().insert(cpu.id);
    }
    groups
}
