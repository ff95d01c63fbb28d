//! Pods that run in the shared pool because there was no room: dedicated ones get their set as soon as there is, and those whose
//! binding was lost are bound again.

use super::{Asked, CpuPolicy, Plan, Plugins, Pod, PodRequest, Rules, State, Trace, division, join, settled};
use crate::plan::Flag;
use oxalyst_qos::QosLevel;
use oxalyst_topology::Machine;
use oxalyst_units::MilliCpu;
use std::collections::BTreeSet;

/// What sends a dedicated pod to the shared pool until there is room.
const MAKESHIFT: [Flag; 2] = [Flag::AdoptedWithoutRoom, Flag::CpuOffline];

/// Gives each dedicated pod that was left without a set one, and binds shared ones whose binding was lost, where there is room now;
/// those that were decided first come first, again and again until nobody else fits: who is given CPUs of its own leaves room in the
/// pool, which may be what an older one waits for. Under the native policy each container that was left without a set gets one.
/// Nothing is refused: what does not fit waits on.
pub fn promote(state: &State, machine: &Machine, rules: &Rules) -> Plan {
    promote_traced(state, machine, rules, &mut Trace::off())
}

/// As [`promote`], and notes in `trace` what was weighed for those who get what they asked for.
pub fn promote_traced(state: &State, machine: &Machine, rules: &Rules, trace: &mut Trace) -> Plan {
    let machine = rules.confine(machine);
    let mut after = state.clone();
    // Each pass but the last gives a container what it waited for; there are seldom more than two.
    let most = state.cpus.containers.len() + 1;
    let _ = (0..most).find(|_| !pass(&mut after, &machine, rules, trace));
    Plan::between(state, after, &machine)
}

/// Tries each pod that waits once, the oldest first. Whether somebody got what it had waited for.
fn pass(after: &mut State, machine: &Machine, rules: &Rules, trace: &mut Trace) -> bool {
    let state = after.clone();
    let native = matches!(rules.cpu_policy, CpuPolicy::Native(_));
    let makeshift = state.pods.of_kind(|pod| if native { is_flagged(pod) } else { is_makeshift(pod) });
    let wants = |pod: &&Pod| match pod.qos {
        _ if native => true,
        QosLevel::Dedicated => pod.total_cpu().0 > 0,
        _ => pod.wishes.numa_binding(),
    };
    let mut waiting: Vec<&Pod> = makeshift.map(|(_, pod)| pod).filter(wants).collect();
    waiting.sort_by_key(|pod| (pod.since_unix_ms, &pod.uid));
    let mut served = false;
    let mut still: BTreeSet<&str> = waiting.iter().map(|pod| pod.uid.as_str()).collect();
    for pod in waiting {
        still.remove(pod.uid.as_str());
        if native {
            served |= promote_containers(after, machine, rules, pod, trace);
        } else if let Some(promoted) = promoted(after, machine, rules, pod, &still, trace) {
            *after = promoted;
            served = true;
        } else {
            still.insert(&pod.uid);
        }
    }
    served
}

/// The state with the pod placed anew. What the others ask for who wait as well is no shared pods' demand that would keep it off a
/// node: they ask for room of their own, and it is its turn.
fn promoted(
    state: &State,
    machine: &Machine,
    rules: &Rules,
    pod: &Pod,
    others: &BTreeSet<&str>,
    trace: &mut Trace,
) -> Option<State> {
    let mut attempt = state.clone();
    for uid in others {
        attempt.cpus.change_of_pod(uid, |_, _| true, |own| own.request = MilliCpu(0));
    }
    attempt.pods.remove(&pod.uid);
    attempt.drop_containers(&pod.uid, |_| true);
    settled::settle(&mut attempt, machine, rules);
    let mut flags = pod.flags.clone();
    flags.retain(|flag| !MAKESHIFT.contains(flag) && *flag != Flag::NumaBindingLost);
    let plugins = Plugins { given: pod.given.clone(), ..Plugins::default() };
    let request = PodRequest { flags, plugins, ..again(pod, pod.containers.clone()) };
    let mark = trace.mark();
    match join::admit(&mut attempt, machine, rules, &request, trace) {
        Ok(()) => {
            for uid in others {
                ask_again(&mut attempt, state, uid);
            }
            settled::settle(&mut attempt, machine, rules);
            if settled::check(state, &attempt, machine).is_ok() {
                return Some(attempt);
            }
            trace.rewind(mark);
            None
        }
        Err(_) => {
            trace.rewind(mark);
            None
        }
    }
}

/// The pod's containers ask for what they asked for before.
fn ask_again(attempt: &mut State, before: &State, uid: &str) {
    for (id, known) in before.cpus.of_pod(uid) {
        let request = known.request;
        attempt.cpus.change_of_pod(uid, |own, _| own == id, |own| own.request = request);
    }
}

/// Each container in itself: what the others of the pod have stays with them. Whether one got its set.
fn promote_containers(
    after: &mut State,
    machine: &Machine,
    rules: &Rules,
    pod: &Pod,
    trace: &mut Trace,
) -> bool {
    let mut served = false;
    for lacking in division::lacking(after, pod) {
        let mut attempt = after.clone();
        attempt.drop_containers(&pod.uid, |name| name == lacking.name);
        attempt.change_pod(&pod.uid, |pod| pod.containers.retain(|own| own.name != lacking.name));
        let request = again(pod, vec![lacking]);
        let mark = trace.mark();
        if join::admit(&mut attempt, machine, rules, &request, trace).is_err() {
            trace.rewind(mark);
        } else {
            // The order in which they were told is kept.
            attempt.change_pod(&pod.uid, |known| known.containers.clone_from(&pod.containers));
            *after = attempt;
            served = true;
        }
    }
    if division::lacking(after, pod).is_empty() {
        after.change_pod(&pod.uid, |pod| {
            pod.flags.retain(|flag| !MAKESHIFT.contains(flag));
            pod.served = pod.qos;
        });
    }
    served
}

/// These containers of a pod that is known, as if they came anew.
pub(super) fn again(pod: &Pod, containers: Vec<Asked>) -> PodRequest {
    PodRequest {
        uid: pod.uid.clone(),
        sandbox_id: pod.sandbox_id.clone(),
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        qos: pod.qos,
        class: pod.class,
        wishes: pod.wishes.clone(),
        kept_labels: pod.kept_labels.clone(),
        node_agent: pod.node_agent,
        told: pod.told.clone(),
        flags: BTreeSet::new(),
        containers,
        plugins: Plugins::default(),
        now_unix_ms: pod.since_unix_ms,
    }
}

fn is_flagged(pod: &Pod) -> bool {
    MAKESHIFT.iter().any(|flag| pod.flags.contains(flag))
}

fn is_makeshift(pod: &Pod) -> bool {
    let waits = match pod.qos {
        QosLevel::Dedicated => is_flagged(pod),
        QosLevel::Shared => pod.flags.contains(&Flag::NumaBindingLost),
        QosLevel::Reclaimed | QosLevel::System => false,
    };
    waits && pod.served == QosLevel::Shared
}
