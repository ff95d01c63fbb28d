//! Pods that run already, as the runtime lists them: taken in as one plan.

use super::{
    Class, CpuPolicy, Given, Plan, Pod, Rules, RunningSandbox, SandboxRequest, State, Told, Trace,
    batch::Batch,
    dynamic,
    sandbox::{ALL, first, moved, understood},
    settled,
};
use crate::{
    plan::{DecidedBy, Flag, Stage, exclusive_cpus},
    policy::{ContainerId, SHARE, Wishes},
};
use oxalyst_qos::QosLevel;
use oxalyst_topology::{CpuSet, Machine};
use std::{collections::BTreeMap, sync::Arc};

/// Takes in what runs, as one plan; never refused. Pods that are known keep what they have. Where several are new, those
/// without a claim to exclusive CPUs come first, then dedicated ones on the CPUs that they run on, then other dedicated ones; a
/// dedicated pod for which there is no room runs in the shared pool and is flagged. Under the native policy Guaranteed pods that
/// ask for whole CPUs have such a claim. What names no pod is passed over.
pub fn adopt(state: &State, machine: &Machine, rules: &Rules, running: &[RunningSandbox]) -> Plan {
    adopt_traced(state, machine, rules, running, &mut Trace::off())
}

/// As [`adopt`], and notes in `trace` what was weighed for those who are new.
pub fn adopt_traced(
    state: &State,
    machine: &Machine,
    rules: &Rules,
    running: &[RunningSandbox],
    trace: &mut Trace,
) -> Plan {
    let mut chosen: BTreeMap<&str, &RunningSandbox> = BTreeMap::new();
    let current = |uid: &str, sandbox: &str| state.pods.get(uid).is_some_and(|pod| pod.sandbox_id == sandbox);
    for running in running {
        let (uid, sandbox) = (running.request.pod_uid.as_str(), running.request.sandbox_id.as_str());
        if uid.is_empty() || sandbox.is_empty() {
            continue;
        }
        match chosen.get(uid) {
            Some(before) if current(uid, &before.request.sandbox_id) && !current(uid, sandbox) => {}
            _ => drop(chosen.insert(uid, running)),
        }
    }
    let claim = |running: &RunningSandbox| match (has_claim(rules, &running.request), &running.cpus) {
        (true, Some(_)) => 1,
        (true, None) => 2,
        (false, _) => 0,
    };
    let mut order: Vec<_> = chosen.into_iter().map(|(uid, running)| (claim(running), uid, running)).collect();
    order.sort_by_key(|(claim, uid, _)| (*claim, *uid));
    let confined = rules.confine(machine);
    let mut after = state.clone();
    // Most of a node's pods run wherever there is a pool for them: all of these are planned at once.
    let together = Batch::new(&confined, rules);
    let (pooled, order): (Vec<_>, Vec<_>) = order
        .into_iter()
        .map(|(_, _, running)| running)
        .partition(|running| together.may_take(state, running));
    let apart = together.take_in(&mut after, &pooled);
    for uid in pooled.iter().map(|running| running.request.pod_uid.as_str()) {
        if after.pods.contains_key(uid) && !state.pods.contains_key(uid) {
            trace.about(uid);
            trace.stays(Some(ALL), dynamic::CPU, None);
        }
    }
    let order = apart.into_iter().chain(order);
    // Who cannot stay where it runs takes nobody's place who can.
    let mut displaced = Vec::new();
    for running in order {
        let stays = exactly(&after, &confined, rules, running);
        if running.cpus.is_some() && stays.is_none() && has_claim(rules, &running.request) {
            displaced.push(running);
        } else {
            take_in(&mut after, &confined, rules, running, stays, trace);
        }
    }
    for running in displaced {
        take_in(&mut after, &confined, rules, running, None, trace);
    }
    Plan::between(state, after, &confined)
}

/// Whether the pod is one that has CPUs of its own, if there is room.
pub(super) fn has_claim(rules: &Rules, request: &SandboxRequest) -> bool {
    match rules.cpu_policy {
        CpuPolicy::Dynamic(_) => is_dedicated(request),
        CpuPolicy::Native(_) => {
            let whole = request.milli_cpu().and_then(exclusive_cpus).is_some();
            request.class == Class::Guaranteed
                && whole
                && !understood(request, DecidedBy::Reconcile).node_agent
        }
    }
}

fn is_dedicated(request: &SandboxRequest) -> bool {
    understood(request, DecidedBy::Reconcile).qos == QosLevel::Dedicated
}

