//! Growable bit sets of small ids, printed and read in the Linux list format.

use std::{cmp, fmt, hash, marker::PhantomData, ops, str::FromStr};

/// What the ids of a set name: keeps CPUs and NUMA nodes apart.
pub trait IdKind: Copy {
    /// The field's name for one of them, for error messages.
    const NAME: &'static str;
    /// Ids that text may name lie below this (the kernel's own bound for the largest configurations).
    const LIMIT: u32;
}

/// Ids are logical CPUs.
#[derive(Clone, Copy, Debug)]
pub enum Cpus {}

/// Ids are NUMA nodes.
#[derive(Clone, Copy, Debug)]
pub enum NumaNodes {}

/// A set of logical CPUs.
pub type CpuSet = IdSet<Cpus>;

/// A set of NUMA nodes.
pub type NumaMask = IdSet<NumaNodes>;

/// A set of small ids. Iterates ascending, orders by its ascending ids, prints as `0-3,8` and the empty set as nothing.
///
/// Memory grows with the highest id: ids come from text, which is bounded by [`IdKind::LIMIT`], or from a checked machine.
pub struct IdSet<K> {
    // No trailing zero word: equal sets have equal words.
    words: Vec<u64>,
    kind: PhantomData<K>,
}

/// Text that is not a set in the Linux list format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{input:?} is not a list of {kind}s such as \"0-3,8\": {fault}")]
pub struct ParseSetError {
    /// What was to be listed: "CPU" or "NUMA node".
    pub kind: &'static str,
    /// The text, cut to its first 80 characters.
    pub input: String,
    /// What is wrong with it.
    pub fault: ParseFault,
}

/// What is wrong with a list of ids.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseFault {
    /// An element that is no decimal number and no range of two.
    #[error("element {0:?} is neither a number nor a range")]
    NotANumber(String),
    /// A range whose end lies before its start.
    #[error("the range {0}-{1} runs backwards")]
    Backwards(u32, u32),
    /// An id at or above the limit.
    #[error("element {element:?} passes the highest id, {}", .limit - 1)]
    BeyondLimit {
        /// The element, cut to its first 80 characters.
        element: String,
        /// First id that is not accepted.
        limit: u32,
    },
}

const EXCERPT: usize = 80;

// === impl IdKind ===

impl IdKind for Cpus {
    const NAME: &'static str = "CPU";
    const LIMIT: u32 = 8192;
}

impl IdKind for NumaNodes {
    const NAME: &'static str = "NUMA node";
    const LIMIT: u32 = 1024;
}

// === impl IdSet ===

const fn split(id: u32) -> (usize, u64) {
    ((id / 64) as usize, 1 << (id % 64))
}

impl<K> IdSet<K> {
    /// The empty set.
    pub const fn new() -> Self {
        Self { words: Vec::new(), kind: PhantomData }
    }

    /// The set of one id.
    pub fn only(id: u32) -> Self {
        Self::from_iter([id])
    }

    /// Adds an id; false if it was in already.
    pub fn insert(&mut self, id: u32) -> bool {
        let (index, bit) = split(id);
        if self.words.len() <= index {
            self.words.resize(index + 1, 0);
        }
        let Some(word) = self.words.get_mut(index) else { return false };
        let added = *word & bit == 0;
        *word |= bit;
        added
    }

    /// Takes an id out; false if it was not in.
    pub fn remove(&mut self, id: u32) -> bool {
        let (index, bit) = split(id);
        let Some(word) = self.words.get_mut(index) else { return false };
        let removed = *word & bit != 0;
        *word &= !bit;
        self.normalise();
        removed
    }

    /// Whether an id is in.
    pub fn contains(&self, id: u32) -> bool {
        let (index, bit) = split(id);
        self.words.get(index).is_some_and(|word| word & bit != 0)
    }

    /// Number of ids.
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether there is no id.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The ids, ascending.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = u32> + '_ {
        self.words
            .iter()
            .enumerate()
            .flat_map(|(index, &word)| Bits(word).map(move |bit| index as u32 * 64 + bit))
    }

    /// The lowest id.
    pub fn first(&self) -> Option<u32> {
        self.iter().next()
    }

    /// The highest id.
    pub fn last(&self) -> Option<u32> {
        self.iter().next_back()
    }

    /// The set as bits: bit `i` of word `w` stands for the id `64 * w + i`. No trailing word is zero.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Whether every id of this set is in the other.
    pub fn is_subset(&self, of: &Self) -> bool {
        self.words.len() <= of.words.len() && self.words.iter().zip(&of.words).all(|(a, b)| a & !b == 0)
    }

    /// Whether no id is in both.
    pub fn is_disjoint(&self, other: &Self) -> bool {
        self.words.iter().zip(&other.words).all(|(a, b)| a & b == 0)
    }

    fn normalise(&mut self) {
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
    }
}

/// The places of the bits of a word, ascending.
struct Bits(u64);

impl Iterator for Bits {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let bit = self.0.trailing_zeros();
        self.0 &= self.0.wrapping_sub(1);
        (bit < u64::BITS).then_some(bit)
    }
}

impl DoubleEndedIterator for Bits {
    fn next_back(&mut self) -> Option<u32> {
        let bit = self.0.checked_ilog2()?;
        self.0 ^= 1 << bit;
        Some(bit)
    }
}

