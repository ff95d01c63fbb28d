//! Memory that is asked for, by resource: pages of the usual size, and huge pages, each size of which is a resource of its own.

use super::{Asked, Pod};
use crate::{
    policy::memory::Resource,
    topology_manager::{Hint, Policy, Provider},
};
use oxalyst_topology::NumaMask;
use oxalyst_units::Bytes;
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// Bytes by resource. What nothing is asked of is left out.
pub(super) type Amounts = BTreeMap<Resource, Bytes>;

/// How the resources of huge pages begin.
const HUGE_PAGES: &str = "hugepages-";
const MEMORY: &str = "memory";

/// Whether this is a resource of memory, as hints name them.
pub(super) fn is_memory(resource: &str) -> bool {
    resource == MEMORY || resource.starts_with(HUGE_PAGES)
}

/// All memory of a container lies on the same NUMA nodes: of each resource's sets of nodes those stay that do for all of them. False
/// where there is none.
pub(super) fn share_nodes(provider: &mut Provider) -> bool {
    let masks =
        |hints: &[Hint]| -> HashSet<NumaMask> { hints.iter().filter_map(|hint| hint.mask.clone()).collect() };
    let mut lists =
        provider.iter().filter(|(name, _)| is_memory(name)).filter_map(|(_, hints)| hints.as_ref());
    let Some(first) = lists.next() else { return true };
    if lists.clone().next().is_none() {
        return true;
    }
    // There can be very many; no order of theirs is used.
    let common = lists.fold(masks(first), |mut common, hints| {
        let others = masks(hints);
        common.retain(|mask| others.contains(mask));
        common
    });
    for (_, hints) in provider.iter_mut().filter(|(name, _)| is_memory(name)) {
        let shared = |hint: &Hint| hint.mask.as_ref().is_none_or(|mask| common.contains(mask));
        hints.iter_mut().for_each(|hints| hints.retain(shared));
    }
    !common.is_empty()
}

/// Huge pages are aligned where memory is.
pub(super) fn aligned(policy: &Policy, pod: &Pod) -> Policy {
    match policy {
        Policy::Numeric { align } if align.iter().any(|name| name == MEMORY) => {
            let mut align = align.clone();
            let asked: BTreeSet<String> = pod
                .containers
                .iter()
                .flat_map(|asked| asked.huge_pages.keys())
                .map(|size| Resource::HugePages(*size).to_string())
                .collect();
            align.extend(asked);
            Policy::Numeric { align }
        }
        policy => policy.clone(),
    }
}

// === impl Asked ===

impl Asked {
    /// What it asks for.
    pub(super) fn memory_amounts(&self) -> Amounts {
        let huge = self.huge_pages.iter().map(|(size, bytes)| (Resource::HugePages(*size), *bytes));
        let usual = self.memory.map(|bytes| (Resource::Memory, bytes));
        usual.into_iter().chain(huge).filter(|(_, bytes)| *bytes > Bytes(0)).collect()
    }
}

// === impl Pod ===

impl Pod {
    /// What the pod asks for at its peak of all that counts of its containers.
    pub(super) fn total_amounts(&self, counts: impl Fn(&Asked) -> bool) -> Amounts {
        let resources: BTreeSet<Resource> =
            self.containers.iter().flat_map(|asked| asked.memory_amounts().into_keys()).collect();
        let total = |resource: Resource| {
            let own = |asked: &Asked| asked.memory_amounts().get(&resource).copied().unwrap_or_default().0;
            Bytes(self.total(|asked| if counts(asked) { own(asked) } else { 0 }))
        };
        resources
            .into_iter()
            .map(|resource| (resource, total(resource)))
            .filter(|(_, b)| *b > Bytes(0))
            .collect()
    }
}
