//! Pods as their sandboxes tell them: by what they ask for in total, before their containers are known.

use super::{
    Asked, Given, Plan, PodRequest, Refusal, Role, Rules, RunningSandbox, SandboxRequest, State, Told, Trace,
    dynamic, ended, join, refuse, settled, wording,
};
use crate::{
    plan::{DecidedBy, Flag, Reason, RequestSource, Rule, Stage},
    policy::{ContainerId, SHARE, Wishes},
};
use oxalyst_qos::{QosLevel, enhancements, node_agent, qos_level};
use oxalyst_topology::{CpuSet, Machine};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// The container that stands for all of a pod of which only the totals are known.
pub const ALL: &str = "*";

/// The answer to an admission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// What would follow.
    pub plan: Plan,
    /// A dedicated pod's request is not known yet: nothing is to be held, its containers bring the request.
    pub open: bool,
}

/// Decides for a pod whose sandbox starts, or one of whose containers is created.
///
/// A pod that is known keeps what it has, in a new sandbox too; the same request again changes nothing. What is still open (a
/// dedicated pod without a request so far) is settled as soon as a request comes.
///
/// # Errors
/// There is no room, or the sandbox has ended already. Nothing changes then.
pub fn admit(
    state: &State,
    machine: &Machine,
    rules: &Rules,
    request: &SandboxRequest,
) -> Result<Admission, Refusal> {
    admit_traced(state, machine, rules, request, &mut Trace::off())
}

/// As [`admit`], and notes in `trace` what was weighed.
///
/// # Errors
/// As [`admit`].
pub fn admit_traced(
    state: &State,
    machine: &Machine,
    rules: &Rules,
    request: &SandboxRequest,
    trace: &mut Trace,
) -> Result<Admission, Refusal> {
    let told = |mut refusal: Refusal| {
        refusal.asked = request.milli_cpu();
        refusal
    };
    if request.pod_uid.is_empty() || request.sandbox_id.is_empty() {
        return Err(told(refuse(
            Reason::Invalid,
            Rule::Named,
            "the pod's uid or its sandbox's id is missing",
        )));
    }
    let known = state.pods.get(&request.pod_uid);
    let current = known.is_some_and(|pod| pod.sandbox_id == request.sandbox_id);
    if !current && state.released.contains(&request.sandbox_id) {
        let message = format!("sandbox {} has ended already", request.sandbox_id);
        return Err(told(refuse(Reason::Expired, Rule::Ended, message)));
    }
    let asks = request.milli_cpu().is_some();
    let machine = rules.confine(machine);
    let after = match known {
        Some(pod) if !(pod.told.open && asks) => moved(state, request),
        _ => first(state, &machine, rules, request, DecidedBy::Admit, trace)?,
    };
    let open = known.is_none()
        && request.stage == Stage::Sandbox
        && after.pods.get(&request.pod_uid).is_some_and(|pod| pod.told.open);
    Ok(Admission { plan: Plan::between(state, after, &machine), open })
}

/// Frees the pod if this is its current sandbox; else frees nothing. Either way the sandbox is not admitted any more.
pub fn release(state: &State, machine: &Machine, rules: &Rules, uid: &str, sandbox_id: &str) -> Plan {
    let machine = rules.confine(machine);
    let mut after = state.clone();
    after.released.remember(sandbox_id);
    if state.pods.get(uid).is_some_and(|pod| pod.sandbox_id == sandbox_id) {
        ended::remove(&mut after, &machine, rules, uid);
    }
    Plan::between(state, after, &machine)
}

/// The plan that follows a change of the machine or of the reserved CPUs. `affected` is every pod: how the machine was before
/// is not known here.
pub fn replan(state: &State, machine: &Machine, rules: &Rules) -> Plan {
    replan_traced(state, machine, rules, &mut Trace::off())
}

/// As [`replan`], and notes in `trace` what was weighed for those who are placed anew.
pub fn replan_traced(state: &State, machine: &Machine, rules: &Rules, trace: &mut Trace) -> Plan {
    let confined = rules.confine(machine);
    let mut after = state.clone();
    super::lost::take_up(&mut after, &confined, rules, None, trace);
    let affected = after.pods.keys().cloned().collect();
    Plan { affected, ..Plan::between(state, after, &confined) }
}

