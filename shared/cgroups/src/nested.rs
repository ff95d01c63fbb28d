//! In which order nested sets are written: pure.
//!
//! On v1 the kernel refuses, at every single write, a set that is not within its parent's or does not hold its children's
//! (`validate_change` of kernel/cgroup/cpuset-v1.c). On v2 it takes any set, and what holds is cut to what holds for the parent.

use oxalyst_topology::CpuSet;

/// A cgroup whose set changes, the chain above it and, where they matter (v1), the cgroups below it.
#[derive(Clone, Debug)]
pub struct Family<P> {
    /// v1: the set around the outermost of those above. An empty set holds nothing there, and is given what its parent has.
    /// `None`: v2, where an empty one holds what its parent does.
    pub around: Option<CpuSet>,
    /// Those above that may be changed, the outermost first.
    pub above: Vec<Member<P>>,
    /// The one whose set is wanted.
    pub own: Member<P>,
    /// Those below, every parent before its children.
    pub below: Vec<Descendant<P>>,
}

/// One cgroup and what its file says; empty: nothing asked for, what holds is the parent's (v2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member<P> {
    /// What names it.
    pub at: P,
    /// Its set.
    pub set: CpuSet,
}

/// A cgroup below the one whose set changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descendant<P> {
    /// It.
    pub member: Member<P>,
    /// Its parent's place in [`Family::below`]; `None`: the one whose set is wanted.
    pub parent: Option<usize>,
}

// === impl Family ===

impl<P: Clone> Family<P> {
    /// The writes, in order, after which the cgroup has `wanted`; none where it has it already.
    ///
    /// Parents come before children where sets grow, children before parents where they shrink, so that on v1 each single write
    /// is legal. A cgroup above that lacks some of `wanted` gets them added. One below that had all of its parent's gets all of
    /// the new ones; any other is cut to what is left, or gets the parent's where nothing is.
    pub fn writes(&self, wanted: &CpuSet) -> Vec<Member<P>> {
        let mut writes = Vec::new();
        let mut around = self.around.clone();
        for above in &self.above {
            let to = match (&around, above.set.is_empty()) {
                (None, true) => continue,
                (Some(around), true) => union(around, wanted),
                (_, false) => union(&above.set, wanted),
            };
            around = around.is_some().then(|| to.clone());
            if to != above.set {
                writes.push(Member { at: above.at.clone(), set: to });
            }
        }
        let finals = self.finals(wanted);
        let changes = |member: &Member<P>, to: &CpuSet| member.set != *to;
        let alone = self.below.iter().zip(&finals).all(|(below, to)| !changes(&below.member, to));
        let within = self.below.iter().filter(|b| b.parent.is_none()).all(|b| b.member.set.is_subset(wanted));
        if alone && within {
            if changes(&self.own, wanted) {
                writes.push(Member { at: self.own.at.clone(), set: wanted.clone() });
            }
            return writes;
        }
        let family = || {
            let below = self.below.iter().map(|b| &b.member).zip(&finals);
            std::iter::once((&self.own, wanted)).chain(below)
        };
        for (member, to) in family().filter(|(member, to)| !to.is_subset(&member.set)) {
            writes.push(Member { at: member.at.clone(), set: union(&member.set, to) });
        }
        let shrinks: Vec<_> = family().filter(|(member, to)| !member.set.is_subset(to)).collect();
        for (member, to) in shrinks.into_iter().rev() {
            writes.push(Member { at: member.at.clone(), set: to.clone() });
        }
        writes
    }

    /// What each of those below has in the end.
    fn finals(&self, wanted: &CpuSet) -> Vec<CpuSet> {
        let mut finals: Vec<CpuSet> = Vec::with_capacity(self.below.len());
        for below in &self.below {
            let before =
                below.parent.and_then(|p| self.below.get(p)).map_or(&self.own.set, |p| &p.member.set);
            let parent = below.parent.and_then(|p| finals.get(p)).unwrap_or(wanted);
            let set = &below.member.set;
            let mut kept = set.clone();
            kept &= parent;
            let to = match set.is_empty() {
                true => set.clone(),
                false if set == before || kept.is_empty() => parent.clone(),
                false => kept,
            };
            finals.push(to);
        }
        finals
    }
}

