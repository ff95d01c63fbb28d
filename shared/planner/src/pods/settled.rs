//! What follows from who has CPUs of its own: pools, and who runs where in them.

use super::{CpuPolicy, Pod, Refusal, Rules, State, placement, refuse, shortage};
use crate::{
    plan::{Flag, Reason, Rule},
    policy::{self, Container, ContainerId, INTERRUPT, Options, RESERVE, SHARE, memory},
};
use oxalyst_qos::QosLevel;
use oxalyst_topology::Machine;
use std::collections::BTreeSet;

/// Recomputations of pools that overlap; two were enough wherever it was tried.
const OVERLAP_ROUNDS: usize = 8;

#[cfg(test)]
thread_local! {
    static TIMES: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// How often [`settle`] ran on this thread: what a plan costs on a node of many pods.
#[cfg(test)]
pub(super) fn times() -> usize {
    TIMES.get()
}

/// Computes pools, and the CPUs and memory of all who have none of their own, anew.
pub(super) fn settle(state: &mut State, machine: &Machine, rules: &Rules) {
    #[cfg(test)]
    TIMES.set(TIMES.get() + 1);
    memory::settle(&mut state.memory, machine);
    shortage::flag(state, machine, rules);
    match &rules.cpu_policy {
        CpuPolicy::Dynamic(options) => {
            policy::recompute(&mut state.cpus, options, machine);
            // Pools that overlap follow from the pools before: until they stay as they are.
            for _ in 0..if options.overlap { OVERLAP_ROUNDS } else { 0 } {
                let before = state.cpus.pools.clone();
                policy::recompute(&mut state.cpus, options, machine);
                if before == state.cpus.pools {
                    break;
                }
            }
            flag_unbound(state, options);
        }
        CpuPolicy::Native(_) => settle_native(&mut state.cpus, machine),
    }
}

/// Reclaimed pods that are to be bound and are not: there was no node for them, or it has no CPU for them any more.
fn flag_unbound(state: &mut State, options: &Options) {
    let flagged = |pod: &Pod| pod.flags.contains(&Flag::NumaBindingLost);
    let reclaimed = |pod: &Pod| pod.served == QosLevel::Reclaimed;
    if !options.reclaim_numa_binding && !state.pods.kinds().any(|pod| reclaimed(pod) && flagged(pod)) {
        return;
    }
    let is_unbound = |pod: &Pod| {
        let main = ContainerId::new(pod.uid.as_str(), pod.main.as_str());
        let wants = pod.served == QosLevel::Reclaimed && pod.wishes.numa_binding();
        let own = state.cpus.containers.get(&main).filter(|_| wants && options.reclaim_numa_binding);
        own.is_some_and(|own| own.numa_hint.is_none())
    };
    let differing = state.pods.of_kind(reclaimed).filter(|(_, pod)| flagged(pod) != is_unbound(pod));
    for uid in differing.map(|(uid, _)| uid.clone()).collect::<Vec<_>>() {
        state.change_pod(&uid, |pod| {
            if !pod.flags.remove(&Flag::NumaBindingLost) {
                pod.flags.insert(Flag::NumaBindingLost);
            }
        });
    }
}

/// One shared pool of everything that is nobody's own, the reserved CPUs included.
fn settle_native(cpus: &mut policy::State, machine: &Machine) {
    let share = machine.online() - machine.isolated() - &cpus.exclusive();
    let moves = |container: &Container| {
        Some(&share).filter(|share| container.qos != QosLevel::Dedicated && container.cpus != **share)
    };
    cpus.containers.update(moves, |container, share| container.cpus.clone_from(share));
    cpus.pools.retain(|name, _| name == INTERRUPT);
    cpus.pools.extend([(SHARE.to_owned(), share), (RESERVE.to_owned(), cpus.reserved.clone())]);
}

/// Refuses what would leave a container without CPUs that has some before, or that is new.
pub(super) fn check(before: &State, after: &State, machine: &Machine) -> Result<(), Refusal> {
    let starved = |state: &State| -> BTreeSet<ContainerId> {
        let without = state.cpus.containers.of_kind(|own| own.cpus.is_disjoint(machine.online()));
        without.map(|(id, _)| id.clone()).collect()
    };
    let known = starved(before);
    if let Some(id) = starved(after).iter().find(|id| !known.contains(*id)) {
        let pod = after.pods.get(&*id.pod);
        let name = pod.map(|pod| pod.full_name()).unwrap_or_default();
        let level = pod.map(|pod| pod.served).unwrap_or_default();
        let message = format!("pod {name} ({level}) would be left without any CPU");
        return Err(refuse(Reason::Insufficient, Rule::OthersKeepCpus, message));
    }
    let agents = after.pods.groups().filter(|group| group.example.node_agent);
    let agents: usize = agents.map(|group| group.count).sum();
    let has_open = |state: &State| !placement::open(state, machine).is_empty();
    if agents > 0 && has_open(before) && !has_open(after) {
        return Err(refuse(
            Reason::Insufficient,
            Rule::OthersKeepCpus,
            format!("every CPU would be exclusive, and none left for {agents} node agent(s)"),
        ));
    }
    Ok(())
}
