//! Machines, requests and states to plan with.
// Each test file uses a part of it.
#![allow(dead_code, unreachable_pub)]

use oxalyst_planner::plan::{DecidedBy, Flag, Refusal, RequestSource, Stage};
use oxalyst_planner::pods::{self, Class, Plan, Rules, RunningSandbox, SandboxRequest, State, shown_pools};
use oxalyst_qos::{QOS_LEVEL, QosLevel};
use oxalyst_topology::{Cpu, CpuSet, Machine, NumaMask, NumaNode};
use oxalyst_units::MilliCpu;
use std::collections::BTreeSet;

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
pub fn pod(uid: &str, level: &str, milli_cpu: Option<u64>) -> SandboxRequest {
    SandboxRequest {
        kept_labels: [].into(),
        plugins_unasked: false,
        sandbox_id: format!("{uid}-1"),
        pod_uid: uid.to_owned(),
        namespace: "default".to_owned(),
        name: format!("pod-{uid}"),
        labels: [].into(),
        annotations: [(QOS_LEVEL.to_owned(), level.to_owned())].into(),
        priority: None,
        class: Class::Burstable,
        request: milli_cpu.map(MilliCpu),
        request_source: RequestSource::SandboxResources,
        stage: Stage::Sandbox,
        now_unix_ms: 1000,
    }
}

pub fn shared(uid: &str) -> SandboxRequest {
    pod(uid, "shared_cores", Some(500))
}

pub fn dedicated(uid: &str, cpus: u64) -> SandboxRequest {
    pod(uid, "dedicated_cores", Some(cpus * 1000))
}

pub fn annotated(mut request: SandboxRequest, key: &str, value: &str) -> SandboxRequest {
    request.annotations.insert(key.to_owned(), value.to_owned());
    request
}

pub fn bound(request: SandboxRequest) -> SandboxRequest {
    annotated(request, "katalyst.kubewharf.io/memory_enhancement", r#"{"numa_binding": "true"}"#)
}

pub fn alone(request: SandboxRequest) -> SandboxRequest {
    let wishes = r#"{"numa_binding": "true", "numa_exclusive": "true"}"#;
    annotated(request, "katalyst.kubewharf.io/memory_enhancement", wishes)
}

pub fn daemon(mut request: SandboxRequest) -> SandboxRequest {
    request.labels.insert("pod-template-generation".to_owned(), "1".to_owned());
    request.labels.insert("controller-revision-hash".to_owned(), "5d4f".to_owned());
    request
}

pub fn in_sandbox(request: SandboxRequest, sandbox_id: &str) -> SandboxRequest {
    SandboxRequest { sandbox_id: sandbox_id.to_owned(), ..request }
}

/// The same pod, one of whose containers is created and asks for this.
pub fn container(request: SandboxRequest, milli_cpu: Option<u64>) -> SandboxRequest {
    SandboxRequest {
        request: milli_cpu.map(MilliCpu),
        request_source: RequestSource::ContainerResources,
        stage: Stage::Container,
        ..request
    }
}

/// Where a pod runs, and how it was asked for.
#[derive(Clone, Debug)]
pub struct Shown {
    pub sandbox_id: String,
    pub qos: QosLevel,
    pub pool: Option<String>,
    pub cpus: CpuSet,
    pub mems: NumaMask,
    pub exclusive: bool,
    pub settled: bool,
    pub flags: BTreeSet<Flag>,
    pub request: Option<MilliCpu>,
    pub request_source: RequestSource,
    pub decided_by: DecidedBy,
}

/// A machine and what is held on it.
pub struct Node {
    pub machine: Machine,
    pub state: State,
    pub rules: Rules,
}

impl Node {
    pub fn new(machine: Machine) -> Self {
        Self::reserving(machine, "")
    }

    pub fn reserving(machine: Machine, reserved: &str) -> Self {
        let rules = Rules::default();
        let (state, _) = pods::record::load(std::iter::empty(), &machine, &rules, set(reserved));
        Self { machine, state, rules }
    }

    pub fn plan(&self, request: &SandboxRequest) -> Result<Plan, Refusal> {
        pods::admit(&self.state, &self.machine, &self.rules, request).map(|admission| admission.plan)
    }

    pub fn hold(&mut self, plan: Plan) -> Plan {
        self.state.clone_from(&plan.after);
        plan
    }

    pub fn admit(&mut self, request: &SandboxRequest) -> Plan {
        let plan = self.plan(request).unwrap_or_else(|refusal| panic!("{}: {refusal}", request.pod_uid));
        self.hold(plan)
    }

    pub fn refusal(&self, request: &SandboxRequest) -> Refusal {
        self.plan(request).expect_err("this was to be refused")
    }

    pub fn release(&mut self, uid: &str, sandbox_id: &str) -> Plan {
        let plan = pods::release(&self.state, &self.machine, &self.rules, uid, sandbox_id);
        self.hold(plan)
    }

    pub fn take_in(&mut self, running: &[RunningSandbox]) -> Plan {
        let plan = pods::adopt(&self.state, &self.machine, &self.rules, running);
        self.hold(plan)
    }

    /// Those who wait for room.
    pub fn promote(&mut self) -> Plan {
        let plan = pods::promote(&self.state, &self.machine, &self.rules);
        self.hold(plan)
    }

    /// What follows from the machine as it is now.
    pub fn replan(&mut self) -> Plan {
        let plan = pods::replan(&self.state, &self.machine, &self.rules);
        self.hold(plan)
    }

    pub fn placement(&self, uid: &str) -> Shown {
        let pod = self.state.pods.get(uid).expect("a known pod");
        let placed = pods::placement_of(&self.state, &self.machine, uid).unwrap().containers.remove(0);
        Shown {
            sandbox_id: pod.sandbox_id.clone(),
            qos: pod.qos,
            pool: placed.pool,
            cpus: placed.cpus,
            mems: placed.mems,
            exclusive: placed.exclusive,
            settled: !pod.told.open,
            flags: placed.flags,
            request: pod.told.request,
            request_source: pod.told.source,
            decided_by: pod.told.decided_by,
        }
    }

    pub fn cpus(&self, uid: &str) -> String {
        self.placement(uid).cpus.to_string()
    }

    pub fn mems(&self, uid: &str) -> String {
        self.placement(uid).mems.to_string()
    }

    pub fn pool(&self, name: &str) -> CpuSet {
        let pools = shown_pools(&self.state, &self.machine);
        pools.into_iter().find(|pool| pool.name == name).expect("every pool is told").cpus
    }
}
