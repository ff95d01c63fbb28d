//! A set that was given to a whole pod under the native policy is divided among its containers once its spec tells them.

use super::{
    Asked, Class, Native, Pod, Role, Rules, State,
    native::{self, Joining, need},
    sandbox::ALL,
    settled,
};
use crate::{plan::Flag, policy::ContainerId};
use oxalyst_qos::QosLevel;
use oxalyst_topology::{CpuSet, Machine};

/// How far the division goes to give every container what it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// What the pod has, and what is free beside it where that is too little.
    Free,
    /// Nothing but what the pod has.
    Own,
}

/// Puts the pod's containers in the place of the one that stood for them all: each Guaranteed one that asks for whole CPUs has its
/// own set, first out of what the pod has. A plain init container lends its set to those after it. What is left over comes free,
/// CPUs that have been reserved since before others. Containers for which there is no room run in the shared pool, flagged, until
/// there is. `None`: a container would be left without CPUs, and the pod stays as it is.
pub(super) fn divide(
    state: &State,
    machine: &Machine,
    rules: &Rules,
    native: Native,
    pod: &Pod,
) -> Option<State> {
    [Reach::Free, Reach::Own].into_iter().find_map(|reach| {
        let after = divided(state, machine, rules, native, pod, reach);
        settled::check(state, &after, machine).is_ok().then_some(after)
    })
}

fn divided(
    state: &State,
    machine: &Machine,
    rules: &Rules,
    native: Native,
    pod: &Pod,
    reach: Reach,
) -> State {
    let mut after = state.clone();
    let whole = after.cpus.containers.get(&ContainerId::new(pod.uid.as_str(), ALL)).cloned();
    let has = whole.filter(|whole| whole.qos == QosLevel::Dedicated);
    let has = has.map(|whole| &whole.cpus & machine.online()).unwrap_or_default();
    after.drop_containers(&pod.uid, |_| true);
    after.pods.insert(pod.uid.clone(), std::sync::Arc::new(pod.clone()));
    let mut waits = false;
    let mut joining = Joining {
        after: &mut after,
        machine,
        native,
        supply: rules.supply(machine),
        pod,
        plugins: None,
        lacking: None,
    };
    for asked in native::in_order(&pod.containers) {
        let own = need(pod, &asked).map(|need| share(&joining, &has, need, reach));
        // A plain init container runs to its end before the others, or has already: nothing waits for it.
        waits |= own == Some(None) && asked.role != Role::Init;
        joining.put_cpus(&asked, own.flatten());
        take_memory(&mut joining, &asked);
    }
    after.change_pod(&pod.uid, |pod| {
        if waits {
            pod.flags.insert(Flag::AdoptedWithoutRoom);
        } else {
            pod.flags.remove(&Flag::AdoptedWithoutRoom);
        }
    });
    settled::settle(&mut after, machine, rules);
    after
}

/// CPUs for one container: what plain init containers lend, then what the pod has, then what is free; `None`: too few.
fn share(joining: &Joining<'_>, has: &CpuSet, need: usize, reach: Reach) -> Option<CpuSet> {
    let (machine, option) = (joining.machine, joining.native.option);
    let cpus = &joining.after.cpus;
    let own = has - &cpus.exclusive();
    let kept = &own & &cpus.reserved;
    let free = if reach == Reach::Free { joining.available() - &own } else { CpuSet::new() };
    let mut taken = CpuSet::new();
    for from in [joining.lent(), &own - &kept, kept, free] {
        let from = from - &taken;
        let more = (need - taken.len()).min(from.len());
        taken |= &crate::plan::take_native(machine, &from, more, option).ok()?;
    }
    (taken.len() == need).then_some(taken)
}

/// Beside its CPUs where there is room, else where there is; a container that runs already is not refused for want of it.
fn take_memory(joining: &mut Joining<'_>, asked: &Asked) {
    let id = ContainerId::new(joining.pod.uid.as_str(), asked.name.as_str());
    let cpus = joining.after.cpus.containers.get(&id).map(|own| own.cpus.clone()).unwrap_or_default();
    let near = Some(joining.machine.nodes_of(&cpus)).filter(|nodes| !nodes.is_empty());
    if joining.put_memory(asked, near.as_ref()).is_err() {
        joining.put_unbound_memory(asked);
    }
}

/// Containers of a pod that should have CPUs of their own and have none, plain init containers apart.
pub(super) fn lacking(state: &State, pod: &Pod) -> Vec<Asked> {
    let lacks = |asked: &&Asked| {
        let own = state.cpus.containers.get(&ContainerId::new(pod.uid.as_str(), asked.name.as_str()));
        asked.role != Role::Init
            && need(pod, asked).is_some()
            && own.is_some_and(|own| own.qos != QosLevel::Dedicated)
    };
    if pod.class != Class::Guaranteed || pod.node_agent {
        return Vec::new();
    }
    pod.containers.iter().filter(lacks).cloned().collect()
}
