//! Pods that run in the shared pool because there was no room: dedicated ones get their set as soon as there is, and those whose
//! binding was lost are bound again.

use super::{
    Asked, CpuPolicy, Plan, Plugins, Pod, PodRequest, Role, Rules, State, Trace, division, join, settled,
};
use crate::plan::Flag;
use oxalyst_qos::QosLevel;
use oxalyst_topology::Machine;
use oxalyst_units::MilliCpu;
use std::collections::BTreeSet;

/// What sends a dedicated pod to the shared pool until there is room.
const MAKESHIFT: [Flag; 2] = [Flag::AdoptedWithoutRoom, Flag::CpuOffline];

/// Who gets what it waited for in one plan, at the most: nobody who starts meanwhile waits long. The next plan goes on.
const SERVED: usize = 16;

/// Gives each dedicated pod that was left without a set one, and binds shared ones whose binding was lost, where there is room now;
/// those that were decided first come first, again and again until nobody else fits: who is bound to a node again leaves the pool,
/// which an older one may need the CPUs of. Under the native policy each container that was left without a set gets one.
/// Nothing is refused: what does not fit waits on. At most 16 pods (under the native policy: containers) are served at once; as
/// long as the plan is not empty, another one may serve more.
pub fn promote(state: &State, machine: &Machine, rules: &Rules) -> Plan {
    promote_traced(state, machine, rules, &mut Trace::off())
}

/// As [`promote`], and notes in `trace` what was weighed for those who get what they asked for.
pub fn promote_traced(state: &State, machine: &Machine, rules: &Rules, trace: &mut Trace) -> Plan {
    let machine = rules.confine(machine);
    let mut after = state.clone();
    let mut left = SERVED;
    while left > 0 {
        let before = left;
        pass(&mut after, &machine, rules, &mut left, trace);
        if left == before {
            break;
        }
    }
    Plan::between(state, after, &machine)
}

/// Tries each pod that waits once, the oldest first, as long as somebody may be served.
fn pass(after: &mut State, machine: &Machine, rules: &Rules, left: &mut usize, trace: &mut Trace) {
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
    if native {
        let mut in_vain = InVain::default();
        for pod in waiting {
            promote_containers(after, machine, rules, pod, left, &mut in_vain, trace);
        }
        return;
    }
    // What those ask for who wait is no shared pods' demand that would keep one of them off a node: they ask for room of their own.
    let mut quiet = state.clone();
    for pod in &waiting {
        quiet.cpus.change_of_pod(&pod.uid, |_, _| true, |own| own.request = MilliCpu(0));
    }
    let mut still: BTreeSet<&str> = waiting.iter().map(|pod| pod.uid.as_str()).collect();
    let mut in_vain = InVain::default();
    for pod in waiting {
        if *left == 0 {
            return;
        }
        if in_vain.has(pod, &pod.containers) {
            continue;
        }
        still.remove(pod.uid.as_str());
        if let Some((promoted, others_quiet)) = promoted((after, &quiet), machine, rules, pod, &still, trace)
        {
            (*after, quiet) = (promoted, others_quiet);
            in_vain = InVain::default();
            *left -= 1;
        } else {
            still.insert(&pod.uid);
            in_vain.note(pod, &pod.containers);
        }
    }
}

/// Who was tried in vain since somebody was served last: another one who asks for the same is not tried.
#[derive(Default)]
struct InVain<'p>(Vec<(&'p Pod, Vec<Asked>)>);

// === impl InVain ===

impl<'p> InVain<'p> {
    fn has(&self, pod: &Pod, asked: &[Asked]) -> bool {
        let same = |known: &(&Pod, Vec<Asked>)| {
            known.0.qos == pod.qos
                && known.0.class == pod.class
                && known.0.main == pod.main
                && known.0.wishes == pod.wishes
                && known.1 == asked
        };
        Self::is_like_others(pod) && self.0.iter().any(same)
    }

    fn note(&mut self, pod: &'p Pod, asked: &[Asked]) {
        if Self::is_like_others(pod) {
            self.0.push((pod, asked.to_vec()));
        }
    }

    /// What its name or its own init containers had may be had by this pod alone.
    fn is_like_others(pod: &Pod) -> bool {
        !pod.wishes.numa_exclusive() && pod.containers.iter().all(|asked| asked.role != Role::Init)
    }
}

/// The state with the pod placed anew, and the same in which the others who wait ask for nothing, as they do in the second one given.
fn promoted(
    (state, quiet): (&State, &State),
    machine: &Machine,
    rules: &Rules,
    pod: &Pod,
    others: &BTreeSet<&str>,
    trace: &mut Trace,
) -> Option<(State, State)> {
    let mut attempt = quiet.clone();
    attempt.pods.remove(&pod.uid);
    attempt.drop_containers(&pod.uid, |_| true);
    settled::settle(&mut attempt, machine, rules);
    let mut flags = pod.flags.clone();
    flags.retain(|flag| !MAKESHIFT.contains(flag) && *flag != Flag::NumaBindingLost);
    let plugins = Plugins { given: pod.given.clone(), ..Plugins::default() };
    let request = PodRequest { flags, plugins, ..again(pod, pod.containers.clone()) };
    let mark = trace.mark();
    if join::admit(&mut attempt, machine, rules, &request, trace).is_ok() {
        let quiet = attempt.clone();
        for uid in others {
            ask_again(&mut attempt, state, uid);
        }
        settled::settle(&mut attempt, machine, rules);
        if settled::check(state, &attempt, machine).is_ok() {
            return Some((attempt, quiet));
        }
    }
    trace.rewind(mark);
    None
}

/// The pod's containers ask for what they asked for before.
fn ask_again(attempt: &mut State, before: &State, uid: &str) {
    for (id, known) in before.cpus.of_pod(uid) {
        let request = known.request;
        attempt.cpus.change_of_pod(uid, |own, _| own == id, |own| own.request = request);
    }
}

/// Each container in itself: what the others of the pod have stays with them.
fn promote_containers<'p>(
    after: &mut State,
    machine: &Machine,
    rules: &Rules,
    pod: &'p Pod,
    left: &mut usize,
    in_vain: &mut InVain<'p>,
    trace: &mut Trace,
) {
    for lacking in division::lacking(after, pod) {
        let asked = std::slice::from_ref(&lacking);
        if *left == 0 || in_vain.has(pod, asked) {
            continue;
        }
        let mut attempt = after.clone();
        attempt.drop_containers(&pod.uid, |name| name == lacking.name);
        attempt.change_pod(&pod.uid, |pod| pod.containers.retain(|own| own.name != lacking.name));
        let request = again(pod, vec![lacking.clone()]);
        let mark = trace.mark();
        if join::admit(&mut attempt, machine, rules, &request, trace).is_err() {
            trace.rewind(mark);
            in_vain.note(pod, asked);
        } else {
            // The order in which they were told is kept.
            attempt.change_pod(&pod.uid, |known| known.containers.clone_from(&pod.containers));
            *after = attempt;
            *in_vain = InVain::default();
            *left -= 1;
        }
    }
    if division::lacking(after, pod).is_empty() {
        after.change_pod(&pod.uid, |pod| {
            pod.flags.retain(|flag| !MAKESHIFT.contains(flag));
            pod.served = pod.qos;
        });
    }
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
