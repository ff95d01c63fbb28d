//! Reclaimed containers.

use super::{
    super::{Container, RECLAIM, Refusal, pools, view::bound_reclaimed},
    Placing,
};
use oxalyst_topology::NumaMask;
use std::sync::Arc;

// === impl Placing ===

impl Placing<'_> {
    /// In the reclaim pool: bound to one NUMA node, or on those that no bound one is on.
    pub(super) fn reclaimed(&mut self) -> Result<(), Refusal> {
        let mut entry = self.entry();
        if let (Some(before), Some(node)) = (entry.numa_hint, self.single_node())
            && before != node
        {
            return Err(Refusal::invalid(format!(
                "the container runs on NUMA node {before} and is bound to it, not to {node}"
            )));
        }
        if self.known.is_none() {
            entry.numa_hint = self.single_node().filter(|&node| self.may_bind(node));
        }
        entry.owner = Some(RECLAIM.to_owned());
        let binds = entry.numa_hint.is_some();
        self.put(entry);
        if self.request.resize && self.known.is_some() {
            return Ok(());
        }
        // Others stay where they are until the pools are next computed.
        let pool = pools::reclaim_cpus(&self.state, self.machine, &self.request.id);
        if let Some(entry) = self.state.containers.get_mut(&self.request.id) {
            Arc::make_mut(entry).cpus = pool;
        }
        let placed = self.state.containers.get(&self.request.id);
        if placed.is_none_or(|placed| placed.cpus.is_empty()) {
            let place =
                if binds { "on its NUMA node" } else { "on NUMA nodes without bound reclaimed containers" };
            return Err(Refusal::insufficient(format!("the reclaim pool has no CPU {place}")));
        }
        Ok(())
    }

    /// Whether the others still have a NUMA node that no bound one is on.
    fn may_bind(&self, node: u32) -> bool {
        let all: NumaMask =
            self.machine.nodes().iter().filter(|node| !node.cpus.is_empty()).map(|node| node.id).collect();
        let unbound = all - &bound_reclaimed(&self.state);
        let others = self.state.containers.kinds().any(Container::is_unbound_reclaimed);
        !others || unbound != NumaMask::only(node)
    }
}
