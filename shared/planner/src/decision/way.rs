//! By which rule a pod of a kind gets its CPUs.

use crate::{
    pods::{CpuPolicy, Pod, Rules},
    policy::ContainerId,
};
use oxalyst_qos::QosLevel;

/// One word for the rule that a placed pod has its CPUs by.
pub(super) fn placed_by(pod: &Pod, state: &crate::pods::State, rules: &Rules) -> &'static str {
    if pod.node_agent {
        return "node-agent";
    }
    if matches!(rules.cpu_policy, CpuPolicy::Native(_)) {
        let own = |container: &crate::pods::Container| {
            let id = ContainerId::new(pod.uid.as_str(), container.name.as_str());
            state.cpus.containers.get(&id).is_some_and(|own| own.qos == QosLevel::Dedicated)
        };
        return if pod.containers.iter().any(own) { "native-exclusive" } else { "native-shared" };
    }
    let main = ContainerId::new(pod.uid.as_str(), pod.main.as_str());
    let entry = state.cpus.containers.get(&main);
    let bound = entry.is_some_and(|own| own.wishes.numa_binding());
    match pod.served {
        QosLevel::Dedicated if entry.is_some_and(|own| own.is_exclusive()) => "dedicated-numa-exclusive",
        QosLevel::Dedicated if bound => "dedicated-numa-bound",
        QosLevel::Dedicated => "dedicated",
        QosLevel::Shared if bound => "shared-numa-bound",
        QosLevel::Shared if entry.is_some_and(|own| own.ramp_up) => "shared-ramping-up",
        QosLevel::Shared => "shared-pool",
        QosLevel::Reclaimed if entry.is_some_and(|own| own.numa_hint.is_some()) => "reclaimed-numa-bound",
        QosLevel::Reclaimed => "reclaimed-pool",
        QosLevel::System => "system",
    }
}

/// The rule in a sentence, for people.
pub(super) fn in_words(placed_by: &str) -> &'static str {
    match placed_by {
        "node-agent" => "a node agent is never refused: it runs on all CPUs that are not exclusive",
        "native-exclusive" => "a Guaranteed container that asks for whole CPUs has a set of its own",
        "native-shared" => "everybody without a set of their own runs on all CPUs that are not exclusive",
        "dedicated-numa-exclusive" => {
            "a set of its own: all free CPUs of the NUMA nodes that it has for itself"
        }
        "dedicated-numa-bound" => "a set of its own, on the NUMA nodes that came out of the merge",
        "dedicated" => {
            "a set of its own by topology, on NUMA nodes without exclusive and bound shared pods: whole caches and cores first"
        }
        "shared-numa-bound" => "its pool's part on the NUMA node that came out of the merge",
        "shared-ramping-up" => "it starts on all CPUs that are nobody's own, and joins its pool later",
        "shared-pool" => "the CPUs of its shared pool",
        "reclaimed-numa-bound" => "what reclaimed pods may use of one NUMA node",
        "reclaimed-pool" => "the CPUs of the reclaim pool",
        "system" => "the pool that it names, else all CPUs",
        _ => "",
    }
}

/// The rule that refused, in words.
pub(super) fn refusing(rule: &str) -> &'static str {
    match rule {
        "named" => "a request has to name what it is about",
        "understood" => "what is asked for has to be one amount for each container and resource",
        "ended" => "a sandbox that has ended is not admitted any more",
        "cpu-room" => "there have to be CPUs for it, as its level and its wishes have them",
        "memory-room" => "there has to be memory for it on NUMA nodes",
        "alignment" => "the topology policy wants its resources on the same NUMA nodes",
        "placement" => "what was agreed on has to be there",
        "others-keep-cpus" => "everybody else keeps a CPU, and unbound shared pods a NUMA node",
        "running-stays" => "what runs keeps its NUMA nodes, and its having a set of its own or not",
        "plugin" => "a plugin has to have what is asked of it, and to say so in time",
        "deadline" => "nobody waits for the answer any more",
        "durable" => "exclusive CPUs are given only when that is durable",
        _ => "",
    }
}
