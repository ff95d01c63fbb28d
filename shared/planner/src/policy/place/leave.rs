//! A pod ends, or has been running for long enough that what it needs is known.

use super::super::{Changes, ContainerId, Options, Remembered, State, pools, state::specified_pool};
use oxalyst_qos::QosLevel;
use oxalyst_topology::Machine;
use std::{collections::BTreeSet, sync::Arc};

/// Pods that are gone are remembered up to this number: more than a node holds at once.
const REMEMBERED: usize = 256;

/// The pod is gone: its CPUs are free at once, and the pools are computed anew.
pub fn remove(state: &State, options: &Options, machine: &Machine, pod: &str) -> Changes {
    let gone: Vec<_> = state.of_pod(pod).map(|(id, container)| (id.clone(), container.clone())).collect();
    let mut after = state.clone();
    for (id, container) in gone {
        after.containers.remove(&id);
        if container.is_exclusive() {
            let nodes = machine.nodes_of(&container.cpus);
            let (pod_name, container) = (container.pod_name, id.container.to_string());
            after.remembered.retain(|known| known.pod_name != pod_name || known.container != container);
            after.remembered.push(Remembered { pod_name, container, nodes });
        }
    }
    let excess = after.remembered.len().saturating_sub(REMEMBERED);
    after.remembered.drain(..excess);
    if after.containers == state.containers {
        return Changes::default();
    }
    pools::recompute(&mut after, options, machine);
    after.changes_since(state)
}

/// These containers have been running for long enough: shared ones join their pools.
pub fn end_ramp_up(
    state: &State,
    options: &Options,
    machine: &Machine,
    containers: &BTreeSet<ContainerId>,
) -> Changes {
    let mut after = state.clone();
    for id in containers {
        if !after.containers.get(id).is_some_and(|container| container.ramp_up) {
            continue;
        }
        let Some(container) = after.containers.get_mut(id).map(Arc::make_mut) else { continue };
        container.ramp_up = false;
        if container.qos == QosLevel::Shared {
            container.owner = Some(specified_pool(container.qos, &container.wishes).to_owned());
        }
    }
    if after == *state {
        return Changes::default();
    }
    pools::recompute(&mut after, options, machine);
    after.changes_since(state)
}
