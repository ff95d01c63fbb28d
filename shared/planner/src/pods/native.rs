//! Containers join under the native policy.

use super::{
    Asked, Class, Native, Plugins, Pod, Refusal, Role, Rules, State, Trace,
    amounts::{self, Amounts},
    dynamic::{CPU, MEMORY},
    join::unaligned,
    native_memory::{Room, take_over},
    refuse,
};
use crate::{
    plan::{
        NativeOption, Reason, Rule, exclusive_cpus, fills_cores, in_full_cores, native_hints, place_native,
        take_native,
    },
    policy::{Container, ContainerId, DEDICATED, Lack, SHARE, Wishes, memory},
    topology_manager::{Containers, Hint, Merged, Provider, Subject},
};
use oxalyst_qos::QosLevel;
use oxalyst_topology::{CpuSet, Machine, NumaMask};
use std::{collections::BTreeMap, sync::Arc};

/// What joining works on: the state as it comes to be.
pub(super) struct Joining<'a> {
    pub(super) after: &'a mut State,
    pub(super) machine: &'a Machine,
    pub(super) native: Native,
    pub(super) supply: memory::Supply,
    pub(super) pod: &'a Pod,
    pub(super) plugins: Option<&'a Plugins>,
    /// Where hints could not be had: for which resource, and why not.
    pub(super) lacking: Option<(String, Vec<(NumaMask, Lack)>)>,
}

/// Gives each container its place, init containers first.
pub(super) fn join(
    after: &mut State,
    machine: &Machine,
    rules: &Rules,
    native: Native,
    pod: &Pod,
    (new, plugins): (&[Asked], &Plugins),
    trace: &mut Trace,
) -> Result<(), Refusal> {
    let order = in_order(new);
    let supply = rules.supply(machine);
    let plugins = Some(plugins);
    let mut joining = Joining { after, machine, native, supply, pod, plugins, lacking: None };
    let policy = amounts::aligned(&rules.topology, pod);
    let aligned = trace.align(rules.scope, &policy, &rules.nodes(machine), &order, &mut joining);
    trace.lacking(joining.lacking.take());
    aligned.map_err(|error| unaligned(error, rules, pod, &order))
}

/// As they start: init containers, then the application, then what looks into it.
pub(super) fn in_order(containers: &[Asked]) -> Vec<Asked> {
    let mut order: Vec<Asked> = containers.to_vec();
    order.sort_by_key(|asked| match asked.role {
        Role::Init | Role::RestartableInit => 0,
        Role::App => 1,
        Role::Ephemeral => 2,
    });
    order
}

/// How many CPUs of its own a container of this pod has.
pub(super) fn need(pod: &Pod, asked: &Asked) -> Option<usize> {
    let counts = pod.class == Class::Guaranteed && asked.role != Role::Ephemeral;
    asked.cpu.filter(|_| counts).and_then(exclusive_cpus)
}

// === impl Joining ===

