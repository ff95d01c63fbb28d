//! Readings, and how they are judged: fresh, stale or missing.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::catalogue::TICK_INTERVAL;
use crate::clock::Now;

/// A value that was read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// In the metric's unit.
    pub value: f64,
    /// When it was true.
    pub at: Now,
    /// For rates: the interval over which it was taken, in seconds; otherwise 0. Seven digits are more than the value has.
    pub interval_s: f32,
    /// It was brought into its range: what it is computed from contradicted itself.
    pub clamped: bool,
}

/// Why there is no (newer) value. Texts are behind one thin pointer: there are tens of thousands of these.
#[derive(Clone, Debug, PartialEq)]
pub enum Absent {
    /// No pass has come to it yet.
    NotYet,
    /// This version of cgroups never tells it.
    Never(Arc<String>),
    /// A rate needs two readings, and there is one.
    FirstReading,
    /// The counter went down.
    Reset,
    /// The limit is no limit: there is no number.
    Unlimited,
    /// The file or the document is readable and does not tell it.
    NotTold,
    /// A file could not be opened, read or understood; the text names it.
    Unreadable(Arc<String>),
    /// The cgroup was removed.
    Removed,
    /// This machine has no such file.
    NotHere,
    /// The source does not say when it was true: nobody can say how old it is.
    NoSourceTime,
    /// This is no value that the metric can have.
    OutOfRange(f64),
    /// The source tells of an earlier time than it did before.
    WentBack,
    /// What the source says there is no number.
    NotNumber,
}

/// What is known of one metric of one subject: the last reading, and what came of the newest attempt if not a reading.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cell {
    /// The last value; a failed attempt keeps it.
    pub last: Option<Reading>,
    /// Why the newest attempt gave none; `None` if it gave one.
    pub absent: Option<Absent>,
}

/// How far a value can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Quality {
    /// Not older than asked for.
    Fresh,
    /// As fresh, and brought into its range.
    Clamped,
    /// As fresh, and from a source that is not the best for it.
    Fallback,
    /// Older; the value is the last known.
    Stale,
    /// No value.
    Missing,
    /// No value, because the counter was reset since the last reading.
    Reset,
}

/// The ages that separate the qualities.
#[derive(Clone, Copy, Debug)]
pub struct Ages {
    /// Fresh up to this age; then it has expired, and is stale.
    pub max_age: Duration,
    /// Stale up to this one; then it is withdrawn, and missing. Where it is below `max_age` nothing older is fresh.
    pub withdrawal: Duration,
}

/// A cell as it is told.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// Fresh, stale or missing.
    pub quality: Quality,
    /// Absent exactly when missing or reset.
    pub value: Option<f64>,
    /// When the last value was true, even if it is told no more.
    pub at: Option<Now>,
    /// How old it is; nothing where there never was one.
    pub age: Duration,
    /// For rates.
    pub interval: Duration,
    /// Why it is stale or missing; empty when fresh.
    pub reason: String,
}

// === impl Ages ===

impl Ages {
    /// The ages that hold for a cell where a request names none. A rate over a window that is longer than the period comes
    /// once a window, not once a period.
    #[must_use]
    pub fn of(self, cell: &Cell) -> Self {
        let window = cell.last.map(|last| last.interval()).filter(|window| *window >= TICK_INTERVAL);
        match window {
            Some(_) if self.max_age < 3 * TICK_INTERVAL => {
                Self { max_age: self.max_age + TICK_INTERVAL, withdrawal: self.withdrawal + TICK_INTERVAL }
            }
            _ => self,
        }
    }
}

// === impl Reading ===

impl Reading {
    /// A value that is no rate.
    pub fn level(value: f64, at: Now) -> Self {
        Self { value, at, interval_s: 0.0, clamped: false }
    }

    /// For rates: the interval over which it was taken.
    pub fn interval(&self) -> Duration {
        Duration::try_from_secs_f32(self.interval_s).unwrap_or_default()
    }
}

// === impl Quality ===

impl Quality {
    /// Whether there is a value that is not older than asked for.
    pub fn is_current(self) -> bool {
        matches!(self, Self::Fresh | Self::Clamped | Self::Fallback)
    }
}

// === impl Absent ===

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotYet => f.write_str("not read yet"),
            Self::Never(why) => f.write_str(why),
            Self::FirstReading => f.write_str("a rate needs two readings, there is one so far"),
            Self::Reset => f.write_str("the counter was reset since the last reading"),
            Self::Unlimited => f.write_str("unlimited"),
            Self::NotTold => f.write_str("its source answers and does not tell it"),
            Self::Unreadable(what) => f.write_str(what),
            Self::Removed => f.write_str("the cgroup was removed"),
            Self::NotHere => f.write_str("this machine has no file that tells it"),
            Self::NoSourceTime => f.write_str("the source does not say when it was true"),
            Self::OutOfRange(value) => write!(f, "the source says {value}, which cannot be"),
            Self::NotNumber => f.write_str("what its source says there is no number"),
            Self::WentBack => f.write_str("the source tells of an earlier time than it did before"),
        }
    }
}

