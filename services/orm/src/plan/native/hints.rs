//! Hints of the native policy.

use super::cpus_of;
use crate::topology_manager::{Hint, every_mask};
use oxalyst_topology::{CpuSet, Machine, NumaMask};

/// Above so many nodes only masks of the smallest possible size and the next are offered.
const EVERY_MASK_NODES: usize = 16;

/// The masks on which `need` CPUs could be given out of `available` and `reusable` (what earlier init containers of the pod
/// leave to it); preferred are those as small as the machine's capacity allows. Empty where there is no such mask.
///
/// Masks that leave lent CPUs lying idle are not offered, unless no preferred one would remain.
pub fn native_hints(machine: &Machine, available: &CpuSet, reusable: &CpuSet, need: usize) -> Vec<Hint> {
    let all: NumaMask =
        machine.nodes().iter().filter(|node| !node.cpus.is_empty()).map(|node| node.id).collect();
    let capacity = |mask: &NumaMask| cpus_of(machine, mask).len();
    let Some(smallest) = smallest(machine, need) else { return Vec::new() };
    let sizes = if all.len() > EVERY_MASK_NODES { smallest + 1 } else { all.len() };
    let usable = &(available | reusable) & machine.online();
    let hints = every_mask(&all, sizes).into_iter().filter_map(|mask| {
        let cpus = cpus_of(machine, &mask);
        let lent = (&cpus & reusable).len() >= need.min(reusable.len());
        let hint = Hint { preferred: mask.len() == smallest && capacity(&mask) >= need, mask: Some(mask) };
        ((&cpus & &usable).len() >= need).then_some((lent, hint))
    });
    let hints: Vec<(bool, Hint)> = hints.collect();
    let lends = hints.iter().any(|(lent, hint)| *lent && hint.preferred);
    hints.into_iter().filter(|(lent, _)| *lent || !lends).map(|(_, hint)| hint).collect()
}

/// On how few nodes so many CPUs could lie if all were free.
fn smallest(machine: &Machine, need: usize) -> Option<usize> {
    let mut sizes: Vec<usize> = machine.nodes().iter().map(|node| node.cpus.len()).collect();
    sizes.sort_unstable();
    let mut held = 0;
    let reached = sizes.iter().rev().position(|size| {
        held += size;
        held >= need
    });
    reached.map(|position| position + 1)
}
