//! What the allocator holds.

use super::{Plan, PodChange, words::closed_set};
use oxalyst_qos::QosLevel;
use oxalyst_topology::CpuSet;
use oxalyst_units::MilliCpu;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The allocator's whole state. Where a pool's pod runs is not in it: that follows from the state and the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Pods by uid.
    pub pods: BTreeMap<String, PodEntry>,
    /// CPUs kept for the system, as configured; they may be offline.
    pub reserved: CpuSet,
    /// Sandboxes that have ended.
    pub released: Released,
}

/// One pod: what it asked for and what was decided. One record of the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodEntry {
    /// Pod uid.
    pub uid: String,
    /// Its current sandbox: only this one's end frees the pod.
    pub sandbox_id: String,
    /// Pod namespace.
    pub namespace: String,
    /// Pod name.
    pub name: String,
    /// The level that it is served at; shared where its annotation names none.
    pub qos: QosLevel,
    /// CPUs that it asked for; `None` where unknown or where it asked for none.
    pub request: Option<MilliCpu>,
    /// Who told the request.
    pub request_source: RequestSource,
    /// What was decided.
    pub placement: Placement,
    /// How this deviates from what was asked. Deviations that come and go with the machine are not here: they are derived.
    pub flags: BTreeSet<Flag>,
    /// When it was first decided, milliseconds since the Unix epoch.
    pub since_unix_ms: i64,
    /// On what occasion it was first decided.
    pub decided_by: DecidedBy,
}

/// What was decided for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// CPUs of its own, never empty. Some may have gone offline since; they are its own when they come back.
    Exclusive {
        /// The CPUs.
        cpus: CpuSet,
        /// Whether the pod is bound to their NUMA nodes, whose memory others then avoid.
        numa_bound: bool,
    },
    /// The CPUs of a pool.
    Pool(PoolName),
    /// Every CPU that is not exclusive, the reserved ones included.
    NodeAgent,
    /// A dedicated pod whose request is not known yet. Meanwhile it counts as one of the shared pool.
    Unsettled,
}

/// Sandboxes that have ended, the newest last, so that a late admission cannot bring one back. Bounded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Released(VecDeque<String>);

closed_set! {
    /// A pool of CPUs.
    PoolName {
        /// Shared pods.
        Share = "share",
        /// Reclaimed pods.
        Reclaim = "reclaim",
        /// Reserved CPUs: system pods that name this pool.
        Reserve = "reserve",
        /// All CPUs: system pods that name no pool.
        System = "system",
    }
}

closed_set! {
    /// How a placement deviates from what was asked.
    Flag {
        /// The QoS annotation names no level: served as shared.
        QosInvalid = "qos-invalid",
        /// An enhancement annotation, or a part of one, cannot be understood: left out.
        EnhancementInvalid = "enhancement-invalid",
        /// An enhancement asks for something that this allocator does not do: left out.
        EnhancementUnserved = "enhancement-unserved",
        /// The pod names a pool that does not exist: it runs in its level's own.
        PoolUnknown = "pool-unknown",
        /// A dedicated pod of which no container has asked for CPUs so far: it runs in the shared pool.
        NoRequest = "no-request",
        /// A node agent: runs on all CPUs that are not exclusive.
        NodeAgent = "node-agent",
        /// Every CPU is exclusive: a node agent runs on CPUs of others.
        NodeAgentOverlaps = "node-agent-overlaps",
        /// No NUMA node alone had room for the bound pod, or its CPUs are on another node than it was bound to.
        NumaBindingSpans = "numa-binding-spans",
        /// A dedicated pod that ran before it was known, and for which there was no room: it runs in the shared pool.
        AdoptedWithoutRoom = "adopted-without-room",
        /// CPUs of the exclusive set are offline.
        CpuOffline = "cpu-offline",
        /// CPUs of the exclusive set have become reserved since; they do once the pod has ended.
        OnReserved = "on-reserved",
        /// No NUMA node has CPUs for the pod that is to be bound, or none any more: it runs unbound.
        NumaBindingLost = "numa-binding-lost",
        /// More memory is taken of the pod's NUMA nodes than they have, since the machine has lost some.
        MemoryShort = "memory-short",
        /// The pod's pool has no CPU left: it runs on reserved CPUs, or where there are none, on those of others.
        PoolEmpty = "pool-empty",
    }
}

closed_set! {
    /// Who told a pod's request.
    RequestSource {
        /// The sandbox's own resources: the pod's totals.
        SandboxResources = "sandbox-resources",
        /// A container's resources.
        ContainerResources = "container-resources",
        /// The pod's spec.
        PodSpec = "pod-spec",
        /// Nobody.
        None = "none",
    }
}

closed_set! {
    /// On what occasion a placement was decided.
    DecidedBy {
        /// The pod was admitted before it ran.
        Admit = "admit",
        /// The pod ran already.
        Reconcile = "reconcile",
    }
}

// === impl State ===

impl State {
    /// No pods, and these CPUs reserved.
    pub fn new(reserved: CpuSet) -> Self {
        Self { reserved, ..Self::default() }
    }

    /// The state once the plan holds. Applying a plan of an earlier state is a fault of the caller; it is not detected.
    pub fn apply(&mut self, plan: &Plan) {
        for change in &plan.changes {
            match change {
                PodChange::Put(entry) => {
                    self.released.forget(&entry.sandbox_id);
                    self.pods.insert(entry.uid.clone(), entry.clone());
                }
                PodChange::Remove(uid) => {
                    self.pods.remove(uid);
                }
            }
        }
        for sandbox_id in &plan.retired {
            self.released.remember(sandbox_id);
        }
    }
}

// === impl PodEntry ===

impl PodEntry {
    /// Whether another container's request may still change what was decided.
    pub fn is_open(&self) -> bool {
        self.placement == Placement::Unsettled || self.flags.contains(&Flag::NoRequest)
    }
}

// === impl Released ===

impl Released {
    /// Sandboxes that are remembered: a node's churn within the time that any admission may take, many times over.
    pub const LIMIT: usize = 1024;

    /// Whether this sandbox has ended.
    pub fn contains(&self, sandbox_id: &str) -> bool {
        self.0.iter().any(|known| known == sandbox_id)
    }

    /// The sandboxes, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// Remembers a sandbox that has ended, and forgets the oldest where there are too many.
    pub fn remember(&mut self, sandbox_id: &str) {
        if self.contains(sandbox_id) {
            return;
        }
        if self.0.len() == Self::LIMIT {
            self.0.pop_front();
        }
        self.0.push_back(sandbox_id.to_owned());
    }

    /// Forgets a sandbox that runs after all.
    pub fn forget(&mut self, sandbox_id: &str) {
        self.0.retain(|known| known != sandbox_id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_ended_sandboxes_is_bounded_and_drops_the_oldest() {
        let mut released = Released::default();
        for id in 0..Released::LIMIT + 2 {
            released.remember(&id.to_string());
        }
        assert_eq!(released.iter().count(), Released::LIMIT);
        assert!(!released.contains("1") && released.contains("2"));
    }

    #[test]
    fn a_sandbox_is_remembered_once() {
        let mut released = Released::default();
        released.remember("a");
        released.remember("a");
        assert_eq!(released.iter().collect::<Vec<_>>(), ["a"]);
        released.forget("a");
        assert!(!released.contains("a"));
    }
}
