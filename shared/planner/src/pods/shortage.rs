//! Memory that is asked for and not there: what has been taken and is gone, and what there never was.

use super::{
    Role, Rules, State,
    near_memory::{is_near, lacks},
};
use crate::{
    plan::Flag,
    policy::{
        ContainerId,
        memory::{self, Resource, Supply},
    },
};
use oxalyst_topology::Machine;
use oxalyst_units::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// Bytes that are taken, by resource and NUMA node.
pub(super) type Held = BTreeMap<(Resource, u32), Bytes>;

/// What of each NUMA node is taken.
pub(super) fn held(memory: &memory::State) -> Held {
    let mut held = Held::new();
    for group in memory.containers.groups() {
        for (resource, taken) in &group.example.taken {
            for (node, bytes) in taken {
                let sum = held.entry((*resource, *node)).or_default();
                *sum = Bytes(sum.0.saturating_add(bytes.0.saturating_mul(group.count as u64)));
            }
        }
    }
    held
}

/// Whether the container has taken of a node of which more is taken than there is.
pub(super) fn is_over(own: &memory::Container, held: &Held, supply: &Supply) -> bool {
    own.taken.iter().any(|(resource, taken)| {
        taken.keys().any(|node| {
            let held = held.get(&(*resource, *node)).copied().unwrap_or_default();
            held > supply.allocatable(*node, *resource)
        })
    })
}

/// Flags pods of whose NUMA nodes more is taken than they have, and those that have less than they ask for.
pub(super) fn flag(after: &mut State, machine: &Machine, rules: &Rules) {
    let supply = rules.supply(machine);
    let mut short: BTreeSet<String> = BTreeSet::new();
    let held = held(&after.memory);
    for (id, own) in after.memory.containers.of_kind(|own| !own.taken.is_empty() || is_near(own)) {
        let has_less = |(resource, taken): (&Resource, &BTreeMap<u32, Bytes>)| {
            let asked = own.request.get(resource).copied().unwrap_or_default();
            Bytes(taken.values().map(|bytes| bytes.0).fold(0, u64::saturating_add)) < asked
        };
        let lacks = if is_near(own) {
            !supply.0.is_empty() && lacks(own)
        } else {
            own.bound_to.is_some() && own.taken.iter().any(has_less) && !lends(after, id)
        };
        if lacks || is_over(own, &held, &supply) {
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