fn union(a: &CpuSet, b: &CpuSet) -> CpuSet {
    let mut all = a.clone();
    all |= b;
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn set(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    fn member(at: usize, list: &str) -> Member<usize> {
        Member { at, set: set(list) }
    }

    fn texts(writes: &[Member<usize>]) -> Vec<(usize, String)> {
        writes.iter().map(|w| (w.at, w.set.to_string())).collect()
    }

    #[test]
    fn c01_a_parent_grows_before_its_child_and_shrinks_after_it() {
        let family =
            Family { around: None, above: vec![member(0, "0-7")], own: member(1, "0-3"), below: vec![] };
        assert_eq!(texts(&family.writes(&set("4-11"))), [(0, "0-11".to_owned()), (1, "4-11".to_owned())]);
        let child = Descendant { member: member(2, "0-3"), parent: None };
        let family = Family { around: None, above: vec![], own: member(1, "0-3"), below: vec![child] };
        assert_eq!(texts(&family.writes(&set("0-1"))), [(2, "0-1".to_owned()), (1, "0-1".to_owned())]);
        assert_eq!(texts(&family.writes(&set("0-5"))), [(1, "0-5".to_owned()), (2, "0-5".to_owned())]);
    }

    #[test]
    fn a_child_with_less_than_its_parent_keeps_its_own_as_far_as_it_can() {
        let child = Descendant { member: member(2, "2"), parent: None };
        let family = Family { around: None, above: vec![], own: member(1, "0-3"), below: vec![child] };
        assert_eq!(texts(&family.writes(&set("0-2"))), [(1, "0-2".to_owned())]);
        let all_gone = [(2, "0-2".to_owned()), (2, "0-1".to_owned()), (1, "0-1".to_owned())];
        assert_eq!(texts(&family.writes(&set("0-1"))), all_gone, "nothing of its own is left: its parent's");
    }

    #[test]
    fn nothing_is_written_where_it_is_so_already() {
        let family =
            Family { around: None, above: vec![member(0, "0-7")], own: member(1, "0-3"), below: vec![] };
        assert!(family.writes(&set("0-3")).is_empty());
        let family = Family {
            around: Some(set("0-7")),
            above: vec![member(0, ""), member(1, "")],
            own: member(2, ""),
            below: vec![],
        };
        let filled = [(0, "0-7".to_owned()), (1, "0-7".to_owned()), (2, "3".to_owned())];
        assert_eq!(texts(&family.writes(&set("3"))), filled, "v1: an empty one holds nothing");
        let inherits = Family { around: None, above: vec![member(0, "")], own: member(1, ""), below: vec![] };
        assert_eq!(texts(&inherits.writes(&set("3"))), [(1, "3".to_owned())]);
    }

    /// A tree as v1 allows it: node 0 is the root, each other one lies below an earlier one and within it.
    fn legal_tree() -> impl Strategy<Value = (Vec<usize>, Vec<CpuSet>)> {
        let node = (any::<prop::sample::Index>(), prop::collection::vec(any::<bool>(), 8), 0u32..8);
        prop::collection::vec(node, 1..7).prop_map(|nodes| {
            let (mut parents, mut sets) = (vec![0], vec![set("0-7")]);
            for (parent, keep, spare) in nodes {
                let parent = parent.index(parents.len());
                let of: Vec<u32> = sets[parent].iter().collect();
                let mut own: CpuSet = of.iter().zip(&keep).filter(|(_, k)| **k).map(|(id, _)| *id).collect();
                if own.is_empty() {
                    own.insert(of[spare as usize % of.len()]);
                }
                parents.push(parent);
                sets.push(own);
            }
            (parents, sets)
        })
    }

    proptest! {
        #[test]
        fn c01_every_single_write_is_one_that_v1_takes(
            (parents, sets) in legal_tree(),
            target in any::<prop::sample::Index>(),
            wanted in prop::collection::btree_set(0u32..8, 1..8),
        ) {
            let target = 1 + target.index(parents.len() - 1);
            let wanted: CpuSet = wanted.into_iter().collect();
            let mut above = Vec::new();
            let mut at = parents[target];
            while at != 0 {
                above.insert(0, Member { at, set: sets[at].clone() });
                at = parents[at];
            }
            let mut places: BTreeMap<usize, usize> = BTreeMap::new();
            let mut below = Vec::new();
            for node in target + 1..parents.len() {
                let parent = match parents[node] {
                    p if p == target => None,
                    p => match places.get(&p) { Some(place) => Some(*place), None => continue },
                };
                places.insert(node, below.len());
                below.push(Descendant { member: Member { at: node, set: sets[node].clone() }, parent });
            }
            let own = Member { at: target, set: sets[target].clone() };
            let family = Family { around: Some(sets[0].clone()), above, own, below };
            let mut now = sets.clone();
            for write in family.writes(&wanted) {
                prop_assert!(!write.set.is_empty());
                prop_assert!(write.set.is_subset(&now[parents[write.at]]), "{write:?} is not within its parent");
                for child in 1..parents.len() {
                    if parents[child] == write.at {
                        prop_assert!(now[child].is_subset(&write.set), "{write:?} takes from child {child}");
                    }
                }
                now[write.at] = write.set;
            }
            prop_assert_eq!(&now[target], &wanted);
        }
    }
}
