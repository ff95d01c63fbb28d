//! The decision as a message.

use super::{Answer, Given, Step, candidates, request::encode_container, rules, snapshot, way};
use crate::{
    plan::Refusal,
    pods::{
        self, Plan, PluginsGave, Pod, PodPlacement, PodRequest, Request, State, Trace, placement_of,
        placements,
    },
};
use oxalyst_proto::orm::v1::{
    Decision, DecisionAffected, DecisionAsked, DecisionBasis, DecisionContainer, DecisionPod, DecisionPool,
    DecisionRefused,
};
use oxalyst_topology::{CpuSet, Machine};
use std::collections::BTreeMap;

/// Affected pods that are told one by one.
const TOLD: usize = 16;
/// Pods of a decision about several, and merges, that are told one by one.
const SEVERAL: usize = 64;

pub(super) fn decision(given: Given<'_>, step: &Step, trace: &Trace, answer: &Answer) -> Decision {
    let free = candidates::Free::of(given);
    let machine = given.rules.confine(given.machine);
    let mut decision = Decision {
        kind: step.kind().to_owned(),
        asked: asked(given, step),
        basis: Some(basis(given)),
        merges: merges(given, &free, trace, step.pod_uid().is_none()),
        merges_more: beyond(trace.merges.len(), SEVERAL),
        free: free.rows(),
        ..Decision::default()
    };
    name(&mut decision, given, step);
    match answer {
        Answer::Refused(refusal) => {
            decision.outcome = "refused".to_owned();
            decision.refused = Some(refused(refusal));
        }
        Answer::Planned { plan, open } => planned(&mut decision, given, &machine, step, plan, *open),
    }
    decision
}

fn merges(
    given: Given<'_>,
    free: &candidates::Free,
    trace: &Trace,
    of_several: bool,
) -> Vec<oxalyst_proto::orm::v1::DecisionMerge> {
    let told = |merge: &pods::Merge| {
        let mut told = candidates::merge(given, free, merge);
        if of_several {
            told.pod_uid.clone_from(&merge.uid);
        }
        told
    };
    trace.merges.iter().take(SEVERAL).map(told).collect()
}

fn beyond(count: usize, most: usize) -> u32 {
    u32::try_from(count.saturating_sub(most)).unwrap_or(u32::MAX)
}

/// A refusal as it is told.
pub fn refused(refusal: &Refusal) -> DecisionRefused {
    DecisionRefused {
        reason: refusal.reason.to_string(),
        rule: refusal.rule.to_string(),
        message: refusal.message.clone(),
    }
}

fn asked(given: Given<'_>, step: &Step) -> Option<DecisionAsked> {
    match step {
        Step::Admit(request) => Some(of_request(&pods::understood(request, crate::plan::DecidedBy::Admit))),
        Step::AdmitSpec(pod) | Step::Refine(pod) | Step::Whole(Request::Admit(pod)) => Some(of_request(pod)),
        Step::Whole(Request::Resize(resize)) | Step::Gave(PluginsGave { resize: Some(resize), .. }) => {
            let pod = given.state.pods.get(&resize.uid)?;
            let mut container = pod.container(&resize.container)?.clone();
            container.cpu = resize.cpu.or(container.cpu);
            container.limit = resize.limit.or(container.limit);
            container.memory = resize.memory.or(container.memory);
            Some(DecisionAsked {
                milli_cpu: None,
                containers: vec![encode_container(&container)],
                ..of_pod(pod)
            })
        }
        _ => None,
    }
}

fn of_request(pod: &PodRequest) -> DecisionAsked {
    DecisionAsked {
        qos_level: pod.qos.to_string(),
        class: pod.class.to_string(),
        enhancements: pod.wishes.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        node_agent: pod.node_agent,
        milli_cpu: pod.told.request.map(|milli| milli.0),
        source: pod.told.source.to_string(),
        containers: pod.containers.iter().map(encode_container).collect(),
    }
}

fn of_pod(pod: &Pod) -> DecisionAsked {
    DecisionAsked {
        qos_level: pod.qos.to_string(),
        class: pod.class.to_string(),
        enhancements: pod.wishes.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        node_agent: pod.node_agent,
        milli_cpu: pod.told.request.map(|milli| milli.0),
        source: pod.told.source.to_string(),
        containers: pod.containers.iter().map(encode_container).collect(),
    }
}

fn basis(given: Given<'_>) -> DecisionBasis {
    let [state, machine, digest] = snapshot::digests(given.state, given.machine, given.rules);
    DecisionBasis {
        generation: given.generation,
        state,
        machine,
        rules: digest,
        cpu_policy: rules::policy_name(&given.rules.cpu_policy).to_owned(),
        topology_policy: given.rules.topology.name().to_owned(),
        topology_scope: rules::scope_name(given.rules.scope).to_owned(),
        pods: u32::try_from(given.state.pods.len()).unwrap_or(u32::MAX),
    }
}

