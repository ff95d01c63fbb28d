//! What is held.

use super::{Asked, Given, PolicyName, Released, Told};
use crate::{
    grouped::{Alike, Grouped},
    plan::{Flag, words::closed_set},
    policy::{self, Wishes, memory},
};
use oxalyst_qos::{Attributes, QosLevel};
use oxalyst_topology::{CpuSet, Machine};
use std::{collections::BTreeSet, sync::Arc};

/// Everything that is held. Cheap to clone: what does not change is shared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Pods by uid.
    pub pods: Grouped<String, Pod>,
    /// Who has which CPUs, and the pools. Node agents, plain init and ephemeral containers have no entry under the dynamic policy.
    pub cpus: policy::State,
    /// Who has which memory.
    pub memory: memory::State,
    /// Sandboxes that have ended. Need not be durable: nobody waits for an answer across a restart.
    pub released: Released,
}

/// One pod: what it asked for, and how it is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Pod uid.
    pub uid: String,
    /// Its current sandbox.
    pub sandbox_id: String,
    /// Pod namespace.
    pub namespace: String,
    /// Pod name.
    pub name: String,
    /// The level that it asked for.
    pub qos: QosLevel,
    /// Its Kubernetes class.
    pub class: Class,
    /// What it wishes beyond its level.
    pub wishes: Wishes,
    /// Those of its labels that are kept with it.
    pub kept_labels: Attributes,
    /// The policy that placed it; `None`: an earlier version did, which does not tell.
    pub placed_under: Option<PolicyName>,
    /// The level that it is served at: that asked for, or shared for a dedicated pod that asks for no CPU.
    pub served: QosLevel,
    /// Whether it runs on all CPUs that are not exclusive, whatever it asks for.
    pub node_agent: bool,
    /// The container that the pod is about, and whose CPUs the others follow.
    pub main: String,
    /// Its containers in the order in which they were told.
    pub containers: Vec<Container>,
    /// How it was asked for.
    pub told: Told,
    /// How it deviates from what was asked. Deviations that come and go with the machine are derived.
    pub flags: BTreeSet<Flag>,
    /// What resource plugins gave its containers.
    pub given: Given,
    /// When it was first admitted, milliseconds since the Unix epoch.
    pub since_unix_ms: i64,
}

/// One container as it was asked for.
pub type Container = Asked;

closed_set! {
    /// What a container is to its pod.
    Role {
        /// Runs for as long as the pod.
        App = "app",
        /// Runs to its end before the others.
        Init = "init",
        /// Starts in turn with the init containers and runs for as long as the pod.
        RestartableInit = "restartable-init",
        /// Joins a running pod to look into it.
        Ephemeral = "ephemeral",
    }
}

closed_set! {
    /// Kubernetes' own classes.
    Class {
        /// Every container's requests are its limits.
        Guaranteed = "guaranteed",
        /// Something is requested.
        Burstable = "burstable",
        /// Nothing is requested.
        BestEffort = "besteffort",
    }
}

// === impl State ===

impl State {
    /// A machine on which nothing runs yet.
    pub fn new(machine: &Machine, reserved: CpuSet) -> Self {
        Self { cpus: policy::State::new(machine, reserved), ..Self::default() }
    }

    /// Drops these containers of a pod from the sets, without computing anything anew.
    pub(super) fn drop_containers(&mut self, uid: &str, which: impl Fn(&str) -> bool) {
        self.cpus.drop_of_pod(uid, |id| which(&id.container));
        self.memory.drop_of_pod(uid, |id| which(&id.container));
    }

    /// Changes a pod that is known.
    pub(super) fn change_pod(&mut self, uid: &str, change: impl FnOnce(&mut Pod)) {
        if let Some(pod) = self.pods.get_mut(uid) {
            change(Arc::make_mut(pod));
        }
    }
}

// === impl Pod ===

impl Pod {
    /// The container of this name.
    pub fn container(&self, name: &str) -> Option<&Container> {
        self.containers.iter().find(|container| container.name == name)
    }

    /// Namespace and name, by which a pod that is made anew is recognised.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

impl Alike for Pod {
    /// In what others see of it.
    fn is_like(&self, other: &Self) -> bool {
        self.qos == other.qos
            && self.served == other.served
            && self.node_agent == other.node_agent
            && self.flags == other.flags
    }
}
