//! A sandbox has ended.

use super::{Plan, PodChange, State, layout::Layout};
use oxalyst_topology::Machine;

/// Frees the pod if this is its current sandbox; else frees nothing. Either way the sandbox is not admitted any more, so that an
/// admission that comes late leaks nothing. Idempotent; [`Plan::removes`] tells whether the pod is freed.
pub fn release(state: &State, machine: &Machine, uid: &str, sandbox_id: &str) -> Plan {
    let retired = if state.released.contains(sandbox_id) { Vec::new() } else { vec![sandbox_id.to_owned()] };
    if state.pods.get(uid).is_none_or(|entry| entry.sandbox_id != sandbox_id) {
        return Plan { retired, ..Plan::default() };
    }
    let before = Layout::of(state, machine);
    let after = Layout::without(state, machine, uid);
    let affected = state
        .pods
        .values()
        .filter(|other| other.uid != uid && before.differs_for(&after, other))
        .map(|other| other.uid.clone())
        .collect();
    Plan { changes: vec![PodChange::Remove(uid.to_owned())], retired, affected }
}
