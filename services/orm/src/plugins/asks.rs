//! From a pod's spec to what plugins are asked for it. Pure.

use std::collections::BTreeMap;

use oxalyst_planner::pods::{Class, Role};
use oxalyst_planner::topology_manager::Hint;
use oxalyst_proto::resourceplugin::v1alpha1 as wire;
use oxalyst_qos::KeptLabels;
use oxalyst_units::{Bytes, MilliCpu};

use crate::specs::{Amount, NamedTwice, PodSpec, ResourceNames};

const MAIN_CONTAINER: &str = "kubernetes.io/main-container-name";
const POD_ROLE: &str = "katalyst.kubewharf.io/pod_role";
const POD_TYPE: &str = "katalyst.kubewharf.io/pod_type";

/// What one container asks of plugins.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    /// The container.
    pub container: String,
    kind: wire::ContainerType,
    /// Its place among those of the spec that are init containers, or that are not.
    index: u64,
    /// By the resource that is meant, which is the plugin's name.
    pub resources: BTreeMap<String, Amount>,
}

/// What a pod's containers ask of plugins, in the order in which those are asked: init containers, the main one, the others.
/// `knows` says for which resources there is a plugin; what nobody gives out is none of ours. Ephemeral containers take no part.
///
/// # Errors
/// A container asks for one resource under two names.
pub fn asks(
    spec: &PodSpec,
    names: &ResourceNames,
    knows: impl Fn(&str) -> bool,
) -> Result<Vec<Ask>, NamedTwice> {
    let named = spec.annotations.get(MAIN_CONTAINER);
    let (mut inits, mut apps) = (0u64, 0u64);
    let mut asks = Vec::new();
    for container in &spec.containers {
        let (kind, index) = match container.role {
            Role::Ephemeral => continue,
            Role::Init | Role::RestartableInit => {
                inits += 1;
                (wire::ContainerType::Init, inits - 1)
            }
            Role::App => {
                apps += 1;
                let main = named.map_or(apps == 1, |named| *named == container.name);
                (if main { wire::ContainerType::Main } else { wire::ContainerType::Sidecar }, apps - 1)
            }
        };
        let mut resources = names.all(&container.asked)?;
        resources.retain(|resource, _| knows(resource));
        if !resources.is_empty() {
            asks.push(Ask { container: container.name.clone(), kind, index, resources });
        }
    }
    asks.sort_by_key(|ask| ask.kind);
    Ok(asks)
}

// === impl Ask ===

impl Ask {
    /// The same for these resources alone; `None`: there is none of them.
    pub(super) fn only(mut self, keep: impl Fn(&str) -> bool) -> Option<Self> {
        self.resources.retain(|resource, _| keep(resource));
        (!self.resources.is_empty()).then_some(self)
    }

    /// The same with these CPUs and this memory, in the units of the names that they are asked by.
    #[allow(clippy::cast_precision_loss, reason = "a plugin is told quantities as floating-point numbers")]
    pub(super) fn resized(mut self, cpu: Option<MilliCpu>, memory: Option<Bytes>) -> Self {
        if let (Some(amount), Some(cpu)) = (self.resources.get_mut("cpu"), cpu) {
            amount.quantity = if amount.counts_thousandths() { cpu.0 as f64 } else { cpu.0 as f64 / 1000.0 };
        }
        if let (Some(amount), Some(memory)) = (self.resources.get_mut("memory"), memory) {
            amount.quantity = memory.0 as f64;
        }
        self
    }

    /// Whether the pod is about this container.
    pub(super) fn is_main(&self) -> bool {
        self.kind == wire::ContainerType::Main
    }

    /// The message that asks the plugin of this resource: the resource by the name that is meant, the quantity under the name
    /// that the spec has, and of the pod's labels those that plugins are told.
    pub fn request(
        &self,
        (spec, labels): (&PodSpec, &KeptLabels),
        resource: &str,
        amount: &Amount,
        hint: Option<wire::TopologyHint>,
    ) -> wire::ResourceRequest {
        let class = match spec.class {
            Class::Guaranteed => "Guaranteed",
            Class::Burstable => "Burstable",
            Class::BestEffort => "BestEffort",
        };
        wire::ResourceRequest {
            pod_uid: spec.uid.clone(),
            pod_namespace: spec.namespace.clone(),
            pod_name: spec.name.clone(),
            container_name: self.container.clone(),
            container_type: self.kind.into(),
            container_index: self.index,
            pod_role: spec.labels.get(POD_ROLE).cloned().unwrap_or_default(),
            pod_type: spec.annotations.get(POD_TYPE).cloned().unwrap_or_default(),
            resource_name: resource.to_owned(),
            hint,
            resource_requests: [(amount.name.clone(), amount.quantity)].into(),
            labels: labels.told(&spec.labels),
            annotations: spec.annotations.clone(),
            native_qos_class: class.to_owned(),
        }
    }
}

/// Under which name a plugin's hints are merged. CPUs and memory have hints of their own there.
pub(super) fn voice(resource: &str) -> String {
    match resource {
        "cpu" | "memory" => format!("{resource} (plugin)"),
        resource => resource.to_owned(),
    }
}

/// What a plugin said of its resource. No list and an empty one cannot be told apart: no preference.
pub(super) fn hints(told: &[wire::TopologyHint]) -> Option<Vec<Hint>> {
    if told.is_empty() {
        return None;
    }
    let hint = |hint: &wire::TopologyHint| {
        let nodes = || hint.nodes.iter().filter_map(|node| u32::try_from(*node).ok()).collect();
        if hint.nodes.is_empty() { Hint::anywhere(hint.preferred) } else { Hint::on(nodes(), hint.preferred) }
    };
    Some(told.iter().map(hint).collect())
}

/// A hint as a plugin is told it.
pub(super) fn told(hint: &Hint) -> wire::TopologyHint {
    let nodes = hint.mask.iter().flat_map(|mask| mask.iter()).map(u64::from).collect();
    wire::TopologyHint { nodes, preferred: hint.preferred }
}
