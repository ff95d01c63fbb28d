//! Cases born from bug reports, by their ids: what users saw elsewhere does not happen here. Whole pods on the pure planner.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

#[path = "cases/dynamic.rs"]
mod dynamic;
#[path = "cases/native.rs"]
mod native;
#[path = "cases/restart.rs"]
mod restart;

use oxalyst_planner::{
    plan::Refusal,
    pods::{
        Asked, Class, ContainerPlacement, CpuPolicy, Native, Plan, PodRequest, Request, Resize, Role, Rules,
        State, Told, free_per_node, placement_of, plan, pools, record,
    },
    topology_manager::Policy,
};
use oxalyst_qos::QosLevel;
use oxalyst_topology::{Cpu, CpuSet, Machine, NumaNode};
use oxalyst_units::{Bytes, MilliCpu};
use std::collections::{BTreeMap, BTreeSet};

const GIB: u64 = 1 << 30;

/// Two sockets of four cores with two threads each; NUMA node = socket; threads 0-7 first, their siblings 8-15. 8 GiB a node.
fn two_sockets() -> Machine {
    let cpu = |id: u32| Cpu { id, core: id % 8, socket: id % 8 / 4, numa: id % 8 / 4, l3: Some(id % 8 / 4) };
    numa((0..16).map(cpu).collect(), 2)
}

/// So many NUMA nodes of so many CPUs without threads, in two sockets.
fn flat(nodes: u32, cpus: u32) -> Machine {
    let cpu =
        |id: u32| Cpu { id, core: id, socket: id / cpus * 2 / nodes, numa: id / cpus, l3: Some(id / cpus) };
    numa((0..nodes * cpus).map(cpu).collect(), nodes)
}

fn numa(cpus: Vec<Cpu>, nodes: u32) -> Machine {
    let node = |id| NumaNode { memory: Some(Bytes(8 * GIB)), ..NumaNode::new(id) };
    Machine::new(cpus, (0..nodes).map(node).collect()).unwrap()
}

fn set(text: &str) -> CpuSet {
    text.parse().unwrap()
}

fn under(topology: Policy) -> Rules {
    Rules { topology, ..Rules::default() }
}

fn kubelets(topology: Policy) -> Rules {
    Rules { cpu_policy: CpuPolicy::Native(Native::default()), topology, ..Rules::default() }
}

/// A container that asks for so many thousandths of a CPU.
fn asks(name: &str, milli: u64) -> Asked {
    Asked {
        name: name.into(),
        role: Role::App,
        cpu: Some(MilliCpu(milli)),
        limit: None,
        memory: None,
        huge_pages: Default::default(),
    }
}

fn init(name: &str, milli: u64) -> Asked {
    Asked { role: Role::Init, ..asks(name, milli) }
}

fn with_memory(asked: Asked, gib: u64) -> Asked {
    Asked { memory: Some(Bytes(gib * GIB)), ..asked }
}

fn pod(uid: &str, qos: QosLevel, containers: &[Asked]) -> PodRequest {
    PodRequest {
        kept_labels: [].into(),
        plugins: oxalyst_planner::pods::Plugins::default(),
        uid: uid.into(),
        sandbox_id: format!("{uid}-sandbox"),
        namespace: "default".into(),
        name: uid.into(),
        qos,
        class: Class::Guaranteed,
        wishes: std::iter::empty().collect(),
        node_agent: false,
        told: Told::default(),
        flags: BTreeSet::new(),
        containers: containers.to_vec(),
        now_unix_ms: 0,
    }
}

fn dedicated(uid: &str, cpus: u64) -> PodRequest {
    pod(uid, QosLevel::Dedicated, &[asks("main", cpus * 1000)])
}

fn shared(uid: &str, milli: u64) -> PodRequest {
    pod(uid, QosLevel::Shared, &[asks("main", milli)])
}

fn wishing(request: PodRequest, wishes: &[(&str, &str)]) -> PodRequest {
    let wishes = wishes.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    PodRequest { wishes, ..request }
}

fn bound(request: PodRequest) -> PodRequest {
    wishing(request, &[("numa_binding", "true")])
}

/// A machine, the rules, what is held, and the records that a ledger would have.
#[derive(Clone)]
struct Node {
    machine: Machine,
    rules: Rules,
    reserved: CpuSet,
    state: State,
    records: BTreeMap<String, Vec<u8>>,
}

impl Node {
    fn new(machine: Machine, rules: Rules, reserved: &str) -> Self {
        let reserved = set(reserved);
        let (state, _) = record::load(std::iter::empty(), &machine, &rules, reserved.clone());
        Self { machine, rules, reserved, state, records: BTreeMap::new() }
    }

    fn plan(&self, request: &Request) -> Result<Plan, Refusal> {
        plan(&self.state, &self.machine, &self.rules, request)
    }

    fn try_admit(&self, pod: &PodRequest) -> Result<Plan, Refusal> {
        self.plan(&Request::Admit(pod.clone()))
    }

    /// Makes the plan durable and holds it. Gives the keys of the records that were written.
    fn hold(&mut self, plan: Plan) -> Vec<String> {
        let changes = record::changes(&plan, &self.rules);
        self.state = plan.after;
        let keys = changes.iter().map(|change| change.key.clone()).collect();
        for record::Change { key, value } in changes {
            match value {
                Some(bytes) => drop(self.records.insert(key, bytes)),
                None => drop(self.records.remove(&key)),
            }
        }
        keys
    }

    fn does(&mut self, request: &Request) -> Vec<String> {
        let plan = self.plan(request).unwrap_or_else(|refusal| panic!("{request:?}: {}", refusal.message));
        self.hold(plan)
    }

    fn admit(&mut self, pod: PodRequest) -> Vec<String> {
        self.does(&Request::Admit(pod))
    }

    fn remove(&mut self, uid: &str) -> Vec<String> {
        self.does(&Request::Remove { uid: uid.into() })
    }

    fn resize(&mut self, uid: &str, cpus: u64) -> Vec<String> {
        self.does(&resize(uid, cpus))
    }

    /// The process ends and starts anew: what it knows is what the records say.
    fn restart(&mut self) {
        let records = self.records.iter().map(|(key, bytes)| (key.as_str(), bytes.as_slice()));
        let (state, faults) = record::load(records, &self.machine, &self.rules, self.reserved.clone());
        assert!(faults.is_empty(), "{faults:?}");
        self.state = state;
    }

    fn container(&self, uid: &str, name: &str) -> ContainerPlacement {
        let pod = placement_of(&self.state, &self.machine, uid).expect("a known pod");
        pod.containers.into_iter().find(|container| container.name == name).expect("a known container")
    }

    fn cpus(&self, uid: &str) -> CpuSet {
        placement_of(&self.state, &self.machine, uid).expect("a known pod").containers[0].cpus.clone()
    }

    fn pool(&self, name: &str) -> CpuSet {
        pools(&self.state, &self.machine).remove(name).unwrap_or_default()
    }

    /// CPUs that could be given exclusively, in number.
    fn free(&self) -> usize {
        free_per_node(&self.state, &self.machine).iter().map(|node| node.cpus.len()).sum()
    }
}

fn resize(uid: &str, cpus: u64) -> Request {
    Request::Resize(Resize {
        uid: uid.into(),
        container: "main".into(),
        cpu: Some(MilliCpu(cpus * 1000)),
        limit: None,
        memory: None,
    })
}

fn restart(uid: &str, container: &str) -> Request {
    Request::RestartContainer { uid: uid.into(), container: container.into() }
}
