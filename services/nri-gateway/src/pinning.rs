//! Wanted against applied: pure.

use std::str::FromStr;

use oxalyst_topology::{CpuSet, NumaMask};

use crate::placements::Cpuset;

/// How far a container's applied set is from the wanted one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// The CPUs differ.
    pub cpus: bool,
    /// It runs on CPUs that it is to lose: the ones that somebody else may have been given.
    pub loses_cpus: bool,
    /// The memory nodes differ.
    pub mems: bool,
}

/// One change to make to a container; an empty part is not to be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The container.
    pub container_id: String,
    /// What to set.
    pub cpuset: Cpuset,
}

/// Changes in the order in which they are to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "a computed change that is dropped leaves a container where it must not run"]
pub struct Corrections {
    /// CPUs that are taken away: first, so that at no time two containers have them.
    pub shrink: Vec<Change>,
    /// CPUs that are given back.
    pub grow: Vec<Change>,
    /// Memory nodes, one container at a time: the kernel may move pages before it answers.
    pub mems: Vec<Change>,
}

// === impl Corrections ===

impl Corrections {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.shrink.is_empty() && self.grow.is_empty() && self.mems.is_empty()
    }

    /// Takes up what `difference` asks for.
    pub fn add(&mut self, container_id: &str, wanted: &Cpuset, difference: Difference) {
        let change = |cpus: &str, mems: &str| Change {
            container_id: container_id.to_owned(),
            cpuset: Cpuset { cpus: cpus.to_owned(), mems: mems.to_owned() },
        };
        if difference.cpus {
            let list = if difference.loses_cpus { &mut self.shrink } else { &mut self.grow };
            list.push(change(&wanted.cpus, ""));
        }
        if difference.mems {
            self.mems.push(change("", &wanted.mems));
        }
    }
}

/// What a container is to run on now: what is wanted, unless all that it would lose waits for a pod that has no container yet.
/// Then it keeps what it has, and loses it in the reply that creates that container: between a sandbox and its first container
/// lies the pull of an image.
pub fn target(applied: Option<&Cpuset>, wanted: Cpuset, waiting: &CpuSet) -> Cpuset {
    let Some(applied) = applied.filter(|a| !waiting.is_empty() && a.cpus != wanted.cpus) else {
        return wanted;
    };
    let (Ok(has), Ok(wants)) = (applied.cpus.parse::<CpuSet>(), wanted.cpus.parse::<CpuSet>()) else {
        return wanted;
    };
    let mut lost = has.clone();
    lost -= &wants;
    if !lost.is_empty() && lost.is_subset(waiting) && wants.is_subset(&has) {
        return Cpuset { cpus: applied.cpus.clone(), mems: wanted.mems };
    }
    wanted
}

/// Compares. What was never applied loses every CPU that is not wanted; an empty wanted part asks for nothing.
pub fn difference(applied: Option<&Cpuset>, wanted: &Cpuset) -> Difference {
    let Some(applied) = applied else {
        let (cpus, mems) = (!wanted.cpus.is_empty(), !wanted.mems.is_empty());
        return Difference { cpus, loses_cpus: cpus, mems };
    };
    let cpus = !wanted.cpus.is_empty() && !same::<CpuSet>(&applied.cpus, &wanted.cpus);
    Difference {
        cpus,
        loses_cpus: cpus && !within(&applied.cpus, &wanted.cpus),
        mems: !wanted.mems.is_empty() && !same::<NumaMask>(&applied.mems, &wanted.mems),
    }
}

/// The same list, however it is written. Text first: it nearly always decides.
fn same<S: FromStr + PartialEq>(a: &str, b: &str) -> bool {
    a == b || matches!((a.parse::<S>(), b.parse::<S>()), (Ok(a), Ok(b)) if a == b)
}

/// Whether every CPU of `a` is in `b`; what cannot be read is not. An empty `a` is unknown, not nothing.
fn within(a: &str, b: &str) -> bool {
    !a.is_empty() && matches!((a.parse::<CpuSet>(), b.parse::<CpuSet>()), (Ok(a), Ok(b)) if a.is_subset(&b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(cpus: &str, mems: &str) -> Cpuset {
        Cpuset { cpus: cpus.into(), mems: mems.into() }
    }

    fn cpus_of(applied: &str, wanted: &str) -> (bool, bool) {
        let d = difference(Some(&set(applied, "0")), &set(wanted, "0"));
        (d.cpus, d.loses_cpus)
    }

    #[test]
    fn losing_growing_and_moving_are_told_apart() {
        assert_eq!(cpus_of("0-1", "0-1"), (false, false));
        assert_eq!(cpus_of("0,1", "0-1"), (false, false));
        assert_eq!(cpus_of("0-1", "0"), (true, true));
        assert_eq!(cpus_of("0", "0-1"), (true, false));
        assert_eq!(cpus_of("0", "1"), (true, true));
        assert_eq!(cpus_of("", "1"), (true, true));
        assert_eq!(cpus_of("rubbish", "1"), (true, true));
    }

    #[test]
    fn an_empty_wish_asks_for_nothing() {
        assert_eq!(difference(Some(&set("0", "0")), &set("", "")), Difference::default());
        assert_eq!(difference(None, &set("", "")), Difference::default());
    }

    #[test]
    fn what_was_never_applied_is_applied_as_if_it_lost_cpus() {
        let all = Difference { cpus: true, loses_cpus: true, mems: true };
        assert_eq!(difference(None, &set("0", "0")), all);
    }

    #[test]
    fn what_waits_for_its_first_container_is_not_taken_away_yet() {
        let target_of = |applied: &str, wanted: &str, waiting: &str| {
            target(Some(&set(applied, "0")), set(wanted, "0"), &waiting.parse().unwrap()).cpus
        };
        assert_eq!(target_of("0-3", "0-2", "3"), "0-3");
        assert_eq!(target_of("0-3", "0-2", ""), "0-2");
        assert_eq!(target_of("0-3", "0-1", "3"), "0-1", "2 is needed now");
        assert_eq!(target_of("3", "0-2", "3"), "0-2", "it would not gain what it is to gain");
        assert_eq!(target_of("0-2", "0-3", "3"), "0-3", "growth does not wait");
        assert_eq!(target(None, set("0-2", "0"), &"3".parse().unwrap()).cpus, "0-2");
    }

    #[test]
    fn corrections_keep_cpus_and_mems_apart() {
        let mut c = Corrections::default();
        c.add("a", &set("0", "0"), Difference { cpus: true, loses_cpus: true, mems: true });
        c.add("b", &set("0-3", "0"), Difference { cpus: true, loses_cpus: false, mems: false });
        assert_eq!(c.shrink, [Change { container_id: "a".into(), cpuset: set("0", "") }]);
        assert_eq!(c.grow, [Change { container_id: "b".into(), cpuset: set("0-3", "") }]);
        assert_eq!(c.mems, [Change { container_id: "a".into(), cpuset: set("", "0") }]);
    }

    proptest! {
        #[test]
        fn exactly_a_lost_cpu_makes_a_shrink(
            a in proptest::collection::btree_set(0u32..12, 1..8),
            b in proptest::collection::btree_set(0u32..12, 1..8),
        ) {
            let text = |ids: &std::collections::BTreeSet<u32>| ids.iter().copied().collect::<CpuSet>().to_string();
            prop_assert_eq!(cpus_of(&text(&a), &text(&b)), (a != b, !a.is_subset(&b)));
        }
    }
}
