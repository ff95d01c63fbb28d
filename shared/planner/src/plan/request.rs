//! What a pod asks for.

use super::{Flag, PoolName, RequestSource};
use oxalyst_qos::{Attributes, Enhancements, QosLevel, enhancements, node_agent, qos_level};
use oxalyst_topology::CpuSet;
use oxalyst_units::MilliCpu;
use std::collections::BTreeSet;

/// A pod that starts, as far as it is known. Time is a field: planning reads no clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
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
    /// The pod's annotations.
    pub annotations: Attributes,
    /// The pod's priority; `None` where its spec is not known.
    pub priority: Option<i32>,
    /// CPUs asked for: by the pod in total, or by the container that is about to be created. `None` and zero: none, or unknown.
    pub request: Option<MilliCpu>,
    /// Who told `request`.
    pub request_source: RequestSource,
    /// How far the pod has come.
    pub stage: Stage,
    /// Now, milliseconds since the Unix epoch.
    pub now_unix_ms: i64,
}

/// How far a pod has come when it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Its sandbox starts: an unknown request may become known with a container.
    Sandbox,
    /// One of its containers is created: an unknown request is none.
    Container,
}

/// A pod that runs already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// The pod. Its `request` is the pod's total where known, else that of its containers together.
    pub request: Request,
    /// The CPUs that its containers are confined to now; `None` where they are not, or where that is unknown.
    pub cpus: Option<CpuSet>,
}

/// A request as it is understood.
pub(super) struct Asked {
    pub(super) qos: QosLevel,
    pub(super) want: Want,
    pub(super) flags: BTreeSet<Flag>,
}

/// What kind of placement a request wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    Exclusive { numa_binding: bool },
    Pool(PoolName),
    NodeAgent,
}

/// Enhancements that are about placement, and that are not served yet; `numa_binding` is, for dedicated pods.
const UNSERVED: [&str; 8] = [
    "align_by_socket",
    "distribute_evenly_across_numa",
    "full_pcpus_pairing",
    "katalyst.kubewharf.io/numa_ids",
    "katalyst.kubewharf.io/numa_number",
    "numa_ids",
    "numa_number",
    "numa_share",
];

// === impl Request ===

impl Request {
    /// The request, where there is one.
    pub(super) fn milli_cpu(&self) -> Option<MilliCpu> {
        self.request.filter(|request| *request > MilliCpu(0))
    }

    pub(super) fn is_numa_binding(&self) -> bool {
        enhancements(&self.annotations).0.numa_binding()
    }
}

// === impl Asked ===

impl Asked {
    pub(super) fn of(request: &Request) -> Self {
        let mut flags = BTreeSet::new();
        let qos = qos_level(&request.annotations).unwrap_or_else(|_| {
            flags.insert(Flag::QosInvalid);
            None
        });
        let qos = qos.unwrap_or_default();
        let (wishes, faults) = enhancements(&request.annotations);
        if !faults.is_empty() {
            flags.insert(Flag::EnhancementInvalid);
        }
        if has_unserved(qos, &wishes) {
            flags.insert(Flag::EnhancementUnserved);
        }
        let agent = node_agent(&request.labels, &request.annotations, request.priority).is_some();
        let want = match qos {
            QosLevel::Dedicated => Want::Exclusive { numa_binding: wishes.numa_binding() },
            QosLevel::System => Want::Pool(PoolName::System),
            QosLevel::Shared | QosLevel::Reclaimed if agent => Want::NodeAgent,
            QosLevel::Shared => Want::Pool(PoolName::Share),
            QosLevel::Reclaimed => Want::Pool(PoolName::Reclaim),
        };
        let want = match (want, wishes.cpuset_pool()) {
            (Want::Pool(PoolName::System), Some("reserve")) => Want::Pool(PoolName::Reserve),
            (Want::Pool(own), Some(named)) if named != own.as_str() => {
                flags.insert(Flag::PoolUnknown);
                want
            }
            _ => want,
        };
        if want == Want::NodeAgent {
            flags.insert(Flag::NodeAgent);
        }
        Self { qos, want, flags }
    }
}

fn has_unserved(qos: QosLevel, wishes: &Enhancements) -> bool {
    wishes.numa_exclusive()
        || (wishes.numa_binding() && qos != QosLevel::Dedicated)
        || UNSERVED.iter().any(|wish| wishes.get(wish).is_some())
}
