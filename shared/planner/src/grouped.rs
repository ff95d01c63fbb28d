//! Ordered maps that are cheap to copy and know which of their values are alike.
//!
//! A node holds many containers of few kinds: a thousand in one pool have the same CPUs. What follows from all of them is made from
//! the kinds. Entries lie in chunks, which states share until one of them changes; what is alike within a chunk is found when
//! somebody asks, and holds for as long as the chunk does, so that nothing has to be kept in step.

use std::{
    borrow::Borrow,
    cmp::Ordering,
    collections::BTreeMap,
    fmt,
    sync::{Arc, OnceLock},
};

/// Entries of a chunk at the most: what a change copies.
const CHUNK: usize = 64;

/// What makes values alike.
pub trait Alike {
    /// Whether both are the same in all that [`Grouped::groups`] are asked for.
    fn is_like(&self, other: &Self) -> bool;

    /// What is added up over those that are alike, though it differs among them.
    fn amount(&self) -> u64 {
        0
    }
}

/// Values of a chunk that are alike.
#[derive(Debug)]
pub struct Group<V> {
    /// One of them.
    pub example: Arc<V>,
    /// How many they are.
    pub count: usize,
    /// Their amounts together.
    pub amount: u128,
}

/// A map whose clones share it, chunk by chunk, until one of them is changed.
pub struct Grouped<K, V> {
    /// Ascending, none of them empty.
    chunks: Arc<Vec<Arc<Chunk<K, V>>>>,
}

struct Chunk<K, V> {
    /// Ascending by key.
    entries: Vec<(K, Arc<V>)>,
    groups: OnceLock<Vec<Group<V>>>,
}

/// Entries of a map, ascending by key.
pub struct Entries<'m, K, V> {
    chunks: &'m [Arc<Chunk<K, V>>],
    /// In the first of them.
    at: usize,
}

// === impl Chunk ===

impl<K, V> Chunk<K, V> {
    fn new(entries: Vec<(K, Arc<V>)>) -> Self {
        Self { entries, groups: OnceLock::new() }
    }

    fn begins_after<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.entries.first().is_some_and(|(first, _)| first.borrow() > key)
    }

    fn position<Q: Ord + ?Sized>(&self, key: &Q) -> Result<usize, usize>
    where
        K: Borrow<Q>,
    {
        self.entries.binary_search_by(|(known, _)| known.borrow().cmp(key))
    }
}

impl<K, V: Alike> Chunk<K, V> {
    fn groups(&self) -> &[Group<V>] {
        self.groups.get_or_init(|| {
            let mut groups: Vec<Group<V>> = Vec::new();
            for (_, value) in &self.entries {
                match groups.iter_mut().find(|group| group.example.is_like(value)) {
                    Some(group) => {
                        group.count += 1;
                        group.amount += u128::from(value.amount());
                    }
                    None => {
                        groups.push(Group {
                            example: Arc::clone(value),
                            count: 1,
                            amount: value.amount().into(),
                        });
                    }
                }
            }
            groups
        })
    }
}

impl<K, V: Alike> Chunk<K, V> {
    /// Whether this is true for a value; it must be the same for all that are alike.
    fn has(&self, which: impl Fn(&V) -> bool) -> bool {
        let some = self.groups().iter().any(|group| which(&group.example));
        debug_assert_eq!(
            some,
            self.entries.iter().any(|(_, value)| which(value)),
            "those that are alike differ"
        );
        some
    }
}

impl<K: Clone, V> Clone for Chunk<K, V> {
    fn clone(&self) -> Self {
        Self::new(self.entries.clone())
    }
}

// === impl Grouped ===

impl<K, V> Grouped<K, V> {
    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.entries.len()).sum()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Whether both are one and the same; false says nothing.
    pub fn is_shared_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.chunks, &other.chunks)
    }

    /// All entries, ascending by key.
    pub fn iter(&self) -> Entries<'_, K, V> {
        Entries { chunks: &self.chunks, at: 0 }
    }

    /// All keys, ascending.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }

    /// All values, ascending by key.
    pub fn values(&self) -> impl Iterator<Item = &Arc<V>> {
        self.iter().map(|(_, value)| value)
    }

    /// Whether there is an entry for the key.
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.get(key).is_some()
    }

    /// The value of the key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&Arc<V>>
    where
        K: Borrow<Q>,
    {
        let chunk = self.chunks.get(self.chunk_of(key))?;
        chunk.entries.get(chunk.position(key).ok()?).map(|(_, value)| value)
    }

    /// The entries from this key on, ascending.
    pub fn from<Q: Ord + ?Sized>(&self, key: &Q) -> Entries<'_, K, V>
    where
        K: Borrow<Q>,
    {
        let chunks = self.chunks.get(self.chunk_of(key)..).unwrap_or_default();
        let at = chunks.first().map_or(0, |chunk| chunk.position(key).unwrap_or_else(|place| place));
        Entries { chunks, at }.or_next_chunk()
    }

    /// The chunk in which the key is if it is anywhere.
    fn chunk_of<Q: Ord + ?Sized>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
    {
        self.chunks.partition_point(|chunk| !chunk.begins_after(key)).saturating_sub(1)
    }
}

