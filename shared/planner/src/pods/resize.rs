//! A running container is to have more or less than it has.

use super::{
    Asked, CpuPolicy, Native, Pod, Refusal, Resize, Rules, State, Trace, dynamic, native, near_memory,
    refuse, settled,
};
use crate::{
    plan::{NativeOption, Reason, Rule, exclusive_cpus, place_native, take_native},
    policy::{ContainerId, Lack, Options},
    topology_manager::{Policy, Unaligned, merge},
};
use oxalyst_qos::QosLevel;
use oxalyst_topology::{CpuSet, Machine, NumaMask};
use std::sync::Arc;

/// Growing keeps what the container has, shrinking gives back what came later first. What cannot be had is refused whole.
pub(super) fn resize(
    after: &mut State,
    machine: &Machine,
    rules: &Rules,
    request: &Resize,
    trace: &mut Trace,
) -> Result<(), Refusal> {
    let unknown = || {
        let message = format!("pod {} with container {} is not known", request.uid, request.container);
        refuse(Reason::Invalid, Rule::Named, message)
    };
    let mut pod = after.pods.get(&request.uid).map(|pod| Pod::clone(pod)).ok_or_else(unknown)?;
    let container = pod.containers.iter_mut().find(|container| container.name == request.container);
    let container = container.ok_or_else(unknown)?;
    let old = container.clone();
    container.cpu = request.cpu.or(container.cpu);
    container.limit = request.limit.or(container.limit);
    container.memory = request.memory.or(container.memory);
    let new = container.clone();
    if new == old {
        return Ok(());
    }
    let before = after.clone();
    if pod.told.request.is_some() && new.cpu != old.cpu {
        pod.told.request = Some(pod.total_cpu()).filter(|total| total.0 > 0);
    }
    after.pods.insert(pod.uid.clone(), Arc::new(pod.clone()));
    if pod.node_agent {
        return Ok(());
    }
    trace.about(&pod.uid);
    match &rules.cpu_policy {
        CpuPolicy::Dynamic(options) => of_level(after, machine, rules, options, &pod, (&old, &new), trace)?,
        CpuPolicy::Native(native) => {
            let nodes = own_nodes(after, machine, &pod, &new);
            match of_own(after, machine, rules, *native, &pod, (&old, &new)) {
                Ok(()) => trace.stays(Some(&new.name), dynamic::CPU, nodes.as_ref()),
                Err(refusal) => {
                    let resource = if old.cpu == new.cpu { dynamic::MEMORY } else { dynamic::CPU };
                    let nodes = nodes.map(|nodes| (resource.to_owned(), vec![(nodes, Lack::Room)]));
                    trace.unhinted(Some(&new.name));
                    trace.lacking(nodes.filter(|_| refusal.reason != Reason::Unsupported));
                    return Err(refusal);
                }
            }
        }
    }
    near_memory::mend(after, machine, rules);
    settled::settle(after, machine, rules);
    settled::check(&before, after, machine)
}

/// Whether the container is shared and has started so lately that it runs on all CPUs for shared ones: what it asks for decides
/// nothing until it joins its pool.
pub fn is_ramping_up(state: &State, uid: &str, container: &str) -> bool {
    let own = state.cpus.containers.get(&ContainerId::new(uid, container));
    own.is_some_and(|own| own.qos == QosLevel::Shared && own.ramp_up && !own.wishes.numa_binding())
}

/// Under the dynamic policy: the pod's main container is what has, and must find, room.
fn of_level(
    after: &mut State,
    machine: &Machine,
    rules: &Rules,
    options: &Options,
    pod: &Pod,
    (old, new): (&Asked, &Asked),
    trace: &mut Trace,
) -> Result<(), Refusal> {
    let id = ContainerId::new(pod.uid.as_str(), new.name.as_str());
    let follows = pod.served == QosLevel::Dedicated && !pod.is_main(&new.name);
    let main = pod.container(&pod.main).cloned();
    let (Some(main), true) = (main, after.cpus.containers.contains_key(&id)) else { return Ok(()) };
    forget_offline(after, machine, &pod.uid);
    let mut joining = dynamic::Joining::new(after, machine, rules, options, pod);
    joining.resize = true;
    let policy = joining.topology(rules);
    let providers = joining.providers(&main).inspect_err(|_| trace.unhinted(Some(&main.name)));
    trace.lacking(joining.lacking.take());
    let providers = providers?;
    trace.weighed(Some(&main.name), &providers);
    let merged = merge(&policy, &rules.nodes(machine), &providers);
    let merged = merged.map_err(|error| refuse(Reason::Unsupported, Rule::Alignment, error.to_string()))?;
    trace.merged(&merged);
    if !merged.admit {
        let refused = Unaligned::Refused { container: None, providers, merged };
        return Err(super::join::unaligned(refused, rules, pod, &[]));
    }
    if old.cpu != new.cpu && !follows {
        joining.place_cpus(new, &joining.hint(&merged, dynamic::CPU))?;
    }
    let bound = pod.served_wishes().numa_binding();
    // The memory of a dedicated pod that is not bound lies beside its CPUs, wherever they are.
    let dedicated = pod.served == QosLevel::Dedicated;
    if old.memory != new.memory || old.cpu != new.cpu && dedicated && !bound && !follows {
        let whole = if bound || dedicated { &main } else { new };
        joining.place_memory(whole, &joining.memory_hint(whole, &merged))?;
    }
    joining.after.note_total(pod);
    Ok(())
}

