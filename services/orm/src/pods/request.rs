//! What is to happen.

use super::{Class, Role};
use crate::{plan::Flag, policy::Wishes};
use oxalyst_qos::QosLevel;
use oxalyst_topology::CpuSet;
use oxalyst_units::{Bytes, MilliCpu};
use std::collections::BTreeSet;

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
    /// Whether it must run on every node whatever else does.
    pub node_agent: bool,
    /// What of its annotations could not be understood or served.
    pub flags: BTreeSet<Flag>,
    /// Its containers, init containers in the order in which they run. One that is known already is passed over.
    pub containers: Vec<Asked>,
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
