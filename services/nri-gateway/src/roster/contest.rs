//! Somebody else who keeps writing a container's files: mended, but not fought.

use crate::placements::Cpuset;

/// Comparisons in a row that must agree before a contest is over.
const CALM: u32 = 5;

/// How often somebody else changed a container's cpuset.
#[derive(Debug, Default)]
pub(super) struct Contest {
    flips: u32,
    calm: u32,
    /// Mended only when everything is compared, as long as this is what is wanted.
    slowed: Option<Cpuset>,
}

// === impl Contest ===

impl Contest {
    /// It was changed once more. True for the change after which it is mended once a reconcile period only.
    pub(super) fn flipped(&mut self, wanted: &Cpuset, limit: u32) -> bool {
        self.flips = self.flips.saturating_add(1);
        self.calm = 0;
        let slows = self.flips >= limit && self.slowed.is_none();
        if self.flips >= limit {
            self.slowed = Some(wanted.clone());
        }
        slows
    }

    /// The kernel agreed. True where that ends the contest.
    pub(super) fn agreed(&mut self) -> bool {
        self.calm = self.calm.saturating_add(1);
        if self.calm < CALM {
            return false;
        }
        self.flips = 0;
        self.slowed.take().is_some()
    }

    /// Whether it waits for the next comparison of everything. A new decision does not wait.
    pub(super) fn waits(&self, wanted: Option<&Cpuset>) -> bool {
        self.slowed.is_some() && self.slowed.as_ref() == wanted
    }

    /// Whether it is going on.
    pub(super) fn is_on(&self) -> bool {
        self.slowed.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(cpus: &str) -> Cpuset {
        Cpuset { cpus: cpus.into(), mems: "0".into() }
    }

    #[test]
    fn it_is_slowed_at_the_limit_once_and_never_for_a_new_decision() {
        let mut contest = Contest::default();
        assert!(!contest.flipped(&set("1"), 2) && !contest.waits(Some(&set("1"))));
        assert!(contest.flipped(&set("1"), 2), "said once");
        assert!(!contest.flipped(&set("1"), 2));
        assert!(contest.waits(Some(&set("1"))) && contest.is_on());
        assert!(!contest.waits(Some(&set("2"))) && !contest.waits(None));
    }

    #[test]
    fn it_ends_after_a_while_of_agreement_and_not_before() {
        let mut contest = Contest::default();
        contest.flipped(&set("1"), 1);
        for _ in 1..CALM {
            assert!(!contest.agreed() && contest.is_on());
        }
        contest.flipped(&set("1"), 1);
        for _ in 1..CALM {
            assert!(!contest.agreed());
        }
        assert!(contest.agreed() && !contest.is_on());
        assert!(contest.flipped(&set("1"), 1), "a new contest");
    }

    #[test]
    fn flips_far_apart_are_no_contest() {
        let mut contest = Contest::default();
        for _ in 0..10 {
            assert!(!contest.flipped(&set("1"), 2));
            (0..CALM).for_each(|_| assert!(!contest.agreed()));
        }
    }
}
