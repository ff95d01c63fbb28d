//! Pods that had NUMA nodes for themselves and are made anew.

use super::super::{Remembered, Request, State};
use crate::topology_manager::Hint;
use oxalyst_topology::NumaMask;

/// Prefers the nodes that a pod of this name had before, or else those that no other pod is expected back on. Where neither is
/// possible nothing changes.
pub(super) fn prefer(state: &State, request: &Request, hints: &mut [Hint]) {
    let nodes_of = |which: &dyn Fn(&Remembered) -> bool| {
        let gone = state.remembered.iter().filter(|gone| which(gone));
        gone.fold(NumaMask::new(), |union, gone| union | &gone.nodes)
    };
    let own = nodes_of(&|gone| gone.pod_name == request.pod_name && *gone.container == *request.id.container);
    let expected = nodes_of(&|_| true);
    let had = |mask: &NumaMask| own == *mask;
    let untouched = |mask: &NumaMask| mask.is_disjoint(&expected);
    if !demote(hints, had) {
        demote(hints, untouched);
    }
}

/// Demotes all but these, if there are any.
fn demote(hints: &mut [Hint], keep: impl Fn(&NumaMask) -> bool) -> bool {
    let kept = |hint: &Hint| hint.mask.as_ref().is_some_and(&keep);
    if !hints.iter().any(|hint| hint.preferred && kept(hint)) {
        return false;
    }
    for hint in hints.iter_mut().filter(|hint| !kept(hint)) {
        hint.preferred = false;
    }
    true
}
