//! Pods whose specs are known: containers of every kind, one by one.

use super::{
    Asked, CpuPolicy, Plan, Pod, PodRequest, Refusal, Rules, State, Trace, division, dynamic, join,
    near_memory, refuse, sandbox, sandbox::ALL, settled, wording,
};
use crate::{
    plan::{Flag, Reason, Rule},
    policy::{self, ContainerId, ContainerKind, memory},
    topology_manager::Hint,
};
use oxalyst_qos::QosLevel;
use oxalyst_topology::Machine;
use std::{collections::BTreeSet, sync::Arc};

/// Decides for a pod whose sandbox starts, or one of whose containers is created, by its spec.
///
/// A pod that is known keeps what it has, in a new sandbox too. One of which only the total was known is [refined](refine).
///
/// # Errors
/// There is no room, or the sandbox has ended already. Nothing changes then.
pub fn admit_spec(
    state: &State,
    machine: &Machine,
    rules: &Rules,
    request: &PodRequest,
) -> Result<Plan, Refusal> {
    admit_spec_traced(state, machine, rules, request, &mut Trace::off())
}

/// As [`admit_spec`], and notes in `trace` what was weighed.
///
/// # Errors
/// As [`admit_spec`].
pub fn admit_spec_traced(
    state: &State,
    machine: &Machine,
    rules: &Rules,
    request: &PodRequest,
    trace: &mut Trace,
) -> Result<Plan, Refusal> {
    if request.uid.is_empty() || request.sandbox_id.is_empty() {
        return Err(refuse(Reason::Invalid, Rule::Named, "the pod's uid or its sandbox's id is missing"));
    }
    let known = state.pods.get(&request.uid);
    let current = known.is_some_and(|pod| pod.sandbox_id == request.sandbox_id);
    if !current && state.released.contains(&request.sandbox_id) {
        let message = format!("sandbox {} has ended already", request.sandbox_id);
        return Err(refuse(Reason::Expired, Rule::Ended, message));
    }
    let machine = rules.confine(machine);
    let mut after = state.clone();
    if known.is_some_and(|pod| !pod.told.open) {
        sandbox::move_to(&mut after, &request.uid, &request.sandbox_id);
        let mark = trace.mark();
        let refined = refined(&after, &machine, rules, request, trace);
        if refined.is_none() {
            trace.rewind(mark);
        }
        return Ok(Plan::between(state, refined.unwrap_or(after), &machine));
    }
    sandbox::move_to(&mut after, &request.uid, &request.sandbox_id);
    anew(&mut after, &machine, rules, request, trace)?;
    Ok(Plan::between(state, after, &machine))
}

/// The spec of a pod came after its pod had been decided: its containers take the place of the one that stood for them all. What
/// has CPUs of its own keeps exactly these, and a pod whose CPUs would have to move stays as it is. Under the native policy what the
/// pod has is divided among its containers. Containers that the spec has gained since join. A pod that is not known is not taken in.
pub fn refine(state: &State, machine: &Machine, rules: &Rules, request: &PodRequest) -> Plan {
    refine_traced(state, machine, rules, request, &mut Trace::off())
}

/// As [`refine`], and notes in `trace` what was weighed.
pub fn refine_traced(
    state: &State,
    machine: &Machine,
    rules: &Rules,
    request: &PodRequest,
    trace: &mut Trace,
) -> Plan {
    let machine = rules.confine(machine);
    let mark = trace.mark();
    let after = match state.pods.get(&request.uid) {
        Some(pod) if pod.told.open => {
            let mut after = state.clone();
            anew(&mut after, &machine, rules, request, trace).ok().map(|()| after)
        }
        Some(_) => refined(state, &machine, rules, request, trace),
        None => None,
    };
    if after.is_none() {
        trace.rewind(mark);
    }
    Plan::between(state, after.unwrap_or_else(|| state.clone()), &machine)
}

/// The pod as one that is new; one that was open until now gives way to it.
fn anew(
    after: &mut State,
    machine: &Machine,
    rules: &Rules,
    request: &PodRequest,
    trace: &mut Trace,
) -> Result<(), Refusal> {
    let mut pod = request.clone();
    if let Some(known) = after.pods.remove(&request.uid) {
        pod.now_unix_ms = known.since_unix_ms;
        pod.told.decided_by = known.told.decided_by;
        pod.sandbox_id.clone_from(&known.sandbox_id);
        after.drop_containers(&request.uid, |_| true);
        settled::settle(after, machine, rules);
    }
    let others = after.clone();
    join::admit(after, machine, rules, &pod, trace).map_err(|refusal| {
        let asked = pod.told.request.or_else(|| pod.total_cpu());
        wording::not_admitted(refusal, &others, machine, rules, &pod, asked)
    })
}

