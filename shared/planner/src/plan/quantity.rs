//! Sums of CPU requests, the pools they make up, and how pools shrink or grow to what there is.

use oxalyst_topology::NumaMask;
use std::collections::BTreeMap;

/// How much larger than its containers' requests a pool bound to a NUMA node is made.
pub const BOUND_POOL_RATIO: f64 = 2.0;

/// CPUs for so many cores: cut to milli-CPUs, which takes off the noise of binary sums, and rounded up.
pub fn whole_cpus(cores: f64) -> usize {
    // The cast saturates: negative and not-a-number are 0.
    ((cores * 1000.0).trunc() / 1000.0).ceil() as usize
}

/// Whether so many available CPUs satisfy a request of so many cores, noise of binary sums allowed for.
pub fn suffices(available: f64, request: f64) -> bool {
    request < available + 0.0001
}

/// What one container adds to a pool.
#[derive(Clone, Debug, PartialEq)]
pub struct Demand {
    /// The pool.
    pub pool: String,
    /// The NUMA nodes it is bound to; `None` if it is not bound.
    pub nodes: Option<NumaMask>,
    /// Cores requested.
    pub cores: f64,
}

/// A pool with the NUMA node it is on (`None`: not bound) and its size in CPUs.
pub type PoolSizes = BTreeMap<String, (Option<u32>, usize)>;

/// Containers that cannot share a pool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolFault {
    /// A bound container on no node or on several.
    #[error("a container of pool {pool:?} is bound to the NUMA nodes {nodes:?}, it must be exactly one")]
    NotOneNode {
        /// The pool.
        pool: String,
        /// The nodes.
        nodes: NumaMask,
    },
    /// Containers of one pool on different nodes, or some bound and some not.
    #[error("pool {pool:?} cannot be on NUMA node {one:?} and on {other:?} (None: not bound)")]
    TwoPlaces {
        /// The pool.
        pool: String,
        /// Of the containers before.
        one: Option<u32>,
        /// Of this one.
        other: Option<u32>,
    },
}

/// How large each pool has to be for its containers.
///
/// # Errors
/// A bound container without exactly one node, or a pool in two places.
pub fn pool_sizes(demands: &[Demand]) -> Result<PoolSizes, PoolFault> {
    let mut sums: BTreeMap<&str, (Option<u32>, f64)> = BTreeMap::new();
    for Demand { pool, nodes, cores } in demands {
        let node = match nodes {
            None => None,
            Some(nodes) if nodes.len() == 1 => nodes.first(),
            Some(nodes) => return Err(PoolFault::NotOneNode { pool: pool.clone(), nodes: nodes.clone() }),
        };
        let (one, sum) = sums.entry(pool).or_insert((node, 0.0));
        if *one != node {
            return Err(PoolFault::TwoPlaces { pool: pool.clone(), one: *one, other: node });
        }
        *sum += if node.is_some() { cores * BOUND_POOL_RATIO } else { *cores };
    }
    Ok(sums.into_iter().map(|(pool, (node, cores))| (pool.to_owned(), (node, whole_cpus(cores)))).collect())
}

/// Pools made to fit what there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proportional {
    /// Each pool's size in CPUs, at least 1.
    pub sizes: BTreeMap<String, usize>,
    /// Their sum. If it is above what is available, there are more pools than CPUs, and every pool gets the whole set.
    pub total: usize,
}

/// Sizes in proportion to what the pools want that use up `available`, whether it is more or less. Each is rounded up first; what
/// is too much is then taken CPU by CPU, from the largest pool to the smallest, by name among equals, and round again.
pub fn proportional(wanted: &BTreeMap<String, usize>, available: usize) -> Proportional {
    let sum = wanted.values().copied().fold(0, usize::saturating_add);
    let size = |want: usize| want.saturating_mul(available).div_ceil(sum.max(1)).max(1);
    let mut sizes: Vec<(String, usize)> =
        wanted.iter().map(|(pool, want)| (pool.clone(), size(*want))).collect();
    let mut total: usize = sizes.iter().map(|(_, size)| size).sum();
    while total > available && sizes.iter().any(|(_, size)| *size > 1) {
        sizes.sort_by(|(name, size), (other_name, other)| other.cmp(size).then_with(|| name.cmp(other_name)));
        for (_, size) in sizes.iter_mut().filter(|(_, size)| *size > 1).take(total - available) {
            *size -= 1;
            total -= 1;
        }
    }
    Proportional { sizes: sizes.into_iter().collect(), total }
}
