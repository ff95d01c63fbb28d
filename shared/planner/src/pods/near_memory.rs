//! Memory and huge pages of dedicated pods that are bound to no NUMA node: accounted on the nodes of their CPUs as far as these have
//! room, and the rest on the nearest nodes that do.

use super::{
    Pod, Refusal, Rules, State,
    amounts::Amounts,
    native_memory::Taken,
    refuse,
    shortage::{held, is_over},
};
use crate::{
    plan::{Reason, Rule},
    policy::{
        ContainerId, ContainerKind,
        memory::{self, Resource, Supply},
    },
};
use oxalyst_qos::QosLevel;
use oxalyst_topology::{Machine, NumaMask};
use oxalyst_units::Bytes;
use std::{collections::BTreeMap, sync::Arc};

/// What others leave of each node.
struct Room<'a> {
    memory: &'a memory::State,
    supply: &'a Supply,
    /// The nodes that exclusive pods have for themselves.
    exclusive: NumaMask,
}

// === impl Room ===

impl<'a> Room<'a> {
    fn of(memory: &'a memory::State, supply: &'a Supply) -> Self {
        Self { memory, supply, exclusive: memory.exclusive() }
    }

    fn free(&self, node: u32, resource: Resource) -> u64 {
        let free = self.memory.free(self.supply, node, resource).0;
        if self.exclusive.contains(node) { 0 } else { free }
    }

    /// These amounts: first where the container has some already, then where some is free, nodes that come first in `order` before
    /// others. What there is nowhere is left out.
    fn take(&self, order: &[u32], asked: &Amounts, had: &Taken) -> Taken {
        let mut taken = self.keep(order, asked, had);
        for (resource, bytes) in asked {
            let mut rest = bytes.0.saturating_sub(accounted(&taken, *resource));
            for &node in order {
                let own = taken.get(resource).and_then(|own| own.get(&node)).copied().unwrap_or_default().0;
                let more = rest.min(self.free(node, *resource).saturating_sub(own));
                if more > 0 {
                    taken.entry(*resource).or_default().insert(node, Bytes(own + more));
                    rest -= more;
                }
            }
        }
        taken
    }

    /// What the container keeps of what it had, in this order of nodes.
    fn keep(&self, order: &[u32], asked: &Amounts, had: &Taken) -> Taken {
        let mut kept = Taken::new();
        for (resource, bytes) in asked {
            let Some(had) = had.get(resource) else { continue };
            let mut rest = bytes.0;
            for (node, had) in order.iter().filter_map(|node| Some((*node, had.get(node)?))) {
                // On a node that another pod has for itself it may keep what it had there before that one came.
                let own = rest.min(had.0).min(self.memory.free(self.supply, node, *resource).0);
                if own > 0 {
                    kept.entry(*resource).or_default().insert(node, Bytes(own));
                    rest -= own;
                }
            }
        }
        kept
    }
}

/// Whether the entry's memory is accounted here.
pub(super) fn is_near(own: &memory::Container) -> bool {
    own.qos == QosLevel::Dedicated && own.kind == ContainerKind::Main && !own.wishes.numa_binding()
}

/// Refuses more than all nodes together have left; what the container has already is its own. The resource that there is too little of
/// comes with the refusal.
pub(super) fn check(
    state: &State,
    supply: &Supply,
    id: &ContainerId,
    asked: &Amounts,
) -> Result<(), (Resource, Refusal)> {
    if supply.0.is_empty() {
        return Ok(());
    }
    let room = Room::of(&state.memory, supply);
    let known = state.memory.containers.get(id);
    for (&resource, &bytes) in asked {
        let before = known.and_then(|own| own.request.get(&resource)).copied().unwrap_or_default();
        let own = known.map_or(0, |own| accounted(&own.taken, resource));
        let free: Vec<(u32, u64)> = supply.0.keys().map(|node| (*node, room.free(*node, resource))).collect();
        let all = free.iter().map(|(_, bytes)| *bytes).fold(0, u64::saturating_add);
        if bytes > before && bytes.0 > all.saturating_add(own) {
            let has = if own > 0 { format!("it has {}, ", Bytes(own)) } else { String::new() };
            let free: Vec<_> =
                free.iter().map(|(node, bytes)| format!("{} on {node}", Bytes(*bytes))).collect();
            let message = format!(
                "{bytes} of {resource} is asked for, {has}and {} is free on the whole machine; free by NUMA node: {}",
                Bytes(all),
                free.join(", ")
            );
            return Err((resource, refuse(Reason::Insufficient, Rule::MemoryRoom, message)));
        }
    }
    Ok(())
}

/// Accounts what the entry asks for, as much of it as there is, and gives it and the containers beside it the nodes of its CPUs and those
/// that it was widened to. What the container has been accounted already stays where it is.
pub(super) fn put(
    after: &mut State,
    machine: &Machine,
    supply: &Supply,
    id: &ContainerId,
    mut entry: memory::Container,
) {
    let had = after.memory.containers.remove(id).map(|known| known.taken.clone()).unwrap_or_default();
    let cpus = after.cpus.containers.get(id).map(|own| own.cpus.clone()).unwrap_or_default();
    let home = machine.nodes_of(&cpus);
    entry.taken =
        Room::of(&after.memory, supply).take(&nearest_first(machine, supply, &home), &entry.request, &had);
    let widened: NumaMask = entry.taken.values().flat_map(BTreeMap::keys).copied().collect();
    let nodes = &home | &widened;
    entry.bound_to = Some(nodes.clone());
    after.memory.containers.insert(id.clone(), Arc::new(entry));
    let beside = |own: &memory::Container| {
        own.qos == QosLevel::Dedicated && own.kind == ContainerKind::Sidecar && !own.wishes.numa_binding()
    };
    after.memory.change_of_pod(
        &id.pod,
        |_, own| beside(own) && own.bound_to.as_ref() != Some(&nodes),
        |own| own.bound_to = Some(nodes.clone()),
    );
}

