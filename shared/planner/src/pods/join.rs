//! A pod starts, or containers join one that is known.

use super::{
    Asked, CpuPolicy, Given, Pod, PodRequest, Refusal, Role, Rules, State, Trace, amounts, dynamic, native,
    refuse, settled, unnamed,
};
use crate::{
    plan::{Flag, Reason, Rule},
    policy::ContainerKind,
    topology_manager::{Unaligned, impossible, minima},
};
use oxalyst_qos::QosLevel;
use oxalyst_topology::Machine;
use oxalyst_units::MilliCpu;
use std::sync::Arc;

/// All containers that are new, or none of them.
pub(super) fn admit(
    after: &mut State,
    machine: &Machine,
    rules: &Rules,
    request: &PodRequest,
    trace: &mut Trace,
) -> Result<(), Refusal> {
    // The sandbox of a pod that was taken over need not be known yet.
    if request.uid.is_empty() {
        return Err(unnamed());
    }
    let known = after.pods.get(&request.uid);
    let mut pod = match known {
        Some(known) => Pod { sandbox_id: request.sandbox_id.clone(), ..Pod::clone(known) },
        None => draft(request, rules),
    };
    pod.given.extend(request.plugins.given.clone());
    if pod.containers.is_empty() {
        // All of it is placed anew.
        pod.placed_under = Some(rules.policy_name());
        pod.flags.remove(&Flag::OtherPolicy);
    }
    let mut new: Vec<Asked> = Vec::new();
    for asked in &request.containers {
        if pod.container(&asked.name).is_none() {
            pod.containers.push(asked.clone());
            new.push(asked.clone());
        }
    }
    if known.is_none() {
        pod.settle_main();
        pod.settle_level(matches!(rules.cpu_policy, CpuPolicy::Dynamic(_)));
    }
    trace.about(&pod.uid);
    let pod = Arc::new(pod);
    let before = after.clone();
    after.pods.insert(pod.uid.clone(), Arc::clone(&pod));
    if new.is_empty() {
        return Ok(());
    }
    if !pod.node_agent {
        match &rules.cpu_policy {
            CpuPolicy::Dynamic(options) => {
                dynamic::join(after, machine, rules, options, &pod, (&new, &request.plugins), trace)?;
            }
            CpuPolicy::Native(native) => {
                native::join(after, machine, rules, *native, &pod, (&new, &request.plugins), trace)?;
            }
        }
    }
    settled::settle(after, machine, rules);
    if pod.node_agent { Ok(()) } else { settled::check(&before, after, machine) }
}

/// The pod as it is new under these rules.
pub(super) fn draft(request: &PodRequest, rules: &Rules) -> Pod {
    let mut flags = request.flags.clone();
    let agent = request.node_agent && matches!(request.qos, QosLevel::Shared | QosLevel::Reclaimed);
    if agent {
        flags.insert(Flag::NodeAgent);
    }
    Pod {
        uid: request.uid.clone(),
        sandbox_id: request.sandbox_id.clone(),
        namespace: request.namespace.clone(),
        name: request.name.clone(),
        qos: request.qos,
        class: request.class,
        wishes: request.wishes.clone(),
        kept_labels: request.kept_labels.clone(),
        placed_under: Some(rules.policy_name()),
        served: request.qos,
        node_agent: agent,
        main: String::new(),
        containers: Vec::new(),
        told: request.told.clone(),
        flags,
        given: Given::new(),
        since_unix_ms: request.now_unix_ms,
    }
}

/// A refusal of the topology manager.
pub(super) fn unaligned(unaligned: Unaligned<Refusal>, rules: &Rules, pod: &Pod, order: &[Asked]) -> Refusal {
    let policy = rules.topology.name();
    match unaligned {
        Unaligned::Other(refusal) => refusal,
        Unaligned::TooManyNodes(error) => refuse(Reason::Unsupported, Rule::Alignment, error.to_string()),
        Unaligned::Refused { container, providers, merged: _ } => {
            let who = match container.and_then(|index| order.get(index)) {
                Some(container) if pod.containers.len() > 1 => format!("container {}", container.name),
                _ => format!("pod {}", pod.full_name()),
            };
            if let Some(resource) = impossible(&providers) {
                let rule = match resource {
                    dynamic::CPU => Rule::CpuRoom,
                    resource if amounts::is_memory(resource) => Rule::MemoryRoom,
                    _ => Rule::Plugin,
                };
                return refuse(
                    Reason::Insufficient,
                    rule,
                    format!("no NUMA nodes have enough {resource} for {who}"),
                );
            }
            let least = minima(&providers);
            let least: Vec<_> =
                least.iter().map(|(resource, nodes)| format!("{resource} on {nodes}")).collect();
            refuse(
                Reason::Affinity,
                Rule::Alignment,
                format!(
                    "topology policy {policy} refuses {who}: its resources have no NUMA nodes in common that are as good as \
                     they could be; at the least: {}",
                    least.join(", ")
                ),
            )
        }
    }
}

// === impl Pod ===

impl Pod {
    pub(super) fn settle_main(&mut self) {
        let app = self.containers.iter().find(|container| container.role == Role::App);
        if let Some(main) = app.or(self.containers.first()) {
            self.main = main.name.clone();
        }
    }

    /// A dedicated pod that asks for no CPU has nothing to be dedicated to it.
    fn settle_level(&mut self, dynamic: bool) {
        if dynamic && self.served == QosLevel::Dedicated && self.total_cpu().0 == 0 {
            self.served = QosLevel::Shared;
            self.flags.insert(Flag::NoRequest);
        }
    }

    pub(super) fn is_main(&self, name: &str) -> bool {
        self.main == name
    }

    pub(super) fn kind(&self, asked: &Asked) -> ContainerKind {
        match asked.role {
            _ if self.is_main(&asked.name) => ContainerKind::Main,
            Role::Init => ContainerKind::Init,
            Role::App | Role::RestartableInit | Role::Ephemeral => ContainerKind::Sidecar,
        }
    }

    /// CPUs that the pod asks for at its peak.
    pub(super) fn total_cpu(&self) -> MilliCpu {
        MilliCpu(self.total(|container| container.cpu.unwrap_or_default().0))
    }

    pub(super) fn total(&self, of: impl Fn(&Asked) -> u64) -> u64 {
        total(&self.containers, of)
    }
}

/// As Kubernetes counts a pod: plain init containers one after the other, beside the restartable ones before them; then the
/// restartable ones and the application together.
fn total(containers: &[Asked], of: impl Fn(&Asked) -> u64) -> u64 {
    let (mut lasting, mut peak) = (0u64, 0u64);
    for container in containers {
        match container.role {
            Role::Init => peak = peak.max(lasting.saturating_add(of(container))),
            Role::RestartableInit => lasting = lasting.saturating_add(of(container)),
            Role::App | Role::Ephemeral => {}
        }
    }
    let apps = containers.iter().filter(|container| container.role == Role::App);
    peak.max(apps.map(of).fold(lasting, u64::saturating_add))
}

// === impl PodRequest ===

impl PodRequest {
    /// CPUs that it asks for at its peak; `None`: none.
    pub(super) fn total_cpu(&self) -> Option<MilliCpu> {
        let total = self.total(|container| container.cpu.unwrap_or_default().0);
        Some(MilliCpu(total)).filter(|total| total.0 > 0)
    }

    pub(super) fn total(&self, of: impl Fn(&Asked) -> u64) -> u64 {
        total(&self.containers, of)
    }
}