impl<K> ops::BitOrAssign<&IdSet<K>> for IdSet<K> {
    fn bitor_assign(&mut self, other: &IdSet<K>) {
        if self.words.len() < other.words.len() {
            self.words.resize(other.words.len(), 0);
        }
        for (a, b) in self.words.iter_mut().zip(&other.words) {
            *a |= b;
        }
    }
}

impl<K> ops::BitAndAssign<&IdSet<K>> for IdSet<K> {
    fn bitand_assign(&mut self, other: &IdSet<K>) {
        self.words.truncate(other.words.len());
        for (a, b) in self.words.iter_mut().zip(&other.words) {
            *a &= b;
        }
        self.normalise();
    }
}

impl<K> ops::SubAssign<&IdSet<K>> for IdSet<K> {
    fn sub_assign(&mut self, other: &IdSet<K>) {
        for (a, b) in self.words.iter_mut().zip(&other.words) {
            *a &= !b;
        }
        self.normalise();
    }
}

// `&a | &b`, and `a | &b` which reuses the left side's memory; the same for `&` (intersection) and `-` (difference).
macro_rules! by_assigning {
    ($($trait:ident $method:ident $assign:path;)*) => {$(
        impl<K> ops::$trait<&IdSet<K>> for IdSet<K> {
            type Output = IdSet<K>;
            fn $method(mut self, other: &IdSet<K>) -> IdSet<K> {
                $assign(&mut self, other);
                self
            }
        }

        impl<K> ops::$trait<&IdSet<K>> for &IdSet<K> {
            type Output = IdSet<K>;
            fn $method(self, other: &IdSet<K>) -> IdSet<K> {
                ops::$trait::$method(self.clone(), other)
            }
        }
    )*};
}

by_assigning! {
    BitOr bitor ops::BitOrAssign::bitor_assign;
    BitAnd bitand ops::BitAndAssign::bitand_assign;
    Sub sub ops::SubAssign::sub_assign;
}

impl<K> FromIterator<u32> for IdSet<K> {
    fn from_iter<I: IntoIterator<Item = u32>>(ids: I) -> Self {
        let mut set = Self::new();
        set.extend(ids);
        set
    }
}

impl<K> Extend<u32> for IdSet<K> {
    fn extend<I: IntoIterator<Item = u32>>(&mut self, ids: I) {
        for id in ids {
            self.insert(id);
        }
    }
}

impl<K: IdKind> FromStr for IdSet<K> {
    type Err = ParseSetError;

    /// Reads the Linux list format strictly: decimal numbers and ascending ranges between commas, no spaces, no signs, no
    /// strides. Nothing at all is the empty set. Elements may repeat or overlap, in any order.
    fn from_str(text: &str) -> Result<Self, ParseSetError> {
        parse(text).map_err(|fault| ParseSetError { kind: K::NAME, input: excerpt(text), fault })
    }
}

fn parse<K: IdKind>(text: &str) -> Result<IdSet<K>, ParseFault> {
    let mut set = IdSet::new();
    if text.is_empty() {
        return Ok(set);
    }
    for element in text.split(',') {
        let (first, last) = element.split_once('-').unwrap_or((element, element));
        let (first, last) = (parse_id::<K>(first, element)?, parse_id::<K>(last, element)?);
        if last < first {
            return Err(ParseFault::Backwards(first, last));
        }
        set.extend(first..=last);
    }
    Ok(set)
}

fn parse_id<K: IdKind>(digits: &str, element: &str) -> Result<u32, ParseFault> {
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(ParseFault::NotANumber(excerpt(element)));
    }
    match digits.parse::<u32>() {
        Ok(id) if id < K::LIMIT => Ok(id),
        _ => Err(ParseFault::BeyondLimit { element: excerpt(element), limit: K::LIMIT }),
    }
}

fn excerpt(text: &str) -> String {
    text.chars().take(EXCERPT).collect()
}

impl<K> fmt::Display for IdSet<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ids = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = ids.next() {
            let mut last = first;
            while let Some(next) = ids.next_if_eq(&(last + 1)) {
                last = next;
            }
            if last == first {
                write!(f, "{separator}{first}")?;
            } else {
                write!(f, "{separator}{first}-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

impl<K> fmt::Debug for IdSet<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

// Written out because derived impls would ask the same of the marker `K`.

impl<K> Clone for IdSet<K> {
    fn clone(&self) -> Self {
        Self { words: self.words.clone(), kind: PhantomData }
    }
}

impl<K> Default for IdSet<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K> PartialEq for IdSet<K> {
    fn eq(&self, other: &Self) -> bool {
        self.words == other.words
    }
}

impl<K> Eq for IdSet<K> {}

impl<K> hash::Hash for IdSet<K> {
    fn hash<H: hash::Hasher>(&self, state: &mut H) {
        self.words.hash(state);
    }
}

impl<K> PartialOrd for IdSet<K> {
    fn partial_cmp(&self, other: &Self) -> Option<cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<K> Ord for IdSet<K> {
    fn cmp(&self, other: &Self) -> cmp::Ordering {
        self.iter().cmp(other.iter())
    }
}