// === impl Cell ===

impl Cell {
    /// A cell that no attempt has filled.
    pub fn absent(why: Absent) -> Self {
        Self { last: None, absent: Some(why) }
    }

    /// This cell after another attempt. What was read stays unless it is known to be untrue by now: "no limit" is
    /// an answer, a failed read is none. Across a reset nothing is known.
    #[must_use]
    pub fn after(&self, attempt: Result<Reading, Absent>) -> Self {
        match attempt {
            Ok(reading) => Self { last: Some(reading), absent: None },
            Err(why) => {
                let known = !matches!(
                    why,
                    Absent::Unlimited | Absent::Never(_) | Absent::Reset | Absent::NoSourceTime
                );
                Self { last: self.last.filter(|_| known), absent: Some(why) }
            }
        }
    }

    /// Judges the cell at `now`. A removed subject is never fresh: its last value is known not to hold.
    /// `trouble` is what ails the whole source, for the reason.
    pub fn judge(&self, now: Now, ages: Ages, removed: bool, trouble: Option<&str>) -> Judged {
        let why = || match (&self.absent, removed, trouble) {
            (Some(Absent::Never(_)), _, _) => self.absent.as_ref().map(ToString::to_string),
            (_, true, _) => Some(Absent::Removed.to_string()),
            (_, _, Some(trouble)) => Some(trouble.to_owned()),
            (absent, _, _) => absent.as_ref().map(ToString::to_string),
        };
        let Some(last) = self.last else {
            let reset = matches!(self.absent, Some(Absent::Reset)) && !removed;
            return Judged {
                quality: if reset { Quality::Reset } else { Quality::Missing },
                value: None,
                at: None,
                age: Duration::ZERO,
                interval: Duration::ZERO,
                reason: why().unwrap_or_else(|| Absent::NotYet.to_string()),
            };
        };
        let age = now.since(last.at);
        let quality = match () {
            () if age > ages.withdrawal => Quality::Missing,
            () if age > ages.max_age || removed => Quality::Stale,
            () if last.clamped => Quality::Clamped,
            () => Quality::Fresh,
        };
        let reason = match quality {
            Quality::Fresh | Quality::Fallback => String::new(),
            Quality::Clamped => "its inputs contradicted each other; brought into its range".to_owned(),
            Quality::Stale => why().unwrap_or_else(|| format!("last read {} ms ago", age.as_millis())),
            Quality::Missing | Quality::Reset => {
                let why = why().unwrap_or_else(|| "no newer reading".to_owned());
                format!("{why}; the last value was withdrawn at an age of {} ms", ages.withdrawal.as_millis())
            }
        };
        Judged {
            quality,
            value: (quality != Quality::Missing).then_some(last.value),
            at: Some(last.at),
            age,
            interval: last.interval(),
            reason,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGES: Ages = Ages { max_age: Duration::from_secs(3), withdrawal: Duration::from_secs(10) };

    fn at(seconds: u64) -> Now {
        Now { monotonic_ns: seconds * 1_000_000_000, unix_ns: 5 }
    }

    fn read_at(seconds: u64) -> Cell {
        Cell::default().after(Ok(Reading::level(7.0, at(seconds))))
    }

    #[test]
    fn a_value_ages_from_fresh_to_stale_to_missing() {
        let cell = read_at(100);
        let table = [
            (100, Quality::Fresh, Some(7.0)),
            (103, Quality::Fresh, Some(7.0)),
            (104, Quality::Stale, Some(7.0)),
            (110, Quality::Stale, Some(7.0)),
            (111, Quality::Missing, None),
        ];
        for (now, quality, value) in table {
            let judged = cell.judge(at(now), AGES, false, None);
            assert_eq!((judged.quality, judged.value), (quality, value), "at {now}");
            assert_eq!(judged.at, Some(at(100)), "the last time stays known");
            assert_eq!(judged.reason.is_empty(), quality == Quality::Fresh, "at {now}: {}", judged.reason);
        }
    }

    #[test]
    fn a_rate_over_a_window_longer_than_the_period_is_fresh_until_the_next_window() {
        let ages = Ages { max_age: Duration::from_millis(1500), withdrawal: Duration::from_secs(5) };
        let rate =
            |interval_s| Cell::default().after(Ok(Reading { interval_s, ..Reading::level(7.0, at(100)) }));
        let (windowed, short) = (rate(2.0), rate(0.5));
        let judged = |cell: &Cell, seconds| cell.judge(at(seconds), ages.of(cell), false, None).quality;
        assert_eq!((judged(&windowed, 102), judged(&short, 102)), (Quality::Fresh, Quality::Stale));
        assert_eq!((judged(&windowed, 104), judged(&windowed, 108)), (Quality::Stale, Quality::Missing));
        // With a period that is longer than the window it is as any other.
        let slow = Ages { max_age: Duration::from_secs(15), withdrawal: Duration::from_secs(50) };
        assert_eq!(slow.of(&windowed).max_age, slow.max_age);
    }

    #[test]
    fn a_failed_attempt_wipes_nothing_and_its_reason_shows_once_the_value_is_old() {
        let cell = read_at(100).after(Err(Absent::Unreadable(Arc::new("read cpu.stat: broken".to_owned()))));
        assert_eq!(cell.judge(at(101), AGES, false, None).quality, Quality::Fresh);
        let stale = cell.judge(at(105), AGES, false, None);
        assert_eq!((stale.value, stale.reason.as_str()), (Some(7.0), "read cpu.stat: broken"));
    }

    #[test]
    fn nonsense_and_an_earlier_time_wipe_nothing_and_say_why_once_the_value_is_old() {
        for (why, says) in
            [(Absent::OutOfRange(1e308), "which cannot be"), (Absent::WentBack, "an earlier time")]
        {
            let cell = read_at(100).after(Err(why));
            assert_eq!(cell.judge(at(101), AGES, false, None).quality, Quality::Fresh);
            let stale = cell.judge(at(105), AGES, false, None);
            assert_eq!((stale.quality, stale.value), (Quality::Stale, Some(7.0)));
            assert!(stale.reason.contains(says), "{}", stale.reason);
        }
    }

    #[test]
    fn no_limit_is_an_answer_and_replaces_the_old_limit() {
        let judged = read_at(100).after(Err(Absent::Unlimited)).judge(at(100), AGES, false, None);
        assert_eq!((judged.quality, judged.reason.as_str()), (Quality::Missing, "unlimited"));
    }

    #[test]
    fn a_cell_is_small_because_each_container_has_a_hundred() {
        assert_eq!(size_of::<Cell>(), 48);
    }

    #[test]
    fn a_first_reading_is_missing_and_a_reset_is_told_as_such() {
        let first = Cell::default().after(Err(Absent::FirstReading)).judge(at(1), AGES, false, None);
        assert_eq!((first.quality, first.value), (Quality::Missing, None));
        let reset = read_at(100).after(Err(Absent::Reset)).judge(at(100), AGES, false, None);
        assert_eq!((reset.quality, reset.value), (Quality::Reset, None));
        assert!(reset.reason.contains("reset"), "{}", reset.reason);
    }

    #[test]
    fn m03_a_clamped_value_says_so_until_it_is_old() {
        let clamped = Reading { clamped: true, ..Reading::level(0.0, at(100)) };
        let cell = Cell::default().after(Ok(clamped));
        let judged = cell.judge(at(101), AGES, false, None);
        assert_eq!((judged.quality, judged.value), (Quality::Clamped, Some(0.0)));
        assert_eq!(cell.judge(at(105), AGES, false, None).quality, Quality::Stale);
    }

    #[test]
    fn a_removed_subject_is_stale_at_once() {
        let judged = read_at(100).judge(at(100), AGES, true, None);
        assert_eq!((judged.quality, judged.value), (Quality::Stale, Some(7.0)));
        assert_eq!(judged.reason, "the cgroup was removed");
        assert_eq!(read_at(100).judge(at(120), AGES, true, None).quality, Quality::Missing);
    }

    #[test]
    fn what_was_never_read_is_missing_with_a_reason_and_without_a_time() {
        let judged = Cell::default().judge(at(1), AGES, false, None);
        assert_eq!((judged.quality, judged.at), (Quality::Missing, None));
        assert_eq!(judged.reason, "not read yet");
    }

    proptest::proptest! {
        #[test]
        fn missing_and_only_missing_has_no_value(
            read in 0u64..50, now in 0u64..100, max in 0u64..40, withdrawal in 0u64..40, removed: bool, ever: bool
        ) {
            let cell = if ever { read_at(read) } else { Cell::default() };
            let ages = Ages { max_age: Duration::from_secs(max), withdrawal: Duration::from_secs(withdrawal) };
            let judged = cell.judge(at(now), ages, removed, None);
            proptest::prop_assert_eq!(judged.value.is_none(), judged.quality == Quality::Missing);
            proptest::prop_assert_eq!(judged.reason.is_empty(), judged.quality == Quality::Fresh);
            if judged.quality == Quality::Fresh {
                proptest::prop_assert!(judged.age <= ages.max_age.min(ages.withdrawal) && !removed);
            }
        }

        #[test]
        fn quality_only_worsens_with_time(read in 0u64..10, now in 0u64..60, more in 0u64..60) {
            let rank = |q| match q { Quality::Stale => 1, Quality::Missing | Quality::Reset => 2, _ => 0 };
            let (early, late) = (read_at(read).judge(at(now), AGES, false, None), read_at(read).judge(at(now + more), AGES, false, None));
            proptest::prop_assert!(rank(early.quality) <= rank(late.quality));
        }
    }
}
