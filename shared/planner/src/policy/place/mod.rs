//! A container gets its CPUs, and others move where that is needed.

mod dedicated;
mod leave;
mod reclaimed;
mod shared;
mod system;

pub use leave::{end_ramp_up, remove};

use super::{
    Changes, Container, ContainerKind, Kind, Options, RECLAIM, Refusal, Request, State, pools, request::whole,
};
use crate::topology_manager::Hint;
use oxalyst_qos::QosLevel;
use oxalyst_topology::{CpuSet, Machine, NumaMask};
use std::sync::Arc;

/// What became of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placed {
    /// Its CPUs; `None` where it gets none of its own (init containers, debug pods, a sidecar before its main container).
    pub cpus: Option<CpuSet>,
    /// What changes, the container's own entry included. Empty for one that keeps what it has.
    pub changes: Changes,
}

/// What placing works on: the state as it comes to be.
struct Placing<'a> {
    state: State,
    options: &'a Options,
    machine: &'a Machine,
    request: &'a Request,
    hint: Option<&'a Hint>,
    /// The container's entry before, if it has CPUs.
    known: Option<Container>,
}

/// Gives the container CPUs, on the NUMA nodes of the hint where it is bound.
///
/// # Errors
/// There is no room there, or a running container would be left without CPUs, or the request contradicts itself or its hint.
/// Nothing changes then.
pub fn place(
    state: &State,
    options: &Options,
    machine: &Machine,
    request: &Request,
    hint: Option<&Hint>,
) -> Result<Placed, Refusal> {
    let mut after = state.clone();
    let cpus = place_in(&mut after, options, machine, request, hint)?;
    Ok(Placed { cpus, changes: after.changes_since(state) })
}

/// The same, and the state is the one that follows.
pub(crate) fn place_in(
    state: &mut State,
    options: &Options,
    machine: &Machine,
    request: &Request,
    hint: Option<&Hint>,
) -> Result<Option<CpuSet>, Refusal> {
    if request.kind == ContainerKind::Init || request.debug {
        return Ok(None);
    }
    let known = state.containers.get(&request.id).filter(|container| !container.cpus.is_empty());
    if let Some(known) = known.filter(|known| !request.resize && known.cpus.len() >= whole(request.cpu)) {
        return Ok(Some(known.cpus.clone()));
    }
    if request.resize && known.is_none() {
        return Err(Refusal::invalid("the container to resize has no CPUs"));
    }
    if known.is_some_and(|known| known.wishes.numa_binding() != request.wishes.numa_binding()) {
        return Err(Refusal::invalid(
            "a running container cannot be bound to NUMA nodes, or be freed from them",
        ));
    }
    let mut placing = Placing {
        state: state.clone(),
        options,
        machine,
        request,
        hint,
        known: known.map(|known| (**known).clone()),
    };
    if !placing.place()? {
        return Ok(None);
    }
    *state = placing.state;
    Ok(state.containers.get(&request.id).map(|container| container.cpus.clone()))
}

/// The entry of a container that is bound to nothing and not dedicated, as [`place`] makes it for one that starts, without its CPUs:
/// those follow when the pools are next computed.
pub(crate) fn pooled_entry(request: &Request) -> Container {
    let mut entry = request.entry();
    match request.qos {
        QosLevel::Shared => entry.ramp_up = true,
        QosLevel::Reclaimed => entry.owner = Some(RECLAIM.to_owned()),
        QosLevel::System => entry.owner = system::owner(&entry.wishes),
        QosLevel::Dedicated => {}
    }
    entry
}

// === impl Placing ===

impl Placing<'_> {
    /// False where the container gets nothing yet.
    fn place(&mut self) -> Result<bool, Refusal> {
        let bound = self.request.wishes.numa_binding();
        let follows = self.request.qos != QosLevel::Shared || bound;
        if self.request.kind == ContainerKind::Sidecar && follows {
            return Ok(self.follow_main());
        }
        match self.request.qos {
            QosLevel::Shared if bound => self.bound_shared()?,
            QosLevel::Shared => self.shared()?,
            QosLevel::Dedicated => self.dedicated()?,
            QosLevel::Reclaimed => self.reclaimed()?,
            QosLevel::System => self.system(),
        }
        Ok(true)
    }

    /// The container runs where its pod's main container does, once that has CPUs.
    fn follow_main(&mut self) -> bool {
        let Some(main) = self.state.main_of(&self.request.id.pod).filter(|main| !main.cpus.is_empty()) else {
            return false;
        };
        let entry = Container {
            owner: main.owner.clone(),
            cpus: main.cpus.clone(),
            numa_hint: main.numa_hint,
            ..self.request.entry()
        };
        self.put(entry);
        true
    }

    fn put(&mut self, entry: Container) {
        self.state.containers.insert(self.request.id.clone(), Arc::new(entry));
    }

    /// The entry as it is known, with what is asked for now, or else a new one.
    fn entry(&self) -> Container {
        match &self.known {
            Some(known) => {
                Container { request: self.request.cpu, pod_request: self.request.pod_cpu, ..known.clone() }
            }
            None => self.request.entry(),
        }
    }

    /// Computes the pools anew, with the container in its own if it has one.
    fn recompute(&mut self) -> Result<(), Refusal> {
        pools::recompute_strictly(&mut self.state, self.options, self.machine, &self.request.id, false)
    }

    /// The one NUMA node of the hint.
    fn single_node(&self) -> Option<u32> {
        self.mask().filter(|mask| mask.len() == 1).and_then(NumaMask::first)
    }

    fn mask(&self) -> Option<&NumaMask> {
        self.hint.and_then(|hint| hint.mask.as_ref()).filter(|mask| !mask.is_empty())
    }
}

fn refuse_hint(wants: &str, hint: Option<&Hint>) -> Refusal {
    let got = match hint.map(|hint| hint.mask.as_ref()) {
        None => "there is no hint".to_owned(),
        Some(None) => "the hint names none".to_owned(),
        Some(Some(mask)) => format!("the hint names {mask}"),
    };
    Refusal::new(Kind::Invalid, format!("{wants}, and {got}"))
}
