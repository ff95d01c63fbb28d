//! Sets of NUMA nodes in the order in which they are tried: the smaller first, then by the lowest nodes.

use crate::topology_manager::{Budget, Enough};

/// A NUMA node that may be in a set, on a machine with too many of them to try every set.
pub(super) struct Place {
    /// Where it stands among the nodes that are asked of.
    pub(super) index: usize,
    /// Its socket, as one bit; none for a node that goes with any.
    pub(super) socket: u64,
    /// What it has of each amount that is needed.
    pub(super) room: Vec<u64>,
}

/// Shows `visit` the subsets of this size that have what is needed, as far as the budget goes: those of the first places first.
/// `within_sockets`: none that crosses sockets.
pub(super) fn each_enough(
    places: &[Place],
    needs: &[u64],
    size: usize,
    within_sockets: bool,
    budget: &mut Budget,
    mut visit: impl FnMut(&[usize]),
) {
    let mut sockets: Vec<u64> =
        places.iter().map(|place| place.socket).filter(|socket| *socket != 0).collect();
    sockets.sort_unstable();
    sockets.dedup();
    if !within_sockets || sockets.is_empty() {
        sockets = vec![u64::MAX];
    }
    for (at, socket) in sockets.iter().enumerate() {
        let here: Vec<&Place> =
            places.iter().filter(|place| place.socket == 0 || place.socket & socket != 0).collect();
        let enough = Enough::new(needs.to_vec(), here.iter().map(|place| place.room.clone()).collect());
        let parts = sockets.len() - at;
        let mut part = budget.part(parts);
        enough.each(size..=size, &mut part, &mut |set| {
            let chosen = || set.iter().filter_map(|place| here.get(*place));
            // Nodes without a socket alone are a set of every socket: once will do.
            if at > 0 && chosen().all(|place| place.socket == 0) {
                return;
            }
            let mut indexes: Vec<usize> = chosen().map(|place| place.index).collect();
            indexes.sort_unstable();
            visit(&indexes);
        });
        budget.spend(&part, parts);
    }
}

/// Shows `visit` every non-empty subset of `0..count` of at most this size, by size and within it in ascending lexical order.
pub(super) fn each_subset(count: usize, largest: usize, mut visit: impl FnMut(&[usize])) {
    for size in 1..=largest.min(count) {
        let mut subset: Vec<usize> = (0..size).collect();
        visit(&subset);
        while advance(&mut subset, count) {
            visit(&subset);
        }
    }
}

/// The subset after this one: the last element that can move up does, and those behind it follow closely. False after the last.
fn advance(subset: &mut [usize], count: usize) -> bool {
    let room_behind = |place: usize| subset.len() - place;
    let last = subset.iter().enumerate().rev().find(|&(place, element)| element + room_behind(place) < count);
    let Some((place, moved)) = last.map(|(place, element)| (place, element + 1)) else { return false };
    for (element, next) in subset.iter_mut().skip(place).zip(moved..) {
        *element = next;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subsets(count: usize, largest: usize) -> Vec<Vec<usize>> {
        let mut all = Vec::new();
        each_subset(count, largest, |subset| all.push(subset.to_vec()));
        all
    }

    #[test]
    fn smaller_sets_come_first_and_lower_ones_within_a_size() {
        let expected: [&[usize]; 7] = [&[0], &[1], &[2], &[0, 1], &[0, 2], &[1, 2], &[0, 1, 2]];
        assert_eq!(subsets(3, 3), expected);
        assert_eq!(subsets(4, 2).len(), 4 + 6);
        assert_eq!(subsets(4, 2).last().unwrap(), &[2, 3]);
    }

    #[test]
    fn there_are_as_many_as_the_binomials_say() {
        assert_eq!(subsets(16, 16).len(), (1 << 16) - 1);
        assert_eq!(subsets(17, 2).len(), 17 + 17 * 16 / 2);
        assert_eq!(subsets(0, 3).len(), 0);
    }
}
