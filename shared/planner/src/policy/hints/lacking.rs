//! Why no NUMA node would do: for those who ask afterwards.

use super::{
    super::{ContainerKind, Options, Request, State, view::View},
    eligible::{Hindrance, weighed},
    existing,
};
use oxalyst_qos::QosLevel;
use oxalyst_topology::{Machine, NumaMask};

/// What kept a container from some NUMA nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// They have too little room for it.
    Room,
    /// Bound or exclusive pods are there, which it keeps off.
    BoundPods,
    /// A neighbour there excludes it, or it excludes the neighbour.
    Neighbour,
    /// Shared pods that are not bound need them.
    SharedPods,
}

/// The sets of NUMA nodes that [`hints`](super::hints) looked at before it refused, with what each lacks: one by one for a bound
/// container, and for one that is not, first all together that it could have run on.
pub fn lacking(
    state: &State,
    options: &Options,
    machine: &Machine,
    request: &Request,
) -> Vec<(NumaMask, Lack)> {
    let outgrown = existing::outgrown(state, request);
    let mut view = View::of(outgrown.as_ref().unwrap_or(state), machine);
    view.spare = options.reserved_spare;
    if request.wishes.numa_binding() || request.kind != ContainerKind::Main {
        let lack = |hindrance: Option<Hindrance>| match hindrance {
            None => Lack::Room,
            Some(Hindrance::Neighbour) => Lack::Neighbour,
            Some(Hindrance::SharedPods { .. }) => Lack::SharedPods,
        };
        let nodes = weighed(&view, request).into_iter();
        return nodes.map(|(node, hindrance)| (NumaMask::only(node.id), lack(hindrance))).collect();
    }
    let is_open = |node: &&super::super::view::Node<'_>| match request.qos {
        QosLevel::Dedicated => !node.exclusive && !node.bound_shared,
        _ => !node.is_bound(),
    };
    let open: NumaMask = view.nodes.iter().filter(is_open).map(|node| node.id).collect();
    let others = view.nodes.iter().filter(|node| !is_open(node));
    let others = others.map(|node| (NumaMask::only(node.id), Lack::BoundPods));
    let open = Some(open).filter(|open| !open.is_empty()).map(|open| (open, Lack::Room));
    open.into_iter().chain(others).collect()
}

// === impl Lack ===

impl Lack {
    /// In one word, as decisions spell it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Room => "no-room",
            Self::BoundPods => "bound-pods",
            Self::Neighbour => "neighbour",
            Self::SharedPods => "shared-pods",
        }
    }
}
