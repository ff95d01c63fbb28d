//! Which of the NUMA nodes with room is best for a bound shared pod.

use super::super::{Options, Preference, Refusal, Request, view::Node};
use crate::topology_manager::Hint;
use oxalyst_topology::NumaMask;

/// A NUMA node with room.
pub(super) struct Candidate {
    pub(super) node: u32,
    /// Free and asked for by nobody once the container is here, in thousandths of a CPU.
    pub(super) left: u64,
    /// Free, whoever asks for it.
    pub(super) all: u64,
}

// === impl Candidate ===

impl Candidate {
    /// The node, if the request fits there.
    pub(super) fn of(node: &Node<'_>, request: &Request) -> Option<Self> {
        let all = node.free.len() as u64 * 1000;
        let left = node.unasked().checked_sub(request.aggregated().0)?;
        Some(Self { node: node.id, left, all })
    }

    /// The part of what is free that is left.
    fn share_left(&self) -> f64 {
        if self.all == 0 { 0.0 } else { self.left as f64 / self.all as f64 }
    }
}

/// The candidates as hints, in their order, with the best one(s) preferred. Under dynamic packing those that are not packed on
/// come last.
pub(super) fn by_preference(candidates: Vec<Candidate>, options: &Options) -> Vec<Hint> {
    match options.preference {
        Preference::Spreading => spread(&candidates),
        Preference::Packing => pack(&candidates),
        Preference::DynamicPacking { threshold } => {
            let roomy = |candidate: &Candidate| candidate.share_left() >= threshold;
            let (roomy, other): (Vec<_>, Vec<_>) = candidates.into_iter().partition(roomy);
            if roomy.is_empty() {
                return spread(&other);
            }
            let mut hints = pack(&roomy);
            hints.extend(other.iter().map(|candidate| hint(candidate, false)));
            hints
        }
    }
}

fn spread(candidates: &[Candidate]) -> Vec<Hint> {
    let best = candidates.iter().map(|candidate| candidate.left).max();
    candidates.iter().map(|candidate| hint(candidate, Some(candidate.left) == best)).collect()
}

fn pack(candidates: &[Candidate]) -> Vec<Hint> {
    let best = candidates.iter().map(|candidate| candidate.left).min();
    candidates.iter().map(|candidate| hint(candidate, Some(candidate.left) == best)).collect()
}

fn hint(candidate: &Candidate, preferred: bool) -> Hint {
    Hint::on(NumaMask::only(candidate.node), preferred)
}

/// Prefers the choice that was made for the pod before, if that is configured, to all others.
///
/// # Errors
/// The choice cannot be read.
pub(super) fn prefer_existing(
    options: &Options,
    request: &Request,
    hints: &mut [Hint],
) -> Result<(), Refusal> {
    if !options.prefer_existing_numa {
        return Ok(());
    }
    let Some(chosen) = request.wishes.numa_bind_result()? else { return Ok(()) };
    if hints.iter().any(|hint| hint.mask.as_ref() == Some(&chosen)) {
        for hint in hints {
            hint.preferred = hint.mask.as_ref() == Some(&chosen);
        }
    }
    Ok(())
}
