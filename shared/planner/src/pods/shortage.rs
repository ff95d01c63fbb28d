//! Memory that has been taken and is not there any more.

use super::{Role, Rules, State};
use crate::{
    plan::Flag,
    policy::{ContainerId, memory::Resource},
};
use oxalyst_topology::Machine;
use oxalyst_units::Bytes;
use std::collections::BTreeSet;

/// Flags pods of whose NUMA nodes more is taken than they have, and those that have less than they ask for.
pub(super) fn flag(after: &mut State, machine: &Machine, rules: &Rules) {
    let supply = rules.supply(machine);
    let mut short: BTreeSet<String> = BTreeSet::new();
    for (id, own) in &after.memory.containers {
        let Some(taken) = own.taken.get(&Resource::Memory) else { continue };
        let over = |node: &u32| {
            after.memory.taken(*node, Resource::Memory) > supply.allocatable(*node, Resource::Memory)
        };
        let asked = own.request.get(&Resource::Memory).copied().unwrap_or_default();
        let have = Bytes(taken.values().map(|bytes| bytes.0).sum());
        if taken.keys().any(over) || have < asked && own.bound_to.is_some() && !lends(after, id) {
            short.insert(id.pod.to_string());
        }
    }
    let differing = after.pods.iter().filter(|(uid, pod)| {
        let is_short = !short.is_empty() && short.contains(*uid);
        is_short != pod.flags.contains(&Flag::MemoryShort)
    });
    for uid in differing.map(|(uid, _)| uid.clone()).collect::<Vec<_>>() {
        after.change_pod(&uid, |pod| {
            if !pod.flags.remove(&Flag::MemoryShort) {
                pod.flags.insert(Flag::MemoryShort);
            }
        });
    }
}

/// Whether what this container has taken has passed to others of its pod.
fn lends(state: &State, id: &ContainerId) -> bool {
    let container = state.pods.get(&*id.pod).and_then(|pod| pod.container(&id.container));
    container.is_some_and(|container| container.role == Role::Init)
}
