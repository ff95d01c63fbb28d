//! What is said of a pod beside where it runs.

use super::words::closed_set;

closed_set! {
    /// How a placement deviates from what was asked.
    Flag {
        /// The QoS annotation names no level: served as shared.
        QosInvalid = "qos-invalid",
        /// An enhancement annotation, or a part of one, cannot be understood: left out.
        EnhancementInvalid = "enhancement-invalid",
        /// An enhancement asks for something that this allocator does not do: left out.
        EnhancementUnserved = "enhancement-unserved",
        /// The pod names a pool that does not exist, that has no CPU or that it cannot have: it runs in its level's own.
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
        /// CPUs of the exclusive set are reserved or kept for interrupts since; they are so once the pod has ended.
        OnReserved = "on-reserved",
        /// No NUMA node has CPUs for the pod that is to be bound, or none any more: it runs unbound.
        NumaBindingLost = "numa-binding-lost",
        /// More memory is taken of the pod's NUMA nodes than they have, since the machine has lost some, or there was too little when it
        /// became known what the pod asks for.
        MemoryShort = "memory-short",
        /// The pod's pool has no CPU left: it runs on reserved CPUs, or where there are none, on those of others.
        PoolEmpty = "pool-empty",
        /// What the pod asks of resource plugins was not known when it was decided: it has nothing of them.
        PluginsUnasked = "plugins-unasked",
        /// Another policy than the one that there is has placed the pod: it keeps what it has until it ends.
        OtherPolicy = "other-policy",
        /// Wishes of the pod contradict each other: explaining it says which one counts.
        WishesContradict = "wishes-contradict",
        /// The pod's own set, in which all its containers run, has fewer CPUs than they ask for together.
        SetBelowTotal = "set-below-total",
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

/// How far a pod has come when it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Its sandbox starts: an unknown request may become known with a container.
    Sandbox,
    /// One of its containers is created: an unknown request is none.
    Container,
}
