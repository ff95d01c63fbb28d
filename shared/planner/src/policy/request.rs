//! What a container asks for.

use super::{Container, ContainerId, ContainerKind, Wishes};
use oxalyst_qos::QosLevel;
use oxalyst_topology::CpuSet;
use oxalyst_units::MilliCpu;

/// A container that is about to start, or to be resized.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The container.
    pub id: ContainerId,
    /// Namespace and name of its pod.
    pub pod_name: String,
    /// What it is to its pod.
    pub kind: ContainerKind,
    /// Its pod's level.
    pub qos: QosLevel,
    /// Its wishes.
    pub wishes: Wishes,
    /// What the container asks for.
    pub cpu: MilliCpu,
    /// What its whole pod asks for, where that is declared on the main container.
    pub pod_cpu: Option<MilliCpu>,
    /// Whether a running container is to have more or less than it has.
    pub resize: bool,
    /// Whether the pod is there to debug: nothing is set aside for it.
    pub debug: bool,
    /// Whether the pod has been running for long enough to be no longer pending: no ramp-up.
    pub running: bool,
}

// === impl Request ===

impl Request {
    /// What is to be found for the container: on a main container its whole pod's request, where declared.
    pub fn aggregated(&self) -> MilliCpu {
        self.pod_cpu.filter(|_| self.kind == ContainerKind::Main).unwrap_or(self.cpu)
    }

    /// The container as a new entry without CPUs.
    pub(super) fn entry(&self) -> Container {
        Container {
            pod_name: self.pod_name.clone(),
            kind: self.kind,
            qos: self.qos,
            wishes: self.wishes.clone(),
            owner: None,
            ramp_up: false,
            cpus: CpuSet::new(),
            baseline: CpuSet::new(),
            request: self.cpu,
            pod_request: self.pod_cpu,
            numa_hint: None,
        }
    }
}

/// CPUs that hold this quantity.
pub(super) fn whole(quantity: MilliCpu) -> usize {
    usize::try_from(quantity.ceil_cpus()).unwrap_or(usize::MAX)
}

/// Whether this many CPUs hold the quantity.
pub(super) fn fits(quantity: MilliCpu, cpus: usize) -> bool {
    quantity <= MilliCpu::cpus(cpus as u64)
}
