//! What planning says.

use super::{Pod, State, placement};
use crate::policy::Remembered;
use oxalyst_topology::{CpuSet, Machine};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// A change of the state, to be made durable as a whole before anyone is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a plan changes nothing by itself"]
pub struct Plan {
    /// The state once the plan holds.
    pub after: State,
    /// Pods whose record changes; `None`: the pod is no more.
    pub pods: BTreeMap<String, Option<Arc<Pod>>>,
    /// The whole memory of pods that had NUMA nodes for themselves, where it changes.
    pub remembered: Option<Vec<Remembered>>,
    /// The pools, where they change.
    pub pools: Option<BTreeMap<String, CpuSet>>,
    /// Pods of which a container runs elsewhere afterwards, or whose record changes; removed pods are not among them.
    pub affected: BTreeSet<String>,
}

// === impl Plan ===

impl Plan {
    pub(super) fn between(before: &State, after: State, machine: &Machine) -> Self {
        let mut pods = BTreeMap::new();
        for uid in before.pods.keys().filter(|uid| !after.pods.contains_key(*uid)) {
            pods.insert(uid.clone(), None);
        }
        for (uid, pod) in &after.pods {
            if before.pods.get(uid) != Some(pod) || super::record::differs(before, &after, uid) {
                pods.insert(uid.clone(), Some(Arc::clone(pod)));
            }
        }
        let (old, new) = (placement::placements(before, machine), placement::placements(&after, machine));
        let moved = new.into_iter().filter(|(uid, placement)| old.get(uid) != Some(placement));
        let changed = pods.iter().filter(|(_, pod)| pod.is_some()).map(|(uid, _)| uid.clone());
        let affected = moved.map(|(uid, _)| uid).chain(changed).collect();
        let remembered = &after.cpus.remembered;
        Self {
            remembered: (before.cpus.remembered != *remembered).then(|| remembered.clone()),
            pools: (before.cpus.pools != after.cpus.pools).then(|| after.cpus.pools.clone()),
            affected,
            pods,
            after,
        }
    }

    /// Whether no record changes.
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty() && self.remembered.is_none() && self.pools.is_none()
    }
}
