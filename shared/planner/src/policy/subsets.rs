//! Sets of NUMA nodes in the order in which they are tried: the smaller first, then by the lowest nodes.

/// Machines with more NUMA nodes than this have too many subsets to try them all.
pub(super) const ALL_SUBSETS: usize = 16;

/// Every non-empty subset of `0..count` of at most this size, by size and within it in ascending lexical order.
pub(super) fn subsets(count: usize, largest: usize) -> impl Iterator<Item = Vec<usize>> {
    (1..=largest.min(count)).flat_map(move |size| Combinations::new(count, size))
}

/// The subsets of one size, in ascending lexical order.
struct Combinations {
    count: usize,
    next: Option<Vec<usize>>,
}

// === impl Combinations ===

impl Combinations {
    fn new(count: usize, size: usize) -> Self {
        Self { count, next: (size <= count).then(|| (0..size).collect()) }
    }

    /// The subset after this one: the last element that can move up does, and those behind it follow closely.
    fn after(&self, subset: &[usize]) -> Option<Vec<usize>> {
        let size = subset.len();
        let room = |place: usize, element: usize| element + (size - place) < self.count;
        let (place, element) =
            subset.iter().copied().enumerate().rev().find(|&(place, element)| room(place, element))?;
        let moved = (element + 1)..=(element + size - place);
        Some(subset.iter().copied().take(place).chain(moved).collect())
    }
}

impl Iterator for Combinations {
    type Item = Vec<usize>;

    fn next(&mut self) -> Option<Vec<usize>> {
        let subset = self.next.take()?;
        self.next = self.after(&subset);
        Some(subset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smaller_sets_come_first_and_lower_ones_within_a_size() {
        let all: Vec<_> = subsets(3, 3).collect();
        let expected: [&[usize]; 7] = [&[0], &[1], &[2], &[0, 1], &[0, 2], &[1, 2], &[0, 1, 2]];
        assert_eq!(all, expected);
    }

    #[test]
    fn there_are_as_many_as_the_binomials_say() {
        assert_eq!(subsets(16, 16).count(), (1 << 16) - 1);
        assert_eq!(subsets(17, 2).count(), 17 + 17 * 16 / 2);
        assert_eq!(subsets(0, 3).count(), 0);
    }
}