impl<K: Clone, V> Grouped<K, V> {
    /// Its chunk, to be changed.
    fn chunk_mut(&mut self, at: usize) -> Option<&mut Chunk<K, V>> {
        let chunk = Arc::make_mut(Arc::make_mut(&mut self.chunks).get_mut(at)?);
        chunk.groups.take();
        Some(chunk)
    }

    /// The value of the key, to be changed.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut Arc<V>>
    where
        K: Borrow<Q>,
    {
        let at = self.chunk_of(key);
        let place = self.chunks.get(at)?.position(key).ok()?;
        self.chunk_mut(at)?.entries.get_mut(place).map(|(_, value)| value)
    }

    /// Takes the entry out.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<Arc<V>>
    where
        K: Borrow<Q>,
    {
        let at = self.chunk_of(key);
        let place = self.chunks.get(at)?.position(key).ok()?;
        let (_, value) = self.chunk_mut(at)?.entries.remove(place);
        self.merge(at.saturating_sub(1));
        self.merge(at);
        Some(value)
    }

    /// Makes one of this chunk and the next if they are small, so that there are never many chunks of few entries.
    fn merge(&mut self, at: usize) {
        let len = |at: usize| self.chunks.get(at).map(|chunk| chunk.entries.len());
        let small = match (len(at), len(at + 1)) {
            (Some(one), Some(other)) => one + other <= CHUNK / 2 || one == 0 || other == 0,
            (Some(0), None) => true,
            _ => false,
        };
        if !small {
            return;
        }
        let chunks = Arc::make_mut(&mut self.chunks);
        let next = if at + 1 < chunks.len() { Some(chunks.remove(at + 1)) } else { None };
        if let (Some(next), Some(chunk)) = (&next, self.chunk_mut(at)) {
            chunk.entries.extend(next.entries.iter().cloned());
        }
        if next.is_none() {
            Arc::make_mut(&mut self.chunks).truncate(at);
        }
    }
}

impl<K: Clone + Ord, V> Grouped<K, V> {
    /// Puts the entry in, and gives back what was there for its key.
    pub fn insert(&mut self, key: K, value: Arc<V>) -> Option<Arc<V>> {
        let at = self.chunk_of(&key);
        let Some(chunk) = self.chunk_mut(at) else {
            Arc::make_mut(&mut self.chunks).push(Arc::new(Chunk::new(vec![(key, value)])));
            return None;
        };
        match chunk.position(&key) {
            Ok(place) => chunk.entries.get_mut(place).map(|(_, known)| std::mem::replace(known, value)),
            Err(place) => {
                chunk.entries.insert(place, (key, value));
                if chunk.entries.len() > CHUNK {
                    // Keys that ascend fill chunks.
                    let half = if place == CHUNK { CHUNK } else { CHUNK / 2 };
                    let rest = chunk.entries.split_off(half);
                    Arc::make_mut(&mut self.chunks).insert(at + 1, Arc::new(Chunk::new(rest)));
                }
                None
            }
        }
    }

    /// What makes this map out of `before`; `None`: is no more.
    pub fn changes_since(&self, before: &Self) -> BTreeMap<K, Option<Arc<V>>>
    where
        V: PartialEq,
    {
        let differ = pairs(before, self).filter(|(_, old, new)| !is_same(*old, *new));
        differ.map(|(key, _, new)| (key.clone(), new.cloned())).collect()
    }
}

impl<K, V: Alike> Grouped<K, V> {
    /// Which values there are that are alike. The same ones may come in several groups, of several chunks.
    pub fn groups(&self) -> impl Iterator<Item = &Group<V>> {
        self.chunks.iter().flat_map(|chunk| chunk.groups())
    }

    /// One value of each group.
    pub fn kinds(&self) -> impl Iterator<Item = &V> {
        self.groups().map(|group| &*group.example)
    }

    /// The entries for whose values this is true, which must be the same for all that are alike.
    pub fn of_kind(&self, which: impl Fn(&V) -> bool) -> impl Iterator<Item = (&K, &V)> {
        let mut chunks = self.chunks.iter();
        let mut entries = [].iter();
        std::iter::from_fn(move || {
            loop {
                if let Some((key, value)) = entries.find(|(_, value): &&(K, Arc<V>)| which(value)) {
                    return Some((key, &**value));
                }
                let has = |chunk: &&Arc<Chunk<K, V>>| chunk.has(&which);
                entries = chunks.find(has)?.entries.iter();
            }
        })
    }