/// What is offline cannot be counted as part of what the container has.
fn forget_offline(after: &mut State, machine: &Machine, uid: &str) {
    let online = machine.online();
    let partly = |own: &CpuSet| !own.is_subset(online) && !own.is_disjoint(online);
    after.cpus.change_of_pod(
        uid,
        |_, own| own.qos == QosLevel::Dedicated && partly(&own.cpus),
        |own| {
            own.cpus = &own.cpus & online;
            own.baseline = &own.baseline & online;
        },
    );
}

/// The NUMA nodes of the container's own set, which it stays on; `None`: it has none.
fn own_nodes(state: &State, machine: &Machine, pod: &Pod, container: &Asked) -> Option<NumaMask> {
    let id = ContainerId::new(pod.uid.as_str(), container.name.as_str());
    let own = state.cpus.containers.get(&id).filter(|own| own.qos == QosLevel::Dedicated);
    own.map(|own| machine.nodes_of(&own.cpus))
}

/// Under the native policy: the container's own set.
fn of_own(
    after: &mut State,
    machine: &Machine,
    rules: &Rules,
    native: Native,
    pod: &Pod,
    (old, new): (&Asked, &Asked),
) -> Result<(), Refusal> {
    forget_offline(after, machine, &pod.uid);
    let id = ContainerId::new(pod.uid.as_str(), new.name.as_str());
    let Some(known) = after.cpus.containers.get(&id).cloned() else { return Ok(()) };
    let supply = rules.supply(machine);
    let mut joining = native::Joining { after, machine, native, supply, pod, plugins: None, lacking: None };
    let mut entry = (*known).clone();
    entry.request = new.cpu.unwrap_or_default();
    if old.cpu != new.cpu {
        let own = known.qos == QosLevel::Dedicated;
        let need = new.cpu.filter(|_| pod.class == super::Class::Guaranteed).and_then(exclusive_cpus);
        match (own, need) {
            (true, Some(need)) => {
                let option = native.option;
                entry.cpus = resized(machine, &rules.topology, &joining.available(), option, &known, need)?;
            }
            (false, None) => {}
            _ => {
                return Err(refuse(
                    Reason::Unsupported,
                    Rule::RunningStays,
                    "a running container can neither get CPUs of its own nor lose them: make the pod anew",
                ));
            }
        }
        joining.after.cpus.containers.insert(id.clone(), Arc::new(entry));
    }
    if old.memory != new.memory {
        let nodes = joining.after.memory.containers.get(&id).and_then(|known| known.bound_to.clone());
        joining.put_memory(new, nodes.as_ref())?;
        let now = joining.after.memory.containers.get(&id).and_then(|known| known.bound_to.clone());
        if nodes.is_some() && now != nodes {
            return Err(refuse(
                Reason::Insufficient,
                Rule::RunningStays,
                format!(
                    "{} of memory is asked for, more than NUMA node(s) {} have left",
                    new.memory.unwrap_or_default(),
                    nodes.unwrap_or_default()
                ),
            ));
        }
    }
    Ok(())
}

fn resized(
    machine: &Machine,
    policy: &Policy,
    available: &CpuSet,
    option: NativeOption,
    known: &crate::policy::Container,
    need: usize,
) -> Result<CpuSet, Refusal> {
    let have = &known.cpus;
    let short = |what: String| refuse(Reason::Insufficient, Rule::CpuRoom, what);
    if let Some(more) = need.checked_sub(have.len()) {
        let nodes = machine.nodes_of(have);
        let near = available & &native::cpus_of(machine, &nodes);
        if more > available.len() {
            return Err(short(format!(
                "{need} CPUs of its own are asked for; it has {} and {} are free",
                have.len(),
                available.len()
            )));
        }
        let aligned = !matches!(policy, Policy::None | Policy::BestEffort);
        if more > near.len() && aligned {
            let message = format!(
                "{need} CPUs of its own are asked for; it has {} and {} are free on its NUMA node(s) {nodes}, which topology \
                 policy {} keeps it on",
                have.len(),
                near.len(),
                policy.name()
            );
            return Err(refuse(Reason::Affinity, Rule::RunningStays, message));
        }
        let taken = place_native(machine, available, more, option, Some(&nodes));
        return taken.map(|taken| have | &taken).map_err(|error| short(error.to_string()));
    }
    // The CPUs of its first admission stay longest.
    let kept = have & &known.baseline;
    let later = have - &kept;
    let taken = match need.checked_sub(kept.len()) {
        Some(more) => take_native(machine, &later, more, NativeOption::Packed).map(|more| &kept | &more),
        None => take_native(machine, &kept, need, NativeOption::Packed),
    };
    taken.map_err(|error| short(error.to_string()))
}
