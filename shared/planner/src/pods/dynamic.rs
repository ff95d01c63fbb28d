//! Containers join under the dynamic policy.

use super::{
    Asked, Plugins, Pod, Refusal, Role, Rules, State, Trace, amounts, join::unaligned, near_memory, refuse,
};
use crate::{
    plan::{Flag, Reason, Rule},
    policy::{self, ContainerId, ContainerKind, Kind, Lack, Options, Wishes, memory},
    topology_manager::{Containers, Hint, Merged, NODE_LIMIT, Policy, Provider, Subject},
};
use oxalyst_qos::QosLevel;
use oxalyst_topology::{Machine, NumaMask};
use oxalyst_units::{Bytes, MilliCpu};
use std::{collections::BTreeMap, sync::Arc};

pub(super) const CPU: &str = "cpu";
pub(super) const MEMORY: &str = "memory";

/// What joining works on: the state as it comes to be.
pub(super) struct Joining<'a> {
    pub(super) after: &'a mut State,
    pub(super) machine: &'a Machine,
    pub(super) options: &'a Options,
    pub(super) memory_options: memory::Options,
    pub(super) supply: memory::Supply,
    pub(super) pod: &'a Pod,
    pub(super) plugins: Option<&'a Plugins>,
    pub(super) resize: bool,
    /// The node that a hint without nodes means: see [`only_node`].
    only_node: Option<u32>,
    /// Where hints could not be had: for which resource, and why not.
    pub(super) lacking: Option<(String, Vec<(NumaMask, Lack)>)>,
}

/// Gives the main container its place, and then the others theirs beside it. Plain init and ephemeral containers have no entry:
/// they run where the main container does, and take part only with what plugins say of them.
pub(super) fn join(
    after: &mut State,
    machine: &Machine,
    rules: &Rules,
    options: &Options,
    pod: &Pod,
    (new, plugins): (&[Asked], &Plugins),
    trace: &mut Trace,
) -> Result<(), Refusal> {
    let takes_part = |asked: &&Asked| pod.has_entry(asked) || plugins.of(asked).is_some();
    let mut order: Vec<Asked> = new.iter().filter(takes_part).cloned().collect();
    if order.is_empty() {
        after.note_total(pod);
        return near_memory::keep_pace(after, machine, &rules.supply(machine), pod);
    }
    order.sort_by_key(|asked| !pod.is_main(&asked.name));
    let mut joining = Joining::new(after, machine, rules, options, pod);
    joining.plugins = Some(plugins);
    let policy = joining.topology(rules);
    let aligned = trace.align(rules.scope, &policy, &rules.nodes(machine), &order, &mut joining);
    trace.lacking(joining.lacking.take());
    aligned.map_err(|error| unaligned(error, rules, pod, &order))?;
    after.note_total(pod);
    near_memory::keep_pace(after, machine, &rules.supply(machine), pod)
}

// === impl Joining ===

impl<'a> Joining<'a> {
    pub(super) fn new(
        after: &'a mut State,
        machine: &'a Machine,
        rules: &Rules,
        options: &'a Options,
        pod: &'a Pod,
    ) -> Self {
        Self {
            after,
            machine,
            options,
            memory_options: rules.memory_options(),
            supply: rules.supply(machine),
            pod,
            plugins: None,
            resize: false,
            only_node: only_node(machine, rules, options, pod),
            lacking: None,
        }
    }

    /// What was merged for the resource, as the pod is placed by it.
    pub(super) fn hint(&self, merged: &Merged, resource: &str) -> Hint {
        let hint = merged.hint(resource);
        match self.only_node {
            Some(node) if hint.mask.is_none() => Hint::on(NumaMask::only(node), hint.preferred),
            _ => hint,
        }
    }

