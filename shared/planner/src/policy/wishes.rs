//! What a container wishes beyond its QoS level.

use super::{
    Kind, Refusal,
    state::{DEDICATED, INTERRUPT, ISOLATION, RECLAIM, RESERVE, node_of_pool},
};
use oxalyst_topology::{Machine, NumaMask};
use std::{collections::BTreeMap, sync::Arc};

/// The enhancements of a container by their short names (`numa_binding`, `cpuset_pool`, ...). Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wishes(Arc<BTreeMap<String, String>>);

/// Prefix that some keys carry in annotations.
const PREFIX: &str = "katalyst.kubewharf.io/";

/// Bytes of a pool's name.
const MAX_POOL_NAME: usize = 63;

// === impl Wishes ===

impl Wishes {
    /// The wish of this short name.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// All of them, ascending by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Whether the container is to be bound to NUMA nodes.
    pub fn numa_binding(&self) -> bool {
        self.is_true("numa_binding")
    }

    /// Whether the container wants its NUMA nodes for itself. Means nothing without binding.
    pub fn numa_exclusive(&self) -> bool {
        self.numa_binding() && self.is_true("numa_exclusive")
    }

    /// Whether the container wants no more sockets than it needs.
    pub fn align_by_socket(&self) -> bool {
        self.is_true("align_by_socket")
    }

    /// Whether every NUMA node is to give the same number of CPUs.
    pub fn distribute_evenly(&self) -> bool {
        self.is_true("distribute_evenly_across_numa")
    }

    /// Whether enough whole cores are to be free.
    pub fn full_pcpus_pairing(&self) -> bool {
        self.is_true("full_pcpus_pairing")
    }

    /// That an exclusive container wishes nothing of how its CPUs lie: it has all of its NUMA nodes.
    ///
    /// # Errors
    /// It does.
    pub(super) fn agree(&self) -> Result<(), Refusal> {
        if !self.numa_exclusive() || !(self.distribute_evenly() || self.full_pcpus_pairing()) {
            return Ok(());
        }
        Err(Refusal::invalid(
            "numa_exclusive takes all CPUs of its NUMA nodes: distribute_evenly_across_numa and full_pcpus_pairing contradict it",
        ))
    }

    /// Whether the container refuses neighbours of another level or pool on its NUMA node.
    pub fn is_anti_affine(&self) -> bool {
        self.get("numa_share") == Some("false")
    }

    /// The pool that the container names.
    pub fn cpuset_pool(&self) -> Option<&str> {
        self.get("cpuset_pool").filter(|name| !name.is_empty())
    }

    /// The pool that a shared container names, if it may be one of its own: letters, digits, '-', '_' and '.', at most 63 of them,
    /// and no name of a pool that the allocator makes itself.
    pub fn shared_pool(&self) -> Option<&str> {
        self.cpuset_pool().filter(|name| may_be_named(name))
    }

    /// The NUMA nodes that somebody chose for the container before.
    ///
    /// # Errors
    /// The text is no set of NUMA nodes.
    pub fn numa_bind_result(&self) -> Result<Option<NumaMask>, Refusal> {
        self.mask("numa_bind_result")
    }

    /// The NUMA nodes asked for by name.
    ///
    /// # Errors
    /// The text is no set of NUMA nodes, or names one that the machine does not have.
    pub fn numa_ids(&self, machine: &Machine) -> Result<Option<NumaMask>, Refusal> {
        let Some(ids) = self.mask("numa_ids")?.filter(|ids| !ids.is_empty()) else { return Ok(None) };
        let known: NumaMask = machine.nodes().iter().map(|node| node.id).collect();
        if ids.is_subset(&known) {
            return Ok(Some(ids));
        }
        Err(Refusal::new(
            Kind::Invalid,
            format!("numa_ids names {ids}, the machine has the NUMA nodes {known}"),
        ))
    }

    /// How many NUMA nodes are asked for: as many as `numa_ids` names, else `numa_number`; `None` where neither says.
    ///
    /// # Errors
    /// No number, or more than the machine has.
    pub fn numa_number(&self, machine: &Machine) -> Result<Option<usize>, Refusal> {
        if let Some(ids) = self.numa_ids(machine)? {
            return Ok(Some(ids.len()));
        }
        let Some(text) = self.get("numa_number").filter(|text| !text.is_empty()) else { return Ok(None) };
        let have = machine.nodes().len();
        match text.parse::<usize>() {
            Ok(0) => Ok(None),
            Ok(number) if number <= have => Ok(Some(number)),
            Ok(number) => Err(Refusal::new(
                Kind::Invalid,
                format!("numa_number asks for {number} NUMA nodes, the machine has {have}"),
            )),
            Err(_) => Err(Refusal::new(Kind::Invalid, format!("numa_number {text:?} is no number"))),
        }
    }

    fn mask(&self, key: &str) -> Result<Option<NumaMask>, Refusal> {
        let Some(text) = self.get(key) else { return Ok(None) };
        let parsed = text.parse::<NumaMask>();
        parsed.map(Some).map_err(|error| Refusal::new(Kind::Invalid, format!("{key}: {error}")))
    }

    fn is_true(&self, key: &str) -> bool {
        self.get(key) == Some("true")
    }
}

fn may_be_named(pool: &str) -> bool {
    let spelled = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let made = [RESERVE, RECLAIM, INTERRUPT, DEDICATED, "fallback", "system"].contains(&pool)
        || pool.starts_with(ISOLATION)
        || node_of_pool(pool).is_some();
    pool.len() <= MAX_POOL_NAME
        && pool.bytes().all(spelled)
        && pool.bytes().any(|byte| byte.is_ascii_alphanumeric())
        && !made
}

impl FromIterator<(String, String)> for Wishes {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(wishes: I) -> Self {
        let short = |key: String| key.strip_prefix(PREFIX).map(str::to_owned).unwrap_or(key);
        Self(Arc::new(wishes.into_iter().map(|(key, value)| (short(key), value)).collect()))
    }
}