    /// Changes the values to which something new comes, which must be the same for all that are alike.
    pub fn update<T>(&mut self, new: impl Fn(&V) -> Option<T>, change: impl Fn(&mut V, T))
    where
        K: Clone,
        V: Clone,
    {
        for at in 0..self.chunks.len() {
            let has = |chunk: &Arc<Chunk<K, V>>| chunk.has(|value| new(value).is_some());
            if !self.chunks.get(at).is_some_and(has) {
                continue;
            }
            let entries = self.chunk_mut(at).into_iter().flat_map(|chunk| &mut chunk.entries);
            for (_, value) in entries {
                if let Some(now) = new(value) {
                    change(Arc::make_mut(value), now);
                }
            }
        }
    }
}

impl<K, V> Clone for Grouped<K, V> {
    fn clone(&self) -> Self {
        Self { chunks: Arc::clone(&self.chunks) }
    }
}

impl<K, V> Default for Grouped<K, V> {
    fn default() -> Self {
        Self { chunks: Arc::default() }
    }
}

impl<'m, K, V> IntoIterator for &'m Grouped<K, V> {
    type Item = (&'m K, &'m Arc<V>);
    type IntoIter = Entries<'m, K, V>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for Grouped<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<K: Ord, V: PartialEq> PartialEq for Grouped<K, V> {
    fn eq(&self, other: &Self) -> bool {
        pairs(self, other).all(|(_, one, other)| is_same(one, other))
    }
}

impl<K: Ord, V: Eq> Eq for Grouped<K, V> {}

impl<K: Clone + Ord, V> Extend<(K, Arc<V>)> for Grouped<K, V> {
    fn extend<I: IntoIterator<Item = (K, Arc<V>)>>(&mut self, entries: I) {
        for (key, value) in entries {
            self.insert(key, value);
        }
    }
}

impl<K: Clone + Ord, V> FromIterator<(K, Arc<V>)> for Grouped<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, Arc<V>)>>(entries: I) -> Self {
        let mut map = Self::default();
        map.extend(entries);
        map
    }
}

fn is_same<V: PartialEq>(one: Option<&Arc<V>>, other: Option<&Arc<V>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other) || one == other,
        (one, other) => one.is_none() && other.is_none(),
    }
}

/// The entries of two maps side by side, ascending by key, those of chunks that both share left out.
pub(crate) fn pairs<'m, K: Ord, V>(
    old: &'m Grouped<K, V>,
    new: &'m Grouped<K, V>,
) -> impl Iterator<Item = (&'m K, Option<&'m Arc<V>>, Option<&'m Arc<V>>)> {
    let (mut old, mut new) = (old.iter(), new.iter());
    std::iter::from_fn(move || {
        while let (Some(one), Some(other)) = (old.whole(), new.whole())
            && Arc::ptr_eq(one, other)
        {
            old.pass();
            new.pass();
        }
        let order = match (old.peek(), new.peek()) {
            (None, None) => return None,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some((one, _)), Some((other, _))) => one.cmp(other),
        };
        let was = if order.is_le() { old.next() } else { None };
        let is = if order.is_ge() { new.next() } else { None };
        let (key, _) = was.or(is)?;
        Some((key, was.map(|(_, was)| was), is.map(|(_, is)| is)))
    })
}

// === impl Entries ===

impl<'m, K, V> Entries<'m, K, V> {
    fn peek(&self) -> Option<&'m (K, Arc<V>)> {
        self.chunks.first()?.entries.get(self.at)
    }

    /// The chunk at whose beginning it is.
    fn whole(&self) -> Option<&'m Arc<Chunk<K, V>>> {
        self.chunks.first().filter(|_| self.at == 0)
    }

    /// Goes on to the next chunk.
    fn pass(&mut self) {
        self.chunks = self.chunks.get(1..).unwrap_or_default();
        self.at = 0;
    }

    /// The same place, at the beginning of the next chunk where it is past the end of one.
    fn or_next_chunk(mut self) -> Self {
        if self.peek().is_none() {
            self.pass();
        }
        self
    }
}

impl<'m, K, V> Iterator for Entries<'m, K, V> {
    type Item = (&'m K, &'m Arc<V>);

    fn next(&mut self) -> Option<Self::Item> {
        let (key, value) = self.peek()?;
        self.at += 1;
        if self.peek().is_none() {
            self.pass();
        }
        Some((key, value))
    }
}

/// The sum, or the highest number that can be told.
pub(crate) fn at_most(sum: u128) -> u64 {
    u64::try_from(sum).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
