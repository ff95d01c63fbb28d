//! What a pod asked for and does not have though nothing has failed: wishes that contradict each other, and a set that is smaller than the
//! pod's total. Derived from the pod and its set, so that no record holds it.

use super::{Pod, PolicyName, State};
use crate::{
    plan::Flag,
    policy::{self, ContainerId},
};
use oxalyst_qos::QosLevel;
use oxalyst_topology::Machine;

/// A deviation, and in a sentence the numbers and the rule that decided.
pub(super) struct Deviation {
    pub(super) flag: Flag,
    pub(super) text: String,
}

/// What is to be said of each of a pod's flags that needs numbers to be understood, or says which rule counted. One sentence each.
pub fn remarks(state: &State, machine: &Machine, uid: &str) -> Vec<String> {
    let Some(pod) = state.pods.get(uid) else { return Vec::new() };
    let deviations = of_pod(pod, state, machine);
    deviations.into_iter().map(|Deviation { flag, text }| format!("{flag}: {text}")).collect()
}

/// All of a pod's.
pub(super) fn of_pod(pod: &Pod, state: &State, machine: &Machine) -> Vec<Deviation> {
    // Under the native policy neither wishes nor the pod's total decide.
    if pod.node_agent || pod.placed_under == Some(PolicyName::Native) {
        return Vec::new();
    }
    let main = ContainerId::new(pod.uid.as_str(), pod.main.as_str());
    let own = state.cpus.containers.get(&main);
    [
        number_of_nodes(pod, machine),
        alone_without_binding(pod),
        own.and_then(|own| small_set(pod, own)),
        own.and_then(|own| empty_pool(own, state)),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// `numa_ids` names as many nodes as it names, whatever `numa_number` says.
fn number_of_nodes(pod: &Pod, machine: &Machine) -> Option<Deviation> {
    let number: usize = pod.wishes.get("numa_number")?.parse().ok().filter(|number| *number > 0)?;
    let ids = pod.wishes.numa_ids(machine).ok()??;
    let contradict = pod.wishes.numa_binding() && ids.len() != number;
    contradict.then(|| Deviation {
        flag: Flag::WishesContradict,
        text: format!(
            "numa_ids names {} NUMA node(s) ({ids}) and numa_number is {number}: numa_ids counts",
            ids.len()
        ),
    })
}

fn alone_without_binding(pod: &Pod) -> Option<Deviation> {
    let alone = pod.wishes.get("numa_exclusive") == Some("true") && !pod.wishes.numa_binding();
    alone.then(|| Deviation {
        flag: Flag::WishesContradict,
        text: "numa_exclusive means nothing without numa_binding: the pod is bound to no NUMA node and has none for itself".to_owned(),
    })
}

/// All containers run within a set that is as large as the main container asks for.
fn small_set(pod: &Pod, own: &policy::Container) -> Option<Deviation> {
    let (has, total) = (own.cpus.len(), pod.total_cpu());
    let less = own.qos == QosLevel::Dedicated && u64::try_from(has).is_ok_and(|has| has < total.ceil_cpus());
    less.then(|| Deviation {
        flag: Flag::SetBelowTotal,
        text: format!(
            "its set has {has} CPU(s), as many as container {} asks for, and all its containers together ask for {}: \
             the main container's request counts",
            pod.main,
            total.ceil_cpus()
        ),
    })
}

fn empty_pool(own: &policy::Container, state: &State) -> Option<Deviation> {
    let named = own.wishes.cpuset_pool().filter(|_| own.qos == QosLevel::System)?;
    let there = state.cpus.pools.keys().any(|pool| pool.starts_with(named));
    (there && state.cpus.named(named, &state.cpus.exclusive()).is_empty()).then(|| Deviation {
        flag: Flag::PoolUnknown,
        text: format!("pool {named}, which it names, has no CPU: it runs on all CPUs, as system pods do that name no pool"),
    })
}
