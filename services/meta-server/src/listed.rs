//! The newest list of pods, for any number of readers: as a whole, or what differs from the one that a reader had before.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arc_swap::ArcSwap;
use oxalyst_proto::meta::v1::{Pod, PodList, SourceAge};
use tokio::sync::watch;

/// A list of pods. What did not change from one list to the next is shared by both.
#[derive(Debug, Default)]
pub struct Listed {
    pods: Vec<Arc<Pod>>,
    sources: Vec<SourceAge>,
}

/// The newest list, for any number of readers.
#[derive(Debug, Clone)]
pub struct Published {
    list: Arc<ArcSwap<Listed>>,
    changes: Arc<watch::Sender<Arc<Listed>>>,
}

// === impl Listed ===

impl Listed {
    /// These pods; those that are as they were `before` are its own.
    fn after(before: &Self, pods: Vec<Pod>, sources: Vec<SourceAge>) -> Self {
        let mut known: BTreeMap<&str, &Arc<Pod>> = before.by_uid().collect();
        let shared = |pod: Pod| match known.remove(pod.uid.as_str()) {
            Some(same) if **same == pod => Arc::clone(same),
            _ => Arc::new(pod),
        };
        Self { pods: pods.into_iter().map(shared).collect(), sources }
    }

    /// All of it, as it is sent.
    pub fn whole(&self) -> PodList {
        PodList {
            pods: self.pods.iter().map(|pod| Pod::clone(pod)).collect(),
            sources: self.sources.clone(),
            ..PodList::default()
        }
    }

    /// What differs from the list before, as it is sent.
    pub fn since(&self, before: &Self) -> PodList {
        let known: BTreeMap<&str, &Arc<Pod>> = before.by_uid().collect();
        let differs = |pod: &&Arc<Pod>| !known.get(pod.uid.as_str()).is_some_and(|was| Arc::ptr_eq(was, pod));
        let here: BTreeSet<&str> = self.by_uid().map(|(uid, _)| uid).collect();
        PodList {
            pods: self.pods.iter().filter(differs).map(|pod| Pod::clone(pod)).collect(),
            sources: self.sources.clone(),
            changes_only: true,
            removed_pod_uids: known
                .keys()
                .filter(|uid| !here.contains(*uid))
                .map(|uid| (*uid).to_owned())
                .collect(),
        }
    }

    /// Whether a reader of the other need not be told this one: that a source was heard again is no change.
    fn says_the_same(&self, other: &Self) -> bool {
        let sources = |list: &Self| -> Vec<(bool, String)> {
            // A first, empty list still tells that its source was heard.
            list.sources.iter().map(|source| (source.heard_unix_ms == 0, source.error.clone())).collect()
        };
        self.pods.len() == other.pods.len()
            && self.pods.iter().zip(&other.pods).all(|(ours, theirs)| Arc::ptr_eq(ours, theirs))
            && sources(self) == sources(other)
    }

    fn by_uid(&self) -> impl Iterator<Item = (&str, &Arc<Pod>)> {
        self.pods.iter().map(|pod| (pod.uid.as_str(), pod))
    }
}

// === impl Published ===

impl Default for Published {
    fn default() -> Self {
        Self { list: Arc::default(), changes: Arc::new(watch::Sender::new(Arc::default())) }
    }
}

impl Published {
    /// The newest list.
    pub fn list(&self) -> Arc<Listed> {
        self.list.load_full()
    }

    /// Follows the list: each change of a pod, or of a source's state. That a source was heard again is no change.
    pub fn watch(&self) -> watch::Receiver<Arc<Listed>> {
        self.changes.subscribe()
    }

    /// Makes these the newest list. One writer is expected.
    pub fn publish(&self, pods: Vec<Pod>, sources: Vec<SourceAge>) {
        let list = Arc::new(Listed::after(&self.list.load(), pods, sources));
        self.list.store(Arc::clone(&list));
        self.changes.send_if_modified(|last| {
            let changed = !list.says_the_same(last);
            if changed {
                *last = list;
            }
            changed
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pod((uid, priority): (u8, i32)) -> Pod {
        Pod { uid: uid.to_string(), priority: Some(priority), ..Pod::default() }
    }

    fn source(heard_unix_ms: i64, error: &str) -> Vec<SourceAge> {
        vec![SourceAge { source: "runtime".into(), heard_unix_ms, error: error.into() }]
    }

    fn published(lists: &[&[(u8, i32)]]) -> Published {
        let published = Published::default();
        for list in lists {
            published.publish(list.iter().copied().map(pod).collect(), source(1, ""));
        }
        published
    }

    #[test]
    fn what_differs_is_what_is_new_changed_or_gone() {
        let published = published(&[&[(1, 0), (2, 0), (3, 0)]]);
        let before = published.list();
        published.publish([(1, 0), (2, 7), (4, 0)].map(pod).into(), source(9, ""));
        let told = published.list().since(&before);
        assert_eq!(told.pods, [(2, 7), (4, 0)].map(pod));
        assert_eq!((told.removed_pod_uids, told.changes_only), (vec!["3".to_owned()], true));
        assert_eq!(told.sources, source(9, ""));
        assert!(!published.list().whole().changes_only);
    }

    #[test]
    fn who_watches_hears_of_pods_and_of_a_sources_state_and_not_that_it_was_heard_again() {
        let published = published(&[&[(1, 0)]]);
        let mut watch = published.watch();
        let mut publish = |priority: i32, heard: i64, error: &str| {
            watch.mark_unchanged();
            published.publish(vec![pod((1, priority))], source(heard, error));
            watch.has_changed().unwrap()
        };
        assert!(!publish(0, 2, ""));
        assert!(publish(0, 2, "away"));
        assert!(publish(0, 3, ""));
        assert!(publish(1, 3, ""));
        assert!(publish(1, 0, ""), "never heard");
    }

    proptest! {
        #[test]
        fn a_reader_of_what_differs_knows_what_a_reader_of_whole_lists_does(
            lists in proptest::collection::vec(proptest::collection::btree_map(0u8..6, 0i32..3, 0..6), 1..8),
            skipped in proptest::collection::vec(any::<bool>(), 8),
        ) {
            let published = Published::default();
            let mut had = published.list();
            let mut known: BTreeMap<String, Pod> = BTreeMap::new();
            for (list, skipped) in lists.into_iter().zip(skipped) {
                published.publish(list.into_iter().map(pod).collect(), source(1, ""));
                if skipped {
                    continue;
                }
                let now = published.list();
                let told = now.since(&had);
                for uid in told.removed_pod_uids {
                    prop_assert!(known.remove(&uid).is_some());
                }
                known.extend(told.pods.into_iter().map(|pod| (pod.uid.clone(), pod)));
                prop_assert_eq!(known.values().cloned().collect::<Vec<_>>(), now.whole().pods);
                had = now;
            }
        }
    }
}
