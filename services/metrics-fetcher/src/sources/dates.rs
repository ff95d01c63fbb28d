//! When what a source tells was true: by its own date, as far as that can be believed.
//!
//! A date is put on the clock that never jumps when it is first read, and stays there: one that is told again is no news,
//! whatever the clocks do meanwhile. One that is ahead of the clock here would stay young for ever, so it counts from when it
//! was first read.
//!
//! Intervals between readings are the source's own. It was made between the last time that it was not there and the first that
//! it was, so each date says within which bounds its clock is behind the one here. If those of two dates have nothing in
//! common, its clock was set between them, and their interval means nothing.

use std::time::Duration;

use crate::clock::Now;

/// A source that is ahead by no more than this is not said to be: two clocks are never quite the same.
const AHEAD: Duration = Duration::from_secs(2);
/// A date is earlier than the one before if it is so by more than this: so much the date here may have been corrected by.
const BACK_NS: u64 = 500_000_000;
/// Two dates whose bounds are apart by no more are of one clock: some tell whole seconds, and some wait before they answer.
const SLACK_NS: i64 = 2_000_000_000;
/// Nobody looked before the first date; it is taken to be no older than this, or of another clock.
const FIRST_NS: u64 = 30_000_000_000;

/// The newest date of each block of one subject.
#[derive(Debug, Default)]
pub(super) struct Dates(Vec<(&'static str, Held)>);

#[derive(Clone, Copy, Debug)]
struct Held {
    unix_ns: i64,
    /// The same on the clock that never jumps, as the source says it.
    told_ns: u64,
    at: Now,
    /// When it was last asked for.
    looked_ns: u64,
    /// How far its clock is behind the one here: at least, and at most.
    behind: [i64; 2],
    since: Now,
}

/// One block's date.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Dated {
    /// When it was true; never later than when it was first read.
    pub(super) at: Now,
    /// The same as the source says it, for intervals between readings.
    pub(super) counted_at: Now,
    /// When the source's clock was last found set: no interval begins before.
    pub(super) since: Now,
    /// By how much it is ahead, where that is worth telling.
    pub(super) ahead: Option<Duration>,
    /// What it says beside the one before.
    pub(super) telling: Telling,
}

/// What a date says beside the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Telling {
    /// A later one, or the first.
    News,
    /// The same.
    Again,
    /// An earlier one: what was told before is newer.
    WentBack,
}

// === impl Dates ===

impl Dates {
    /// Takes the date of a block that is read now. `offset_ns` is the monotonic clock less the date here.
    pub(super) fn take(&mut self, block: &'static str, unix_ns: i64, now: Now, offset_ns: i64) -> Dated {
        let told_ns = u64::try_from(unix_ns.saturating_add(offset_ns)).unwrap_or(0);
        let Some((_, before)) = self.0.iter_mut().find(|(name, _)| *name == block) else {
            let held = Held::new(unix_ns, told_ns, now.monotonic_ns.saturating_sub(FIRST_NS), now);
            self.0.push((block, held));
            return held.dated(now, Telling::News);
        };
        let looked_ns = std::mem::replace(&mut before.looked_ns, now.monotonic_ns);
        if before.unix_ns == unix_ns {
            return before.dated(now, Telling::Again);
        }
        if told_ns.saturating_add(BACK_NS) < before.at.monotonic_ns {
            // The newer date stays the measure.
            return before.dated(now, Telling::WentBack);
        }
        let held = Held::new(unix_ns, told_ns, looked_ns, now);
        let since = if apart(before.behind, held.behind) { now } else { before.since };
        *before = Held { since, ..held };
        before.dated(now, Telling::News)
    }
}

// === impl Held ===

impl Held {
    /// Of a date that is new now and was not there when it was looked for before.
    fn new(unix_ns: i64, told_ns: u64, looked_ns: u64, now: Now) -> Self {
        let behind = |at_ns| signed(at_ns).saturating_sub(signed(told_ns));
        Self {
            unix_ns,
            told_ns,
            at: if told_ns > now.monotonic_ns { now } else { Now { monotonic_ns: told_ns, unix_ns } },
            looked_ns: now.monotonic_ns,
            behind: [behind(looked_ns), behind(now.monotonic_ns)],
            since: Now::default(),
        }
    }

    fn dated(self, now: Now, telling: Telling) -> Dated {
        let Self { unix_ns, told_ns, at, since, .. } = self;
        let counted_at = Now { monotonic_ns: told_ns, unix_ns };
        Dated { at, counted_at, since, ahead: ahead(told_ns, now), telling }
    }
}

fn ahead(told_ns: u64, now: Now) -> Option<Duration> {
    Some(Duration::from_nanos(told_ns.saturating_sub(now.monotonic_ns))).filter(|by| *by > AHEAD)
}

/// Whether two bounds have nothing in common, not even nearly.
fn apart([least, most]: [i64; 2], [other_least, other_most]: [i64; 2]) -> bool {
    least.max(other_least).saturating_sub(most.min(other_most)) > SLACK_NS
}

