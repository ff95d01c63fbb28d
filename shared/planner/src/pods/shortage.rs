//! Memory that has been taken and is not there any more.

use super::{Role, Rules, State};
use crate::{
    plan::Flag,
    policy::{ContainerId, memory::Resource},
};
use oxalyst_topology::Machine;
use oxalyst_units::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// Flags pods of whose NUMA nodes more is taken than they have, and those that have less than they ask for.
pub(super) fn flag(after: &mut State, machine: &Machine, rules: &Rules) {
    let supply = rules.supply(machine);
    let mut short: BTreeSet<String> = BTreeSet::new();
    let mut held: BTreeMap<(Resource, u32), Bytes> = BTreeMap::new();
    for group in after.memory.containers.groups() {
        for (resource, taken) in &group.example.taken {
            for (node, bytes) in taken {
                let sum = held.entry((*resource, *node)).or_default();
                *sum = Bytes(sum.0.saturating_add(bytes.0.saturating_mul(group.count as u64)));
            }
        }
    }
    for (id, own) in after.memory.containers.of_kind(|own| !own.taken.is_empty()) {
        let is_short = own.taken.iter().any(|(resource, taken)| {
            let over = |node: &u32| {
                held.get(&(*resource, *node)).copied().unwrap_or_default()
                    > supply.allocatable(*node, *resource)
            };
            let asked = own.request.get(resource).copied().unwrap_or_default();
            let have = Bytes(taken.values().map(|bytes| bytes.0).fold(0, u64::saturating_add));
            taken.keys().any(over) || have < asked && own.bound_to.is_some() && !lends(after, id)
        });
        if is_short {
            short.insert(id.pod.to_string());
        }
    }
    let flagged = after.pods.of_kind(|pod| pod.flags.contains(&Flag::MemoryShort));
    let flagged: BTreeSet<String> = flagged.map(|(uid, _)| uid.clone()).collect();
    for uid in short.symmetric_difference(&flagged).cloned().collect::<Vec<_>>() {
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
