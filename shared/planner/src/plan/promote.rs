//! Dedicated pods that run in the shared pool because there was no room: they get their set as soon as there is.

use super::{
    Flag, Placement, Plan, PodEntry, PoolName, State,
    admit::put,
    adopt::{extend, with_affected},
    room::Room,
};
use oxalyst_qos::QosLevel;
use oxalyst_topology::Machine;

/// What sends a dedicated pod to the shared pool until there is room.
const MAKESHIFT: [Flag; 2] = [Flag::AdoptedWithoutRoom, Flag::CpuOffline];

/// Gives each dedicated pod that was left without a set one, where there is room now; those that were decided first come first.
/// Nothing is refused: what does not fit waits on.
pub fn promote(state: &State, machine: &Machine) -> Plan {
    let mut waiting: Vec<&PodEntry> = state.pods.values().filter(|entry| waits(entry)).collect();
    if waiting.is_empty() {
        return Plan::default();
    }
    waiting.sort_by_key(|entry| (entry.since_unix_ms, &entry.uid));
    let mut after = state.clone();
    let mut plan = Plan::default();
    for entry in waiting {
        let asked = entry.request.unwrap_or_default();
        // The record of a pod in a pool does not say whether it asked for binding; its memory is that of its CPUs' nodes anyway.
        let fit = Room::of(&after, machine, &entry.uid).exclusive(asked, false);
        let Ok(fit) = fit else { continue };
        let mut entry = PodEntry { placement: fit.placement(), ..entry.clone() };
        entry.flags.retain(|flag| !MAKESHIFT.contains(flag));
        let step = put(&after, machine, entry);
        extend(&mut plan, &mut after, step);
    }
    with_affected(plan, state, &after, machine)
}

fn waits(entry: &PodEntry) -> bool {
    entry.qos == QosLevel::Dedicated
        && entry.placement == Placement::Pool(PoolName::Share)
        && entry.request.is_some()
        && MAKESHIFT.iter().any(|flag| entry.flags.contains(flag))
}
