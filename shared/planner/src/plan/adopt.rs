//! Pods that run already: they are taken in as they are, and never refused.

use super::{
    DecidedBy, Flag, Placement, Plan, PodChange, PodEntry, PoolName, Running, Stage, State,
    admit::{draft, moved, record, with_set, without_request},
    layout::Layout,
    room::Room,
};
use oxalyst_topology::Machine;
use std::collections::{BTreeMap, BTreeSet};

/// Takes in what runs, as one plan. Pods that are known keep what they have. Where several pods are new, those without a claim
/// to exclusive CPUs come first, then dedicated ones on the CPUs that they run on, then other dedicated ones; a dedicated pod
/// for which there is no room runs in the shared pool and is flagged.
///
/// Of several sandboxes of one pod the one that is current counts, else the one that is given last. One that has ended is
/// passed over if its pod is known by another. What names no pod is passed over.
pub fn adopt(state: &State, machine: &Machine, running: &[Running]) -> Plan {
    let mut chosen: BTreeMap<&str, &Running> = BTreeMap::new();
    for running in running.iter().filter(|running| names_pod(running)) {
        let request = &running.request;
        let current =
            |sandbox: &str| state.pods.get(&request.pod_uid).is_some_and(|pod| pod.sandbox_id == sandbox);
        match chosen.get(request.pod_uid.as_str()) {
            Some(before) if current(&before.request.sandbox_id) && !current(&request.sandbox_id) => {}
            _ => drop(chosen.insert(&request.pod_uid, running)),
        }
    }
    let mut order: Vec<_> = chosen
        .into_values()
        .map(|running| (draft(&running.request, DecidedBy::Reconcile), running))
        .collect();
    order.sort_by_key(|(entry, running)| {
        let claim = match (&entry.placement, &running.cpus) {
            (Placement::Unsettled, Some(_)) => 1,
            (Placement::Unsettled, None) => 2,
            _ => 0,
        };
        (claim, entry.uid.clone())
    });

    let mut after = state.clone();
    let mut plan = Plan::default();
    for (draft, running) in order {
        let request = &running.request;
        let entry = match after.pods.get(&request.pod_uid) {
            None => settle(&after, machine, draft, running),
            Some(known) if known.sandbox_id == request.sandbox_id => {
                settle(&after, machine, known.clone(), running)
            }
            Some(_) if after.released.contains(&request.sandbox_id) => continue,
            Some(known) => settle(&after, machine, moved(known, request), running),
        };
        let step = record(&after, entry);
        extend(&mut plan, &mut after, step);
    }
    // Whom it moves is said once, of all of them together: a node may bring in thousands of pods.
    with_affected(plan, state, &after, machine)
}

/// The plan that follows a change of the machine or of the reserved CPUs. An exclusive set keeps what is online of it; one that
/// has nothing left becomes another set, or if there is no room a place in the shared pool. `affected` is every pod: how the
/// machine was before is not known here.
pub fn replan(state: &State, machine: &Machine) -> Plan {
    let mut after = state.clone();
    let mut plan = Plan::default();
    for entry in state.pods.values() {
        let Placement::Exclusive { cpus, numa_bound } = &entry.placement else { continue };
        if !cpus.is_disjoint(machine.online()) {
            continue;
        }
        let mut entry = entry.clone();
        entry.flags.insert(Flag::CpuOffline);
        let room = Room::of(&after, machine, &entry.uid);
        let asked = entry.request.unwrap_or_default();
        entry.placement = match room.exclusive(asked, *numa_bound) {
            Ok(fit) if !fit.cpus.is_empty() => fit.placement(),
            _ => Placement::Pool(PoolName::Share),
        };
        let step = record(&after, entry);
        extend(&mut plan, &mut after, step);
    }
    plan.affected = state.pods.keys().cloned().collect();
    plan
}

/// The record of a pod that runs, with what is still open decided as far as it can be.
fn settle(state: &State, machine: &Machine, entry: PodEntry, running: &Running) -> PodEntry {
    if !entry.is_open() {
        return entry;
    }
    let request = &running.request;
    let Some(asked) = request.milli_cpu() else {
        return if request.stage == Stage::Container { without_request(entry) } else { entry };
    };
    let room = Room::of(state, machine, &entry.uid);
    let numa_binding = request.is_numa_binding();
    let runs_on = running.cpus.as_ref().and_then(|cpus| room.exactly(asked, numa_binding, cpus));
    match runs_on.map_or_else(|| room.exclusive(asked, numa_binding), Ok) {
        Ok(fit) => with_set(entry, request, asked, fit),
        Err(_) => {
            let mut entry = PodEntry { placement: Placement::Pool(PoolName::Share), ..entry };
            entry.request = Some(asked);
            entry.request_source = request.request_source;
            entry.flags.remove(&Flag::NoRequest);
            entry.flags.insert(Flag::AdoptedWithoutRoom);
            entry
        }
    }
}

fn names_pod(running: &Running) -> bool {
    !running.request.pod_uid.is_empty() && !running.request.sandbox_id.is_empty()
}

pub(super) fn extend(plan: &mut Plan, state: &mut State, step: Plan) {
    state.apply(&step);
    plan.changes.extend(step.changes);
    plan.retired.extend(step.retired);
}

pub(super) fn with_affected(plan: Plan, before: &State, after: &State, machine: &Machine) -> Plan {
    let changed: BTreeSet<_> = plan
        .changes
        .iter()
        .filter_map(|change| match change {
            PodChange::Put(entry) => Some(entry.uid.as_str()),
            PodChange::Remove(_) => None,
        })
        .collect();
    let (old, new) = (Layout::of(before, machine), Layout::of(after, machine));
    let moved = |entry: &&PodEntry| changed.contains(entry.uid.as_str()) || old.differs_for(&new, entry);
    let affected = after.pods.values().filter(moved).map(|entry| entry.uid.clone()).collect();
    Plan { affected, ..plan }
}
