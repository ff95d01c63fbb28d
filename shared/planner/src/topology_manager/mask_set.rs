//! Sets of masks, and which masks two sets of them can intersect to.

/// Up to so many nodes a set has a bit for each of the 2ⁿ masks.
const DENSE_NODES: usize = 16;

/// Above [`DENSE_NODES`], from this many pairs on, only masks of the smallest size and the next are looked at, the widest,
/// and those that are in both sets.
const PAIR_LIMIT: usize = 1 << 17;

/// A set of non-empty masks of some number of nodes.
#[derive(Clone)]
pub(super) struct MaskSet {
    nodes: usize,
    /// A bit a mask, if there are few enough nodes; else nothing.
    dense: Vec<u64>,
    /// Else the masks, ascending.
    sparse: Vec<u64>,
}

// === impl MaskSet ===

impl MaskSet {
    pub(super) fn of(nodes: usize, masks: impl IntoIterator<Item = u64>) -> Self {
        let words = if nodes <= DENSE_NODES { (1usize << nodes).div_ceil(64) } else { 0 };
        let mut set = Self { nodes, dense: vec![0; words], sparse: Vec::new() };
        let masks = masks.into_iter().filter(|mask| *mask != 0);
        if nodes > DENSE_NODES {
            set.sparse.extend(masks);
            set.sparse.sort_unstable();
            set.sparse.dedup();
        } else {
            for mask in masks {
                if let Some(word) = set.dense.get_mut((mask / 64) as usize) {
                    *word |= 1 << (mask % 64);
                }
            }
        }
        set
    }

    pub(super) fn contains(&self, mask: u64) -> bool {
        let bit = |word: &u64| word >> (mask % 64) & 1 == 1;
        self.dense.get((mask / 64) as usize).is_some_and(bit) || self.sparse.binary_search(&mask).is_ok()
    }

    pub(super) fn len(&self) -> usize {
        self.dense.iter().map(|word| word.count_ones() as usize).sum::<usize>() + self.sparse.len()
    }

    /// The masks, ascending.
    pub(super) fn to_vec(&self) -> Vec<u64> {
        let mut masks: Vec<u64> = self.sparse.clone();
        for (base, word) in (0u64..).step_by(64).zip(&self.dense) {
            let mut rest = *word;
            while rest != 0 {
                masks.push(base + u64::from(rest.trailing_zeros()));
                rest &= rest - 1;
            }
        }
        masks
    }

    /// The masks that are in both sets.
    pub(super) fn in_both(&self, other: &Self) -> Self {
        Self::of(self.nodes, self.to_vec().into_iter().filter(|mask| other.contains(*mask)))
    }

    /// Every non-empty intersection of a mask of this set with one of the other.
    ///
    /// Exact up to [`DENSE_NODES`] nodes, and above while there are few pairs.
    pub(super) fn intersections(&self, other: &Self) -> Self {
        // The mask of all nodes takes nothing away from what there is of every mask.
        for (all, one) in [(self, other), (other, self)] {
            if all.is_every_mask() && one.contains(all.every_node()) {
                return all.clone();
            }
        }
        let pairs = self.len().saturating_mul(other.len());
        if self.nodes <= DENSE_NODES {
            // Three transforms of n·2ⁿ⁻¹ additions each.
            if pairs > (3 * self.nodes) << self.nodes >> 1 {
                return self.by_transform(other);
            }
        } else if pairs > PAIR_LIMIT {
            let mut met = self.narrow().by_pairs(&other.narrow());
            met.sparse.extend(self.in_both(other).sparse);
            return met;
        }
        self.by_pairs(other)
    }

    /// The mask of all nodes.
    fn every_node(&self) -> u64 {
        u64::MAX.checked_shr(64 - self.nodes.min(64) as u32).unwrap_or(0)
    }

    fn is_every_mask(&self) -> bool {
        self.nodes <= DENSE_NODES && self.nodes > 0 && self.len() == (1 << self.nodes) - 1
    }

