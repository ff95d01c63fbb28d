//! The shared pools.

use super::{
    super::{
        Options, State,
        view::{View, cpus_on},
    },
    available, overlap,
    proportion::{take_exactly, take_in_proportion},
    quantity::{Need, Placed, needs},
    reclaim::size as reclaim_size,
};
use crate::plan::{End, Spread, take_by_numa_balance};
use oxalyst_qos::QosLevel;
use oxalyst_topology::{CpuSet, Machine, NumaMask};
use std::collections::BTreeMap;

/// The shared pools, and what they leave.
pub(super) struct Shares {
    /// By name, with what is set aside for containers that ramp up.
    pub(super) pools: BTreeMap<String, CpuSet>,
    /// What reclaimed containers may have.
    pub(super) left: CpuSet,
    /// Where shared containers run that ramp up.
    pub(super) ramp_up: CpuSet,
}

// === impl Shares ===

impl Shares {
    pub(super) fn of(state: &State, options: &Options, machine: &Machine, placed: Placed<'_>) -> Self {
        let view = View::of(state, machine);
        let needs = needs(state, placed, usize::from(options.serve_all));
        let available = available(&view);
        let bound_nodes: NumaMask = needs.values().filter_map(|need| need.node).collect();
        let on_bound = cpus_on(machine, &bound_nodes);
        let mut shares =
            Self { pools: BTreeMap::new(), left: available.clone(), ramp_up: &available - &on_bound };
        for node in bound_nodes.iter() {
            let here = &available & &cpus_on(machine, &NumaMask::only(node));
            let exact = options.enable_reclaim && !options.overlap;
            shares.take(machine, &on(&needs, Some(node)), &here, exact);
        }
        let unbound = on(&needs, None);
        let rest = &available - &on_bound;
        shares.take(machine, &unbound, &rest, !options.overlap);
        if options.overlap {
            let ratios = overlap::ratios(state);
            shares.left |= &overlap::shared(machine, &shares.pools, &ratios);
        } else if !options.enable_reclaim {
            let idle = options.serve_all && !state.containers.kinds().any(|c| c.qos == QosLevel::Reclaimed);
            shares.hand_out(machine, &unbound, if idle { 0 } else { reclaim_size(machine) });
        }
        shares
    }

    /// Gives these pools what they need out of these CPUs: exactly that where wanted and possible, else all in proportion.
    fn take(&mut self, machine: &Machine, needs: &BTreeMap<String, usize>, from: &CpuSet, exactly: bool) {
        if needs.is_empty() {
            return;
        }
        let total = needs.values().copied().fold(0, usize::saturating_add);
        let take = if exactly && total <= from.len() { take_exactly } else { take_in_proportion };
        let (pools, left) = take(machine, needs, from);
        self.left -= from;
        self.left |= &left;
        self.pools.extend(pools);
    }

    /// Hands what is left over to the pools that are not bound, down to what is kept for reclaimed pods.
    fn hand_out(&mut self, machine: &Machine, needs: &BTreeMap<String, usize>, keep: usize) {
        let excess = self.left.len().saturating_sub(keep);
        let total: usize = needs.keys().filter_map(|name| self.pools.get(name)).map(CpuSet::len).sum();
        if excess == 0 || total == 0 {
            return;
        }
        for name in needs.keys() {
            let Some(pool) = self.pools.get_mut(name) else { continue };
            let more = ((excess as f64 * (pool.len() as f64 / total as f64)).floor() as usize).max(1);
            let more = more.min(self.left.len());
            let cpus = take_by_numa_balance(machine, &self.left, more, Spread::Threads, End::Lowest)
                .unwrap_or_default();
            *pool |= &cpus;
            self.left -= &cpus;
            if self.left.len() <= keep {
                return;
            }
        }
    }
}

/// The pools on this node, or those that are on none.
fn on(needs: &BTreeMap<String, Need>, node: Option<u32>) -> BTreeMap<String, usize> {
    needs.iter().filter(|(_, need)| need.node == node).map(|(name, need)| (name.clone(), need.cpus)).collect()
}