/// `None` where nothing is to be refined, or nothing can be without moving what runs.
fn refined(
    state: &State,
    machine: &Machine,
    rules: &Rules,
    request: &PodRequest,
    trace: &mut Trace,
) -> Option<State> {
    let known = state.pods.get(&request.uid)?;
    if known.container(ALL).is_none() {
        let gained = request.containers.iter().any(|asked| known.container(&asked.name).is_none());
        let mut after = state.clone();
        let pod = PodRequest { sandbox_id: known.sandbox_id.clone(), ..request.clone() };
        return (gained && join::admit(&mut after, machine, rules, &pod, trace).is_ok()).then_some(after);
    }
    let mut pod = Pod { containers: request.containers.clone(), ..Pod::clone(known) };
    if !request.flags.contains(&Flag::PluginsUnasked) {
        pod.flags.remove(&Flag::PluginsUnasked);
    }
    pod.kept_labels.clone_from(&request.kept_labels);
    pod.settle_main();
    pod.told.source = request.told.source;
    pod.told.request = request.told.request.or(pod.told.request);
    if let CpuPolicy::Native(native) = &rules.cpu_policy
        && !pod.node_agent
    {
        pod.class = request.class;
        let all = state.cpus.containers.get(&ContainerId::new(pod.uid.as_str(), ALL));
        let own = all.filter(|own| own.qos == QosLevel::Dedicated);
        trace.about(&pod.uid);
        trace.stays(Some(&pod.main), dynamic::CPU, own.map(|own| machine.nodes_of(&own.cpus)).as_ref());
        return division::divide(state, machine, rules, *native, &pod);
    }
    let main = pod.container(&pod.main)?.clone();
    let mut after = state.clone();
    if !pod.node_agent {
        rename(&mut after, &pod, &main);
    }
    let pod = Arc::new(pod);
    after.pods.insert(pod.uid.clone(), Arc::clone(&pod));
    stays(trace, &after, machine, &pod, &main);
    let others: Vec<Asked> = pod.containers.iter().filter(|asked| asked.name != main.name).cloned().collect();
    if let CpuPolicy::Dynamic(options) = &rules.cpu_policy
        && !pod.node_agent
    {
        account_memory(&mut after, machine, rules, options, &pod, &main);
        let new = (&others[..], &request.plugins);
        dynamic::join(&mut after, machine, rules, options, &pod, new, trace).ok()?;
        keep_pace(&mut after, &pod);
    }
    settled::settle(&mut after, machine, rules);
    settled::check(state, &after, machine).ok()?;
    (state.cpus.exclusive() == after.cpus.exclusive()).then_some(after)
}

/// Its main container stays where it is.
fn stays(trace: &mut Trace, state: &State, machine: &Machine, pod: &Pod, main: &Asked) {
    let own = state.cpus.containers.get(&id_of(pod, main));
    let own = own.filter(|own| own.qos == QosLevel::Dedicated || own.is_bound_shared());
    let nodes = own.map(|own| machine.nodes_of(&own.cpus));
    trace.about(&pod.uid);
    trace.stays(Some(&main.name), dynamic::CPU, nodes.as_ref());
}

fn id_of(pod: &Pod, container: &Asked) -> ContainerId {
    ContainerId::new(pod.uid.as_str(), container.name.as_str())
}

/// What stood for the whole pod is its main container's from now on.
fn rename(after: &mut State, pod: &Pod, main: &Asked) {
    let (from, to) = (ContainerId::new(pod.uid.as_str(), ALL), id_of(pod, main));
    if let Some(mut entry) = after.cpus.containers.remove(&from) {
        if entry.qos != QosLevel::Dedicated {
            // The others bring their own part of the total.
            let own = Arc::make_mut(&mut entry);
            own.request = main.cpu.unwrap_or_default();
            own.pod_request = None;
        }
        after.cpus.containers.insert(to.clone(), entry);
    }
    if let Some(entry) = after.memory.containers.remove(&from) {
        after.memory.containers.insert(to, entry);
    }
}

/// The memory of a pod that is bound, or dedicated, is accounted to the nodes that it is on, as far as there is any; it is there already.
fn account_memory(
    after: &mut State,
    machine: &Machine,
    rules: &Rules,
    options: &crate::policy::Options,
    pod: &Pod,
    main: &Asked,
) {
    let entry = after.memory.containers.get(&id_of(pod, main));
    let Some(nodes) = entry.and_then(|entry| entry.bound_to.clone()) else { return };
    let accounted =
        pod.served_wishes().numa_binding() || entry.is_some_and(|entry| near_memory::is_near(entry));
    if !accounted || pod.total_amounts(|_| true).is_empty() {
        return;
    }
    let before: memory::State = after.memory.clone();
    let mut joining = dynamic::Joining::new(after, machine, rules, options, pod);
    joining.resize = true;
    if joining.place_memory(main, &Hint::on(nodes, true)).is_err() {
        after.memory = before;
    }
}

/// The other containers have been running for as long as the main one.
fn keep_pace(after: &mut State, pod: &Pod) {
    let main = ContainerId::new(pod.uid.as_str(), pod.main.as_str());
    let Some(main) = after.cpus.containers.get(&main).cloned() else { return };
    let names: BTreeSet<&str> = pod.containers.iter().map(|container| container.name.as_str()).collect();
    let other = |id: &ContainerId, entry: &policy::Container| {
        names.contains(&*id.container) && entry.kind != ContainerKind::Main
    };
    after.cpus.change_of_pod(
        &pod.uid,
        |id, entry| other(id, entry) && entry.qos == QosLevel::Shared && !main.ramp_up,
        |entry| {
            entry.ramp_up = false;
            entry.owner.clone_from(&main.owner);
        },
    );
    after.note_total(pod);
}
