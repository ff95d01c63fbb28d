//! Between NRI's messages and the mesh's.

use oxalyst_nri::api;
use oxalyst_proto::runtime::v1::{Container, ContainerState, Resources, Sandbox};

use crate::adjustment::{self, Dialect, Wish};
use crate::placements::Cpuset;

/// Label by which the kubelet names a container.
const CONTAINER_NAME: &str = "io.kubernetes.container.name";

/// The pod's uid; of a pod whose client told none, its sandbox's id, which is as unique.
pub fn uid(pod: &api::PodSandbox) -> String {
    if pod.uid.is_empty() { pod.id.clone() } else { pod.uid.clone() }
}

/// A sandbox as the mesh tells it. Its resources are the pod's totals, which only a kubelet (or a client that imitates one) tells.
pub fn sandbox(pod: api::PodSandbox) -> Sandbox {
    let pod_uid = uid(&pod);
    let linux = pod.linux.unwrap_or_default();
    Sandbox {
        sandbox_id: pod.id,
        pod_uid,
        namespace: pod.namespace,
        name: pod.name,
        labels: pod.labels.into_iter().collect(),
        annotations: pod.annotations.into_iter().collect(),
        resources: linux.pod_resources.map(resources),
        cgroup_parent: linux.cgroup_parent,
    }
}

/// A container as the mesh tells it.
pub fn container(container: api::Container) -> Container {
    let linux = container.linux.unwrap_or_default();
    let state = match api::ContainerState::try_from(container.state) {
        Ok(api::ContainerState::ContainerCreated) => ContainerState::Created,
        Ok(api::ContainerState::ContainerRunning) => ContainerState::Running,
        Ok(api::ContainerState::ContainerPaused) => ContainerState::Paused,
        Ok(api::ContainerState::ContainerStopped) => ContainerState::Stopped,
        Ok(api::ContainerState::ContainerUnknown) | Err(_) => ContainerState::Unspecified,
    };
    Container {
        container_id: container.id,
        sandbox_id: container.pod_sandbox_id,
        name: container.name,
        state: state.into(),
        labels: container.labels.into_iter().collect(),
        annotations: container.annotations.into_iter().collect(),
        resources: linux.resources.map(resources),
        cgroups_path: linux.cgroups_path,
        pid: container.pid,
        started_unix_ns: container.started_at,
    }
}

/// The container's name in its pod. Some runtimes leave it to the label that the kubelet gives it.
pub fn container_name(container: &Container) -> &str {
    match container.labels.get(CONTAINER_NAME) {
        Some(label) if container.name.is_empty() => label,
        _ => &container.name,
    }
}

/// Resources as the mesh tells them.
pub fn resources(linux: api::LinuxResources) -> Resources {
    let cpu = linux.cpu.unwrap_or_default();
    let told = |list: String| Some(list).filter(|l| !l.is_empty());
    Resources {
        cpu_shares: cpu.shares.map(|v| v.value),
        cpu_quota_us: cpu.quota.map(|v| v.value),
        cpu_period_us: cpu.period.map(|v| v.value),
        memory_limit_bytes: linux.memory.and_then(|m| m.limit).map(|v| v.value),
        cpuset_cpus: told(cpu.cpus),
        cpuset_mems: told(cpu.mems),
    }
}

/// The adjustment of a container that is being created: its CPUs and memory nodes, and whatever else its placement asks for
/// and this runtime takes. `None` where there are no CPUs: an empty list would mean "no change".
pub fn adjustment(cpuset: &Cpuset, others: &Wish, to: Dialect) -> Option<api::ContainerAdjustment> {
    if cpuset.cpus.is_empty() {
        return None;
    }
    adjustment::adjustment(&Wish::of_cpuset(cpuset).and(others), to)
}

/// An update of a container's CPUs and memory nodes, which every runtime takes. Whoever it is about, its failure must not fail
/// the call that it travels in. `None` where it would say nothing.
pub fn update(container_id: &str, cpuset: &Cpuset, ignore_failure: bool) -> Option<api::ContainerUpdate> {
    adjustment::update(container_id, &Wish::of_cpuset(cpuset), Dialect::default(), ignore_failure)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpuset(cpus: &str, mems: &str) -> Cpuset {
        Cpuset { cpus: cpus.into(), mems: mems.into() }
    }

    #[test]
    fn absent_resources_stay_absent_and_zero_stays_zero() {
        let bare = api::PodSandbox { id: "s".into(), ..Default::default() };
        assert_eq!(sandbox(bare).resources, None);
        let cpu = api::LinuxCpu { shares: Some(api::OptionalUInt64 { value: 0 }), ..Default::default() };
        let pod_resources = Some(api::LinuxResources { cpu: Some(cpu), ..Default::default() });
        let linux = Some(api::LinuxPodSandbox { pod_resources, ..Default::default() });
        let told = sandbox(api::PodSandbox { linux, ..Default::default() }).resources.unwrap();
        assert_eq!((told.cpu_shares, told.cpu_quota_us, told.cpuset_cpus), (Some(0), None, None));
    }

    #[test]
    fn a_pod_without_a_uid_goes_by_its_sandbox() {
        let bare = api::PodSandbox { id: "s".into(), ..Default::default() };
        assert_eq!(sandbox(bare.clone()).pod_uid, "s");
        assert_eq!(sandbox(api::PodSandbox { uid: "u".into(), ..bare }).pod_uid, "u");
    }

    #[test]
    fn n19_an_empty_cpuset_is_never_sent() {
        assert_eq!(adjustment(&cpuset("", "0"), &Wish::default(), Dialect::default()), None);
        assert_eq!(update("c", &cpuset("", ""), true), None);
    }

    #[test]
    fn an_adjustment_carries_cpus_and_mems() {
        let adjusted = adjustment(&cpuset("0-1", "0"), &Wish::default(), Dialect::default());
        let cpu = adjusted.unwrap().linux.unwrap().resources.unwrap().cpu.unwrap();
        assert_eq!((cpu.cpus.as_str(), cpu.mems.as_str()), ("0-1", "0"));
    }
}
