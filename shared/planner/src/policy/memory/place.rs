//! A container gets its memory nodes, and others lose those that an exclusive pod takes.

use super::{
    super::{ContainerKind, Kind, Refusal},
    Changes, Container, Request, Resource, State, Supply,
};
use crate::topology_manager::Hint;
use oxalyst_qos::QosLevel;
use oxalyst_topology::{Machine, NumaMask};
use oxalyst_units::Bytes;
use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

/// What became of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placed {
    /// Its `cpuset.mems`; `None` where it gets none of its own (init containers, debug pods, a sidecar before its main container).
    pub mems: Option<NumaMask>,
    /// What changes, the container's own entry included.
    pub changes: Changes,
}

/// Gives the container its memory nodes: those of the hint where it is bound.
///
/// # Errors
/// There is not enough there, or the request contradicts its hint. Nothing changes then.
pub fn place(
    state: &State,
    supply: &Supply,
    machine: &Machine,
    request: &Request,
    hint: Option<&Hint>,
) -> Result<Placed, Refusal> {
    if request.kind == ContainerKind::Init || request.debug {
        return Ok(Placed::default());
    }
    let mut others = state.clone();
    let known = others.containers.remove(&request.id);
    if let Some(known) = known.as_ref().filter(|known| !request.resize && known.request == request.bytes) {
        return Ok(Placed { mems: Some(known.mems.clone()), changes: Changes::new() });
    }
    let Some(entry) = Placing { others: &others, supply, machine, request, hint, known }.entry()? else {
        return Ok(Placed::default());
    };
    let mut after = others;
    after.containers.insert(request.id.clone(), Arc::new(entry));
    settle(&mut after, machine);
    let mems = after.containers.get(&request.id).map(|entry| entry.mems.clone());
    Ok(Placed { mems, changes: after.containers.changes_since(&state.containers) })
}

/// The pod is gone, and so is what it had taken.
pub fn remove(state: &State, machine: &Machine, pod: &str) -> Changes {
    let mut after = state.clone();
    after.drop_of_pod(pod, |_| true);
    settle(&mut after, machine);
    after.containers.changes_since(&state.containers)
}

/// Gives all who are bound to no node what is left, and the others the nodes with memory that are nearest to their own.
pub fn settle(state: &mut State, machine: &Machine) {
    let common = state.common_mems(machine);
    let all = machine.memory_nodes();
    let mems = |container: &Container| match &container.bound_to {
        Some(nodes) => Cow::Owned(with_memory(machine, nodes)),
        None if container.qos == QosLevel::System && !container.wishes.numa_binding() => Cow::Borrowed(&all),
        None => Cow::Borrowed(&common),
    };
    let moves = |container: &Container| {
        Some(mems(container)).filter(|mems| container.mems != **mems).map(Cow::into_owned)
    };
    state.containers.update(moves, |container, mems| container.mems = mems);
}

/// The nodes that have memory of these, and for those that have none the nearest that does.
fn with_memory(machine: &Machine, nodes: &NumaMask) -> NumaMask {
    nodes.iter().filter_map(|node| machine.nearest_memory(node)).collect()
}

/// The entry of a container that is bound to no node and not dedicated, as [`place`] makes it, without its memory nodes: those follow
/// from [`settle`].
pub(crate) fn unbound_entry(request: &Request) -> Container {
    Container {
        kind: request.kind,
        qos: request.qos,
        wishes: request.wishes.clone(),
        request: request.bytes.clone(),
        taken: BTreeMap::new(),
        bound_to: None,
        mems: NumaMask::new(),
    }
}

struct Placing<'a> {
    /// Everybody but the container.
    others: &'a State,
    supply: &'a Supply,
    machine: &'a Machine,
    request: &'a Request,
    hint: Option<&'a Hint>,
    known: Option<Arc<Container>>,
}

// === impl Placing ===

impl Placing<'_> {
    /// `None` where the container gets nothing yet.
    fn entry(&self) -> Result<Option<Container>, Refusal> {
        let request = self.request;
        let bound = request.wishes.numa_binding();
        let follows = request.qos == QosLevel::Dedicated || bound;
        let mut entry = unbound_entry(request);
        match request.qos {
            _ if request.kind == ContainerKind::Sidecar && follows => {
                let main =
                    self.others.of_pod(&request.id.pod).find(|(_, other)| other.kind == ContainerKind::Main);
                let Some((_, main)) = main else { return Ok(None) };
                entry.bound_to.clone_from(&main.bound_to);
            }
            QosLevel::Dedicated | QosLevel::Shared if bound => {
                let nodes = self.nodes()?;
                entry.taken = self
                    .taken(&nodes, request.wishes.numa_exclusive() && request.qos == QosLevel::Dedicated)?;
                entry.bound_to = Some(nodes);
            }
            QosLevel::Reclaimed => entry.bound_to = self.known_nodes().or_else(|| self.single_node()),
            // The memory of a dedicated container that is not bound lies beside its CPUs, which are not known here.
            QosLevel::Dedicated | QosLevel::Shared | QosLevel::System => {}
        }
        Ok(Some(entry))
    }

    fn known_nodes(&self) -> Option<NumaMask> {
        self.known.as_ref().and_then(|known| known.bound_to.clone())
    }

    fn single_node(&self) -> Option<NumaMask> {
        self.mask().filter(|mask| mask.len() == 1).cloned()
    }

    fn mask(&self) -> Option<&NumaMask> {
        self.hint.and_then(|hint| hint.mask.as_ref()).filter(|mask| !mask.is_empty())
    }

    /// The nodes of the hint, of which there must be as many as the container may have.
    fn nodes(&self) -> Result<NumaMask, Refusal> {
        let mask = self.mask().cloned().or_else(|| self.known_nodes());
        let Some(mask) = mask else {
            return Err(Refusal::new(
                Kind::Invalid,
                "a bound container needs NUMA nodes, and the hint names none",
            ));
        };
        let wishes = &self.request.wishes;
        let number = wishes.numa_number(self.machine)?.unwrap_or(1);
        let may_span = self.request.qos == QosLevel::Dedicated && (wishes.numa_exclusive() || number > 1);
        if mask.len() > 1 && !may_span {
            return Err(Refusal::new(
                Kind::Invalid,
                format!("the container may have one NUMA node, and the hint names {mask}"),
            ));
        }
        Ok(mask)
    }

    /// What is accounted: what is asked for, from the lowest node on; all that is free for an exclusive container.
    fn taken(
        &self,
        nodes: &NumaMask,
        exclusive: bool,
    ) -> Result<BTreeMap<Resource, BTreeMap<u32, Bytes>>, Refusal> {
        let mut taken = BTreeMap::new();
        for (&resource, &asked) in &self.request.bytes {
            let free = |node: u32| self.others.free(self.supply, node, resource).0;
            let have: u64 = nodes.iter().map(free).fold(0, u64::saturating_add);
            if asked.0 > have {
                return Err(Refusal::insufficient(format!(
                    "{asked} of {resource} is asked for and {} is free on NUMA node(s) {nodes}",
                    Bytes(have)
                )));
            }
            let mut rest = if exclusive { have } else { asked.0 };
            let mut by_node = BTreeMap::new();
            for node in nodes.iter() {
                let bytes = rest.min(free(node));
                rest -= bytes;
                if bytes > 0 {
                    by_node.insert(node, Bytes(bytes));
                }
            }
            taken.insert(resource, by_node);
        }
        Ok(taken)
    }
}
