//! Pods that somebody else has placed, an earlier version or another allocator: they keep what they have.

use super::{Asked, Class, CpuPolicy, Given, Plan, Pod, Role, Rules, State, Told, settled};
use crate::{
    plan::Flag,
    policy::{self, ContainerId, ContainerKind, DEDICATED, RECLAIM, SHARE, Wishes, memory},
};
use oxalyst_qos::{Attributes, QosLevel};
use oxalyst_topology::{CpuSet, Machine, NumaMask};
use oxalyst_units::MilliCpu;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// A pod as it was remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownPod {
    /// Pod uid.
    pub uid: String,
    /// Its sandbox; empty: the runtime's list will tell.
    pub sandbox_id: String,
    /// Pod namespace.
    pub namespace: String,
    /// Pod name.
    pub name: String,
    /// Its level.
    pub qos: QosLevel,
    /// Its Kubernetes class.
    pub class: Class,
    /// What it wishes beyond its level.
    pub wishes: Wishes,
    /// Those of its labels that were kept.
    pub kept_labels: Attributes,
    /// Whether it runs on all CPUs that are not exclusive.
    pub node_agent: bool,
    /// The pool that it is in; `None`: that of its level and wishes.
    pub pool: Option<String>,
    /// The container that the pod is about.
    pub main: String,
    /// Its containers, each with the CPUs that are the pod's alone, if it has any.
    pub containers: Vec<(Asked, Option<CpuSet>)>,
    /// How it was asked for.
    pub told: Told,
    /// How it deviates from what was asked.
    pub flags: BTreeSet<Flag>,
    /// When it was first placed, milliseconds since the Unix epoch.
    pub since_unix_ms: i64,
}

/// Takes these pods in beside those that are held, as they are. What follows for pools is computed anew.
pub fn take_over(state: &State, machine: &Machine, rules: &Rules, known: &[KnownPod]) -> Plan {
    let machine = rules.confine(machine);
    let mut after = state.clone();
    for pod in known {
        after.drop_containers(&pod.uid, |_| true);
        put(&mut after, &machine, rules, pod);
    }
    settled::settle(&mut after, &machine, rules);
    Plan::between(state, after, &machine)
}

// === impl KnownPod ===

impl KnownPod {
    /// All CPUs that are this pod's alone.
    pub fn own_cpus(&self) -> CpuSet {
        self.containers.iter().filter_map(|(_, own)| own.as_ref()).fold(CpuSet::new(), |all, own| all | own)
    }
}

fn put(after: &mut State, machine: &Machine, rules: &Rules, known: &KnownPod) {
    let own = known.own_cpus();
    let served = match known.qos {
        QosLevel::Dedicated if own.is_empty() => QosLevel::Shared,
        level => level,
    };
    let pod = Pod {
        uid: known.uid.clone(),
        sandbox_id: known.sandbox_id.clone(),
        namespace: known.namespace.clone(),
        name: known.name.clone(),
        qos: known.qos,
        class: known.class,
        wishes: known.wishes.clone(),
        kept_labels: known.kept_labels.clone(),
        placed_under: Some(rules.policy_name()),
        served,
        node_agent: known.node_agent,
        main: known.main.clone(),
        containers: known.containers.iter().map(|(asked, _)| asked.clone()).collect(),
        told: known.told.clone(),
        flags: known.flags.clone(),
        given: Given::new(),
        since_unix_ms: known.since_unix_ms,
    };
    if !pod.node_agent {
        let dynamic = matches!(rules.cpu_policy, CpuPolicy::Dynamic(_));
        for (asked, theirs) in &known.containers {
            let theirs = if dynamic { (!own.is_empty()).then_some(&own) } else { theirs.as_ref() };
            // Plain init and ephemeral containers follow the main one.
            if pod.is_main(&asked.name) || !dynamic || matches!(asked.role, Role::App | Role::RestartableInit)
            {
                let placing = Placing { pod: &pod, pool: known.pool.as_deref(), dynamic, machine };
                placing.put(after, asked, theirs);
            }
        }
    }
    after.pods.insert(pod.uid.clone(), Arc::new(pod));
}

struct Placing<'a> {
    pod: &'a Pod,
    pool: Option<&'a str>,
    dynamic: bool,
    machine: &'a Machine,
}

// === impl Placing ===

impl Placing<'_> {
    fn put(&self, after: &mut State, asked: &Asked, own: Option<&CpuSet>) {
        let pod = self.pod;
        let id = ContainerId::new(pod.uid.as_str(), asked.name.as_str());
        let kind = pod.kind(asked);
        let dedicated = own.filter(|_| pod.served == QosLevel::Dedicated || !self.dynamic);
        let qos = match (dedicated, self.dynamic) {
            (Some(_), _) => QosLevel::Dedicated,
            (None, true) => pod.served,
            (None, false) => QosLevel::Shared,
        };
        let wishes = if self.dynamic { pod.served_wishes() } else { Wishes::default() };
        let nodes = dedicated.map(|cpus| self.machine.nodes_of(cpus));
        let home = self.home(qos, &wishes, nodes.as_ref());
        let cpus = dedicated.cloned().unwrap_or_default();
        let mut request = asked.cpu.unwrap_or_default();
        if kind == ContainerKind::Main && qos == QosLevel::Dedicated && request == MilliCpu(0) {
            request = pod.total_cpu();
        }
        let bound_to = nodes.filter(|nodes| !nodes.is_empty()).or_else(|| home.map(NumaMask::only));
        let entry = policy::Container {
            pod_name: pod.full_name(),
            kind,
            qos,
            wishes: wishes.clone(),
            owner: self.owner(qos, &wishes),
            ramp_up: false,
            cpus: cpus.clone(),
            baseline: cpus,
            request,
            pod_request: None,
            numa_hint: home,
        };
        let memory = memory::Container {
            kind,
            qos: if self.dynamic { qos } else { QosLevel::Shared },
            wishes,
            request: BTreeMap::new(),
            taken: BTreeMap::new(),
            bound_to,
            mems: NumaMask::new(),
        };
        after.cpus.containers.insert(id.clone(), Arc::new(entry));
        after.memory.containers.insert(id, Arc::new(memory));
    }

    /// The one NUMA node that it is bound to.
    fn home(&self, qos: QosLevel, wishes: &Wishes, nodes: Option<&NumaMask>) -> Option<u32> {
        match (qos, nodes) {
            (QosLevel::Dedicated, Some(nodes)) if wishes.numa_binding() && !wishes.numa_exclusive() => {
                nodes.first().filter(|_| nodes.len() == 1)
            }
            (QosLevel::Shared, _) if wishes.numa_binding() => self.pool.and_then(policy::node_of_pool),
            _ => None,
        }
    }

    fn owner(&self, qos: QosLevel, wishes: &Wishes) -> Option<String> {
        match qos {
            QosLevel::Dedicated => Some(DEDICATED.to_owned()),
            QosLevel::Reclaimed => Some(RECLAIM.to_owned()),
            QosLevel::Shared => Some(self.pool.or_else(|| wishes.shared_pool()).unwrap_or(SHARE).to_owned()),
            QosLevel::System => wishes.cpuset_pool().map(|pool| format!("system-{pool}")),
        }
    }
}
