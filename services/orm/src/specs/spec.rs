//! One pod's spec.

use std::collections::BTreeMap;

use oxalyst_planner::pods::{Class, Role};
use oxalyst_proto::meta::v1 as meta;
use oxalyst_qos::{Attributes, NodeAgent, node_agent};
use oxalyst_units::{Bytes, MilliCpu};

/// What the mesh calls the kubelet among the sources of a pod: only it tells specs.
const KUBELET: &str = "kubelet";
const DAEMON_SET: &str = "DaemonSet";

/// What a pod asks for, container by container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodSpec {
    /// Pod uid.
    pub uid: String,
    /// Pod namespace.
    pub namespace: String,
    /// Pod name.
    pub name: String,
    /// Its labels.
    pub labels: Attributes,
    /// Its annotations.
    pub annotations: Attributes,
    /// Value of its priority class; `None`: not told.
    pub priority: Option<i32>,
    /// Its Kubernetes class.
    pub class: Class,
    /// Why it counts as an agent of the node, where it does.
    pub node_agent: Option<NodeAgent>,
    /// Its containers: init, application, ephemeral, each in the order of the spec.
    pub containers: Vec<ContainerSpec>,
    /// What it asks for as a whole, where its spec says that beside the containers.
    pub whole: Option<Amounts>,
    /// How a change in place fares.
    pub in_place: InPlace,
}

/// What one container asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerSpec {
    /// Its name.
    pub name: String,
    /// What it is to its pod.
    pub role: Role,
    /// What its spec says.
    pub asked: Amounts,
    /// CPUs that the kubelet has set aside for it; `None`: not told.
    pub allocated_cpu: Option<MilliCpu>,
    /// Memory that the kubelet has set aside for it; `None`: not told.
    pub allocated_memory: Option<Bytes>,
}

/// What is asked for. `None` and absent: nothing is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// Requested CPU.
    pub cpu: Option<MilliCpu>,
    /// CPU limit.
    pub limit: Option<MilliCpu>,
    /// Requested memory.
    pub memory: Option<Bytes>,
    /// Memory limit.
    pub memory_limit: Option<Bytes>,
    /// Huge pages by the bytes of a page.
    pub huge_pages: BTreeMap<u64, Bytes>,
    /// Other resources, in units, by full name.
    pub extended: BTreeMap<String, u64>,
}

/// How a change of a pod's resources in place fares with the kubelet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InPlace {
    /// There is none, or it is under way: what the spec asks for holds.
    #[default]
    Settled,
    /// The kubelet has not taken it up, or cannot: what was asked for before holds.
    NotTaken,
}

// === impl PodSpec ===

impl PodSpec {
    /// The spec of a pod that the kubelet told of; `None` for others: what the runtime tells is no spec.
    pub fn told(pod: &meta::Pod) -> Option<Self> {
        if pod.uid.is_empty() || !pod.told_by.iter().any(|source| source == KUBELET) {
            return None;
        }
        let containers: Vec<_> = pod.containers.iter().filter_map(ContainerSpec::told).collect();
        let owned = pod.owner.as_ref().is_some_and(|owner| owner.kind == DAEMON_SET);
        let known = [(pod.static_pod, NodeAgent::StaticPod), (owned, NodeAgent::DaemonSet)];
        let agent = known.into_iter().find_map(|(is, agent)| is.then_some(agent));
        let class = match pod.kubernetes_qos.to_ascii_lowercase().parse() {
            Ok(class) => class,
            Err(_) => class_of(&containers),
        };
        Some(Self {
            uid: pod.uid.clone(),
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            node_agent: agent.or_else(|| node_agent(&pod.labels, &pod.annotations, pod.priority)),
            labels: pod.labels.clone(),
            annotations: pod.annotations.clone(),
            priority: pod.priority,
            class,
            containers,
            whole: pod.pod_resources.as_ref().map(Amounts::told),
            in_place: match pod.resize_status.as_str() {
                "proposed" | "deferred" | "infeasible" => InPlace::NotTaken,
                _ => InPlace::Settled,
            },
        })
    }

    /// The container of this name.
    pub fn container(&self, name: &str) -> Option<&ContainerSpec> {
        self.containers.iter().find(|container| container.name == name)
    }
}

/// As Kubernetes derives it, for a pod whose status does not tell it yet.
fn class_of(containers: &[ContainerSpec]) -> Class {
    let counted = || containers.iter().filter(|container| container.role != Role::Ephemeral);
    let nothing = |amounts: &Amounts| {
        amounts.cpu.is_none()
            && amounts.limit.is_none()
            && amounts.memory.is_none()
            && amounts.memory_limit.is_none()
    };
    let full = |amounts: &Amounts| {
        amounts.limit.is_some()
            && amounts.memory_limit.is_some()
            && amounts.cpu.is_none_or(|cpu| Some(cpu) == amounts.limit)
            && amounts.memory.is_none_or(|memory| Some(memory) == amounts.memory_limit)
    };
    if counted().all(|container| nothing(&container.asked)) {
        Class::BestEffort
    } else if counted().all(|container| full(&container.asked)) {
        Class::Guaranteed
    } else {
        Class::Burstable
    }
}

