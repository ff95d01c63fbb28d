//! Dedicated containers.

use super::{
    super::{
        ContainerKind, DEDICATED, Refusal,
        hints::unbound_free,
        request::whole,
        view::{View, cpus_on},
    },
    Placing, refuse_hint,
};
use crate::plan::{L3, take_by_topology};
use oxalyst_topology::{CpuSet, NumaMask};
use std::borrow::Cow;

// === impl Placing ===

impl Placing<'_> {
    /// CPUs of its own, which everybody else then leaves.
    pub(super) fn dedicated(&mut self) -> Result<(), Refusal> {
        let mut entry = self.entry();
        let before = self.known.as_ref().map(|known| known.cpus.clone()).unwrap_or_default();
        let cpus = if self.request.resize { self.resized(&before, &entry.baseline)? } else { self.taken()? };
        if !self.request.resize {
            entry.baseline = cpus.clone();
            entry.ramp_up = true;
            entry.numa_hint = self.single_node().filter(|_| !entry.is_exclusive());
        }
        entry.owner = Some(DEDICATED.to_owned());
        entry.cpus = cpus.clone();
        self.put(entry);
        self.state.change_of_pod(
            &self.request.id.pod,
            |_, container| container.kind != ContainerKind::Main,
            |container| container.cpus.clone_from(&cpus),
        );
        self.recompute()
    }

    /// CPUs for a container that is new, or whose own are too few for what it asks for.
    fn taken(&self) -> Result<CpuSet, Refusal> {
        let mut others = Cow::Borrowed(&self.state);
        if self.known.is_some() {
            others.to_mut().drop_of_pod(&self.request.id.pod, |_| true);
        }
        let view = View::of(&others, self.machine);
        let wishes = &self.request.wishes;
        let need = whole(self.request.aggregated());
        if !wishes.numa_binding() {
            return self.out_of(&unbound_free(&view), need, None);
        }
        let mask = self
            .mask()
            .ok_or_else(|| refuse_hint("a bound dedicated container needs NUMA nodes", self.hint))?;
        wishes.agree()?;
        let number = wishes.numa_number(self.machine)?.unwrap_or(1);
        if mask.len() > 1 && number <= 1 && !wishes.numa_exclusive() {
            return Err(refuse_hint("the container may have one NUMA node", self.hint));
        }
        let free = view.free_on(mask);
        if wishes.numa_exclusive() {
            return if free.len() >= need { Ok(free) } else { Err(self.short(need, free.len(), Some(mask))) };
        }
        if !wishes.distribute_evenly() {
            return self.out_of(&free, need, Some(mask));
        }
        self.evenly(&view, mask, need)
    }

    fn evenly(&self, view: &View<'_>, mask: &NumaMask, need: usize) -> Result<CpuSet, Refusal> {
        if !need.is_multiple_of(mask.len()) {
            return Err(self.uneven(need, mask));
        }
        let share = need / mask.len();
        mask.iter().try_fold(CpuSet::new(), |union, node| {
            let node = NumaMask::only(node);
            Ok(union | &self.out_of(&view.free_on(&node), share, Some(&node))?)
        })
    }

    fn out_of(&self, free: &CpuSet, need: usize, mask: Option<&NumaMask>) -> Result<CpuSet, Refusal> {
        take_by_topology(self.machine, free, need, L3::Aligned)
            .map_err(|_| self.short(need, free.len(), mask))
    }

    fn short(&self, need: usize, free: usize, mask: Option<&NumaMask>) -> Refusal {
        let place = mask.map(|mask| format!(" on NUMA node(s) {mask}")).unwrap_or_default();
        Refusal::insufficient(format!("{need} CPUs are asked for and {free} are free{place}"))
    }

    /// Hints count whole CPUs of the request, a set is as large as the request rounded up.
    fn uneven(&self, need: usize, nodes: &NumaMask) -> Refusal {
        Refusal::invalid(format!(
            "{} CPUs are asked for, and {need} cannot be distributed evenly over the {} NUMA nodes {nodes}",
            self.request.aggregated(),
            nodes.len()
        ))
    }

    /// More CPUs beside those that it has, or fewer of them: those of its first admission stay longest. A container that has
    /// its NUMA nodes for itself keeps all of them.
    fn resized(&self, before: &CpuSet, baseline: &CpuSet) -> Result<CpuSet, Refusal> {
        let need = whole(self.request.aggregated());
        let wishes = &self.request.wishes;
        let nodes = self.machine.nodes_of(before);
        if wishes.numa_exclusive() {
            return if need <= before.len() {
                Ok(before.clone())
            } else {
                Err(self.short(need, before.len(), Some(&nodes)))
            };
        }
        let view = View::of(&self.state, self.machine);
        if !wishes.numa_binding() {
            return self.resize_within(&unbound_free(&view), (before, baseline), need, None);
        }
        if !wishes.distribute_evenly() || nodes.is_empty() {
            return self.resize_within(&view.free_on(&nodes), (before, baseline), need, Some(&nodes));
        }
        if !need.is_multiple_of(nodes.len()) {
            return Err(self.uneven(need, &nodes));
        }
        nodes.iter().try_fold(CpuSet::new(), |union, node| {
            let mask = NumaMask::only(node);
            let here = cpus_on(self.machine, &mask);
            let (free, before) = (view.free_on(&mask), before & &here);
            let cpus = self.resize_within(&free, (&before, baseline), need / nodes.len(), Some(&mask))?;
            Ok(union | &cpus)
        })
    }

    fn resize_within(
        &self,
        free: &CpuSet,
        (before, baseline): (&CpuSet, &CpuSet),
        need: usize,
        mask: Option<&NumaMask>,
    ) -> Result<CpuSet, Refusal> {
        if need == 0 {
            return Err(Refusal::invalid("a dedicated container cannot be left without CPUs"));
        }
        let kept = before & baseline;
        let all = (free | before).len();
        let short = || self.short(need, all, mask);
        let take = |from: &CpuSet, count| {
            take_by_topology(self.machine, from, count, L3::Aligned).map_err(|_| short())
        };
        if let Some(more) = need.checked_sub(before.len()) {
            return Ok(before | &take(&(free - before), more)?);
        }
        match need.checked_sub(kept.len()) {
            Some(more) => Ok(&kept | &take(&(before - &kept), more)?),
            None => take(&kept, need),
        }
    }
}