/// Names the pod: by the request where it says, else by what is known.
fn name(decision: &mut Decision, given: Given<'_>, step: &Step) {
    let Some(uid) = step.pod_uid() else { return };
    let known = given.state.pods.get(uid).map(|pod| (&pod.sandbox_id, &pod.namespace, &pod.name));
    let told = match step {
        Step::Admit(request) => Some((&request.sandbox_id, &request.namespace, &request.name)),
        Step::AdmitSpec(pod) | Step::Whole(Request::Admit(pod)) => {
            Some((&pod.sandbox_id, &pod.namespace, &pod.name))
        }
        _ => None,
    };
    if let Some((sandbox_id, namespace, name)) = told.or(known) {
        decision.sandbox_id.clone_from(sandbox_id);
        decision.namespace.clone_from(namespace);
        decision.name.clone_from(name);
    }
    if let Step::Release { sandbox_id, .. } = step {
        decision.sandbox_id.clone_from(sandbox_id);
    }
    decision.pod_uid = uid.to_owned();
}

fn planned(
    decision: &mut Decision,
    given: Given<'_>,
    machine: &Machine,
    step: &Step,
    plan: &Plan,
    open: bool,
) {
    let after = &plan.after;
    let about = step.pod_uid().unwrap_or_default();
    let pod = after.pods.get(about);
    decision.outcome = match pod {
        None => "done",
        Some(_) if open => "open",
        Some(_) if matches!(step, Step::Gave(PluginsGave { resize: None, .. })) => "kept",
        Some(pod) if given.state.pods.get(about) == Some(pod) => "kept",
        Some(_) => "placed",
    }
    .to_owned();
    if let Some(pod) = pod.filter(|_| !open) {
        decision.placed_by = way::placed_by(pod, after, given.rules).to_owned();
        (decision.chosen, decision.flags) = chosen(after, machine, about);
        decision.remarks = pods::remarks(after, machine, about);
    }
    if matches!(step, Step::Adopt(_) | Step::Promote | Step::Replan | Step::Whole(Request::TakeUp { .. })) {
        let several = || plan.pods.iter().filter_map(|(uid, pod)| Some((uid, pod.as_ref()?)));
        decision.pods_more = beyond(several().count(), SEVERAL);
        let one = |(uid, pod): (&String, &std::sync::Arc<Pod>)| {
            let (chosen, flags) = chosen(after, machine, uid);
            DecisionPod {
                pod_uid: uid.clone(),
                sandbox_id: pod.sandbox_id.clone(),
                namespace: pod.namespace.clone(),
                name: pod.name.clone(),
                asked: Some(of_pod(pod)),
                placed_by: way::placed_by(pod, after, given.rules).to_owned(),
                chosen,
                flags,
                remarks: pods::remarks(after, machine, uid),
            }
        };
        decision.pods = several().take(SEVERAL).map(one).collect();
    }
    decision.pools = if open { Vec::new() } else { pools(given.state, after, machine) };
    if !open {
        affected(decision, given.state, after, machine, about);
    }
}

/// Where the pod's containers run, and how they deviate.
fn chosen(state: &State, machine: &Machine, uid: &str) -> (Vec<DecisionContainer>, Vec<String>) {
    let placed = placement_of(state, machine, uid);
    let containers = || placed.iter().flat_map(|placed| &placed.containers);
    let flags: std::collections::BTreeSet<_> = containers().flat_map(|own| &own.flags).collect();
    let chosen = containers().map(|own| DecisionContainer {
        name: own.name.clone(),
        role: own.role.to_string(),
        pool: own.pool.clone().unwrap_or_default(),
        cpus: own.cpus.to_string(),
        mems: own.mems.to_string(),
        exclusive: own.exclusive,
    });
    (chosen.collect(), flags.into_iter().map(ToString::to_string).collect())
}

fn pools(before: &State, after: &State, machine: &Machine) -> Vec<DecisionPool> {
    let (before, after) = (pods::pools(before, machine), pods::pools(after, machine));
    let names: std::collections::BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let text =
        |pools: &BTreeMap<String, CpuSet>, name| pools.get(name).map(ToString::to_string).unwrap_or_default();
    let pools = names.into_iter().map(|name| DecisionPool {
        name: name.clone(),
        before: text(&before, name),
        after: text(&after, name),
    });
    pools.filter(|pool| pool.before != pool.after).collect()
}

fn affected(decision: &mut Decision, before: &State, after: &State, machine: &Machine, about: &str) {
    let (old, new) = (placements(before, machine), placements(after, machine));
    let uids: std::collections::BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let moved = uids.into_iter().filter(|uid| uid.as_str() != about && cpus(&old, uid) != cpus(&new, uid));
    for uid in moved {
        if decision.affected.len() == TOLD {
            decision.affected_more += 1;
            continue;
        }
        let pod = after.pods.get(uid).or_else(|| before.pods.get(uid));
        let (was, is) = (cpus(&old, uid), cpus(&new, uid));
        let at = (0..was.len().max(is.len())).find(|at| was.get(*at) != is.get(*at)).unwrap_or_default();
        let text = |sets: &[&CpuSet]| sets.get(at).map(ToString::to_string).unwrap_or_default();
        decision.affected.push(DecisionAffected {
            pod_uid: uid.clone(),
            namespace: pod.map(|pod| pod.namespace.clone()).unwrap_or_default(),
            name: pod.map(|pod| pod.name.clone()).unwrap_or_default(),
            cpus_before: text(&was),
            cpus_after: text(&is),
        });
    }
}

fn cpus<'p>(placements: &'p BTreeMap<String, PodPlacement>, uid: &str) -> Vec<&'p CpuSet> {
    placements
        .get(uid)
        .map(|placed| placed.containers.iter().map(|own| &own.cpus).collect())
        .unwrap_or_default()
}
