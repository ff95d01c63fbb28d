//! Between the wire's messages and the planner's values. Pure.

use oxalyst_proto::orm::v1 as orm;
use oxalyst_proto::runtime::v1::{Container, ContainerState, Resources, Sandbox};
use oxalyst_qos::{QosLevel, qos_level};
use oxalyst_topology::{CpuSet, Machine};
use oxalyst_units::MilliCpu;

use crate::plan::{NumaFree, PodPlacement, Pool, Refusal, Request, RequestSource, Running, Stage};

/// CPUs that these resources ask for; `None` where they do not tell, or tell that nothing is asked for.
pub fn asked(resources: Option<&Resources>) -> Option<MilliCpu> {
    resources.and_then(|r| r.cpu_shares).and_then(MilliCpu::from_shares)
}

/// The request of a pod whose sandbox starts.
pub fn sandbox_request(sandbox: &Sandbox, now_unix_ms: i64) -> Request {
    let request = asked(sandbox.resources.as_ref());
    Request {
        sandbox_id: sandbox.sandbox_id.clone(),
        pod_uid: sandbox.pod_uid.clone(),
        namespace: sandbox.namespace.clone(),
        name: sandbox.name.clone(),
        labels: sandbox.labels.clone(),
        annotations: sandbox.annotations.clone(),
        priority: None,
        request,
        request_source: if request.is_some() { RequestSource::SandboxResources } else { RequestSource::None },
        stage: Stage::Sandbox,
        now_unix_ms,
    }
}

/// The request of a pod one of whose containers is created. The pod's total counts where it is told.
pub fn container_request(sandbox: &Sandbox, container: &Container, now_unix_ms: i64) -> Request {
    let whole = sandbox_request(sandbox, now_unix_ms);
    let whole = Request { stage: Stage::Container, ..whole };
    match asked(container.resources.as_ref()) {
        Some(own) if whole.request.is_none() => {
            Request { request: Some(own), request_source: RequestSource::ContainerResources, ..whole }
        }
        _ => whole,
    }
}

/// A pod that runs already, and the CPUs to which all of its running containers are confined, if they are. A dedicated pod
/// without a live container asks for nothing yet: exclusive CPUs are given to what runs, or to what is admitted.
pub fn running(sandbox: &Sandbox, containers: &[&Container], now_unix_ms: i64) -> Running {
    let whole = sandbox_request(sandbox, now_unix_ms);
    if containers.iter().all(|c| c.state() == ContainerState::Stopped) && is_dedicated(&whole) {
        let request = Request { request: None, request_source: RequestSource::None, ..whole };
        return Running { request, cpus: None };
    }
    let request =
        match containers.iter().filter_map(|c| asked(c.resources.as_ref())).map(|milli| milli.0).sum() {
            0 if containers.is_empty() => whole,
            0 => Request { stage: Stage::Container, ..whole },
            sum if whole.request.is_none() => Request {
                stage: Stage::Container,
                request: Some(MilliCpu(sum)),
                request_source: RequestSource::ContainerResources,
                ..whole
            },
            _ => Request { stage: Stage::Container, ..whole },
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
    Running { request, cpus }
}

/// A placement as it is sent.
pub fn placement(placed: &PodPlacement) -> orm::PodPlacement {
    orm::PodPlacement {
        pod_uid: placed.uid.clone(),
        sandbox_id: placed.sandbox_id.clone(),
        namespace: placed.namespace.clone(),
        name: placed.name.clone(),
        qos_level: placed.qos.to_string(),
        pool: placed.pool.map(|pool| pool.to_string()).unwrap_or_default(),
        cpus: placed.cpus.to_string(),
        mems: placed.mems.to_string(),
        exclusive: placed.exclusive,
        settled: placed.settled,
        flags: placed.flags.iter().map(ToString::to_string).collect(),
        requested_milli_cpu: placed.request.map_or(0, |milli| milli.0),
        since_unix_ms: placed.since_unix_ms,
        request_source: placed.request_source.to_string(),
        decided_by: placed.decided_by.to_string(),
        oci_properties: Default::default(),
    }
}

/// A pool as it is sent.
pub fn pool(pool: &Pool) -> orm::Pool {
    orm::Pool {
        name: pool.name.to_string(),
        cpus: pool.cpus.to_string(),
        mems: pool.mems.to_string(),
        pods: count(pool.pods),
    }
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
            })
            .collect(),
        offline: machine.offline().to_string(),
        online: machine.online().to_string(),
        isolated: machine.isolated().to_string(),
    }
}

fn is_dedicated(request: &Request) -> bool {
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