    /// A bound container needs NUMA nodes: where nothing is to be aligned, the best of its hints. On more nodes than can be merged
    /// these are looked through as they are.
    pub(super) fn topology(&self, rules: &Rules) -> Policy {
        match &rules.topology {
            Policy::None if !self.pod.served_wishes().numa_binding() => Policy::None,
            Policy::None if self.machine.nodes().len() > NODE_LIMIT => Policy::InCommon,
            Policy::None => Policy::BestEffort,
            policy => amounts::aligned(policy, self.pod),
        }
    }

    pub(super) fn cpu_request(&self, asked: &Asked) -> policy::Request {
        let kind = self.pod.kind(asked);
        let mut cpu = asked.cpu.unwrap_or_default();
        if kind == ContainerKind::Main && self.pod.served == QosLevel::Dedicated && cpu.0 == 0 {
            cpu = self.pod.total_cpu();
        }
        policy::Request {
            id: ContainerId::new(self.pod.uid.as_str(), asked.name.as_str()),
            pod_name: self.pod.full_name(),
            kind,
            qos: self.pod.served,
            wishes: self.pod.served_wishes(),
            cpu,
            pod_cpu: self.declared(kind, cpu),
            resize: self.resize,
            debug: false,
            running: false,
        }
    }

    /// Of a bound shared pod, what all its containers ask for together: they must fit on one node.
    fn declared(&self, kind: ContainerKind, cpu: MilliCpu) -> Option<MilliCpu> {
        let counts = kind == ContainerKind::Main && self.pod.is_bound_shared();
        Some(self.pod.total_cpu()).filter(|total| counts && *total > cpu)
    }

    pub(super) fn memory_request(&self, asked: &Asked) -> memory::Request {
        let kind = self.pod.kind(asked);
        let wishes = self.pod.served_wishes();
        // All of a pod's memory that is accounted to NUMA nodes is its main container's.
        let accounted = wishes.numa_binding() || self.pod.served == QosLevel::Dedicated;
        let whole = kind == ContainerKind::Main && accounted;
        let bytes = if whole { self.pod.total_amounts(|_| true) } else { asked.memory_amounts() };
        memory::Request {
            id: ContainerId::new(self.pod.uid.as_str(), asked.name.as_str()),
            kind,
            qos: self.pod.served,
            wishes,
            bytes,
            resize: self.resize,
            debug: false,
        }
    }

    pub(super) fn providers(&mut self, asked: &Asked) -> Result<Vec<Provider>, Refusal> {
        if self.pod.kind(asked) != ContainerKind::Main {
            return Ok(Vec::new());
        }
        let mut request = self.cpu_request(asked);
        if self.pod.served == QosLevel::Shared {
            // The others of the pod come after it, and must find room as well.
            request.pod_cpu = Some(self.pod.total_cpu()).filter(|total| *total > request.cpu);
        }
        let mut provider = BTreeMap::new();
        if request.aggregated() > MilliCpu(0) || request.wishes.numa_binding() {
            let hints = policy::hints(&self.after.cpus, self.options, self.machine, &request);
            let hints = hints.inspect_err(|refusal| {
                if matches!(refusal.kind, Kind::Insufficient | Kind::Affinity) {
                    let lacking = policy::lacking(&self.after.cpus, self.options, self.machine, &request);
                    self.lacking = Some((CPU.to_owned(), lacking));
                }
            });
            provider.insert(CPU.to_owned(), hints.map_err(refused(Rule::CpuRoom))?);
        }
        let request = self.memory_request(asked);
        // How much memory reclaimed pods may have is advice. Without any it is no reason to refuse one.
        let unadvised = request.qos == QosLevel::Reclaimed && self.memory_options.numa_headroom.is_empty();
        for resource in request.bytes.keys().filter(|_| !unadvised) {
            let hints = memory::hints(
                &self.after.memory,
                &self.memory_options,
                &self.supply,
                self.machine,
                &request,
                *resource,
            );
            let hints = hints.inspect_err(|refusal| {
                if matches!(refusal.kind, Kind::Insufficient | Kind::Affinity) {
                    let nodes = self.machine.memory_nodes();
                    let nodes = nodes.iter().map(|node| (NumaMask::only(node), Lack::Room));
                    self.lacking = Some((resource.to_string(), nodes.collect()));
                }
            });
            provider.insert(resource.to_string(), hints.map_err(refused(Rule::MemoryRoom))?);
        }
        if self.is_near(&request)
            && let Err((resource, refusal)) =
                near_memory::check(self.after, &self.supply, &request.id, &request.bytes)
        {
            let nodes = self.machine.memory_nodes();
            let nodes = nodes.iter().map(|node| (NumaMask::only(node), Lack::Room));
            self.lacking = Some((resource.to_string(), nodes.collect()));
            return Err(refusal);
        }
        if !amounts::share_nodes(&mut provider) {
            let nodes = self.machine.memory_nodes();
            let nodes = nodes.iter().map(|node| (NumaMask::only(node), Lack::Room));
            self.lacking = Some((MEMORY.to_owned(), nodes.collect()));
            return Err(self.nowhere_together(&request.bytes));
        }
        Ok(if provider.is_empty() { Vec::new() } else { vec![provider] })
    }

