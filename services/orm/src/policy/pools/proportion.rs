//! Sharing CPUs out among pools.

use crate::plan::{End, Spread, take_by_numa_balance};
use oxalyst_topology::{CpuSet, Machine};
use std::{cmp::Reverse, collections::BTreeMap};

/// How many CPUs each pool gets where they are shared out in proportion to what the pools need: at least one each, all of them
/// used, ties by name. `None`: there are fewer CPUs than pools, so that every pool gets all of them.
pub(super) fn sizes(needs: &BTreeMap<String, usize>, available: usize) -> Option<BTreeMap<String, usize>> {
    let total: usize = needs.values().sum();
    let size = |need: usize| ((available as f64 * (need as f64 / total as f64)).ceil() as usize).max(1);
    let mut sizes: BTreeMap<String, usize> =
        needs.iter().map(|(name, need)| (name.clone(), size(*need))).collect();
    if needs.len() > available {
        return None;
    }
    let mut excess = sizes.values().sum::<usize>().saturating_sub(available);
    // The largest give first, and all of them once before any gives again.
    while excess > 0 {
        let mut order: Vec<&mut usize> = sizes.values_mut().collect();
        order.sort_by_key(|size| Reverse(**size));
        for size in order.into_iter().filter(|size| **size > 1).take(excess) {
            *size -= 1;
            excess -= 1;
        }
    }
    Some(sizes)
}

/// Takes what the pools need out of the CPUs, pools ascending by name; what is left of them is given back.
pub(super) fn take_exactly(
    machine: &Machine,
    needs: &BTreeMap<String, usize>,
    available: &CpuSet,
) -> (BTreeMap<String, CpuSet>, CpuSet) {
    let mut left = available.clone();
    let mut pools = BTreeMap::new();
    for (name, need) in needs {
        let need = (*need).min(left.len());
        let cpus = take_by_numa_balance(machine, &left, need, Spread::Cores, End::Lowest).unwrap_or_default();
        left -= &cpus;
        pools.insert(name.clone(), cpus);
    }
    (pools, left)
}

/// Shares all CPUs out in proportion to what the pools need.
pub(super) fn take_in_proportion(
    machine: &Machine,
    needs: &BTreeMap<String, usize>,
    available: &CpuSet,
) -> (BTreeMap<String, CpuSet>, CpuSet) {
    match sizes(needs, available.len()) {
        Some(sizes) => take_exactly(machine, &sizes, available),
        None => {
            let all = needs.keys().map(|name| (name.clone(), available.clone())).collect();
            (all, CpuSet::new())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(pairs: &[(&str, usize)]) -> BTreeMap<String, usize> {
        pairs.iter().map(|(name, need)| ((*name).to_owned(), *need)).collect()
    }

    #[test]
    fn all_is_used_and_the_largest_gives_first() {
        // 9 * 4/7 = 5.1, 9 * 3/7 = 3.9: six and four, one too many.
        assert_eq!(
            sizes(&needs(&[("batch", 3), ("share", 4)]), 9),
            Some(needs(&[("batch", 4), ("share", 5)]))
        );
    }

    #[test]
    fn of_equals_the_first_by_name_gives() {
        let expected = needs(&[("a", 1), ("b", 2)]);
        assert_eq!(sizes(&needs(&[("a", 2), ("b", 2)]), 3), Some(expected));
    }

    #[test]
    fn with_fewer_cpus_than_pools_nobody_has_one_of_its_own() {
        assert_eq!(sizes(&needs(&[("a", 2), ("b", 2), ("c", 1)]), 2), None);
    }
}
