//! What the operator, or an advisor, has set.

use oxalyst_units::MilliCpu;
use std::collections::BTreeMap;

/// The policy's configuration and the advice that it plans with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// How bound shared pods choose among the NUMA nodes that have room.
    pub preference: Preference,
    /// Whether CPUs that shared pools do not need are kept for reclaimed pods; else shared pools get them.
    pub enable_reclaim: bool,
    /// Whether a pool in which a container runs has at least one CPU even if nothing is asked for there, and whether shared pools
    /// get all that they do not need as long as there is no reclaimed container. False is what the reference does.
    pub serve_all: bool,
    /// Whether shared and reclaimed pods may run on the same CPUs.
    pub overlap: bool,
    /// Whether reclaimed pods that ask for it are bound to a NUMA node.
    pub reclaim_numa_binding: bool,
    /// CPUs a NUMA node that reclaimed pods may use, by advice. Without an entry there are none.
    pub numa_headroom: BTreeMap<u32, MilliCpu>,
    /// Whether a choice of NUMA nodes made before (`numa_bind_result`) is preferred to all others.
    pub prefer_existing_numa: bool,
    /// Whether NUMA nodes of a high id come first for bound shared pods.
    pub high_numa_first: bool,
    /// What shared pods may ask for beyond the CPUs that are there for them: the part of the last reserved CPU that is not
    /// reserved, where an amount is that is no whole number of CPUs. 0 to 999.
    pub reserved_spare: MilliCpu,
}

/// Which of the NUMA nodes with room is preferred.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Preference {
    /// Where most is left afterwards.
    #[default]
    Spreading,
    /// Where least is left afterwards.
    Packing,
    /// Packing among the nodes of which at least this share (0 to 1) is left afterwards, spreading if there are none.
    DynamicPacking {
        /// The share.
        threshold: f64,
    },
}

// A threshold is configuration: never NaN.
impl Eq for Preference {}
