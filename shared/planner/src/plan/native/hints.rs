//! Hints of the native policy.

use crate::topology_manager::{Hint, every_mask};
use oxalyst_topology::{CpuSet, Machine, NumaMask};

/// Above so many nodes only masks of the smallest possible size and the next are offered.
const EVERY_MASK_NODES: usize = 16;

/// The masks on which `need` CPUs could be given out of `available` and `reusable` (what earlier init containers of the pod
/// leave to it); preferred are those as small as the machine's capacity allows. Empty where there is no such mask.
///
/// Masks that leave lent CPUs lying idle are not offered, unless no preferred one would remain.
pub fn native_hints(machine: &Machine, available: &CpuSet, reusable: &CpuSet, need: usize) -> Vec<Hint> {
    let usable = &(available | reusable) & machine.online();
    let nodes: Vec<Room> = machine
        .nodes()
        .iter()
        .filter(|node| !node.cpus.is_empty())
        .map(|node| Room {
            id: node.id,
            capacity: node.cpus.len(),
            usable: (&node.cpus & &usable).len(),
            lent: (&node.cpus & reusable).len(),
        })
        .collect();
    let Some(smallest) = smallest(&nodes, need) else { return Vec::new() };
    let all: NumaMask = nodes.iter().map(|node| node.id).collect();
    let sizes = if all.len() > EVERY_MASK_NODES { smallest + 1 } else { all.len() };
    let to_use = need.min(nodes.iter().map(|node| node.lent).sum());
    let mut hints = Vec::new();
    for mask in every_mask(&all, sizes) {
        let (usable, lent) = nodes
            .iter()
            .filter(|node| mask.contains(node.id))
            .fold((0, 0), |(usable, lent), node| (usable + node.usable, lent + node.lent));
        if usable >= need {
            let preferred = mask.len() == smallest;
            hints.push((lent >= to_use, Hint::on(mask, preferred)));
        }
    }
    let lends = hints.iter().any(|(lent, hint)| *lent && hint.preferred);
    hints.into_iter().filter(|(lent, _)| *lent || !lends).map(|(_, hint)| hint).collect()
}

/// CPUs of one NUMA node.
struct Room {
    id: u32,
    capacity: usize,
    usable: usize,
    lent: usize,
}

/// On how few nodes so many CPUs could lie if all were free.
fn smallest(nodes: &[Room], need: usize) -> Option<usize> {
    let mut sizes: Vec<usize> = nodes.iter().map(|node| node.capacity).collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    let mut held = 0;
    let last = sizes.iter().position(|size| {
        held += size;
        held >= need
    });
    last.map(|last| last + 1)
}
