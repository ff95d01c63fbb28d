//! What the imitated runtime runs.

use std::collections::BTreeMap;
use std::time::SystemTime;

use oxalyst_nri::api::{
    Container, ContainerState, LinuxContainer, LinuxCpu, LinuxMemory, LinuxPodSandbox, LinuxResources,
    OptionalInt64, OptionalUInt64, PodSandbox,
};

use crate::runtime::{ContainerSpec, PodSpec, State, Workload, shares};

/// Sandboxes and containers by id.
#[derive(Debug, Default)]
pub(super) struct Store {
    pub(super) pods: BTreeMap<String, Pod>,
    pub(super) containers: BTreeMap<String, Held>,
}

/// A sandbox.
#[derive(Clone, Debug)]
pub(super) struct Pod {
    pub(super) id: String,
    pub(super) spec: PodSpec,
    /// False once it was stopped.
    pub(super) ready: bool,
}

/// A container.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) id: String,
    pub(super) sandbox: String,
    pub(super) spec: ContainerSpec,
    pub(super) cgroup: String,
    /// What plugins gave its first process.
    pub(super) env: Vec<String>,
    /// As in its spec; the kernel may hold something else.
    pub(super) resources: LinuxResources,
    pub(super) state: State,
    pub(super) created: SystemTime,
    pub(super) started: Option<SystemTime>,
    /// What its first instruction was allowed.
    pub(super) first_cpus: Option<String>,
}

// === impl Store ===

impl Store {
    /// The whole list, as Synchronize tells it: sandboxes that run, containers that are created or run.
    pub(super) fn list(&self) -> (Vec<PodSandbox>, Vec<Container>) {
        let pods = self.pods.values().filter(|p| p.ready).map(Pod::message).collect();
        let alive = self.containers.values().filter(|c| matches!(c.state, State::Created | State::Running));
        (pods, alive.filter_map(|c| self.message(c)).collect())
    }

    /// A container as NRI tells it.
    pub(super) fn message(&self, container: &Held) -> Option<Container> {
        Some(container.message(self.pods.get(&container.sandbox)?))
    }

    /// Containers of one sandbox.
    pub(super) fn of_sandbox(&self, sandbox: &str) -> Vec<String> {
        self.containers.values().filter(|c| c.sandbox == sandbox).map(|c| c.id.clone()).collect()
    }

    /// Cgroups of containers that keep a CPU busy.
    pub(super) fn busy_cgroups(&self) -> Vec<String> {
        let busy =
            self.containers.values().filter(|c| c.state == State::Running && c.spec.run == Workload::Busy);
        busy.map(|c| c.cgroup.clone()).collect()
    }
}

// === impl Pod ===

impl Pod {
    /// Where its own process lies.
    pub(super) fn cgroup(&self) -> String {
        format!("{}/{}", self.spec.cgroup_parent(), self.id)
    }

    pub(super) fn message(&self) -> PodSandbox {
        let spec = &self.spec;
        PodSandbox {
            id: self.id.clone(),
            name: spec.name.clone(),
            uid: spec.uid.clone(),
            namespace: spec.namespace.clone(),
            labels: spec.labels.clone().into_iter().chain(kubelet_labels(spec)).collect(),
            annotations: spec.annotations.clone().into_iter().collect(),
            linux: Some(LinuxPodSandbox {
                pod_resources: spec.request_milli_cpu.map(|n| resources(n, spec.memory_limit_bytes)),
                cgroup_parent: spec.cgroup_parent(),
                cgroups_path: self.cgroup(),
                resources: Some(resources(0, None)),
                ..LinuxPodSandbox::default()
            }),
            ..PodSandbox::default()
        }
    }
}

// === impl Held ===

