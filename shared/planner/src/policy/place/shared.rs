//! Shared containers.

use super::{
    super::{
        Refusal,
        hints::unbound_free,
        pools,
        state::{bound_pool, specified_pool},
        view::View,
    },
    Placing, refuse_hint,
};
use oxalyst_units::MilliCpu;

// === impl Placing ===

impl Placing<'_> {
    /// In its pool's part on one NUMA node.
    pub(super) fn bound_shared(&mut self) -> Result<(), Refusal> {
        let mut entry = self.entry();
        let node = match (self.single_node(), entry.numa_hint) {
            (Some(node), Some(before)) if self.request.resize && node != before => {
                return Err(Refusal::invalid(format!(
                    "a resize cannot move the container from NUMA node {before} to {node}"
                )));
            }
            (Some(node), _) => node,
            (None, Some(before)) if self.hint.is_none() => before,
            _ => return Err(refuse_hint("a bound shared container needs one NUMA node", self.hint)),
        };
        entry.numa_hint = Some(node);
        let pool = specified_pool(self.request.qos, &self.request.wishes);
        entry.owner = Some(bound_pool(pool, node));
        self.put(entry);
        self.recompute()
    }

    /// In its pool; while it ramps up, on all CPUs that are there for shared containers.
    pub(super) fn shared(&mut self) -> Result<(), Refusal> {
        let mut entry = self.entry();
        let pool = specified_pool(self.request.qos, &self.request.wishes);
        let joins = match &self.known {
            Some(known) => !known.ramp_up,
            None => self.request.running && self.state.pools.contains_key(pool),
        };
        if joins {
            entry.owner = Some(pool.to_owned());
            if self.known.is_none() {
                // It runs on all of these until the pools are computed, and so has its part in what is idle.
                entry.cpus = View::of(&self.state, self.machine).pooled();
            }
            self.put(entry);
            let (id, joins) = (&self.request.id, self.known.is_none());
            return pools::recompute_strictly(&mut self.state, self.options, self.machine, id, joins);
        }
        if self.request.resize {
            return Err(Refusal::invalid(
                "the container has started so lately that it cannot be resized yet",
            ));
        }
        entry.ramp_up = true;
        let view = View::of(&self.state, self.machine);
        // What bound dedicated pods leave of their nodes counts for no request: it is there for who asks for nothing.
        entry.cpus = view.pooled();
        if entry.cpus.is_empty() && self.request.aggregated() == MilliCpu(0) {
            entry.cpus = unbound_free(&view);
        }
        if entry.cpus.is_empty() {
            return Err(Refusal::insufficient(
                "no CPU is there for shared containers: all are reserved, exclusive, or on NUMA nodes of bound pods",
            ));
        }
        self.put(entry);
        Ok(())
    }
}