    fn by_pairs(&self, other: &Self) -> Self {
        let others = other.to_vec();
        let pairs = self.to_vec().into_iter().flat_map(|mask| others.iter().map(move |other| mask & other));
        Self::of(self.nodes, pairs)
    }

    /// The pairs whose intersection contains S are those of the supersets of S in either set: a product of two counts. Which
    /// pairs intersect in S exactly follows by inclusion and exclusion. Counts stay below 2³² (at most (2¹⁶−1)² pairs), so that
    /// the wrapping sums in between do no harm.
    fn by_transform(&self, other: &Self) -> Self {
        let (mut counts, others) = (self.supersets(), other.supersets());
        for (count, other) in counts.iter_mut().zip(&others) {
            *count = count.wrapping_mul(*other);
        }
        over_halves(&mut counts, |without, with| *without = without.wrapping_sub(*with));
        Self::of(self.nodes, (0..).zip(&counts).filter(|(_, count)| **count != 0).map(|(mask, _)| mask))
    }

    /// For each of the 2ⁿ masks: how many masks of this set contain it.
    fn supersets(&self) -> Vec<u32> {
        let mut counts = vec![0; 1 << self.nodes];
        for mask in self.to_vec() {
            if let Some(count) = counts.get_mut(mask as usize) {
                *count = 1;
            }
        }
        over_halves(&mut counts, |without, with| *without = without.wrapping_add(*with));
        counts
    }

    /// The masks of the smallest size and of the next, few enough to be paired, and the widest, which takes least from the others.
    fn narrow(&self) -> Self {
        let mut masks = self.to_vec();
        masks.sort_by_key(|mask| (mask.count_ones(), *mask));
        let largest = masks.first().map_or(0, |mask| mask.count_ones() + 1);
        let widest = masks.last().copied();
        let few = masks.into_iter().take_while(|mask| mask.count_ones() <= largest);
        Self::of(self.nodes, few.take(PAIR_LIMIT.isqrt() - 1).chain(widest))
    }
}

/// For each bit, and each pair of masks that differ in it alone: the entry without it, and the entry with it.
fn over_halves(table: &mut [u32], step: impl Fn(&mut u32, &u32)) {
    let mut half = 1;
    while half < table.len() {
        for pair in table.chunks_exact_mut(2 * half) {
            let (without, with) = pair.split_at_mut(half);
            for (without, with) in without.iter_mut().zip(with) {
                step(without, with);
            }
        }
        half *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn the_transform_finds_what_pairing_finds(a in prop::collection::vec(1u64..64, 0..40), b in prop::collection::vec(1u64..64, 0..40)) {
            let (a, b) = (MaskSet::of(6, a), MaskSet::of(6, b));
            prop_assert_eq!(a.by_transform(&b).to_vec(), a.by_pairs(&b).to_vec());
        }
    }

    #[test]
    fn all_masks_of_sixteen_nodes_reach_all_masks() {
        let all = MaskSet::of(16, 1..1 << 16);
        assert_eq!(all.intersections(&all).len(), (1 << 16) - 1);
    }

    #[test]
    fn above_sixteen_nodes_few_pairs_are_exact() {
        let narrow_and_wide = MaskSet::of(32, [1, (1 << 32) - 1]);
        let other = MaskSet::of(32, [1 << 31]);
        assert_eq!(narrow_and_wide.intersections(&other).to_vec(), [1 << 31]);
    }

    #[test]
    fn above_sixteen_nodes_many_pairs_are_cut_to_the_narrowest() {
        let singles_and_all_pairs = |bits: u64| {
            let masks = (0..bits).flat_map(|a| (0..bits).map(move |b| 1 << a | 1 << b));
            let triples = (2..bits).map(|c| 7 << (c - 2));
            masks.chain(triples).collect::<Vec<u64>>()
        };
        let set = MaskSet::of(64, singles_and_all_pairs(60));
        assert_eq!(set.narrow().len(), PAIR_LIMIT.isqrt());
        assert_eq!(
            set.narrow().to_vec().iter().filter(|mask| mask.count_ones() > 2).count(),
            1,
            "the widest"
        );
        assert!(set.intersections(&set).len() >= 60, "every single node is reached");
    }
}
