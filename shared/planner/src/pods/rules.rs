//! What the operator has set.

use crate::{
    plan::{NativeOption, words::closed_set},
    policy::{self, memory},
    topology_manager::{Nodes, Policy, Scope},
};
use oxalyst_topology::{CpuSet, Machine};
use oxalyst_units::Bytes;
use std::{borrow::Cow, collections::BTreeMap};

/// How CPUs are given out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CpuPolicy {
    /// By QoS level: dedicated, shared, reclaimed, system.
    Dynamic(policy::Options),
    /// As the kubelet's static CPU manager and memory manager do, by Kubernetes' own QoS class.
    Native(Native),
}

closed_set! {
    /// Which of the policies it is.
    PolicyName {
        /// Katalyst's.
        Dynamic = "dynamic",
        /// The kubelet's.
        Native = "native",
    }
}

/// Options of the native policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Native {
    /// How a set lies on the machine.
    pub option: NativeOption,
    /// Whether only whole cores are given out (`full-physical-cpus-only`).
    pub full_cores: bool,
}

/// All that planning follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// How CPUs are given out.
    pub cpu_policy: CpuPolicy,
    /// How strictly CPUs and memory have to agree.
    pub topology: Policy,
    /// What has to agree: a container in itself, or a pod.
    pub scope: Scope,
    /// Whether among equally many NUMA nodes those closest together are better.
    pub prefer_closest: bool,
    /// The CPUs that the root of the cgroup tree may use; `None`: all.
    pub root: Option<CpuSet>,
    /// Memory kept for the system, by NUMA node.
    pub memory_reserved: BTreeMap<u32, Bytes>,
    /// Milliseconds after which a shared pod joins its pool.
    pub ramp_up_ms: i64,
}

/// Memory of a node whose size is not known: it is never the reason for a refusal.
const UNKNOWN: Bytes = Bytes(1 << 60);

// === impl Rules ===

impl Default for Rules {
    fn default() -> Self {
        let options = policy::Options { serve_all: true, ..policy::Options::default() };
        Self {
            cpu_policy: CpuPolicy::Dynamic(options),
            topology: Policy::BestEffort,
            scope: Scope::Container,
            prefer_closest: false,
            root: None,
            memory_reserved: BTreeMap::new(),
            ramp_up_ms: 30_000,
        }
    }
}

impl Rules {
    /// The machine without the CPUs that the root of the cgroup tree may not use.
    pub fn confine<'m>(&self, machine: &'m Machine) -> Cow<'m, Machine> {
        match &self.root {
            Some(root) if !machine.online().is_subset(root) => {
                Cow::Owned(machine.clone().with_offline(&(machine.online() - root)))
            }
            _ => Cow::Borrowed(machine),
        }
    }

    /// Which policy gives out CPUs.
    pub const fn policy_name(&self) -> PolicyName {
        match self.cpu_policy {
            CpuPolicy::Dynamic(_) => PolicyName::Dynamic,
            CpuPolicy::Native(_) => PolicyName::Native,
        }
    }

    /// The dynamic policy's options; its defaults under the native one.
    pub(super) fn options(&self) -> policy::Options {
        match &self.cpu_policy {
            CpuPolicy::Dynamic(options) => options.clone(),
            CpuPolicy::Native(_) => Self::default_options(),
        }
    }

    fn default_options() -> policy::Options {
        policy::Options { serve_all: true, ..policy::Options::default() }
    }

    pub(super) fn memory_options(&self) -> memory::Options {
        memory::Options {
            reclaim_numa_binding: self.options().reclaim_numa_binding,
            ..memory::Options::default()
        }
    }

    pub(crate) fn nodes(&self, machine: &Machine) -> Nodes {
        let nodes = Nodes::of(machine);
        if self.prefer_closest { nodes.prefer_closest(machine) } else { nodes }
    }

    pub(crate) fn supply(&self, machine: &Machine) -> memory::Supply {
        let nodes = machine.nodes().iter().filter(|node| node.has_memory);
        let supply = nodes.map(|node| {
            let reserved = self.memory_reserved.get(&node.id).copied().unwrap_or_default();
            let total = node.memory.unwrap_or(UNKNOWN);
            (node.id, memory::NodeSupply { total, huge_pages: node.huge_pages.clone(), reserved })
        });
        memory::Supply(supply.collect())
    }
}
