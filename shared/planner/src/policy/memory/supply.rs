//! What memory there is.

use oxalyst_topology::Machine;
use oxalyst_units::Bytes;
use std::{collections::BTreeMap, fmt};

/// A resource that is allocated by NUMA node. Each size of huge pages is one of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// Memory in pages of the usual size.
    Memory,
    /// Huge pages of this size.
    HugePages(Bytes),
}

/// The memory of one NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSupply {
    /// All of it, huge pages included.
    pub total: Bytes,
    /// What is set aside as huge pages, in bytes by page size.
    pub huge_pages: BTreeMap<Bytes, Bytes>,
    /// Kept for the system, out of the pages of the usual size.
    pub reserved: Bytes,
}

/// The memory of a machine by NUMA node. Nodes without memory are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Supply(pub BTreeMap<u32, NodeSupply>);

// === impl Resource ===

impl fmt::Display for Resource {
    /// As Kubernetes names it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory"),
            Self::HugePages(size) => write!(f, "hugepages-{size}"),
        }
    }
}

// === impl Supply ===

impl Supply {
    /// The machine's memory, this much of each node reserved. `None` where a node's size is not known.
    pub fn of(machine: &Machine, reserved: &BTreeMap<u32, Bytes>) -> Option<Self> {
        let nodes = machine.nodes().iter().filter(|node| node.has_memory);
        let supply = nodes.map(|node| {
            let reserved = reserved.get(&node.id).copied().unwrap_or_default();
            Some((node.id, NodeSupply { total: node.memory?, huge_pages: node.huge_pages.clone(), reserved }))
        });
        supply.collect::<Option<_>>().map(Self)
    }

    /// What of this node can be allocated; nothing on a node without memory.
    pub fn allocatable(&self, node: u32, resource: Resource) -> Bytes {
        let Some(supply) = self.0.get(&node) else { return Bytes(0) };
        match resource {
            Resource::HugePages(size) => supply.huge_pages.get(&size).copied().unwrap_or_default(),
            Resource::Memory => {
                let huge: u64 = supply.huge_pages.values().map(|bytes| bytes.0).fold(0, u64::saturating_add);
                Bytes(supply.total.0.saturating_sub(huge).saturating_sub(supply.reserved.0))
            }
        }
    }

    /// What of this resource the largest node has.
    pub(super) fn largest(&self, resource: Resource) -> Bytes {
        self.0.keys().map(|node| self.allocatable(*node, resource)).max().unwrap_or_default()
    }
}
