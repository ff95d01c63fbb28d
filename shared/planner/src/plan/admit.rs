//! A pod or one of its containers is about to start.

use super::{
    DecidedBy, Flag, Placement, Plan, PodChange, PodEntry, PoolName, Reason, Refusal, Request, RequestSource,
    Stage, State,
    layout::Layout,
    request::{Asked, Want},
    room::{Fit, Room, needs_free},
};
use oxalyst_qos::QosLevel;
use oxalyst_topology::Machine;
use oxalyst_units::MilliCpu;
use std::collections::BTreeSet;

/// Decides for a pod whose sandbox starts, or one of whose containers is created.
///
/// A pod that is known keeps what it has, in a new sandbox too; the same request again is the empty plan. What is still open
/// (a dedicated pod without a request so far) is settled as soon as a request comes.
///
/// # Errors
/// There is no room, or the sandbox has ended already. Nothing changes then.
pub fn admit(state: &State, machine: &Machine, request: &Request) -> Result<Plan, Refusal> {
    if request.pod_uid.is_empty() || request.sandbox_id.is_empty() {
        return Err(refuse(request, Reason::Invalid, "the pod's uid or its sandbox's id is missing"));
    }
    let known = state.pods.get(&request.pod_uid);
    let current = known.is_some_and(|entry| entry.sandbox_id == request.sandbox_id);
    if !current && state.released.contains(&request.sandbox_id) {
        let message = format!("sandbox {} has ended already", request.sandbox_id);
        return Err(refuse(request, Reason::Expired, &message));
    }
    let room = Room::of(state, machine, &request.pod_uid);
    let entry = match known {
        None => first(&room, request)?,
        Some(entry) if entry.is_open() => settle(&room, moved(entry, request), request)?,
        Some(entry) => moved(entry, request),
    };
    Ok(put(state, machine, entry))
}

/// What a request becomes before it is known whether there is room.
pub(super) fn draft(request: &Request, decided_by: DecidedBy) -> PodEntry {
    let Asked { qos, want, flags } = Asked::of(request);
    let asked = request.milli_cpu();
    PodEntry {
        uid: request.pod_uid.clone(),
        sandbox_id: request.sandbox_id.clone(),
        namespace: request.namespace.clone(),
        name: request.name.clone(),
        qos,
        request: asked,
        request_source: if asked.is_some() { request.request_source } else { RequestSource::None },
        placement: match want {
            Want::Exclusive { .. } => Placement::Unsettled,
            Want::Pool(pool) => Placement::Pool(pool),
            Want::NodeAgent => Placement::NodeAgent,
        },
        flags,
        since_unix_ms: request.now_unix_ms,
        decided_by,
    }
}

/// The same pod in the request's sandbox.
pub(super) fn moved(entry: &PodEntry, request: &Request) -> PodEntry {
    PodEntry { sandbox_id: request.sandbox_id.clone(), ..entry.clone() }
}

/// The pod with this exclusive set.
pub(super) fn with_set(mut entry: PodEntry, request: &Request, asked: MilliCpu, fit: Fit) -> PodEntry {
    entry.flags.remove(&Flag::NoRequest);
    if fit.spans {
        entry.flags.insert(Flag::NumaBindingSpans);
    }
    PodEntry {
        request: Some(asked),
        request_source: request.request_source,
        placement: fit.placement(),
        ..entry
    }
}

/// The dedicated pod in the shared pool, because none of its containers has asked for CPUs so far.
pub(super) fn without_request(mut entry: PodEntry) -> PodEntry {
    entry.flags.insert(Flag::NoRequest);
    PodEntry { placement: Placement::Pool(PoolName::Share), ..entry }
}

fn first(room: &Room<'_>, request: &Request) -> Result<PodEntry, Refusal> {
    let entry = draft(request, DecidedBy::Admit);
    match &entry.placement {
        Placement::Unsettled => settle(room, entry, request),
        Placement::Pool(pool) if needs_free(*pool) => room.pooled(entry.request).map(|()| entry),
        Placement::Pool(_) | Placement::NodeAgent | Placement::Exclusive { .. } => Ok(entry),
    }
}

/// A dedicated pod that has no set so far.
fn settle(room: &Room<'_>, entry: PodEntry, request: &Request) -> Result<PodEntry, Refusal> {
    debug_assert_eq!(entry.qos, QosLevel::Dedicated);
    if let Some(asked) = request.milli_cpu() {
        let fit = room.exclusive(asked, request.is_numa_binding())?;
        return Ok(with_set(entry, request, asked, fit));
    }
    room.pooled(None)?;
    match request.stage {
        Stage::Sandbox => Ok(entry),
        Stage::Container => Ok(without_request(entry)),
    }
}

fn refuse(request: &Request, reason: Reason, message: &str) -> Refusal {
    Refusal {
        reason,
        rule: super::Rule::Named,
        message: message.to_owned(),
        asked: request.milli_cpu(),
        free: Vec::new(),
    }
}

/// The plan that makes this the pod's record.
pub(super) fn put(state: &State, machine: &Machine, entry: PodEntry) -> Plan {
    let plan = record(state, entry.clone());
    if plan.is_empty() {
        return plan;
    }
    let before = Layout::of(state, machine);
    let others = || state.pods.values().filter(|other| other.uid != entry.uid);
    let after = Layout::new(&state.reserved, machine, others().chain([&entry]));
    let mut affected: BTreeSet<_> =
        others().filter(|other| before.differs_for(&after, other)).map(|other| other.uid.clone()).collect();
    affected.insert(entry.uid);
    Plan { affected, ..plan }
}

/// As [`put`], without saying whom it moves.
pub(super) fn record(state: &State, entry: PodEntry) -> Plan {
    let known = state.pods.get(&entry.uid);
    if known == Some(&entry) {
        return Plan::default();
    }
    let replaced = known.map(|known| known.sandbox_id.clone()).filter(|id| *id != entry.sandbox_id);
    Plan {
        retired: replaced.into_iter().collect(),
        changes: vec![PodChange::Put(entry)],
        affected: BTreeSet::new(),
    }
}
