//! Between the wire's messages and the planner's values. Pure.

use std::collections::BTreeMap;

use oxalyst_proto::orm::v1 as orm;
use oxalyst_proto::resourceplugin::v1alpha1::ResourceAllocationInfo;
use oxalyst_proto::runtime::v1::{Container, ContainerState, Resources, Sandbox};
use oxalyst_qos::{QosLevel, qos_level};
use oxalyst_topology::{CpuSet, Machine};
use oxalyst_units::MilliCpu;
use prost::Message as _;

use oxalyst_planner::plan::{NumaFree, Refusal, RequestSource, Stage};
use oxalyst_planner::pods::{
    self, Class, ContainerPlacement, PluginAllocation, Pod, PodPlacement, RunningSandbox, SandboxRequest,
    State, placements_of, shown_pools,
};

/// CPUs that these resources ask for; `None` where they do not tell, or tell that nothing is asked for.
pub fn asked(resources: Option<&Resources>) -> Option<MilliCpu> {
    resources.and_then(|r| r.cpu_shares).and_then(MilliCpu::from_shares)
}

/// The container's name in its pod. Some runtimes leave it to the label that the kubelet gives it.
pub fn container_name(container: &Container) -> &str {
    match container.labels.get("io.kubernetes.container.name") {
        Some(label) if container.name.is_empty() => label,
        _ => &container.name,
    }
}

/// The request of a pod whose sandbox starts; which of its labels are kept is not said here.
pub fn sandbox_request(sandbox: &Sandbox, now_unix_ms: i64) -> SandboxRequest {
    let request = asked(sandbox.resources.as_ref());
    SandboxRequest {
        plugins_unasked: false,
        sandbox_id: sandbox.sandbox_id.clone(),
        pod_uid: sandbox.pod_uid.clone(),
        namespace: sandbox.namespace.clone(),
        name: sandbox.name.clone(),
        labels: sandbox.labels.clone(),
        kept_labels: BTreeMap::new(),
        annotations: sandbox.annotations.clone(),
        priority: None,
        class: class(&sandbox.cgroup_parent),
        request,
        request_source: if request.is_some() { RequestSource::SandboxResources } else { RequestSource::None },
        stage: Stage::Sandbox,
        now_unix_ms,
    }
}

/// The request of a pod one of whose containers is created. The pod's total counts where it is told.
pub fn container_request(sandbox: &Sandbox, container: &Container, now_unix_ms: i64) -> SandboxRequest {
    let whole = sandbox_request(sandbox, now_unix_ms);
    let whole = SandboxRequest { stage: Stage::Container, ..whole };
    match asked(container.resources.as_ref()) {
        Some(own) if whole.request.is_none() => {
            SandboxRequest { request: Some(own), request_source: RequestSource::ContainerResources, ..whole }
        }
        _ => whole,
    }
}

/// Milli-CPUs that these containers ask for.
fn asked_together(containers: &[&Container]) -> u64 {
    let asked = containers.iter().filter_map(|c| asked(c.resources.as_ref()));
    asked.fold(0, |all, milli| all.saturating_add(milli.0))
}

/// A pod that runs already, and the CPUs to which all of its running containers are confined, if they are. A dedicated pod
/// without a live container asks for nothing yet: exclusive CPUs are given to what runs, or to what is admitted.
pub fn running(sandbox: &Sandbox, containers: &[&Container], now_unix_ms: i64) -> RunningSandbox {
    let whole = sandbox_request(sandbox, now_unix_ms);
    if containers.iter().all(|c| c.state() == ContainerState::Stopped) && is_dedicated(&whole) {
        let request = SandboxRequest { request: None, request_source: RequestSource::None, ..whole };
        return RunningSandbox { request, cpus: None };
    }
    let request = match asked_together(containers) {
        0 if containers.is_empty() => whole,
        0 => SandboxRequest { stage: Stage::Container, ..whole },
        sum if whole.request.is_none() => SandboxRequest {
            stage: Stage::Container,
            request: Some(MilliCpu(sum)),
            request_source: RequestSource::ContainerResources,
            ..whole
        },
        _ => SandboxRequest { stage: Stage::Container, ..whole },
    };
    let alive = containers.iter().filter(|c| c.state() != ContainerState::Stopped);
    let sets: Option<Vec<CpuSet>> = alive
        .map(|c| {
            c.resources.as_ref()?.cpuset_cpus.as_deref()?.parse().ok().filter(|set: &CpuSet| !set.is_empty())
        })
        .collect();
    let cpus = sets.filter(|sets| !sets.is_empty()).map(|sets| {
        sets.iter().fold(CpuSet::new(), |mut all, set| {
            all |= set;
            all
        })
    });
    RunningSandbox { request, cpus }
}

/// The pod's Kubernetes class, as the name of the cgroup that its sandbox is in tells it. Where that is none of the kubelet's, as
/// of a pod that a client of the runtime made by hand, nothing is known and nothing is guaranteed.
pub fn class(cgroup_parent: &str) -> Class {
    let has = |word: &str| cgroup_parent.contains(word);
    match () {
        () if has("besteffort") => Class::BestEffort,
        () if has("burstable") => Class::Burstable,
        () if has("kubepods") => Class::Guaranteed,
        () => Class::Burstable,
    }
}

