//! A pod is gone, or has been running for long enough.

use super::{CpuPolicy, Rules, State, near_memory, settled};
use crate::policy::{self, ContainerId, memory};
use oxalyst_topology::Machine;
use std::collections::BTreeSet;

/// The pod's CPUs and memory are free at once. Nothing changes where the pod is not known.
pub(super) fn remove(after: &mut State, machine: &Machine, rules: &Rules, uid: &str) {
    if after.pods.remove(uid).is_none() {
        return;
    }
    match &rules.cpu_policy {
        CpuPolicy::Dynamic(options) => {
            let changes = policy::remove(&after.cpus, options, machine, uid);
            after.cpus.apply(&changes);
            let changes = memory::remove(&after.memory, machine, uid);
            after.memory.apply(&changes);
        }
        CpuPolicy::Native(_) => after.drop_containers(uid, |_| true),
    }
    near_memory::mend(after, machine, rules);
    settled::settle(after, machine, rules);
}

/// Shared pods that have been running for long enough join their pools.
pub(super) fn ramp_up(after: &mut State, machine: &Machine, rules: &Rules, now_unix_ms: i64) {
    let CpuPolicy::Dynamic(options) = &rules.cpu_policy else { return };
    let over = |uid: &str| {
        let since = after.pods.get(uid).map(|pod| pod.since_unix_ms);
        since.is_some_and(|since| now_unix_ms.saturating_sub(since) >= rules.ramp_up_ms)
    };
    let rising = after.cpus.containers.of_kind(|container| container.ramp_up).filter(|(id, _)| over(&id.pod));
    let rising: BTreeSet<ContainerId> = rising.map(|(id, _)| id.clone()).collect();
    if rising.is_empty() {
        return;
    }
    let changes = policy::end_ramp_up(&after.cpus, options, machine, &rising);
    after.cpus.apply(&changes);
    settled::settle(after, machine, rules);
}
