//! Pods that run in the shared pool because there was no room: dedicated ones get their set as soon as there is, and those whose
//! binding was lost are bound again.

use super::{CpuPolicy, Plan, Plugins, Pod, PodRequest, Rules, State, Trace, join, settled};
use crate::plan::Flag;
use oxalyst_qos::QosLevel;
use oxalyst_topology::Machine;

/// What sends a dedicated pod to the shared pool until there is room.
const MAKESHIFT: [Flag; 2] = [Flag::AdoptedWithoutRoom, Flag::CpuOffline];

/// Gives each dedicated pod that was left without a set one, and binds shared ones whose binding was lost, where there is room now;
/// those that were decided first come first.
/// Nothing is refused: what does not fit waits on.
pub fn promote(state: &State, machine: &Machine, rules: &Rules) -> Plan {
    promote_traced(state, machine, rules, &mut Trace::off())
}

/// As [`promote`], and notes in `trace` what was weighed for those who get what they asked for.
pub fn promote_traced(state: &State, machine: &Machine, rules: &Rules, trace: &mut Trace) -> Plan {
    let machine = rules.confine(machine);
    let makeshift = state.pods.of_kind(is_makeshift).map(|(_, pod)| pod);
    let wants = |pod: &&Pod| match pod.qos {
        QosLevel::Dedicated => pod.total_cpu().0 > 0,
        _ => pod.wishes.numa_binding(),
    };
    let mut waiting: Vec<&Pod> = makeshift.filter(wants).collect();
    if !matches!(rules.cpu_policy, CpuPolicy::Dynamic(_)) {
        // Each container has its own set there, and what is left of a pod's stays with it.
        waiting.clear();
    }
    waiting.sort_by_key(|pod| (pod.since_unix_ms, &pod.uid));
    let mut after = state.clone();
    for pod in waiting {
        let mut attempt = after.clone();
        attempt.pods.remove(&pod.uid);
        attempt.drop_containers(&pod.uid, |_| true);
        settled::settle(&mut attempt, &machine, rules);
        let mut flags = pod.flags.clone();
        flags.retain(|flag| !MAKESHIFT.contains(flag) && *flag != Flag::NumaBindingLost);
        let request = PodRequest {
            uid: pod.uid.clone(),
            sandbox_id: pod.sandbox_id.clone(),
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            qos: pod.qos,
            class: pod.class,
            wishes: pod.wishes.clone(),
            node_agent: pod.node_agent,
            told: pod.told.clone(),
            flags,
            containers: pod.containers.clone(),
            plugins: Plugins { given: pod.given.clone(), ..Plugins::default() },
            now_unix_ms: pod.since_unix_ms,
        };
        let mark = trace.mark();
        match join::admit(&mut attempt, &machine, rules, &request, trace) {
            Ok(()) => after = attempt,
            Err(_) => trace.rewind(mark),
        }
    }
    Plan::between(state, after, &machine)
}

fn is_makeshift(pod: &Pod) -> bool {
    let waits = match pod.qos {
        QosLevel::Dedicated => MAKESHIFT.iter().any(|flag| pod.flags.contains(flag)),
        QosLevel::Shared => pod.flags.contains(&Flag::NumaBindingLost),
        QosLevel::Reclaimed | QosLevel::System => false,
    };
    waits && pod.served == QosLevel::Shared
}