    /// Each resource has NUMA nodes with room, and none of these have room for all of them.
    fn nowhere_together(&self, asked: &amounts::Amounts) -> Refusal {
        let amount = |(resource, bytes): (&memory::Resource, &Bytes)| {
            let free =
                |node: &u32| format!("{} on {node}", self.after.memory.free(&self.supply, *node, *resource));
            let free: Vec<_> = self.supply.0.keys().map(free).collect();
            format!("{bytes} of {resource} (free by NUMA node: {})", free.join(", "))
        };
        let amounts: Vec<_> = asked.iter().map(amount).collect();
        let message = format!("no set of NUMA nodes gives all of it together: {}", amounts.join(" and "));
        refuse(Reason::Insufficient, Rule::MemoryRoom, message)
    }

    pub(super) fn place_cpus(&mut self, asked: &Asked, hint: &Hint) -> Result<(), Refusal> {
        let request = self.cpu_request(asked);
        policy::place_in(&mut self.after.cpus, self.options, self.machine, &request, Some(hint))
            .map(drop)
            .map_err(refused(Rule::Placement))
    }

    pub(super) fn place_memory(&mut self, asked: &Asked, hint: &Hint) -> Result<(), Refusal> {
        let request = self.memory_request(asked);
        if self.is_near(&request) {
            let entry = memory::unbound_entry(&request);
            near_memory::put(self.after, self.machine, &self.supply, &request.id, entry);
            return Ok(());
        }
        let placed = memory::place(&self.after.memory, &self.supply, self.machine, &request, Some(hint));
        self.after.memory.apply(&placed.map_err(refused(Rule::Placement))?.changes);
        Ok(())
    }

    /// Whether the request is the main container's of a dedicated pod that is bound to no node.
    fn is_near(&self, request: &memory::Request) -> bool {
        near_memory::is_near(&memory::unbound_entry(request))
    }

    /// The hint for memory: its own, else that of the CPUs; of a reclaimed pod the node that its CPUs were bound to.
    pub(super) fn memory_hint(&self, asked: &Asked, merged: &Merged) -> Hint {
        let resources = asked.memory_amounts().into_keys().map(|resource| resource.to_string());
        let hints = std::iter::once(MEMORY.to_owned()).chain(resources).map(|name| self.hint(merged, &name));
        if let Some(hint) = hints.into_iter().find(|hint| hint.mask.is_some()) {
            return hint;
        }
        if self.pod.served != QosLevel::Reclaimed {
            return self.hint(merged, CPU);
        }
        let id = ContainerId::new(self.pod.uid.as_str(), asked.name.as_str());
        let node = self.after.cpus.containers.get(&id).and_then(|own| own.numa_hint);
        node.map_or(Hint::anywhere(true), |node| Hint::on(NumaMask::only(node), true))
    }
}

