//! Hints: which NUMA nodes a resource could be given on, and how good that would be.

use oxalyst_topology::NumaMask;
use std::collections::BTreeMap;

/// One possible affinity of one resource.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hint {
    /// The NUMA nodes; `None` where any will do.
    pub mask: Option<NumaMask>,
    /// Whether this is as good as the resource can hope for.
    pub preferred: bool,
}

/// What a provider says of one resource: `None` is no preference, an empty list is that nothing is possible. The order of the
/// list matters to the numeric policy alone.
pub type Hints = Option<Vec<Hint>>;

/// What one provider says of a container (or of a pod): resource name → hints. Without any entry it has no opinion at all.
pub type Provider = BTreeMap<String, Hints>;

/// What one resource offers, to look in for many sets of nodes: lists are long.
pub(crate) struct Offered<'a> {
    /// Each set, and whether it is preferred.
    pub(super) sets: BTreeMap<&'a NumaMask, bool>,
    /// Whether any nodes would do, and whether that is preferred.
    anywhere: Option<bool>,
}

/// Stands for a provider without entries, and for "no provider at all", where results are listed by resource.
pub const ANY_RESOURCE: &str = "*";

/// The first resource of which nothing is possible: its list is there and empty.
pub fn impossible(providers: &[Provider]) -> Option<&str> {
    providers
        .iter()
        .flatten()
        .find(|(_, hints)| hints.as_ref().is_some_and(Vec::is_empty))
        .map(|(resource, _)| resource.as_str())
}

/// On how few NUMA nodes each resource could be given at the least; resources without any mask are left out. Minima that differ
/// are why a strict policy refuses.
pub fn minima(providers: &[Provider]) -> BTreeMap<&str, usize> {
    let narrowest =
        |hints: &Hints| hints.iter().flatten().filter_map(|hint| hint.mask.as_ref()).map(NumaMask::len).min();
    providers
        .iter()
        .flatten()
        .filter_map(|(resource, hints)| Some((resource.as_str(), narrowest(hints)?)))
        .collect()
}

// === impl Hint ===

impl Hint {
    /// These nodes.
    pub fn on(mask: NumaMask, preferred: bool) -> Self {
        Self { mask: Some(mask), preferred }
    }

    /// Any node.
    pub const fn anywhere(preferred: bool) -> Self {
        Self { mask: None, preferred }
    }
}

// === impl Offered ===

impl<'a> Offered<'a> {
    pub(crate) fn of(hints: &'a [Hint]) -> Self {
        let mut offered = Self { sets: BTreeMap::new(), anywhere: None };
        for hint in hints {
            match &hint.mask {
                Some(mask) => *offered.sets.entry(mask).or_default() |= hint.preferred,
                None => offered.anywhere = Some(offered.anywhere.unwrap_or_default() || hint.preferred),
            }
        }
        offered
    }

    /// Whether it prefers these nodes; `None`: it cannot have them.
    pub(crate) fn prefers(&self, mask: &NumaMask) -> Option<bool> {
        self.sets.get(mask).copied().max(self.anywhere)
    }
}