/// Where this pod runs, as it is sent; `None` for a pod that is not known.
pub fn placement(state: &State, machine: &Machine, uid: &str) -> Option<orm::PodPlacement> {
    let pod = state.pods.get(uid)?;
    pods::placement_of(state, machine, uid).map(|placed| pod_placement(pod, &placed))
}

/// Where these pods run, as it is sent, as far as they are known.
pub fn placements<'u>(
    state: &State,
    machine: &Machine,
    uids: impl IntoIterator<Item = &'u String>,
) -> Vec<orm::PodPlacement> {
    let placed = placements_of(state, machine, uids);
    placed.iter().filter_map(|placed| Some(pod_placement(state.pods.get(&placed.uid)?, placed))).collect()
}

/// The main container's place is its pod's; of the others those are told that run elsewhere or otherwise.
fn pod_placement(pod: &Pod, placed: &PodPlacement) -> orm::PodPlacement {
    let main = placed.containers.iter().find(|container| container.name == pod.main);
    let main = main.or(placed.containers.first());
    let properties = properties(pod);
    orm::PodPlacement {
        pod_uid: placed.uid.clone(),
        sandbox_id: pod.sandbox_id.clone(),
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        qos_level: pod.qos.to_string(),
        pool: main.and_then(|main| main.pool.clone()).unwrap_or_default(),
        cpus: main.map(|main| main.cpus.to_string()).unwrap_or_default(),
        mems: main.map(|main| main.mems.to_string()).unwrap_or_default(),
        exclusive: main.is_some_and(|main| main.exclusive),
        settled: !pod.told.open,
        flags: main.map_or(&pod.flags, |main| &main.flags).iter().map(ToString::to_string).collect(),
        requested_milli_cpu: pod.told.request.map_or(0, |milli| milli.0),
        since_unix_ms: pod.since_unix_ms,
        request_source: pod.told.source.to_string(),
        decided_by: pod.told.decided_by.to_string(),
        containers: main.map(|main| elsewhere(pod, placed, main)).unwrap_or_default(),
        plugins: pod
            .given
            .iter()
            .flat_map(|(name, all)| all.iter().filter_map(|own| given(name, own)))
            .collect(),
        oci_properties: match (&pod.containers[..], &properties[..]) {
            ([_], [own]) => own.oci_properties.clone(),
            _ => BTreeMap::new(),
        },
        properties,
        kept_labels: pod.kept_labels.clone(),
    }
}

/// What plugins gave the containers of a pod to be applied, by the names of the gateway's table.
fn properties(pod: &Pod) -> Vec<orm::ContainerProperties> {
    let of = |(container, all): (&String, &Vec<PluginAllocation>)| orm::ContainerProperties {
        container: container.clone(),
        oci_properties: properties_of(container, all),
    };
    pod.given.iter().map(of).filter(|own| !own.oci_properties.is_empty()).collect()
}

/// What came in company of what was asked for is told and not applied; CPUs and memory nodes are nobody's to decide but this
/// service's.
fn properties_of(container: &str, all: &[PluginAllocation]) -> BTreeMap<String, String> {
    let asked_for = all.iter().filter(|own| own.resource == own.plugin);
    let mut properties = BTreeMap::new();
    for given in asked_for.filter_map(|own| given(container, own)) {
        properties.extend(given.envs.into_iter().map(|(name, value)| (format!("Env/{name}"), value)));
        let annotations = given.annotations.into_iter();
        properties.extend(annotations.map(|(name, value)| (format!("Annotations/{name}"), value)));
        let decided_here = ["", "CpusetCpus", "CpusetMems"].contains(&given.oci_property_name.as_str());
        if !decided_here && !given.result.is_empty() {
            properties.insert(given.oci_property_name, given.result);
        }
    }
    properties
}

/// What a plugin gave a container, as it is sent; `None` where its words cannot be understood any more.
fn given(container: &str, given: &PluginAllocation) -> Option<orm::PluginAllocation> {
    let info = ResourceAllocationInfo::decode(given.info.as_slice()).ok()?;
    Some(orm::PluginAllocation {
        container: container.to_owned(),
        resource: given.resource.clone(),
        plugin: given.plugin.clone(),
        oci_property_name: info.oci_property_name,
        result: info.allocation_result,
        quantity: info.allocated_quantity,
        envs: info.envs,
        annotations: info.annotations,
        nodes: given.nodes.iter().map(u64::from).collect(),
    })
}

