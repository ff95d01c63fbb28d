//! On which NUMA nodes a container could run.

mod dedicated;
mod eligible;
mod existing;
mod lacking;
mod preference;
mod reclaimed;
mod remembered;
mod shared;

pub(super) use dedicated::unbound_free;
pub use lacking::{Lack, lacking};

use super::{ContainerKind, Options, Refusal, Request, State, request::whole, view::View};
use crate::topology_manager::Hints;
use oxalyst_qos::QosLevel;
use oxalyst_topology::Machine;
use oxalyst_units::MilliCpu;

/// The NUMA nodes that would do for the container; `None` where it has no preference.
///
/// # Errors
/// There is no room, or the request contradicts itself.
pub fn hints(
    state: &State,
    options: &Options,
    machine: &Machine,
    request: &Request,
) -> Result<Hints, Refusal> {
    if request.kind == ContainerKind::Init || request.debug {
        return Ok(None);
    }
    let outgrown = existing::outgrown(state, request);
    let mut view = View::of(outgrown.as_ref().unwrap_or(state), machine);
    view.spare = options.reserved_spare;
    let is_main = request.kind == ContainerKind::Main;
    match request.qos {
        QosLevel::System => Ok(None),
        QosLevel::Dedicated | QosLevel::Reclaimed if !is_main => Ok(None),
        QosLevel::Dedicated if request.wishes.numa_binding() => dedicated::bound(&view, options, request),
        QosLevel::Dedicated => dedicated::unbound(&view, request),
        QosLevel::Reclaimed if request.wishes.numa_binding() && options.reclaim_numa_binding => {
            reclaimed::bound(&view, options, request)
        }
        QosLevel::Reclaimed => Ok(None),
        QosLevel::Shared if !is_main => Ok(None),
        QosLevel::Shared if request.wishes.numa_binding() => shared::bound(&view, options, request),
        QosLevel::Shared => has_room_for_shared(&view, request).map(|()| None),
    }
}

/// Whether shared pods that are not bound, this one included, would still fit on the nodes without bound pods.
fn has_room_for_shared(view: &View<'_>, request: &Request) -> Result<(), Refusal> {
    let mut asked = view.unbound_shared_request(&request.id.pod);
    asked.0 = asked.0.saturating_add(request.aggregated().0);
    let have = view.pooled().len();
    if view.holds_shared(asked, have) {
        return Ok(());
    }
    let spare = match view.spare {
        MilliCpu(0) => String::new(),
        spare => format!(", and {spare} of a reserved one"),
    };
    let beside = unbound_free(view).len().saturating_sub(have);
    let uncounted = match beside {
        0 => String::new(),
        _ => format!(
            "; {beside} more that bound dedicated pods leave on their nodes are used by the shared pool and not counted on"
        ),
    };
    Err(Refusal::insufficient(format!(
        "shared pods would ask for {} CPUs ({asked}) and {have} are there for them: neither reserved nor exclusive, \
         on NUMA nodes without bound pods{spare}{uncounted}",
        whole(asked)
    )))
}