/// `stays`: the state with the pod where it runs.
fn take_in(
    after: &mut State,
    machine: &Machine,
    rules: &Rules,
    running: &RunningSandbox,
    stays: Option<State>,
    trace: &mut Trace,
) {
    let request = &running.request;
    let waits = request.milli_cpu().is_none();
    match after.pods.get(&request.pod_uid) {
        Some(known)
            if known.sandbox_id != request.sandbox_id && after.released.contains(&request.sandbox_id) =>
        {
            return;
        }
        Some(known) if !known.told.open || waits => {
            *after = moved(after, request);
            return;
        }
        // It may still tell its request: nothing is decided yet.
        None if waits && request.stage == Stage::Sandbox && is_dedicated(request) => return,
        _ => {}
    }
    let placed = match (stays, &running.cpus) {
        (Some(stays), Some(cpus)) => {
            trace.about(&request.pod_uid);
            trace.stays(Some(ALL), dynamic::CPU, Some(&machine.nodes_of(cpus)));
            Ok(stays)
        }
        _ => first(after, machine, rules, request, DecidedBy::Reconcile, trace),
    };
    *after = placed.unwrap_or_else(|_| without_room(after, machine, rules, request));
}

/// The pod, if it is new or still open, on the CPUs that it runs on, if they are as many as it asks for and nobody else's.
fn exactly(state: &State, machine: &Machine, rules: &Rules, running: &RunningSandbox) -> Option<State> {
    let request = &running.request;
    let cpus = running.cpus.as_ref()?;
    if state.pods.get(&request.pod_uid).is_some_and(|known| !known.told.open) {
        return None;
    }
    let asked = request.milli_cpu().filter(|_| has_claim(rules, request))?;
    let fits = u64::try_from(cpus.len()).is_ok_and(|len| len == asked.ceil_cpus());
    // What is free to it: admitted anywhere first, then moved onto its own CPUs.
    let mut after = first(state, machine, rules, request, DecidedBy::Reconcile, &mut Trace::off()).ok()?;
    let id = ContainerId::new(request.pod_uid.as_str(), ALL);
    let own = after.cpus.containers.get(&id)?.clone();
    let free =
        super::free_per_node(&after, machine).iter().fold(own.cpus.clone(), |all, node| all | &node.cpus);
    let nodes = machine.nodes_of(cpus);
    let right_nodes = own.numa_hint.is_none() && !own.wishes.numa_exclusive() || nodes.len() == 1;
    if !fits || !cpus.is_subset(&free) || !right_nodes || own.qos != QosLevel::Dedicated {
        return None;
    }
    let mut entry = (*own).clone();
    entry.cpus = cpus.clone();
    entry.baseline = cpus.clone();
    entry.numa_hint = own.numa_hint.and(nodes.first());
    after.cpus.containers.insert(id.clone(), Arc::new(entry));
    if let Some(memory) = after.memory.containers.get_mut(&id).filter(|memory| memory.bound_to.is_some()) {
        Arc::make_mut(memory).bound_to = Some(nodes);
    }
    settled::settle(&mut after, machine, rules);
    settled::check(state, &after, machine).ok().map(|()| after)
}

/// The pod in the shared pool, though there is no room for it: it runs already.
fn without_room(state: &State, machine: &Machine, rules: &Rules, request: &SandboxRequest) -> State {
    let mut after = state.clone();
    let mut pod = understood(request, DecidedBy::Reconcile);
    let claims = has_claim(rules, request);
    let native = matches!(rules.cpu_policy, CpuPolicy::Native(_));
    let dedicated = pod.qos == QosLevel::Dedicated;
    let (uid, sandbox_id) = (request.pod_uid.clone(), request.sandbox_id.clone());
    if claims {
        pod.flags.insert(Flag::AdoptedWithoutRoom);
    }
    // A node agent needs no room: admitted as one, it then becomes a container of the pool.
    after.pods.remove(&uid);
    after.drop_containers(&uid, |_| true);
    let wishes = Wishes::default();
    let known = Pod {
        uid,
        sandbox_id,
        namespace: pod.namespace,
        name: pod.name,
        qos: pod.qos,
        class: pod.class,
        wishes: if dedicated { pod.wishes } else { wishes.clone() },
        kept_labels: pod.kept_labels,
        placed_under: Some(rules.policy_name()),
        served: if dedicated { QosLevel::Shared } else { pod.qos },
        node_agent: false,
        main: ALL.to_owned(),
        containers: pod.containers,
        told: Told { open: false, ..pod.told },
        flags: pod.flags,
        given: Given::new(),
        since_unix_ms: pod.now_unix_ms,
    };
    let entry = crate::policy::Container {
        pod_name: known.full_name(),
        kind: crate::policy::ContainerKind::Main,
        qos: if native { QosLevel::Shared } else { known.served },
        wishes,
        owner: Some(
            if !native && known.served == QosLevel::Reclaimed { "reclaim" } else { SHARE }.to_owned(),
        ),
        ramp_up: false,
        cpus: CpuSet::new(),
        baseline: CpuSet::new(),
        request: known.told.request.unwrap_or_default(),
        pod_request: None,
        numa_hint: None,
    };
    after.cpus.containers.insert(ContainerId::new(known.uid.as_str(), ALL), Arc::new(entry));
    after.pods.insert(known.uid.clone(), Arc::new(known));
    settled::settle(&mut after, machine, rules);
    after
}
