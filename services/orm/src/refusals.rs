//! Pods that are refused again and again, as those of a controller that makes each anew: how long whoever brings them had better wait.
//! Pure.

use std::collections::VecDeque;

use oxalyst_planner::plan::Reason;

/// Refusals within [`WINDOW_MS`] from which on waiting is advised.
const OFTEN: usize = 10;
const WINDOW_MS: i64 = 60_000;
/// The first wait that is advised, and the longest, in seconds: those between which the kubelet waits for a container that fails.
const WAITS: (u64, u64) = (10, 300);

/// The refusals of late.
#[derive(Clone, Debug, Default)]
pub struct Refusals {
    recent: VecDeque<i64>,
    advised: Option<Advice>,
    /// Refusals since the wait that is advised became what it is.
    since_advised: usize,
}

/// What is advised after many refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advice {
    /// Seconds to wait before the next attempt on this node.
    pub wait_s: u64,
    /// When the refusal came that led to it.
    since_unix_ms: i64,
    /// When the last one came.
    last_unix_ms: i64,
}

/// What a refusal did to the advice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    /// None is given.
    Few,
    /// It stands as it was.
    Same(Advice),
    /// It is new, or longer than before.
    More(Advice),
}

// === impl Refusals ===

impl Refusals {
    /// Takes note of a refusal that is the same for as long as nobody ends on this node: not those of a late caller or of something
    /// that is away for a moment.
    pub fn note(&mut self, reason: Reason, now_unix_ms: i64) -> Noted {
        self.calm_down(now_unix_ms);
        if matches!(reason, Reason::Expired | Reason::Storage | Reason::Unavailable) {
            return self.advised.map_or(Noted::Few, Noted::Same);
        }
        self.recent.push_back(now_unix_ms);
        if self.recent.len() > OFTEN {
            self.recent.pop_front();
        }
        let first = self.recent.front().copied().unwrap_or(now_unix_ms);
        let often = self.recent.len() == OFTEN && now_unix_ms.saturating_sub(first) < WINDOW_MS;
        self.since_advised = self.since_advised.saturating_add(1);
        let (wait_s, since_unix_ms) = match self.advised {
            None if often => (WAITS.0, now_unix_ms),
            None => return Noted::Few,
            Some(before) if often && self.since_advised >= OFTEN && before.wait_s < WAITS.1 => {
                (before.wait_s.saturating_mul(2).min(WAITS.1), before.since_unix_ms)
            }
            Some(before) => {
                let same = Advice { last_unix_ms: now_unix_ms, ..before };
                self.advised = Some(same);
                return Noted::Same(same);
            }
        };
        let more = Advice { wait_s, since_unix_ms, last_unix_ms: now_unix_ms };
        (self.advised, self.since_advised) = (Some(more), 0);
        Noted::More(more)
    }

    /// Forgets the advice once nobody has been refused for twice as long as was advised, and for a minute; says whether it did.
    pub fn calm_down(&mut self, now_unix_ms: i64) -> bool {
        let over = self.advised.is_some_and(|advice| {
            let wait = i64::try_from(advice.wait_s).unwrap_or(i64::MAX).saturating_mul(2000);
            now_unix_ms.saturating_sub(advice.last_unix_ms) > wait.max(WINDOW_MS)
        });
        if over {
            *self = Self::default();
        }
        over
    }
}

// === impl Advice ===

impl Advice {
    /// What is added to a refusal.
    pub fn sentence(&self) -> String {
        format!(
            "pods are refused here again and again ({OFTEN} or more in a minute): wait {} s before the next attempt, or use another node",
            self.wait_s
        )
    }

    /// Since when it is given, milliseconds since the Unix epoch.
    pub const fn since_unix_ms(&self) -> i64 {
        self.since_unix_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Refusals one after another, `every` ms apart; the waits that were advised.
    fn waits(refusals: &mut Refusals, from: i64, every: i64, count: i64) -> Vec<u64> {
        let noted = (0..count).map(|nth| refusals.note(Reason::Insufficient, from + nth * every));
        let mut waits: Vec<u64> = noted
            .filter_map(|noted| match noted {
                Noted::Few => None,
                Noted::Same(advice) | Noted::More(advice) => Some(advice.wait_s),
            })
            .collect();
        waits.dedup();
        waits
    }

    #[test]
    fn a18_the_more_are_refused_the_longer_is_the_wait_that_is_advised() {
        let mut refusals = Refusals::default();
        assert_eq!(waits(&mut refusals, 0, 1000, 9), [0; 0]);
        assert_eq!(waits(&mut refusals, 9000, 1000, 91), [10, 20, 40, 80, 160, 300]);
        assert_eq!(waits(&mut refusals, 100_000, 1000, 200), [300], "and no longer");
    }

    #[test]
    fn a18_few_refusals_and_those_that_pass_by_themselves_advise_nothing() {
        let mut refusals = Refusals::default();
        assert_eq!(waits(&mut refusals, 0, 7000, 100), [0; 0], "nine a minute");
        for nth in 0..100 {
            assert_eq!(refusals.note(Reason::Unavailable, 700_000 + nth), Noted::Few);
        }
    }

    #[test]
    fn a18_who_waits_as_advised_is_not_told_to_wait_longer_and_quiet_ends_it() {
        let mut refusals = Refusals::default();
        assert_eq!(waits(&mut refusals, 0, 100, 10), [10]);
        assert_eq!(waits(&mut refusals, 11_000, 10_000, 30), [10], "six a minute");
        assert!(!refusals.calm_down(301_000 + 59_000));
        assert!(refusals.calm_down(301_000 + 61_000));
        assert_eq!(waits(&mut refusals, 400_000, 100, 9), [0; 0]);
    }
}
