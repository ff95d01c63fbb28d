//! What planning says.

use super::{Pod, State, diff::Diff};
use crate::policy::Remembered;
use oxalyst_topology::Machine;
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
    /// Whether pools, or the CPUs of anybody, are others afterwards.
    pub moved: bool,
    /// Pods of which a container runs elsewhere afterwards, or whose record changes; removed pods are not among them.
    pub affected: BTreeSet<String>,
}

// === impl Plan ===

impl Plan {
    pub(super) fn between(before: &State, after: State, machine: &Machine) -> Self {
        let diff = Diff::between(before, &after, machine);
        let mut pods: BTreeMap<_, _> = diff.removed.into_iter().map(|uid| (uid, None)).collect();
        for uid in &diff.recorded {
            pods.insert(uid.clone(), after.pods.get(uid).cloned());
        }
        let remembered = &after.cpus.remembered;
        let mut affected = diff.moved;
        affected.extend(diff.recorded);
        Self {
            remembered: (before.cpus.remembered != *remembered).then(|| remembered.clone()),
            moved: diff.entries || before.cpus.pools != after.cpus.pools,
            affected,
            pods,
            after,
        }
    }

    /// Pods that are no more.
    pub fn removed(&self) -> impl Iterator<Item = &String> {
        self.pods.iter().filter(|(_, pod)| pod.is_none()).map(|(uid, _)| uid)
    }

    /// Whether this plan frees the pod of this uid.
    pub fn removes(&self, uid: &str) -> bool {
        self.pods.get(uid).is_some_and(Option::is_none)
    }

    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty() && self.remembered.is_none() && !self.moved && self.affected.is_empty()
    }
}
