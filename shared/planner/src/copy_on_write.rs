//! Maps that states share until one of them changes.

use std::{
    collections::BTreeMap,
    ops::{Deref, DerefMut},
    sync::Arc,
};

/// A value whose clones share it until one of them is changed, which then gets its own. Whoever may change it has to look first
/// whether there is anything to change: access for writing copies what is shared.
#[derive(Debug, Default, Eq)]
pub struct CopyOnWrite<T>(Arc<T>);

// === impl CopyOnWrite ===

impl<T> CopyOnWrite<T> {
    /// Whether both are one and the same value; false says nothing.
    pub fn is_shared_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<T> Clone for CopyOnWrite<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: PartialEq> PartialEq for CopyOnWrite<T> {
    fn eq(&self, other: &Self) -> bool {
        self.is_shared_with(other) || self.0 == other.0
    }
}

impl<T> Deref for CopyOnWrite<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Clone> DerefMut for CopyOnWrite<T> {
    fn deref_mut(&mut self) -> &mut T {
        Arc::make_mut(&mut self.0)
    }
}

impl<T> From<T> for CopyOnWrite<T> {
    fn from(value: T) -> Self {
        Self(Arc::new(value))
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for CopyOnWrite<BTreeMap<K, V>> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        Self::from(entries.into_iter().collect::<BTreeMap<K, V>>())
    }
}

impl<'a, K, V> IntoIterator for &'a CopyOnWrite<BTreeMap<K, V>> {
    type Item = (&'a K, &'a V);
    type IntoIter = std::collections::btree_map::Iter<'a, K, V>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// The entries of two maps side by side, ascending by key; none where both are one and the same.
pub(crate) fn pairs<'m, K: Ord, V>(
    old: &'m CopyOnWrite<BTreeMap<K, V>>,
    new: &'m CopyOnWrite<BTreeMap<K, V>>,
) -> impl Iterator<Item = (&'m K, Option<&'m V>, Option<&'m V>)> {
    let shared = old.is_shared_with(new);
    let all = if shared { 0 } else { usize::MAX };
    let (mut old, mut new) = (old.iter().take(all).peekable(), new.iter().take(all).peekable());
    std::iter::from_fn(move || {
        let order = match (old.peek(), new.peek()) {
            (None, None) => return None,
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some((a, _)), Some((b, _))) => a.cmp(b),
        };
        match order {
            std::cmp::Ordering::Less => old.next().map(|(key, value)| (key, Some(value), None)),
            std::cmp::Ordering::Greater => new.next().map(|(key, value)| (key, None, Some(value))),
            std::cmp::Ordering::Equal => {
                let (key, was) = old.next()?;
                let (_, is) = new.next()?;
                Some((key, Some(was), Some(is)))
            }
        }
    })
}

/// What makes the second map out of the first; `None`: is no more.
pub(crate) fn differing<K: Ord + Clone, V: PartialEq + Clone>(
    before: &CopyOnWrite<BTreeMap<K, V>>,
    after: &CopyOnWrite<BTreeMap<K, V>>,
) -> BTreeMap<K, Option<V>> {
    let differ = pairs(before, after).filter(|(_, old, new)| old != new);
    differ.map(|(key, _, new)| (key.clone(), new.cloned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clone_shares_until_one_of_both_is_changed() {
        let one: CopyOnWrite<BTreeMap<u8, u8>> = [(1, 2)].into_iter().collect();
        let mut other = one.clone();
        assert!(one.is_shared_with(&other));
        other.insert(3, 4);
        assert!(!one.is_shared_with(&other));
        assert_eq!((one.len(), other.len()), (1, 2));
        other.remove(&3);
        assert_eq!(one, other);
    }
}