/// The pod has containers that it did not have when its memory was accounted.
///
/// # Errors
/// There is no room for what they ask for.
pub(super) fn keep_pace(
    after: &mut State,
    machine: &Machine,
    supply: &Supply,
    pod: &Pod,
) -> Result<(), Refusal> {
    let id = ContainerId::new(pod.uid.as_str(), pod.main.as_str());
    let known = after.memory.containers.get(&id).filter(|own| is_near(own));
    let total = pod.total_amounts(|_| true);
    let Some(known) = known.filter(|own| own.request != total) else { return Ok(()) };
    let entry = memory::Container { request: total, ..memory::Container::clone(known) };
    check(after, supply, &id, &entry.request).map_err(|(_, refusal)| refusal)?;
    put(after, machine, supply, &id, entry);
    Ok(())
}

/// Something has come free, or the machine is another one: pods that are accounted less than they ask for, or on nodes of which more is
/// taken than there is, get what is there, the oldest first. Each keeps what it has as far as that is there.
pub(super) fn mend(after: &mut State, machine: &Machine, rules: &Rules) {
    let supply = rules.supply(machine);
    give_to_exclusive(after, &supply);
    if mend_near(after, machine, &supply) {
        give_to_exclusive(after, &supply);
    }
}

/// A pod that has its nodes for itself has all of what they have, but what pods that were there before it have.
fn give_to_exclusive(after: &mut State, supply: &Supply) {
    if !after.memory.containers.kinds().any(memory::Container::is_exclusive) {
        return;
    }
    let held = held(&after.memory);
    let all = |resource: Resource, node: u32, own: Bytes| {
        let held = held.get(&(resource, node)).copied().unwrap_or_default();
        let others = held.0.saturating_sub(own.0);
        Bytes(supply.allocatable(node, resource).0.saturating_sub(others))
    };
    let exclusive = |own: &memory::Container| own.is_exclusive().then_some(());
    after.memory.containers.update(exclusive, |own, ()| {
        for (resource, taken) in &mut own.taken {
            for (node, bytes) in taken {
                *bytes = all(*resource, *node, *bytes);
            }
        }
    });
}

/// Whether there was anything to be mended.
fn mend_near(after: &mut State, machine: &Machine, supply: &Supply) -> bool {
    let mut wrong: Vec<(i64, ContainerId, Amounts)> = Vec::new();
    let mut near = after.memory.containers.of_kind(is_near).peekable();
    if near.peek().is_none() {
        return false;
    }
    let held = held(&after.memory);
    for (id, own) in near {
        let Some(pod) = after.pods.get(&*id.pod) else { continue };
        // An earlier version accounted nothing, and noted what the main container alone asks for.
        let total = pod.total_amounts(|_| true);
        if own.request != total || lacks(own) || is_over(own, &held, supply) {
            wrong.push((pod.since_unix_ms, id.clone(), total));
        }
    }
    wrong.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
    let mut had: Vec<Taken> = Vec::new();
    for (_, id, total) in &wrong {
        let own = after.memory.containers.get_mut(id).map(Arc::make_mut);
        had.extend(own.map(|own| {
            own.request.clone_from(total);
            std::mem::take(&mut own.taken)
        }));
    }
    // First who keeps what, then who gets what is left.
    for ((_, id, total), had) in wrong.iter().zip(&had) {
        let order: Vec<u32> = supply.0.keys().copied().collect();
        let kept = Room::of(&after.memory, supply).keep(&order, total, had);
        if let Some(own) = after.memory.containers.get_mut(id) {
            Arc::make_mut(own).taken = kept;
        }
    }
    for (_, id, _) in &wrong {
        let Some(own) = after.memory.containers.get(id).map(|own| memory::Container::clone(own)) else {
            continue;
        };
        put(after, machine, supply, id, own);
    }
    !wrong.is_empty()
}

/// Whether less is accounted than the container asks for.
pub(super) fn lacks(own: &memory::Container) -> bool {
    own.request.iter().any(|(resource, asked)| accounted(&own.taken, *resource) < asked.0)
}

fn accounted(taken: &Taken, resource: Resource) -> u64 {
    let of = taken.get(&resource).into_iter().flat_map(BTreeMap::values);
    of.map(|bytes| bytes.0).fold(0, u64::saturating_add)
}

/// The nodes that have memory: first these, or where one of them has none the nearest that does, then the others by their distance to
/// them. The lowest id on a tie.
fn nearest_first(machine: &Machine, supply: &Supply, home: &NumaMask) -> Vec<u32> {
    let home: NumaMask = home.iter().filter_map(|node| machine.nearest_memory(node)).collect();
    let columns: BTreeMap<u32, usize> = machine.nodes().iter().map(|node| node.id).zip(0..).collect();
    let distance = |to: u32| {
        let from = home.iter().filter_map(|from| machine.node(from)?.distances.get(*columns.get(&to)?));
        from.copied().min().unwrap_or(u32::MAX)
    };
    let mut order: Vec<u32> = supply.0.keys().copied().collect();
    order.sort_by_cached_key(|node| match home.contains(*node) {
        true => (false, 0, *node),
        false => (true, distance(*node), *node),
    });
    order
}