impl Joining<'_> {
    fn id(&self, asked: &Asked) -> ContainerId {
        ContainerId::new(self.pod.uid.as_str(), asked.name.as_str())
    }

    /// CPUs of its own.
    fn need(&self, asked: &Asked) -> Option<usize> {
        need(self.pod, asked)
    }

    /// Whether it has memory of its own.
    fn has_memory(&self, asked: &Asked) -> bool {
        self.pod.class == Class::Guaranteed && asked.role != Role::Ephemeral
    }

    fn amounts(&self, asked: &Asked) -> Amounts {
        if self.has_memory(asked) { asked.memory_amounts() } else { Amounts::new() }
    }

    /// What could be given out: neither reserved nor anybody's own.
    pub(super) fn available(&self) -> CpuSet {
        let cpus = &self.after.cpus;
        let free = self.machine.online() - self.machine.isolated() - &cpus.reserved - &cpus.exclusive();
        if self.native.full_cores { in_full_cores(self.machine, &free) } else { free }
    }

    /// What plain init containers of the pod have, and none of its other containers.
    pub(super) fn lent(&self) -> CpuSet {
        let (mut lent, mut kept) = (CpuSet::new(), CpuSet::new());
        for container in &self.pod.containers {
            let Some(own) = self.after.cpus.containers.get(&self.id(container)) else { continue };
            if own.qos != QosLevel::Dedicated {
                continue;
            }
            let set = if container.role == Role::Init { &mut lent } else { &mut kept };
            *set |= &own.cpus;
        }
        lent - &kept
    }

    fn hints_for(&mut self, need: Option<usize>, amounts: &Amounts) -> Result<Vec<Provider>, Refusal> {
        let mut provider = BTreeMap::new();
        if let Some(need) = need {
            if self.native.full_cores {
                fills_cores(self.machine, need)
                    .map_err(|error| refuse(Reason::Invalid, Rule::CpuRoom, error.to_string()))?;
            }
            let hints = native_hints(self.machine, &self.available(), &self.lent(), need);
            if hints.is_empty() {
                let nodes = self.machine.nodes().iter().filter(|node| !node.cpus.is_empty());
                let nodes = nodes.map(|node| (NumaMask::only(node.id), Lack::Room));
                self.lacking = Some((CPU.to_owned(), nodes.collect()));
                return Err(self.short(need));
            }
            provider.insert(CPU.to_owned(), Some(hints));
        }
        if !amounts.is_empty() {
            let room = Room::of(self.after, &self.supply, self.machine, &self.pod.uid);
            let hints = room.hints(amounts);
            if hints.is_empty() {
                let nodes = self.machine.memory_nodes();
                let nodes = nodes.iter().map(|node| (NumaMask::only(node), Lack::Room));
                self.lacking = Some((MEMORY.to_owned(), nodes.collect()));
                return Err(room.short(amounts));
            }
            provider.extend(amounts.keys().map(|resource| (resource.to_string(), Some(hints.clone()))));
        }
        Ok(if provider.is_empty() { Vec::new() } else { vec![provider] })
    }

    fn short(&self, need: usize) -> Refusal {
        let available = self.available() | &self.lent();
        let nodes = self.machine.nodes().iter().filter(|node| !node.cpus.is_empty());
        let free: Vec<_> =
            nodes.map(|node| format!("{} on {}", (&node.cpus & &available).len(), node.id)).collect();
        refuse(
            Reason::Insufficient,
            Rule::CpuRoom,
            format!("{need} CPU(s) of its own are asked for; free by NUMA node: {}", free.join(", ")),
        )
    }

    /// What is lent first, so that no CPU lies idle, then what is free.
    fn take(&self, need: usize, mask: Option<&NumaMask>) -> Result<CpuSet, Refusal> {
        let (available, lent) = (self.available(), self.lent());
        let short = |_| self.short(need);
        let option = self.native.option;
        if matches!(option, NativeOption::Distributed { .. }) {
            return place_native(self.machine, &(&available | &lent), need, option, mask).map_err(short);
        }
        let near = match mask {
            Some(mask) => &lent & &cpus_of(self.machine, mask),
            None => lent,
        };
        let near = take_native(self.machine, &near, need.min(near.len()), option).map_err(short)?;
        let rest = place_native(self.machine, &available, need - near.len(), option, mask).map_err(short)?;
        Ok(near | &rest)
    }

    pub(super) fn put_cpus(&mut self, asked: &Asked, own: Option<CpuSet>) {
        let dedicated = own.is_some();
        let cpus = own.unwrap_or_default();
        let entry = Container {
            pod_name: self.pod.full_name(),
            kind: self.pod.kind(asked),
            qos: if dedicated { QosLevel::Dedicated } else { QosLevel::Shared },
            wishes: Wishes::default(),
            owner: Some(if dedicated { DEDICATED } else { SHARE }.to_owned()),
            ramp_up: false,
            baseline: cpus.clone(),
            cpus,
            request: asked.cpu.unwrap_or_default(),
            pod_request: None,
            numa_hint: None,
        };
        let id = self.id(asked);
        self.after.cpus.containers.insert(id, Arc::new(entry));
    }

    /// Memory of these nodes, or of all that are nobody's own.
    pub(super) fn put_memory(&mut self, asked: &Asked, hint: Option<&NumaMask>) -> Result<(), Refusal> {
        let id = self.id(asked);
        self.after.memory.containers.remove(&id);
        let mut entry = self.unbound_memory(asked);
        let amounts = self.amounts(asked);
        if !amounts.is_empty() {
            let room = Room::of(self.after, &self.supply, self.machine, &self.pod.uid);
            let nodes = room.nodes(&amounts, hint)?;
            let taken = room.taken(&amounts, &nodes);
            let lenders = room.lenders;
            take_over(self.after, &lenders, &taken);
            entry.taken = taken;
            entry.bound_to = Some(nodes);
        }
        self.after.memory.containers.insert(id, Arc::new(entry));
        Ok(())
    }
}

impl Joining<'_> {
    /// Memory of all nodes that are nobody's own, whatever it asks for.
    pub(super) fn put_unbound_memory(&mut self, asked: &Asked) {
        let entry = self.unbound_memory(asked);
        self.after.memory.containers.insert(self.id(asked), Arc::new(entry));
    }

    fn unbound_memory(&self, asked: &Asked) -> memory::Container {
        memory::Container {
            kind: self.pod.kind(asked),
            qos: QosLevel::Shared,
            wishes: Wishes::default(),
            request: asked.memory_amounts(),
            taken: BTreeMap::new(),
            bound_to: None,
            mems: NumaMask::new(),
        }
    }
}

impl Containers<Asked> for Joining<'_> {
    type Error = Refusal;

    fn hints(&mut self, subject: Subject<'_, Asked>) -> Result<Vec<Provider>, Refusal> {
        match subject {
            Subject::Container(asked) => {
                let mut providers = self.hints_for(self.need(asked), &self.amounts(asked))?;
                providers.extend(self.plugins.and_then(|plugins| plugins.of(asked)).cloned());
                Ok(providers)
            }
            Subject::Pod(all) => {
                let need = self.pod.total(|asked| self.need(asked).unwrap_or_default() as u64);
                let amounts = self.pod.total_amounts(|asked| self.has_memory(asked));
                let need = usize::try_from(need).unwrap_or(usize::MAX);
                let mut providers = self.hints_for(Some(need).filter(|need| *need > 0), &amounts)?;
                providers.extend(self.plugins.into_iter().flat_map(|plugins| plugins.of_all(all)));
                Ok(providers)
            }
        }
    }

    fn place(&mut self, asked: &Asked, merged: &Merged) -> Result<(), Refusal> {
        let mask = |hint: Hint| hint.mask.filter(|mask| !mask.is_empty());
        let own = match self.need(asked) {
            Some(need) => Some(self.take(need, mask(merged.hint(CPU)).as_ref())?),
            None => None,
        };
        self.put_cpus(asked, own);
        let memory = self.amounts(asked).into_keys().map(|resource| resource.to_string());
        let memory =
            std::iter::once(MEMORY.to_owned()).chain(memory).find_map(|name| mask(merged.hint(&name)));
        self.put_memory(asked, memory.as_ref())
    }
}

pub(super) fn cpus_of(machine: &Machine, mask: &NumaMask) -> CpuSet {
    let nodes = mask.iter().filter_map(|id| machine.node(id));
    nodes.fold(CpuSet::new(), |cpus, node| cpus | &node.cpus)
}
