//! A map whose copies share what they have in common: each hook replaces the snapshot, and on a large node that must not cost
//! what all pods do.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

/// Parts, of which a change copies one.
const PARTS: usize = 64;

/// By uid. A copy costs a counter a part, a change of a shared one the entries of a part.
#[derive(Clone, Debug)]
pub(super) struct SharedMap<V> {
    parts: Vec<Arc<BTreeMap<Arc<str>, V>>>,
}

// === impl SharedMap ===

impl<V> Default for SharedMap<V> {
    fn default() -> Self {
        Self { parts: (0..PARTS).map(|_| Arc::default()).collect() }
    }
}

impl<V: Clone> SharedMap<V> {
    pub(super) fn get(&self, uid: &str) -> Option<&V> {
        self.parts.get(part(uid))?.get(uid)
    }

    pub(super) fn insert(&mut self, uid: &str, value: V) {
        if let Some(part) = self.parts.get_mut(part(uid)) {
            Arc::make_mut(part).insert(uid.into(), value);
        }
    }

    pub(super) fn remove(&mut self, uid: &str) {
        if let Some(part) = self.parts.get_mut(part(uid)) {
            Arc::make_mut(part).remove(uid);
        }
    }

    pub(super) fn retain(&mut self, keep: impl Fn(&V) -> bool) {
        for part in &mut self.parts {
            if part.values().any(|value| !keep(value)) {
                Arc::make_mut(part).retain(|_, value| keep(value));
            }
        }
    }

    /// In no order that means anything.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &V)> {
        self.parts.iter().flat_map(|part| part.iter())
    }
}

fn part(uid: &str) -> usize {
    // The same in every process: nothing here is to depend on chance.
    let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(uid);
    usize::try_from(hash % PARTS as u64).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_change_of_a_copy_leaves_the_other_as_it_is_and_shares_the_rest() {
        let mut one = SharedMap::default();
        for n in 0..500 {
            one.insert(&n.to_string(), n);
        }
        let mut other = one.clone();
        other.insert("7", 0);
        other.remove("8");
        assert_eq!([one.get("7"), one.get("8")], [Some(&7), Some(&8)]);
        assert_eq!([other.get("7"), other.get("8")], [Some(&0), None]);
        let shared = one.parts.iter().zip(&other.parts).filter(|(a, b)| Arc::ptr_eq(a, b)).count();
        assert!(shared >= PARTS - 2, "{shared}");
    }

    proptest! {
        #[test]
        fn it_holds_what_a_plain_map_does(
            steps in proptest::collection::vec((0u8..40, any::<Option<u8>>()), 0..200),
            least in any::<u8>(),
        ) {
            let (mut ours, mut plain) = (SharedMap::default(), BTreeMap::new());
            for (key, value) in steps {
                let key = key.to_string();
                match value {
                    Some(value) => {
                        ours.insert(&key, value);
                        plain.insert(key, value);
                    }
                    None => {
                        ours.remove(&key);
                        plain.remove(&key);
                    }
                }
            }
            ours.retain(|value| *value >= least);
            plain.retain(|_, value| *value >= least);
            let held: BTreeMap<_, _> = ours.iter().map(|(key, value)| (key.to_string(), *value)).collect();
            prop_assert_eq!(&held, &plain);
            prop_assert!(plain.iter().all(|(key, value)| ours.get(key) == Some(value)));
        }
    }
}
