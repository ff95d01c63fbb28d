//! The pools as they are shown.

use super::{State, placement};
use crate::policy::{RECLAIM, RESERVE, SHARE, node_of_pool};
use oxalyst_topology::{CpuSet, Machine, NumaMask};

/// All CPUs: system pods that name no pool.
pub const SYSTEM: &str = "system";

/// A pool and who runs there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Its name.
    pub name: String,
    /// Its online CPUs; may be empty where no pod runs there.
    pub cpus: CpuSet,
    /// NUMA nodes for its pods' memory.
    pub mems: NumaMask,
    /// Pods that run there.
    pub pods: usize,
}

/// The four pools that there always are, then all others by name. Where no shared pod runs, `share` is where one would: empty if
/// there is no CPU for it. None but `system` has a CPU that is somebody's own, and none has isolated ones.
pub fn pools(state: &State, machine: &Machine) -> Vec<Pool> {
    let mut cpus = placement::pools(state, machine);
    cpus.entry(SHARE.to_owned()).or_insert_with(|| placement::unclaimed(state, machine));
    cpus.entry(SYSTEM.to_owned()).or_insert_with(|| placement::everywhere(machine));
    let pods = placement::pods_by_pool(state, machine);
    let mems = state.memory.common_mems(machine);
    let with_memory = machine.memory_nodes();
    let always = [SHARE, RECLAIM, RESERVE, SYSTEM];
    let others: Vec<String> = cpus.keys().filter(|name| !always.contains(&name.as_str())).cloned().collect();
    let names = always.iter().map(|name| (*name).to_owned()).chain(others);
    let pool = |name: String| Pool {
        cpus: cpus.get(&name).cloned().unwrap_or_default(),
        // A pool's part on one node is for pods that are bound to it.
        mems: match node_of_pool(&name).filter(|node| with_memory.contains(*node)) {
            Some(node) => NumaMask::only(node),
            None => mems.clone(),
        },
        pods: pods.get(&name).copied().unwrap_or(0),
        name,
    };
    names.map(pool).collect()
}
