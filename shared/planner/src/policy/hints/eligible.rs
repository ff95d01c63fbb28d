//! NUMA nodes on which nobody would be in the way of anybody.

use super::super::{
    Container, Request,
    state::specified_pool,
    view::{Node, View},
};
use oxalyst_topology::CpuSet;
use oxalyst_units::MilliCpu;
use std::fmt;

/// Why a bound container may not have a NUMA node, whatever is free there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hindrance {
    /// A neighbour does not want it there, or it does not want the neighbour (`numa_share`).
    Neighbour,
    /// Shared pods that are not bound would not fit on the other nodes.
    SharedPods {
        /// What they ask for.
        asked: MilliCpu,
        /// CPUs that the other nodes without bound pods would leave them.
        left: usize,
    },
}

/// The nodes that a bound container may have beside those who are there, and without which the shared pods that are not bound
/// still fit. Whether the container itself fits is another question.
pub(super) fn eligible<'v, 'a>(view: &'v View<'a>, request: &Request) -> Vec<&'v Node<'a>> {
    weighed(view, request)
        .into_iter()
        .filter(|(_, hindrance)| hindrance.is_none())
        .map(|(node, _)| node)
        .collect()
}

/// Every node, and what keeps the container from it.
pub(super) fn weighed<'v, 'a>(
    view: &'v View<'a>,
    request: &Request,
) -> Vec<(&'v Node<'a>, Option<Hindrance>)> {
    let unbound: usize = view.nodes.iter().filter(|node| !node.is_bound()).map(|node| node.free.len()).sum();
    let asked = view.unbound_shared_request(&request.id.pod);
    let others = view.state.containers.kinds().filter(|resident| repel(resident, request));
    let others = others.fold(CpuSet::new(), |union, resident| union | &resident.cpus);
    let hindrance = |node: &Node<'_>| {
        if !node.cpus.is_disjoint(&others) {
            return Some(Hindrance::Neighbour);
        }
        let left = unbound.saturating_sub(node.free.len());
        (!node.is_bound() && !view.holds_shared(asked, left)).then_some(Hindrance::SharedPods { asked, left })
    };
    view.nodes.iter().map(|node| (node, hindrance(node))).collect()
}

/// Whether one of the two does not want the other on its NUMA node.
fn repel(resident: &Container, request: &Request) -> bool {
    let other_pool = resident.specified_pool() != specified_pool(request.qos, &request.wishes);
    // Shared containers that are not bound go where others leave them room: they are in nobody's way.
    let differs = resident.qos != request.qos || (other_pool && resident.wishes.numa_binding());
    differs && (resident.wishes.is_anti_affine() || request.wishes.is_anti_affine())
}

// === impl Hindrance ===

impl fmt::Display for Hindrance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Neighbour => write!(f, "a neighbour there excludes it by numa_share"),
            Self::SharedPods { asked, left } => write!(
                f,
                "shared pods that are not bound ask for {asked} CPUs and need a node without bound pods; the others leave them {left}"
            ),
        }
    }
}