impl Containers<Asked> for Joining<'_> {
    type Error = Refusal;

    fn hints(&mut self, subject: Subject<'_, Asked>) -> Result<Vec<Provider>, Refusal> {
        match subject {
            Subject::Container(asked) => {
                let mut providers = self.providers(asked)?;
                providers.extend(self.plugins.and_then(|plugins| plugins.of(asked)).cloned());
                Ok(providers)
            }
            // One set a pod: its totals are its main container's.
            Subject::Pod(all) => {
                let main = all.first().map_or_else(|| Ok(Vec::new()), |main| self.providers(main));
                let mut providers = main?;
                providers.extend(self.plugins.into_iter().flat_map(|plugins| plugins.of_all(all)));
                Ok(providers)
            }
        }
    }

    fn place(&mut self, asked: &Asked, merged: &Merged) -> Result<(), Refusal> {
        if !self.pod.has_entry(asked) {
            return Ok(());
        }
        self.place_cpus(asked, &self.hint(merged, CPU))?;
        self.place_memory(asked, &self.memory_hint(asked, merged))
    }
}

// === impl State ===

impl State {
    /// Keeps what a bound shared pod declares on its main container in step with its containers.
    pub(super) fn note_total(&mut self, pod: &Pod) {
        let main = ContainerId::new(pod.uid.as_str(), pod.main.as_str());
        let Some(entry) = self.cpus.containers.get_mut(&main).filter(|_| pod.is_bound_shared()) else {
            return;
        };
        let declared = Some(pod.total_cpu()).filter(|total| *total > entry.request);
        if entry.pod_request != declared {
            Arc::make_mut(entry).pod_request = declared;
        }
    }
}

// === impl Pod ===

impl Pod {
    /// Whether the container has a place of its own among those who have CPUs and memory.
    fn has_entry(&self, asked: &Asked) -> bool {
        self.is_main(&asked.name) || matches!(asked.role, Role::App | Role::RestartableInit)
    }

    fn is_bound_shared(&self) -> bool {
        self.served == QosLevel::Shared && self.served_wishes().numa_binding()
    }

    /// What it wishes, as far as its level as served goes.
    pub(super) fn served_wishes(&self) -> Wishes {
        // One whose binding is lost is served as if it had wished nothing, until it is bound again.
        let is_lost = |flag: &Flag| matches!(flag, Flag::NumaBindingLost | Flag::CpuOffline);
        let lost = self.served == QosLevel::Shared && self.flags.iter().any(is_lost);
        if self.served == self.qos && !lost { self.wishes.clone() } else { Wishes::default() }
    }
}

/// `single-numa-node` says "any node" where it means all of them. On a machine of one node that is the node to which a bound pod
/// is to be bound. Reclaimed pods are bound where that is configured, and then all of them are, as under the other policies: one
/// that is not would have no node left.
fn only_node(machine: &Machine, rules: &Rules, options: &Options, pod: &Pod) -> Option<u32> {
    let binds = pod.served != QosLevel::Reclaimed || options.reclaim_numa_binding;
    match machine.nodes() {
        [only] if binds && rules.topology == Policy::SingleNumaNode => Some(only.id),
        _ => None,
    }
}

/// A refusal of the policy.
fn refused(rule: Rule) -> impl FnOnce(policy::Refusal) -> Refusal {
    move |refusal| {
        let rule = match (refusal.kind, rule) {
            _ if refusal.starves_others => Rule::OthersKeepCpus,
            // It was not room that decided: the wish makes no sense here.
            (Kind::Invalid, Rule::CpuRoom | Rule::MemoryRoom) => Rule::Understood,
            (_, rule) => rule,
        };
        refuse(reason(refusal.kind), rule, refusal.message)
    }
}

const fn reason(kind: Kind) -> Reason {
    match kind {
        Kind::Insufficient => Reason::Insufficient,
        Kind::Affinity => Reason::Affinity,
        Kind::Invalid => Reason::Invalid,
        Kind::Unsupported => Reason::Unsupported,
    }
}
