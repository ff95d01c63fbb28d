//! Bound shared containers.

use super::{
    super::{
        Options, Refusal, Request,
        request::whole,
        view::{Node, View},
    },
    eligible::{Hindrance, eligible, weighed},
    existing,
    preference::{Candidate, by_preference, prefer_existing},
};
use crate::topology_manager::Hints;

/// Single NUMA nodes with room.
pub(super) fn bound(view: &View<'_>, options: &Options, request: &Request) -> Result<Hints, Refusal> {
    if let (true, Some(known)) = (request.resize, existing::known(view, request)) {
        return existing::resized_shared(view, request, known);
    }
    if let Some(hints) = existing::keep(view, request) {
        return Ok(hints);
    }
    let asked = whole(request.aggregated());
    let largest = view.machine.cpus().len().div_ceil(view.nodes.len().max(1));
    if asked > largest {
        return Err(Refusal::insufficient(format!(
            "{asked} CPUs are asked for and a NUMA node has {largest}: a bound shared pod must fit on one"
        )));
    }
    let mut candidates: Vec<_> =
        eligible(view, request).into_iter().filter_map(|node| Candidate::of(node, request)).collect();
    if options.high_numa_first {
        candidates.reverse();
    }
    let mut hints = by_preference(candidates, options);
    if hints.is_empty() {
        return Err(nowhere(view, request));
    }
    prefer_existing(options, request, &mut hints)?;
    Ok(Some(hints))
}

fn nowhere(view: &View<'_>, request: &Request) -> Refusal {
    let weighed = weighed(view, request);
    let words = |(node, hindrance): &(&Node<'_>, Option<Hindrance>)| match hindrance {
        Some(why) => format!("{} on {} ({why})", node.free.len(), node.id),
        None => format!("{} on {}", node.free.len(), node.id),
    };
    let free: Vec<_> = weighed.iter().map(words).collect();
    let message = format!(
        "no NUMA node takes {} CPUs of a bound shared pod beside those who are there; free CPUs by NUMA node: {}",
        request.aggregated(),
        free.join(", ")
    );
    let starves = |(node, hindrance): &(&Node<'_>, Option<Hindrance>)| {
        matches!(hindrance, Some(Hindrance::SharedPods { .. })) && node.unasked() >= request.aggregated().0
    };
    if weighed.iter().any(starves) { Refusal::starving(message) } else { Refusal::insufficient(message) }
}
