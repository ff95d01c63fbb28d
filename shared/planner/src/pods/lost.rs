//! The machine, its memory or the reserved CPUs are others than before.

use super::{CpuPolicy, Pod, Rules, State, Trace, join, near_memory, promote::again, settled};
use crate::{
    plan::Flag,
    policy::{ContainerId, SHARE, Wishes},
};
use oxalyst_qos::QosLevel;
use oxalyst_topology::{CpuSet, Machine};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// What is said of a pod that has lost its CPUs and could not be placed anew.
const LOST: [Flag; 2] = [Flag::CpuOffline, Flag::NumaBindingLost];

/// Exclusive sets keep what is online of them. Who has nothing left is placed anew, and where there is no room for that runs in
/// the shared pool, flagged; so does who was bound to a NUMA node that has no CPU any more.
pub(super) fn take_up(
    after: &mut State,
    machine: &Machine,
    rules: &Rules,
    reserved: Option<&CpuSet>,
    trace: &mut Trace,
) {
    if let Some(reserved) = reserved {
        after.cpus.reserved.clone_from(reserved);
    }
    near_memory::mend(after, machine, rules);
    forget_replaced(after, rules);
    settled::settle(after, machine, rules);
    for (_, uid, lost) in in_order(after, machine) {
        let Some(pod) = after.pods.get(&uid).cloned() else { continue };
        place_anew(after, machine, rules, &pod, &lost, trace);
    }
    near_memory::mend(after, machine, rules);
    settled::settle(after, machine, rules);
}

/// A pod that has a whole set again, or is bound again, deviates no more: what its set lacks is derived. Records of before may
/// say otherwise.
fn forget_replaced(after: &mut State, rules: &Rules) {
    if !matches!(rules.cpu_policy, CpuPolicy::Dynamic(_)) {
        return;
    }
    let flagged = |pod: &Pod| LOST.iter().any(|flag| pod.flags.contains(flag));
    let flagged: Vec<String> = after.pods.of_kind(flagged).map(|(uid, _)| uid.clone()).collect();
    for uid in flagged {
        let main = after.pods.get(&uid).map(|pod| ContainerId::new(uid.as_str(), pod.main.as_str()));
        let own = main.and_then(|main| after.cpus.containers.get(&main));
        let has_set = own.is_some_and(|own| own.qos == QosLevel::Dedicated);
        let is_bound = own.is_some_and(|own| own.is_bound_shared());
        after.change_pod(&uid, |pod| {
            pod.flags.retain(|flag| match flag {
                Flag::CpuOffline => !has_set,
                Flag::NumaBindingLost => !is_bound,
                _ => true,
            });
        });
    }
}

/// Pods of which containers have lost all their CPUs, the oldest first.
fn in_order(state: &State, machine: &Machine) -> Vec<(i64, String, BTreeSet<String>)> {
    let node_is_gone = |id: u32| machine.node(id).is_none_or(|node| node.cpus.is_empty());
    let mut lost: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for (id, own) in &state.cpus.containers {
        let set = own.qos == QosLevel::Dedicated && own.cpus.is_disjoint(machine.online());
        let node = own.is_bound_shared() && own.numa_hint.is_some_and(node_is_gone);
        if set || node {
            lost.entry(&id.pod).or_default().insert(id.container.to_string());
        }
    }
    let since = |uid: &str| state.pods.get(uid).map_or(0, |pod| pod.since_unix_ms);
    let mut order: Vec<_> = lost.into_iter().map(|(uid, lost)| (since(uid), uid.to_owned(), lost)).collect();
    order.sort();
    order
}

fn place_anew(
    after: &mut State,
    machine: &Machine,
    rules: &Rules,
    pod: &Arc<Pod>,
    lost: &BTreeSet<String>,
    trace: &mut Trace,
) {
    let flag = if pod.served == QosLevel::Dedicated || matches!(rules.cpu_policy, CpuPolicy::Native(_)) {
        Flag::CpuOffline
    } else {
        Flag::NumaBindingLost
    };
    // Under the dynamic policy all containers follow the main one.
    let whole = matches!(rules.cpu_policy, CpuPolicy::Dynamic(_));
    let moves = |name: &str| whole || lost.contains(name);
    let (moving, staying): (Vec<_>, Vec<_>) =
        pod.containers.iter().cloned().partition(|container| moves(&container.name));
    let mut attempt = after.clone();
    attempt.drop_containers(&pod.uid, moves);
    attempt.change_pod(&pod.uid, |pod| pod.containers = staying);
    let request = again(pod, moving);
    if join::admit(&mut attempt, machine, rules, &request, trace).is_ok() {
        // The order in which they were told is kept.
        attempt.change_pod(&pod.uid, |known| known.containers.clone_from(&pod.containers));
        *after = attempt;
        return;
    }
    to_shared(after, pod, flag, moves);
    settled::settle(after, machine, rules);
}

fn to_shared(after: &mut State, pod: &Pod, flag: Flag, moves: impl Fn(&str) -> bool) {
    after.change_pod(&pod.uid, |pod| {
        pod.served = QosLevel::Shared;
        pod.flags.insert(flag);
    });
    after.cpus.change_of_pod(
        &pod.uid,
        |id, _| moves(&id.container),
        |own| {
            own.qos = QosLevel::Shared;
            own.wishes = Wishes::default();
            own.owner = Some(SHARE.to_owned());
            own.ramp_up = false;
            own.baseline = CpuSet::new();
            own.numa_hint = None;
            own.pod_request = None;
        },
    );
    after.memory.change_of_pod(
        &pod.uid,
        |id, _| moves(&id.container),
        |own| {
            own.qos = QosLevel::Shared;
            own.wishes = Wishes::default();
            own.taken = BTreeMap::new();
            own.bound_to = None;
        },
    );
}