pub(super) fn signed(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: i64 = 1_767_225_600;
    const OFFSET: i64 = -START * 1_000_000_000;

    fn at(seconds: i64) -> Now {
        Now { monotonic_ns: (seconds * 1_000_000_000) as u64, unix_ns: (START + seconds) * 1_000_000_000 }
    }

    fn told(dates: &mut Dates, told: i64, now: i64) -> (u64, Telling, bool) {
        let dated = dates.take("b", (START + told) * 1_000_000_000, at(now), OFFSET);
        (at(now).since(dated.at).as_secs(), dated.telling, dated.ahead.is_some())
    }

    #[test]
    fn a_date_that_stays_the_same_ages_though_it_is_ahead() {
        let mut dates = Dates::default();
        assert_eq!(told(&mut dates, 3700, 100), (0, Telling::News, true));
        assert_eq!(told(&mut dates, 3700, 160), (60, Telling::Again, true));
        assert_eq!(
            told(&mut dates, 3700, 3800),
            (3700, Telling::Again, false),
            "its time has come meanwhile"
        );
        // A later one, still ahead.
        assert_eq!(told(&mut dates, 7500, 3805), (0, Telling::News, true));
        // Its clock was set right: that is no step back.
        assert_eq!(told(&mut dates, 3809, 3810), (1, Telling::News, false));
    }

    #[test]
    fn an_earlier_date_is_no_news_and_changes_nothing() {
        let mut dates = Dates::default();
        assert_eq!(told(&mut dates, 100, 101), (1, Telling::News, false));
        assert_eq!(told(&mut dates, 40, 106), (6, Telling::WentBack, false));
        assert_eq!(told(&mut dates, 45, 111), (11, Telling::WentBack, false));
        assert_eq!(told(&mut dates, 112, 113), (1, Telling::News, false));
    }

    #[test]
    fn a_date_here_that_is_set_moves_no_date_that_is_known_and_the_next_one_fits() {
        let mut dates = Dates::default();
        assert_eq!(told(&mut dates, 100, 101), (1, Telling::News, false));
        // Both clocks are two hours back.
        let back = 7_200_000_000_000;
        let date = |seconds: i64| (START + seconds) * 1_000_000_000 - back;
        let dated = dates.take("b", date(105), at(106), OFFSET + back);
        assert_eq!((at(106).since(dated.at).as_secs(), dated.telling), (1, Telling::News));
        let again = dates.take("b", date(105), at(116), OFFSET);
        assert_eq!((at(116).since(again.at).as_secs(), again.telling), (11, Telling::Again));
    }

    /// Passes of which each tells when it was and what date it was told; the last one's rate counts from when.
    fn since(passes: &[(i64, i64)]) -> Option<u64> {
        let mut dates = Dates::default();
        let since = passes.iter().map(|(now, told)| {
            let since = dates.take("b", (START + told) * 1_000_000_000, at(*now), OFFSET).since;
            (since > Now::default()).then_some(since.monotonic_ns / 1_000_000_000)
        });
        since.last().flatten()
    }

    #[test]
    fn no_interval_spans_the_setting_of_the_sources_clock() {
        // An hour behind, and set right; then set back by an hour, until it is past its time again; and an hour ahead.
        assert_eq!(since(&[(5000, 1400), (5005, 1405)]), None);
        assert_eq!(since(&[(5000, 1400), (5005, 1405), (5010, 5010)]), Some(5010));
        assert_eq!(since(&[(5000, 1400), (5005, 5005), (5010, 5010)]), Some(5005));
        assert_eq!(since(&[(5000, 5000), (5005, 1405), (8599, 4999), (8605, 5005)]), Some(8605));
        assert_eq!(since(&[(5000, 5000), (5005, 8605)]), Some(5005));
        // What was frozen at first and goes on might as well have been set.
        assert_eq!(since(&[(5000, 4880), (5005, 5004)]), Some(5005));
    }

    #[test]
    fn a_source_that_is_slow_hangs_or_is_asked_seldom_has_its_clock() {
        // Twenty seconds from one to the next, asked every five; then it hangs for two minutes.
        let hangs = [(5000, 4990), (5005, 4990), (5010, 5010), (5015, 5010), (5130, 5010), (5135, 5131)];
        assert_eq!(since(&hangs), None);
        // No answer for two minutes.
        assert_eq!(since(&[(5000, 4996), (5005, 5001), (5130, 5056), (5135, 5131)]), None);
        // Always an hour behind, or ahead.
        assert_eq!(since(&[(5000, 1400), (5005, 1401), (5010, 1409), (5015, 1411)]), None);
        assert_eq!(since(&[(5000, 8600), (5005, 8601), (5010, 8609), (5015, 8611)]), None);
    }

    proptest::proptest! {
        #[test]
        fn whatever_is_told_as_soon_as_it_is_made_is_of_one_clock(
            offset in -10_000i64..10_000, period in 1i64..30, steps in proptest::collection::vec(1i64..100, 2..30)
        ) {
            let (mut dates, mut now) = (Dates::default(), 20_000);
            for step in steps {
                now += step;
                let told = now / period * period + offset;
                let dated = dates.take("b", (START + told) * 1_000_000_000, at(now), OFFSET);
                proptest::prop_assert_eq!(dated.since, Now::default());
            }
        }

        #[test]
        fn nothing_is_younger_than_its_first_reading(steps in proptest::collection::vec((0i64..50, -100i64..100), 1..20)) {
            let (mut dates, mut now, mut newest) = (Dates::default(), 1000, 0);
            for (step, lag) in steps {
                now += step;
                let dated = dates.take("b", (START + now - lag) * 1_000_000_000, at(now), OFFSET);
                proptest::prop_assert!(dated.at.monotonic_ns <= at(now).monotonic_ns);
                proptest::prop_assert!(dated.at.monotonic_ns + BACK_NS >= newest, "it went back");
                newest = dated.at.monotonic_ns;
            }
        }
    }
}