/// The containers that do not run as the main one does.
fn elsewhere(pod: &Pod, placed: &PodPlacement, main: &ContainerPlacement) -> Vec<orm::ContainerPlacement> {
    let place = |of: &ContainerPlacement| (of.cpus.clone(), of.mems.clone(), of.pool.clone(), of.exclusive);
    let usual = place(main);
    let others = placed.containers.iter().filter(|other| other.name != main.name && place(other) != usual);
    others
        .map(|other| orm::ContainerPlacement {
            name: other.name.clone(),
            role: other.role.to_string(),
            pool: other.pool.clone().unwrap_or_default(),
            cpus: other.cpus.to_string(),
            mems: other.mems.to_string(),
            exclusive: other.exclusive,
            requested_milli_cpu: pod
                .container(&other.name)
                .and_then(|container| container.cpu)
                .map_or(0, |milli| milli.0),
            flags: other.flags.difference(&main.flags).map(ToString::to_string).collect(),
        })
        .collect()
}

/// The pools, as they are sent.
pub fn pools(state: &State, machine: &Machine) -> Vec<orm::Pool> {
    let pool = |pool: pods::Pool| orm::Pool {
        name: pool.name,
        cpus: pool.cpus.to_string(),
        mems: pool.mems.to_string(),
        pods: count(pool.pods),
    };
    shown_pools(state, machine).into_iter().map(pool).collect()
}

/// Free CPUs of a NUMA node as they are sent.
pub fn free(free: &NumaFree) -> orm::NumaFree {
    orm::NumaFree { node: free.node, cpus: count(free.cpus.len()), cpuset: free.cpus.to_string() }
}

/// A refusal as it is sent.
pub fn refusal(refusal: &Refusal) -> orm::Refusal {
    orm::Refusal {
        reason: refusal.reason.to_string(),
        message: refusal.message.clone(),
        asked_milli_cpu: refusal.asked.map_or(0, |milli| milli.0),
        free: refusal.free.iter().map(free).collect(),
        rule: refusal.rule.to_string(),
    }
}

/// A machine as it is sent.
pub fn topology(machine: &Machine) -> orm::Topology {
    orm::Topology {
        cpus: machine
            .cpus()
            .iter()
            .map(|c| orm::Cpu { id: c.id, core: c.core, socket: c.socket, numa: c.numa, l3: c.l3 })
            .collect(),
        nodes: machine
            .nodes()
            .iter()
            .map(|node| orm::NumaNode {
                id: node.id,
                socket: node.socket,
                cpus: node.cpus.to_string(),
                memory_bytes: node.memory.map_or(0, |bytes| bytes.0),
                distances: node.distances.clone(),
                huge_pages: node.huge_pages.iter().map(|(size, bytes)| (size.0, bytes.0)).collect(),
            })
            .collect(),
        offline: machine.offline().to_string(),
        online: machine.online().to_string(),
        isolated: machine.isolated().to_string(),
    }
}

fn is_dedicated(request: &SandboxRequest) -> bool {
    matches!(qos_level(&request.annotations), Ok(Some(QosLevel::Dedicated)))
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(shares: Option<u64>, cpus: Option<&str>) -> Option<Resources> {
        Some(Resources { cpu_shares: shares, cpuset_cpus: cpus.map(str::to_owned), ..Resources::default() })
    }

    fn container(shares: Option<u64>, cpus: Option<&str>) -> Container {
        let mut container = Container { resources: told(shares, cpus), ..Container::default() };
        container.set_state(ContainerState::Running);
        container
    }

    #[test]
    fn a_sandbox_that_tells_its_request_settles_it_for_its_containers() {
        let sandbox = Sandbox { resources: told(Some(2048), None), ..Sandbox::default() };
        let request = container_request(&sandbox, &container(Some(512), None), 0);
        assert_eq!(request.request, Some(MilliCpu(2000)));
        assert_eq!(request.request_source, RequestSource::SandboxResources);
    }

    #[test]
    fn a_silent_sandbox_leaves_it_to_the_container() {
        let request = container_request(&Sandbox::default(), &container(Some(1024), None), 0);
        assert_eq!((request.request, request.stage), (Some(MilliCpu(1000)), Stage::Container));
        assert_eq!(request.request_source, RequestSource::ContainerResources);
    }

    #[test]
    fn the_least_shares_are_no_request() {
        assert_eq!(asked(told(Some(2), None).as_ref()), None);
        assert_eq!(asked(None), None);
    }

    #[test]
    fn what_runs_unconfined_is_not_said_to_be_confined() {
        let (confined, free) = (container(None, Some("1")), container(None, None));
        assert_eq!(running(&Sandbox::default(), &[&confined, &free], 0).cpus, None);
        assert_eq!(running(&Sandbox::default(), &[&confined], 0).cpus, Some(CpuSet::only(1)));
        assert_eq!(running(&Sandbox::default(), &[], 0).cpus, None);
    }

    #[test]
    fn a_running_pod_asks_for_what_its_containers_ask_for_together() {
        let (a, b) = (container(Some(1024), None), container(Some(512), None));
        let request = running(&Sandbox::default(), &[&a, &b], 0).request;
        assert_eq!((request.request, request.stage), (Some(MilliCpu(1500)), Stage::Container));
    }

    #[test]
    fn a_sandbox_without_containers_may_still_tell_its_request_later() {
        assert_eq!(running(&Sandbox::default(), &[], 0).request.stage, Stage::Sandbox);
    }
}
