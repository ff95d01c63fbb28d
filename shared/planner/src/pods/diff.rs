//! What differs between two states on one machine, at the cost of what differs.

use super::{Pod, State, placement::Seen, record};
use crate::{grouped::pairs, policy::ContainerId};
use oxalyst_qos::QosLevel;
use oxalyst_topology::Machine;
use std::{collections::BTreeSet, sync::Arc};

/// What differs.
pub(super) struct Diff {
    /// Pods that are known afterwards and whose record is another one.
    pub(super) recorded: BTreeSet<String>,
    /// Pods that are known before and not afterwards.
    pub(super) removed: BTreeSet<String>,
    /// Pods of which a container runs elsewhere, or is flagged otherwise. May lack those of `recorded`.
    pub(super) moved: BTreeSet<String>,
    /// Whether an entry of any container is another one.
    pub(super) entries: bool,
}

// === impl Diff ===

impl Diff {
    pub(super) fn between(before: &State, after: &State, machine: &Machine) -> Self {
        let mut diff = Self {
            recorded: BTreeSet::new(),
            removed: BTreeSet::new(),
            moved: BTreeSet::new(),
            entries: false,
        };
        for (uid, old, new) in pairs(&before.pods, &after.pods) {
            match new {
                None => drop(diff.removed.insert(uid.clone())),
                Some(new) if old != Some(new) => drop(diff.recorded.insert(uid.clone())),
                Some(_) => {}
            }
        }
        let mut candidates: BTreeSet<String> = BTreeSet::new();
        for (id, old, new) in pairs(&before.cpus.containers, &after.cpus.containers) {
            let (Some(old), Some(new)) = (old, new) else {
                diff.entries = true;
                diff.record(after, id);
                continue;
            };
            if old == new {
                continue;
            }
            diff.entries = true;
            if !record::same_cpu_entry(old, new) {
                diff.record(after, id);
            } else {
                let (was, is) = (&old.cpus & machine.online(), &new.cpus & machine.online());
                if was != is && !was.is_empty() && !is.is_empty() {
                    diff.moved.insert(id.pod.to_string());
                } else {
                    candidates.insert(id.pod.to_string());
                }
            }
        }
        for (id, old, new) in pairs(&before.memory.containers, &after.memory.containers) {
            match (old, new) {
                (Some(old), Some(new)) if record::same_memory_entry(old, new) => {
                    if old.mems != new.mems {
                        candidates.insert(id.pod.to_string());
                    }
                }
                _ => diff.record(after, id),
            }
        }
        let (old, new) = (Seen::of(before, machine), Seen::of(after, machine));
        if !old.is_same_ground(&new) {
            candidates.extend(
                after.pods.iter().filter(|(_, pod)| on_ground(after, pod)).map(|(uid, _)| uid.clone()),
            );
        }
        candidates.retain(|uid| !diff.recorded.contains(uid) && !diff.moved.contains(uid));
        for uid in candidates {
            let (was, is) = (before.pods.get(&uid), after.pods.get(&uid));
            if let (Some(was), Some(is)) = (was, is)
                && old.pod(was) != new.pod(is)
            {
                diff.moved.insert(uid);
            }
        }
        diff
    }

    fn record(&mut self, after: &State, id: &ContainerId) {
        if after.pods.contains_key(&*id.pod) {
            self.recorded.insert(id.pod.to_string());
        }
    }
}

/// Whether where the pod runs follows from more than its own entries: that of a node agent, of a system pod by the pools that
/// there are, of one whose CPUs are all offline, and whether a set is on reserved CPUs.
fn on_ground(state: &State, pod: &Arc<Pod>) -> bool {
    let main = ContainerId::new(pod.uid.as_str(), pod.main.as_str());
    let pooled = |qos| matches!(qos, QosLevel::Shared | QosLevel::Reclaimed);
    !state.cpus.containers.contains_key(&main)
        || !state.memory.containers.contains_key(&main)
        || state.cpus.of_pod(&pod.uid).any(|(_, entry)| !pooled(entry.qos) || entry.cpus.is_empty())
}
