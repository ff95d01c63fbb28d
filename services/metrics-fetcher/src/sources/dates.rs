//! When what a source tells was true: by its own date, as far as that can be believed.
//!
//! A date is put on the clock that never jumps when it is first read, and stays there: one that is told again is no news,
//! whatever the clocks do meanwhile. One that is ahead of the clock here would stay young for ever, so it counts from when it
//! was first read.

use std::time::Duration;

use crate::clock::Now;

/// A source that is ahead by no more than this is not said to be: two clocks are never quite the same.
const AHEAD: Duration = Duration::from_secs(2);
/// A date is earlier than the one before if it is so by more than this: so much the date here may have been corrected by.
const BACK_NS: u64 = 500_000_000;

/// The newest date of each block of one subject.
#[derive(Debug, Default)]
pub(super) struct Dates(Vec<(&'static str, Held)>);

#[derive(Clone, Copy, Debug)]
struct Held {
    unix_ns: i64,
    /// The same on the clock that never jumps, as the source says it.
    told_ns: u64,
    at: Now,
    counted_at: Now,
}

/// One block's date.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Dated {
    /// When it was true; never later than when it was first read.
    pub(super) at: Now,
    /// The same for intervals between readings: a little ahead if the source's clock is.
    pub(super) counted_at: Now,
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
        let place = self.0.iter().position(|(name, _)| *name == block);
        if let Some((_, held)) = place.and_then(|place| self.0.get(place)) {
            if held.unix_ns == unix_ns {
                return held.dated(now, Telling::Again);
            }
            if told_ns.saturating_add(BACK_NS) < held.at.monotonic_ns {
                // The newer date stays the measure.
                return held.dated(now, Telling::WentBack);
            }
        }
        let told = Now { monotonic_ns: told_ns, unix_ns };
        let held = Held {
            unix_ns,
            told_ns,
            at: if told_ns > now.monotonic_ns { now } else { told },
            // Where its clock is far ahead, nothing of it is believed.
            counted_at: if ahead(told_ns, now).is_some() { now } else { told },
        };
        match place.and_then(|place| self.0.get_mut(place)) {
            Some((_, before)) => *before = held,
            None => self.0.push((block, held)),
        }
        held.dated(now, Telling::News)
    }
}

// === impl Held ===

impl Held {
    fn dated(self, now: Now, telling: Telling) -> Dated {
        let Self { told_ns, at, counted_at, .. } = self;
        Dated { at, counted_at, ahead: ahead(told_ns, now), telling }
    }
}

fn ahead(told_ns: u64, now: Now) -> Option<Duration> {
    Some(Duration::from_nanos(told_ns.saturating_sub(now.monotonic_ns))).filter(|by| *by > AHEAD)
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

    proptest::proptest! {
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