/// Takes in what runs, as one plan; never refused. Pods that are known keep what they have. Where several are new, those
/// without a claim to exclusive CPUs come first, then dedicated ones on the CPUs that they run on, then other dedicated ones; a
/// dedicated pod for which there is no room runs in the shared pool and is flagged. What names no pod is passed over.
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
    let claim = |running: &RunningSandbox| {
        let pod = understood(&running.request, DecidedBy::Reconcile);
        match (pod.qos == QosLevel::Dedicated, &running.cpus) {
            (true, Some(_)) => 1,
            (true, None) => 2,
            (false, _) => 0,
        }
    };
    let mut order: Vec<_> = chosen.into_iter().map(|(uid, running)| (claim(running), uid, running)).collect();
    order.sort_by_key(|(claim, uid, _)| (*claim, *uid));
    let confined = rules.confine(machine);
    let mut after = state.clone();
    // Who cannot stay where it runs takes nobody's place who can.
    let mut displaced = Vec::new();
    for (_, _, running) in order {
        let stays = exactly(&after, &confined, rules, running);
        if running.cpus.is_some() && stays.is_none() && is_dedicated(&running.request) {
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

fn is_dedicated(request: &SandboxRequest) -> bool {
    understood(request, DecidedBy::Reconcile).qos == QosLevel::Dedicated
}

/// The state with the pod that is new, or still open. The machine is the confined one.
fn first(
    state: &State,
    machine: &Machine,
    rules: &Rules,
    request: &SandboxRequest,
    decided_by: DecidedBy,
    trace: &mut Trace,
) -> Result<State, Refusal> {
    let mut after = state.clone();
    let mut pod = understood(request, decided_by);
    if let Some(known) = after.pods.remove(&request.pod_uid) {
        pod.now_unix_ms = known.since_unix_ms;
        pod.told.decided_by = known.told.decided_by;
        after.drop_containers(&request.pod_uid, |_| true);
        settled::settle(&mut after, machine, rules);
        retire(&mut after, &known.sandbox_id, &request.sandbox_id);
    }
    after.released.forget(&request.sandbox_id);
    join::admit(&mut after, machine, rules, &pod, trace).map(|()| after).map_err(|refusal| {
        let mut others = state.clone();
        if others.pods.remove(&request.pod_uid).is_some() {
            others.drop_containers(&request.pod_uid, |_| true);
            settled::settle(&mut others, machine, rules);
        }
        wording::not_admitted(refusal, &others, machine, rules, &pod, request.milli_cpu())
    })
}

/// The same pod in the request's sandbox.
fn moved(state: &State, request: &SandboxRequest) -> State {
    let mut after = state.clone();
    move_to(&mut after, &request.pod_uid, &request.sandbox_id);
    after
}

/// The pod, where it is known, is in this sandbox from now on.
pub(super) fn move_to(after: &mut State, uid: &str, sandbox_id: &str) {
    let before = after.pods.get(uid).map(|pod| pod.sandbox_id.clone());
    if let Some(before) = before.filter(|before| before != sandbox_id) {
        after.change_pod(uid, |pod| sandbox_id.clone_into(&mut pod.sandbox_id));
        retire(after, &before, sandbox_id);
    }
    after.released.forget(sandbox_id);
}

fn retire(state: &mut State, before: &str, now: &str) {
    if !before.is_empty() && before != now {
        state.released.remember(before);
    }
}

/// The pod, if it is new or still open, on the CPUs that it runs on, if they are as many as it asks for and nobody else's.
fn exactly(state: &State, machine: &Machine, rules: &Rules, running: &RunningSandbox) -> Option<State> {
    let request = &running.request;
    let cpus = running.cpus.as_ref()?;
    if state.pods.get(&request.pod_uid).is_some_and(|known| !known.told.open) {
        return None;
    }
    let asked = request.milli_cpu().filter(|_| is_dedicated(request))?;
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
    let dedicated = pod.qos == QosLevel::Dedicated;
    let (uid, sandbox_id) = (request.pod_uid.clone(), request.sandbox_id.clone());
    if dedicated {
        pod.flags.insert(Flag::AdoptedWithoutRoom);
    }
    // A node agent needs no room: admitted as one, it then becomes a container of the pool.
    after.pods.remove(&uid);
    after.drop_containers(&uid, |_| true);
    let wishes = Wishes::default();
    let known = super::Pod {
        uid,
        sandbox_id,
        namespace: pod.namespace,
        name: pod.name,
        qos: pod.qos,
        class: pod.class,
        wishes: if dedicated { pod.wishes } else { wishes.clone() },
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
        qos: known.served,
        wishes,
        owner: Some(if known.served == QosLevel::Reclaimed { "reclaim" } else { SHARE }.to_owned()),
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

/// A request as it is understood.
pub fn understood(request: &SandboxRequest, decided_by: DecidedBy) -> PodRequest {
    let mut flags = BTreeSet::new();
    let qos = qos_level(&request.annotations).unwrap_or_else(|_| {
        flags.insert(Flag::QosInvalid);
        None
    });
    let qos = qos.unwrap_or_default();
    let (wishes, faults) = enhancements(&request.annotations);
    if !faults.is_empty() {
        flags.insert(Flag::EnhancementInvalid);
    }
    if request.plugins_unasked {
        flags.insert(Flag::PluginsUnasked);
    }
    let asked = request.milli_cpu();
    PodRequest {
        plugins: super::Plugins::default(),
        uid: request.pod_uid.clone(),
        sandbox_id: request.sandbox_id.clone(),
        namespace: request.namespace.clone(),
        name: request.name.clone(),
        qos,
        class: request.class,
        wishes: wishes.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        node_agent: node_agent(&request.labels, &request.annotations, request.priority).is_some(),
        told: Told {
            request: asked,
            source: if asked.is_some() { request.request_source } else { RequestSource::None },
            decided_by,
            open: qos == QosLevel::Dedicated && asked.is_none(),
        },
        flags,
        containers: vec![Asked {
            name: ALL.to_owned(),
            role: Role::App,
            cpu: asked,
            limit: None,
            memory: None,
        }],
        now_unix_ms: request.now_unix_ms,
    }
}
