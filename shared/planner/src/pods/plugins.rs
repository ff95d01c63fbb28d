//! What resource plugins say of a pod's containers, and what they gave them.

use super::Asked;
use crate::topology_manager::Provider;
use oxalyst_topology::NumaMask;
use std::collections::BTreeMap;

/// What plugins say and gave: fields of a request, since planning asks nobody.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plugins {
    /// Container → resource → where it could be given. Merged with its CPUs and its memory, at once.
    pub hints: BTreeMap<String, Provider>,
    /// What was given by the hints that came out of that; kept with the pod.
    pub given: Given,
}

/// Container → what plugins gave it, ascending by resource.
pub type Given = BTreeMap<String, Vec<PluginAllocation>>;

/// One resource that a plugin gave a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginAllocation {
    /// The resource.
    pub resource: String,
    /// The plugin, by the resource that it is registered for. One that differs from `resource` gave it in company.
    pub plugin: String,
    /// The nodes of the hint by which it was given; empty: any.
    pub nodes: NumaMask,
    /// The plugin's own words, as they were received. Nothing is planned by them.
    pub info: Vec<u8>,
}

// === impl Plugins ===

impl Plugins {
    /// What they say of this container; `None`: nothing.
    pub(super) fn of(&self, asked: &Asked) -> Option<&Provider> {
        self.hints.get(&asked.name)
    }

    /// What they say of these containers, each a voice of its own: of a whole pod that is placed at once.
    pub(super) fn of_all(&self, asked: &[Asked]) -> impl Iterator<Item = Provider> {
        asked.iter().filter_map(|asked| self.of(asked)).cloned()
    }
}
