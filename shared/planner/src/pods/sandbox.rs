//! Pods as their sandboxes tell them: by what they ask for in total, before their containers are known.

use super::{
    Asked, Plan, PodRequest, Refusal, Role, Rules, SandboxRequest, State, Told, Trace, ended, join, refuse,
    settled, wording,
};
use crate::plan::{DecidedBy, Flag, Reason, RequestSource, Rule, Stage};
use oxalyst_qos::{QosLevel, enhancements, node_agent, qos_level};
use oxalyst_topology::Machine;
use std::collections::{BTreeMap, BTreeSet};

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

/// The state with the pod that is new, or still open. The machine is the confined one.
pub(super) fn first(
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
pub(super) fn moved(state: &State, request: &SandboxRequest) -> State {
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
        kept_labels: request.kept_labels.clone(),
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
            huge_pages: BTreeMap::new(),
        }],
        now_unix_ms: request.now_unix_ms,
    }
}
