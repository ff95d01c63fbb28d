//! Refusals for people: what is needed, what is free, what keeps the last CPU, and the rule that decided.

use super::{Asked, Class, CpuPolicy, PodRequest, Refusal, Role, Rules, State, placement};
use crate::plan::{NumaFree, Reason, exclusive_cpus};
use oxalyst_qos::QosLevel;
use oxalyst_topology::Machine;
use oxalyst_units::MilliCpu;

/// The refusal with what is free now, and where CPUs are short, in words.
pub(super) fn explained(mut refusal: Refusal, state: &State, machine: &Machine) -> Refusal {
    refusal.free = placement::free(state, machine);
    if is_shortage(&refusal) {
        let free = free_in_words(&refusal.free);
        refusal.message = format!("{free}; refused because {}", refusal.message);
    }
    refusal
}

/// The same for a pod that was to be admitted.
pub(super) fn not_admitted(
    mut refusal: Refusal,
    state: &State,
    machine: &Machine,
    rules: &Rules,
    pod: &PodRequest,
    asked: Option<MilliCpu>,
) -> Refusal {
    refusal.asked = asked;
    refusal.free = placement::free(state, machine);
    if !is_shortage(&refusal) {
        return refusal;
    }
    let own = pod.own_cpu(rules, asked);
    let free = free_in_words(&refusal.free);
    let rule = &refusal.message;
    refusal.message = match asked {
        Some(asked) if own > MilliCpu(0) => {
            let need = usize::try_from(own.ceil_cpus()).unwrap_or(usize::MAX);
            let left: usize = refusal.free.iter().map(|node| node.cpus.len()).sum();
            let keepers = if need <= left { keepers(state) } else { String::new() };
            let (what, be) = (cpus(need), are(need));
            format!(
                "{what} of its own {be} needed ({}), {free}{keepers}; refused because {rule}",
                requests(own, asked)
            )
        }
        Some(asked) => {
            format!("a shared CPU is needed (request {}), {free}; refused because {rule}", request(asked))
        }
        None => format!("a shared CPU is needed, {free}; refused because {rule}"),
    };
    refusal
}

/// What the whole pod asks for, and what of it its set is as large as where that is another amount.
fn requests(own: MilliCpu, asked: MilliCpu) -> String {
    if own == asked {
        format!("request {}", request(asked))
    } else {
        format!("request {}, of which {} count for it", request(asked), request(own))
    }
}

fn is_shortage(refusal: &Refusal) -> bool {
    matches!(refusal.reason, Reason::Insufficient | Reason::Affinity)
}

/// Who must not lose the last CPU.
fn keepers(state: &State) -> String {
    let agents = state.pods.values().filter(|pod| pod.node_agent).count();
    let pooled = |qos| matches!(qos, QosLevel::Shared | QosLevel::Reclaimed);
    let sharing = state.pods.values().filter(|pod| !pod.node_agent && pooled(pod.served)).count();
    let keepers: Vec<String> = [
        (sharing, "pod", "in the shared and reclaim pools"),
        (agents, "node agent", "outside of the exclusive sets"),
    ]
    .into_iter()
    .filter(|(count, ..)| *count > 0)
    .map(|(count, what, place)| {
        if count == 1 {
            format!("the 1 {what} that runs {place}")
        } else {
            format!("the {count} {what}s that run {place}")
        }
    })
    .collect();
    if keepers.is_empty() {
        String::new()
    } else {
        format!("; the last one stays with {}", keepers.join(" and "))
    }
}

/// "1 CPU is free on NUMA node 0 (1)", or with more than one node, each of them.
fn free_in_words(nodes: &[NumaFree]) -> String {
    let count = nodes.iter().map(|node| node.cpus.len()).sum();
    let head = format!("{} {} free", cpus(count), are(count));
    match nodes {
        _ if count == 0 => "no CPU is free".to_owned(),
        [node] => format!("{head} on NUMA node {} ({})", node.node, node.cpus),
        _ => format!("{head}: {}", nodes.iter().map(in_words).collect::<Vec<_>>().join(", ")),
    }
}

fn in_words(free: &NumaFree) -> String {
    match free.cpus.len() {
        0 => format!("none on NUMA node {}", free.node),
        count => format!("{count} on NUMA node {} ({})", free.node, free.cpus),
    }
}

fn cpus(count: usize) -> String {
    format!("{count} CPU{}", if count == 1 { "" } else { "s" })
}

fn are(count: usize) -> &'static str {
    if count == 1 { "is" } else { "are" }
}

/// In CPUs: "1 CPU", "1.5 CPUs".
fn request(asked: MilliCpu) -> String {
    let (whole, rest) = (asked.0 / 1000, asked.0 % 1000);
    let decimals = format!("{rest:03}");
    match decimals.trim_end_matches('0') {
        "" if whole == 1 => "1 CPU".to_owned(),
        "" => format!("{whole} CPUs"),
        decimals => format!("{whole}.{decimals} CPUs"),
    }
}

// === impl PodRequest ===

impl PodRequest {
    /// What the CPUs of its own are to hold, of a pod that asks for so much in total.
    fn own_cpu(&self, rules: &Rules, asked: Option<MilliCpu>) -> MilliCpu {
        let asked = asked.unwrap_or_default();
        match rules.cpu_policy {
            CpuPolicy::Dynamic(_) if self.qos == QosLevel::Dedicated => {
                let apps = || self.containers.iter().filter(|asked| asked.role == Role::App);
                let main = apps().next().or(self.containers.first());
                main.and_then(|main| main.cpu).filter(|cpu| cpu.0 > 0).unwrap_or(asked)
            }
            CpuPolicy::Native(_) if self.class == Class::Guaranteed => {
                let own = |asked: &Asked| asked.cpu.filter(|cpu| exclusive_cpus(*cpu).is_some());
                MilliCpu(self.total(|asked| own(asked).unwrap_or_default().0))
            }
            CpuPolicy::Dynamic(_) | CpuPolicy::Native(_) => MilliCpu(0),
        }
    }
}
