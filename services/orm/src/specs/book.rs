//! The newest specs, for any number of readers.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use oxalyst_proto::meta::v1::PodList;

use super::PodSpec;
use crate::uid;

/// Specs by pod uid: an immutable snapshot, replaced as a whole. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Specs {
    by_uid: Arc<ArcSwap<BTreeMap<String, Arc<PodSpec>>>>,
}

/// A pod whose spec is new or another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecChange {
    /// As it was told before; `None`: it is new.
    pub before: Option<Arc<PodSpec>>,
    /// As it is told now.
    pub after: Arc<PodSpec>,
}

// === impl Specs ===

impl Specs {
    /// The spec of a pod, where it is known.
    pub fn get(&self, uid: &str) -> Option<Arc<PodSpec>> {
        self.by_uid.load().get(uid).cloned()
    }

    /// How many are known.
    pub fn len(&self) -> usize {
        self.by_uid.load().len()
    }

    /// Whether none is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes up a list, whole or of what differs; gives what is new or changed in it, ascending by uid. One writer is expected.
    pub fn take_up(&self, list: &PodList) -> Vec<SpecChange> {
        let known = self.by_uid.load_full();
        let mut next = if list.changes_only { BTreeMap::clone(&known) } else { BTreeMap::new() };
        let mut changes = Vec::new();
        for uid in &list.removed_pod_uids {
            next.remove(uid);
        }
        for pod in &list.pods {
            let Some(spec) = PodSpec::told(pod) else {
                next.remove(&pod.uid);
                continue;
            };
            if let Err(fault) = uid::check(&spec.uid) {
                let (namespace, name) = (&spec.namespace, &spec.name);
                tracing::warn!(namespace, name, %fault, "the pod's spec is passed over");
                continue;
            }
            let before = known.get(&spec.uid);
            let spec = match before {
                Some(same) if **same == spec => Arc::clone(same),
                _ => {
                    let after = Arc::new(spec);
                    changes.push(SpecChange { before: before.cloned(), after: Arc::clone(&after) });
                    after
                }
            };
            next.insert(spec.uid.clone(), spec);
        }
        if !changes.is_empty() || next.len() != known.len() {
            self.by_uid.store(Arc::new(next));
        }
        changes.sort_by(|a, b| a.after.uid.cmp(&b.after.uid));
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxalyst_proto::meta::v1::Pod;

    fn list(pods: &[(&str, i32)]) -> PodList {
        let pod = |(uid, priority): &(&str, i32)| Pod {
            uid: (*uid).into(),
            priority: Some(*priority),
            told_by: vec!["kubelet".into()],
            ..Pod::default()
        };
        PodList { pods: pods.iter().map(pod).collect(), ..PodList::default() }
    }

    fn words(changes: &[SpecChange]) -> Vec<(&str, bool)> {
        changes.iter().map(|change| (change.after.uid.as_str(), change.before.is_some())).collect()
    }

    #[test]
    fn only_what_is_new_or_another_is_a_change() {
        let specs = Specs::default();
        assert_eq!(words(&specs.take_up(&list(&[("b", 1), ("a", 1)]))), [("a", false), ("b", false)]);
        assert_eq!(words(&specs.take_up(&list(&[("a", 1), ("b", 2)]))), [("b", true)]);
        assert_eq!(specs.take_up(&list(&[("a", 1), ("b", 2)])), []);
        assert_eq!(specs.get("b").unwrap().priority, Some(2));
    }

    #[test]
    fn a_list_of_what_differs_leaves_all_others_as_they_are() {
        let specs = Specs::default();
        let _ = specs.take_up(&list(&[("a", 1), ("b", 1), ("c", 1), ("d", 1)]));
        let mut differs = list(&[("b", 2), ("e", 1), ("d", 1)]);
        differs.changes_only = true;
        differs.removed_pod_uids = vec!["c".into()];
        // The kubelet does not list it any more: what only the runtime tells is no spec.
        differs.pods[2].told_by = vec!["runtime".into()];
        assert_eq!(words(&specs.take_up(&differs)), [("b", true), ("e", false)]);
        assert_eq!(specs.by_uid.load().keys().collect::<Vec<_>>(), ["a", "b", "e"]);
    }

    #[test]
    fn a_pod_that_is_not_listed_any_more_is_forgotten() {
        let specs = Specs::default();
        let _ = specs.take_up(&list(&[("a", 1)]));
        assert_eq!(specs.take_up(&list(&[])), []);
        assert!(specs.is_empty());
        assert_eq!(words(&specs.take_up(&list(&[("a", 1)]))), [("a", false)]);
    }
}
