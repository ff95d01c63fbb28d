//! Hints of the native policy.

use crate::topology_manager::{Budget, EVERY_SET_NODES, Enough, Hint, every_mask, place_in_order};
use oxalyst_topology::{CpuSet, Machine, NumaMask};

/// The masks on which `need` CPUs could be given out of `available` and `reusable` (what earlier init containers of the pod
/// leave to it); preferred are those as small as the machine's capacity allows. Empty where there is no such mask.
///
/// Masks that leave lent CPUs lying idle are not offered, unless no preferred one would remain. Of machines with more than 16 nodes
/// masks of the smallest size with room and the next are offered, at most [`OFFERED_SETS`](crate::topology_manager::OFFERED_SETS),
/// and that of all nodes with room.
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
    let to_use = need.min(nodes.iter().map(|node| node.lent).sum());
    let mut hints = Vec::new();
    let masks = if all.len() > EVERY_SET_NODES {
        roomy_masks(machine, &nodes, need, smallest)
    } else {
        every_mask(&all, all.len())
    };
    for mask in masks {
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

/// The masks with room of the smallest size that has any and of the next, and that of all nodes with room.
fn roomy_masks(machine: &Machine, nodes: &[Room], need: usize, smallest: usize) -> Vec<NumaMask> {
    let mut order: Vec<&Room> = nodes.iter().collect();
    order.sort_by_key(|node| place_in_order(machine, node.id, node.usable > 0));
    let rooms = order.iter().map(|node| vec![node.usable as u64]).collect();
    let ids: Vec<u32> = order.iter().map(|node| node.id).collect();
    let roomy = nodes.iter().filter(|node| node.usable > 0).map(|node| node.id).collect();
    Enough::new(vec![need as u64], rooms).masks(&ids, smallest, roomy, &mut Budget::new())
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
