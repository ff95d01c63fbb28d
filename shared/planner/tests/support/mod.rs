//! Machines, requests and states to plan with.
// Each test file uses a part of it.
#![allow(dead_code, unreachable_pub)]

use oxalyst_planner::plan::{
    Plan, PodPlacement, PoolName, Refusal, Request, RequestSource, Stage, State, admit, placement_of, pools,
};
use oxalyst_qos::QOS_LEVEL;
use oxalyst_topology::{Cpu, CpuSet, Machine, NumaNode};
use oxalyst_units::MilliCpu;

pub fn set(text: &str) -> CpuSet {
    text.parse().unwrap()
}

/// Two CPUs without threads on one node.
pub fn two_cpus() -> Machine {
    let cpus = (0..2).map(|id| Cpu { id, core: id, socket: 0, numa: 0, l3: Some(0) });
    Machine::from_rows(cpus.collect(), &[]).unwrap()
}

/// Two sockets of two nodes; node n has the CPUs 2n, 2n+1, 2n+8, 2n+9, of which i and i+8 share a core.
pub fn sixteen_cpus() -> Machine {
    Machine::from_rows(sixteen_rows(), &distances()).unwrap()
}

/// The same, of which these nodes have no memory.
pub fn sixteen_cpus_without_memory(nodes: &[u32]) -> Machine {
    let nodes = (0..4).zip(distances()).map(|(id, distances)| NumaNode {
        has_memory: !nodes.contains(&id),
        distances,
        ..NumaNode::new(id)
    });
    Machine::new(sixteen_rows(), nodes.collect()).unwrap()
}

fn sixteen_rows() -> Vec<Cpu> {
    let row = |id: u32| {
        let core = id % 8;
        Cpu { id, core, socket: core / 4, numa: core / 2, l3: Some(core / 2) }
    };
    (0..16).map(row).collect()
}

fn distances() -> Vec<Vec<u32>> {
    vec![vec![10, 12, 21, 21], vec![12, 10, 21, 21], vec![21, 21, 10, 12], vec![21, 21, 12, 10]]
}

/// A pod of this level and request, whose sandbox starts.
pub fn pod(uid: &str, level: &str, milli_cpu: Option<u64>) -> Request {
    Request {
        sandbox_id: format!("{uid}-1"),
        pod_uid: uid.to_owned(),
        namespace: "default".to_owned(),
        name: format!("pod-{uid}"),
        labels: [].into(),
        annotations: [(QOS_LEVEL.to_owned(), level.to_owned())].into(),
        priority: None,
        request: milli_cpu.map(MilliCpu),
        request_source: RequestSource::SandboxResources,
        stage: Stage::Sandbox,
        now_unix_ms: 1000,
    }
}

pub fn shared(uid: &str) -> Request {
    pod(uid, "shared_cores", Some(500))
}

pub fn dedicated(uid: &str, cpus: u64) -> Request {
    pod(uid, "dedicated_cores", Some(cpus * 1000))
}

pub fn annotated(mut request: Request, key: &str, value: &str) -> Request {
    request.annotations.insert(key.to_owned(), value.to_owned());
    request
}

pub fn bound(request: Request) -> Request {
    annotated(request, "katalyst.kubewharf.io/memory_enhancement", r#"{"numa_binding": "true"}"#)
}

pub fn daemon(mut request: Request) -> Request {
    request.labels.insert("pod-template-generation".to_owned(), "1".to_owned());
    request.labels.insert("controller-revision-hash".to_owned(), "5d4f".to_owned());
    request
}

pub fn in_sandbox(request: Request, sandbox_id: &str) -> Request {
    Request { sandbox_id: sandbox_id.to_owned(), ..request }
}

/// The same pod, one of whose containers is created and asks for this.
pub fn container(request: Request, milli_cpu: Option<u64>) -> Request {
    Request {
        request: milli_cpu.map(MilliCpu),
        request_source: RequestSource::ContainerResources,
        stage: Stage::Container,
        ..request
    }
}

/// A machine and what is held on it.
pub struct Node {
    pub machine: Machine,
    pub state: State,
}

impl Node {
    pub fn new(machine: Machine) -> Self {
        Self { machine, state: State::default() }
    }

    pub fn reserving(machine: Machine, reserved: &str) -> Self {
        Self { machine, state: State::new(set(reserved)) }
    }

    pub fn plan(&self, request: &Request) -> Result<Plan, Refusal> {
        admit(&self.state, &self.machine, request)
    }

    pub fn admit(&mut self, request: &Request) -> Plan {
        let plan = self.plan(request).unwrap_or_else(|refusal| panic!("{}: {refusal}", request.pod_uid));
        self.state.apply(&plan);
        plan
    }

    pub fn refusal(&self, request: &Request) -> Refusal {
        self.plan(request).expect_err("this was to be refused")
    }

    pub fn release(&mut self, uid: &str, sandbox_id: &str) -> Plan {
        let plan = oxalyst_planner::plan::release(&self.state, &self.machine, uid, sandbox_id);
        self.state.apply(&plan);
        plan
    }

    pub fn placement(&self, uid: &str) -> PodPlacement {
        placement_of(&self.state, &self.machine, uid).expect("a known pod")
    }

    pub fn cpus(&self, uid: &str) -> String {
        self.placement(uid).cpus.to_string()
    }

    pub fn mems(&self, uid: &str) -> String {
        self.placement(uid).mems.to_string()
    }

    pub fn pool(&self, name: PoolName) -> CpuSet {
        let pools = pools(&self.state, &self.machine);
        pools.into_iter().find(|pool| pool.name == name).expect("every pool is told").cpus
    }
}