impl Held {
    /// A container that is about to be created.
    pub(super) fn new(id: String, pod: &Pod, spec: &ContainerSpec) -> Self {
        Self {
            cgroup: format!("{}/{id}", pod.spec.cgroup_parent()),
            id,
            sandbox: pod.id.clone(),
            spec: spec.clone(),
            env: Vec::new(),
            resources: spec
                .request_milli_cpu
                .map(|n| resources(n, spec.memory_limit_bytes))
                .unwrap_or_default(),
            state: State::Created,
            created: SystemTime::now(),
            started: None,
            first_cpus: None,
        }
    }

    pub(super) fn message(&self, pod: &Pod) -> Container {
        let labels = pod.spec.labels.clone().into_iter().chain(kubelet_labels(&pod.spec));
        let named = ("io.kubernetes.container.name".to_owned(), self.spec.name.clone());
        Container {
            id: self.id.clone(),
            pod_sandbox_id: self.sandbox.clone(),
            name: self.spec.name.clone(),
            state: match self.state {
                State::Created => ContainerState::ContainerCreated,
                State::Running => ContainerState::ContainerRunning,
                State::Exited(_) => ContainerState::ContainerStopped,
                State::Unknown => ContainerState::ContainerUnknown,
            }
            .into(),
            labels: labels.chain([named]).collect(),
            annotations: [
                ("io.kubernetes.cri.container-type", "container"),
                ("io.kubernetes.cri.container-name", self.spec.name.as_str()),
                ("io.kubernetes.cri.sandbox-uid", pod.spec.uid.as_str()),
            ]
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .into(),
            args: vec!["sh".to_owned(), "-c".to_owned()],
            env: self.env.clone(),
            linux: Some(LinuxContainer {
                resources: Some(self.resources.clone()),
                cgroups_path: self.cgroup.clone(),
                ..LinuxContainer::default()
            }),
            pid: if self.state == State::Running { 4242 } else { 0 },
            created_at: unix_ns(self.created),
            started_at: self.started.map_or(0, unix_ns),
            ..Container::default()
        }
    }
}

/// Lays what `change` names over `spec`: of a container's resources a runtime applies memory limit, shares, quota, period,
/// CPUs and memory nodes, and leaves what is not named.
pub(super) fn overlay(spec: &mut LinuxResources, change: &LinuxResources) {
    if let Some(from) = &change.cpu {
        let cpu = spec.cpu.get_or_insert_default();
        cpu.shares = from.shares.or(cpu.shares);
        cpu.quota = from.quota.or(cpu.quota);
        cpu.period = from.period.or(cpu.period);
        if !from.cpus.is_empty() {
            cpu.cpus.clone_from(&from.cpus);
        }
        if !from.mems.is_empty() {
            cpu.mems.clone_from(&from.mems);
        }
    }
    if let Some(limit) = change.memory.as_ref().and_then(|m| m.limit) {
        spec.memory.get_or_insert_default().limit = Some(limit);
    }
}

/// Resources as the kubelet derives them from a request and a limit.
pub(super) fn resources(milli_cpu: u64, memory_limit: Option<i64>) -> LinuxResources {
    LinuxResources {
        cpu: Some(LinuxCpu {
            shares: Some(OptionalUInt64 { value: shares(milli_cpu) }),
            period: Some(OptionalUInt64 { value: 100_000 }),
            ..LinuxCpu::default()
        }),
        memory: memory_limit
            .map(|value| LinuxMemory { limit: Some(OptionalInt64 { value }), ..LinuxMemory::default() }),
        ..LinuxResources::default()
    }
}

/// An id as containerd's.
pub(super) fn fresh_id() -> String {
    (0..4).map(|_| format!("{:016x}", fastrand::u64(..))).collect()
}

fn kubelet_labels(pod: &PodSpec) -> [(String, String); 3] {
    [
        ("io.kubernetes.pod.name".to_owned(), pod.name.clone()),
        ("io.kubernetes.pod.namespace".to_owned(), pod.namespace.clone()),
        ("io.kubernetes.pod.uid".to_owned(), pod.uid.clone()),
    ]
}

fn unix_ns(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}