// === impl ContainerSpec ===

impl ContainerSpec {
    /// `None` for a container that only the runtime told of.
    fn told(container: &meta::PodContainer) -> Option<Self> {
        Some(Self {
            name: container.name.clone(),
            role: container.r#type.parse().ok()?,
            asked: Amounts {
                cpu: container.request_milli_cpu.map(MilliCpu),
                limit: container.limit_milli_cpu.map(MilliCpu),
                memory: container.request_memory_bytes.map(Bytes),
                memory_limit: container.limit_memory_bytes.map(Bytes),
                huge_pages: pages(&container.huge_pages),
                extended: container.extended.clone(),
            },
            allocated_cpu: container.allocated_milli_cpu.map(MilliCpu),
            allocated_memory: container.allocated_memory_bytes.map(Bytes),
        })
    }
}

// === impl Amounts ===

impl Amounts {
    fn told(amounts: &meta::Amounts) -> Self {
        Self {
            cpu: amounts.request_milli_cpu.map(MilliCpu),
            limit: amounts.limit_milli_cpu.map(MilliCpu),
            memory: amounts.request_memory_bytes.map(Bytes),
            memory_limit: amounts.limit_memory_bytes.map(Bytes),
            huge_pages: pages(&amounts.huge_pages),
            extended: amounts.extended.clone(),
        }
    }
}

fn pages(told: &BTreeMap<u64, u64>) -> BTreeMap<u64, Bytes> {
    told.iter().map(|(page, bytes)| (*page, Bytes(*bytes))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(name: &str, kind: &str) -> meta::PodContainer {
        meta::PodContainer { name: name.into(), r#type: kind.into(), ..Default::default() }
    }

    fn pod(containers: Vec<meta::PodContainer>) -> meta::Pod {
        meta::Pod { uid: "u".into(), told_by: vec!["kubelet".into()], containers, ..Default::default() }
    }

    #[test]
    fn a_pod_of_the_runtime_alone_has_no_spec() {
        let runtime = meta::Pod { told_by: vec!["runtime".into()], ..pod(vec![]) };
        assert_eq!(PodSpec::told(&runtime), None);
        assert!(PodSpec::told(&pod(vec![])).is_some());
    }

    #[test]
    fn a_container_that_the_spec_does_not_name_is_passed_over() {
        let spec =
            PodSpec::told(&pod(vec![container("app", "app"), container("surprise", "unknown")])).unwrap();
        assert_eq!(spec.containers.len(), 1);
        assert!(spec.container("surprise").is_none());
    }

    #[test]
    fn the_class_is_the_kubelets_and_else_follows_from_the_containers() {
        let class = |pod: meta::Pod| PodSpec::told(&pod).unwrap().class;
        let full = meta::PodContainer {
            limit_milli_cpu: Some(2000),
            limit_memory_bytes: Some(1 << 30),
            ..container("app", "app")
        };
        let part = meta::PodContainer { request_milli_cpu: Some(1), ..container("app", "app") };
        assert_eq!(class(pod(vec![full.clone()])), Class::Guaranteed);
        assert_eq!(class(pod(vec![full.clone(), container("debug", "ephemeral")])), Class::Guaranteed);
        assert_eq!(class(pod(vec![full.clone(), part])), Class::Burstable);
        assert_eq!(class(pod(vec![container("app", "app")])), Class::BestEffort);
        let told = meta::Pod { kubernetes_qos: "Burstable".into(), ..pod(vec![full]) };
        assert_eq!(class(told), Class::Burstable);
    }

    #[test]
    fn agents_of_the_node_are_known_by_owner_manifest_and_priority() {
        let agent = |pod: meta::Pod| PodSpec::told(&pod).unwrap().node_agent;
        let owner = Some(meta::Owner { kind: DAEMON_SET.into(), name: "d".into() });
        assert_eq!(agent(meta::Pod { owner, ..pod(vec![]) }), Some(NodeAgent::DaemonSet));
        assert_eq!(agent(meta::Pod { static_pod: true, ..pod(vec![]) }), Some(NodeAgent::StaticPod));
        let critical = meta::Pod { priority: Some(2_000_001_000), ..pod(vec![]) };
        assert_eq!(agent(critical), Some(NodeAgent::SystemCritical));
        assert_eq!(agent(pod(vec![])), None);
    }

    #[test]
    fn a_change_that_the_kubelet_has_not_taken_up_does_not_hold() {
        let told = |status: &str| {
            PodSpec::told(&meta::Pod { resize_status: status.into(), ..pod(vec![]) }).unwrap().in_place
        };
        assert_eq!([told(""), told("in-progress"), told("later words")], [InPlace::Settled; 3]);
        assert_eq!([told("proposed"), told("deferred"), told("infeasible")], [InPlace::NotTaken; 3]);
    }
}
