//! What is to happen.

use super::{Class, Plugins, Role};
use crate::{
    plan::{DecidedBy, Flag, RequestSource, Stage},
    policy::Wishes,
};
use oxalyst_qos::{Attributes, QosLevel};
use oxalyst_topology::CpuSet;
use oxalyst_units::{Bytes, MilliCpu};
use std::collections::{BTreeMap, BTreeSet};

/// A request to plan. Time is a field: planning reads no clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A pod starts, or containers join one that is known.
    Admit(PodRequest),
    /// The pod is gone.
    Remove {
        /// Pod uid.
        uid: String,
    },
    /// A running container is to have more or less than it has.
    Resize(Resize),
    /// A container is created again in its sandbox.
    RestartContainer {
        /// Pod uid.
        uid: String,
        /// The container's name.
        container: String,
    },
    /// Time has passed: the end of ramp-up.
    Elapse {
        /// Now, milliseconds since the Unix epoch.
        now_unix_ms: i64,
    },
    /// The machine is the one given from now on, and so are these reserved CPUs (`None`: as before).
    TakeUp {
        /// The reserved CPUs.
        reserved: Option<CpuSet>,
    },
}

/// A pod that starts, or that is known and is to have more containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRequest {
    /// Pod uid.
    pub uid: String,
    /// Its current sandbox.
    pub sandbox_id: String,
    /// Pod namespace.
    pub namespace: String,
    /// Pod name.
    pub name: String,
    /// Its level; decides under the dynamic policy.
    pub qos: QosLevel,
    /// Its class; decides under the native policy.
    pub class: Class,
    /// What it wishes beyond its level.
    pub wishes: Wishes,
    /// Those of its labels that are kept with it.
    pub kept_labels: Attributes,
    /// Whether it must run on every node whatever else does.
    pub node_agent: bool,
    /// What is remembered of how it was asked for.
    pub told: Told,
    /// What of its annotations could not be understood or served.
    pub flags: BTreeSet<Flag>,
    /// Its containers, init containers in the order in which they run. One that is known already is passed over.
    pub containers: Vec<Asked>,
    /// What resource plugins say of its containers, and gave them.
    pub plugins: Plugins,
    /// Now, milliseconds since the Unix epoch.
    pub now_unix_ms: i64,
}

/// One container that starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Its name.
    pub name: String,
    /// What it is to its pod.
    pub role: Role,
    /// CPUs asked for; `None`: none.
    pub cpu: Option<MilliCpu>,
    /// CPUs that it may not pass; `None`: no limit.
    pub limit: Option<MilliCpu>,
    /// Memory asked for; `None`: none.
    pub memory: Option<Bytes>,
    /// Huge pages asked for, in bytes by the bytes of a page. They are set aside for as long as the container runs: no resize changes
    /// them.
    pub huge_pages: BTreeMap<Bytes, Bytes>,
}

/// What a running container is to have. What is `None` stays as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resize {
    /// Pod uid.
    pub uid: String,
    /// The container's name.
    pub container: String,
    /// CPUs asked for.
    pub cpu: Option<MilliCpu>,
    /// CPUs that it may not pass.
    pub limit: Option<MilliCpu>,
    /// Memory asked for.
    pub memory: Option<Bytes>,
}

/// How a pod was asked for, and how far that is settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// CPUs that the pod asked for in total; `None` where unknown or where it asked for none.
    pub request: Option<MilliCpu>,
    /// Who told the request.
    pub source: RequestSource,
    /// On what occasion it was first decided.
    pub decided_by: DecidedBy,
    /// Whether a container's request may still change what was decided.
    pub open: bool,
}

/// A pod of which the sandbox is known, and its containers not yet. Time is a field: planning reads no clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxRequest {
    /// The sandbox that is about to start, or that holds the container.
    pub sandbox_id: String,
    /// Pod uid.
    pub pod_uid: String,
    /// Pod namespace.
    pub namespace: String,
    /// Pod name.
    pub name: String,
    /// The pod's labels.
    pub labels: Attributes,
    /// Those of them that are kept with it.
    pub kept_labels: Attributes,
    /// The pod's annotations.
    pub annotations: Attributes,
    /// The pod's priority; `None` where its spec is not known.
    pub priority: Option<i32>,
    /// Its Kubernetes class.
    pub class: Class,
    /// CPUs asked for: by the pod in total, or by the container that is about to be created. `None` and zero: none, or unknown.
    pub request: Option<MilliCpu>,
    /// Who told `request`.
    pub request_source: RequestSource,
    /// How far the pod has come.
    pub stage: Stage,
    /// Whether the node has resource plugins, and what the pod asks of them is not known.
    pub plugins_unasked: bool,
    /// Now, milliseconds since the Unix epoch.
    pub now_unix_ms: i64,
}

/// A pod that runs already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningSandbox {
    /// The pod. Its `request` is the pod's total where known, else that of its containers together.
    pub request: SandboxRequest,
    /// The CPUs that its containers are confined to now; `None` where they are not, or where that is unknown.
    pub cpus: Option<CpuSet>,
}

// === impl SandboxRequest ===

impl SandboxRequest {
    /// The request, where there is one.
    pub(super) fn milli_cpu(&self) -> Option<MilliCpu> {
        self.request.filter(|request| *request > MilliCpu(0))
    }
}

// === impl Told ===

impl Default for Told {
    fn default() -> Self {
        Self { request: None, source: RequestSource::None, decided_by: DecidedBy::Admit, open: false }
    }
}
