//! The machine's NUMA nodes as the merge sees them.

use oxalyst_topology::{Machine, NumaMask};

/// How many different NUMA nodes the machine and the hints may name together.
pub const NODE_LIMIT: usize = 64;

/// More NUMA nodes than can be merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "merging topology hints: the machine and the hints name {nodes} NUMA nodes, at most {NODE_LIMIT} are supported; set the \
     topology policy \"none\" on this node"
)]
pub struct TooManyNodes {
    /// How many are named.
    pub nodes: usize,
}

/// The NUMA nodes that take part, and, where the closest are to be preferred, how far they lie apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nodes {
    all: NumaMask,
    /// A row a node of `all`, ascending.
    distances: Option<Vec<Vec<u32>>>,
}

// === impl Nodes ===

impl Nodes {
    /// These nodes; among masks of one size the one with the lower ids is better.
    pub const fn new(all: NumaMask) -> Self {
        Self { all, distances: None }
    }

    /// All nodes of the machine.
    pub fn of(machine: &Machine) -> Self {
        Self::new(machine.nodes().iter().map(|node| node.id).collect())
    }

    /// The same nodes; among masks of one size the one whose nodes lie closest together is better (the kubelet's
    /// `prefer-closest-numa-nodes`). Changes nothing where the machine does not know every distance.
    #[must_use]
    pub fn prefer_closest(mut self, machine: &Machine) -> Self {
        let distance = |from: u32, to: u32| {
            let column = machine.nodes().iter().position(|node| node.id == to)?;
            machine.node(from)?.distances.get(column).copied()
        };
        let row = |from: u32| self.all.iter().map(|to| distance(from, to)).collect::<Option<Vec<u32>>>();
        self.distances = self.all.iter().map(row).collect();
        self
    }

    /// Refuses more than can be merged.
    ///
    /// # Errors
    /// There are more than [`NODE_LIMIT`].
    pub(super) fn within_limit(&self) -> Result<(), TooManyNodes> {
        let nodes = self.all.len();
        if nodes > NODE_LIMIT { Err(TooManyNodes { nodes }) } else { Ok(()) }
    }

    /// All of them.
    pub const fn all(&self) -> &NumaMask {
        &self.all
    }

    /// Whether distance matters.
    pub(super) const fn prefers_closest(&self) -> bool {
        self.distances.is_some()
    }

    /// Sum of the distances between the nodes of a mask, themselves included; 0 where distance does not matter. Compares masks
    /// of one size as their average does.
    pub(crate) fn distance(&self, mask: &NumaMask) -> u64 {
        let Some(distances) = &self.distances else { return 0 };
        let places: Vec<usize> =
            (0..).zip(self.all.iter()).filter(|(_, id)| mask.contains(*id)).map(|(at, _)| at).collect();
        let rows = places.iter().filter_map(|at| distances.get(*at));
        rows.flat_map(|row| places.iter().filter_map(|at| row.get(*at)))
            .map(|distance| u64::from(*distance))
            .sum()
    }
}

/// Every mask of one to `sizes` of these nodes: small ones first, among masks of one size in ascending order of their bits.
/// There are 2ⁿ−1 of them if `sizes` is not below n.
pub fn every_mask(nodes: &NumaMask, sizes: usize) -> Vec<NumaMask> {
    let ids: Vec<u32> = nodes.iter().collect();
    let mut masks = Vec::new();
    for size in 1..=sizes.min(ids.len()) {
        // The lowest nodes first; then the lowest node that can move up does, and those below it start anew.
        let mut places: Vec<usize> = (0..size).collect();
        loop {
            masks.push(places.iter().filter_map(|at| ids.get(*at)).copied().collect());
            let ends = places.iter().skip(1).copied().chain([ids.len()]);
            let moves = places.iter().zip(ends).position(|(place, end)| place + 1 < end);
            let Some(moves) = moves else { break };
            for (at, place) in places.iter_mut().enumerate().take(moves + 1) {
                *place = if at == moves { *place + 1 } else { at };
            }
        }
    }
    masks
}

/// Masks of one size as numbers: the highest id in which they differ decides.
pub(super) fn by_bits(a: &NumaMask, b: &NumaMask) -> std::cmp::Ordering {
    a.iter().rev().cmp(b.iter().rev())
}
