//! NUMA nodes on which nobody would be in the way of anybody.

use super::super::{
    Container, Request,
    request::fits,
    state::specified_pool,
    view::{Node, View},
};
use oxalyst_topology::CpuSet;

/// The nodes that a bound container may have beside those who are there, and without which the shared pods that are not bound
/// still fit. Whether the container itself fits is another question.
pub(super) fn eligible<'v, 'a>(view: &'v View<'a>, request: &Request) -> Vec<&'v Node<'a>> {
    let unbound: usize = view.nodes.iter().filter(|node| !node.is_bound()).map(|node| node.free.len()).sum();
    let asked = view.unbound_shared_request(&request.id.pod);
    let spares = |node: &Node<'_>| node.is_bound() || fits(asked, unbound - node.free.len());
    let others = view.state.containers.kinds().filter(|resident| repel(resident, request));
    let others = others.fold(CpuSet::new(), |union, resident| union | &resident.cpus);
    let fits_in = |node: &Node<'_>| node.cpus.is_disjoint(&others);
    view.nodes.iter().filter(|node| fits_in(node) && spares(node)).collect()
}

/// Whether one of the two does not want the other on its NUMA node.
fn repel(resident: &Container, request: &Request) -> bool {
    let other_pool = resident.specified_pool() != specified_pool(request.qos, &request.wishes);
    // Shared containers that are not bound go where others leave them room: they are in nobody's way.
    let differs = resident.qos != request.qos || (other_pool && resident.wishes.numa_binding());
    differs && (resident.wishes.is_anti_affine() || request.wishes.is_anti_affine())
}
