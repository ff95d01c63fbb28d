//! Short histories of the rows of the catalogue that are marked so: ten minutes at most.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::catalogue::{self, Scope};
use crate::clock::Now;
use crate::store::Snapshot;

/// Nothing older is kept.
pub const WINDOW: Duration = Duration::from_secs(600);
/// What is read within this time after the first reading of a point belongs to the point. Passes of 5 s, the default, have a
/// point each, though one comes a little early.
const STEP_MS: u32 = 4900;
/// So many points hold [`WINDOW`], whatever the period. A row has room for them from its first reading on, so that it never
/// grows; one that nobody tells here has none.
const MOST: usize = 124;
/// Steps of a doubling in [`Point::peak`].
const STEPS: f64 = 4096.0;

/// Readings of some seconds: their mean and the largest. Eight rows of five hundred containers over ten minutes are half a
/// million of these, so they are small: seven digits are more than any counter's own truth.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    mean: f32,
    /// How much larger the largest is: the logarithm of its ratio to the mean; 0 where they are the same. To 0.02 %.
    peak: u16,
    /// When the first was true, in 10 ms modulo 655 s.
    at: u16,
}

/// Points of one row of one subject, oldest first.
#[derive(Debug)]
struct Row {
    points: VecDeque<Point>,
    /// Readings in the newest point, and the largest of them.
    readings: u32,
    largest: f32,
    /// When its first and its last were true, in milliseconds modulo 49 days.
    first_ms: u32,
    last_ms: u32,
}

/// Histories of the node and of containers. A pass adds to them, a question locks them for as long as it copies.
#[derive(Debug, Default)]
pub struct Histories {
    /// By container id (the node: empty).
    rows: Mutex<HashMap<String, Marked>>,
}

/// The rows of one subject that have a history.
#[derive(Debug)]
struct Marked {
    /// By place in the catalogue.
    rows: Box<[(usize, Row)]>,
    /// The last pass that knew it.
    pass: u64,
    /// When that ended: ages of points are told from there on, for theirs is the time of eleven minutes.
    seen: Now,
}

/// What a window holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Points in it, at least 1: of readings that are less than 5 s apart one point holds those of 5 s.
    pub points: usize,
    /// The mean of their means.
    pub average: f64,
    /// The largest reading.
    pub maximum: f64,
    /// The mean that half of them do not exceed.
    pub p50: f64,
    /// 90 of 100 do not exceed it.
    pub p90: f64,
    /// 99 of 100 do not exceed it.
    pub p99: f64,
    /// When the oldest was true.
    pub oldest: Now,
}

// === impl Histories ===

impl Histories {
    /// Adds what is new in a snapshot, and forgets whom it does not know.
    pub fn add(&self, snapshot: &Snapshot) {
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(now) = snapshot.pass.finished else { return };
        for subject in std::iter::once(&snapshot.node).chain(&snapshot.containers) {
            let id = &subject.id.container_id;
            if !rows.contains_key(id) {
                rows.insert(id.clone(), Marked::new(subject.scope));
            }
            let Some(of) = rows.get_mut(id) else { continue };
            let before = std::mem::replace(&mut of.seen, now);
            of.pass = snapshot.pass.number;
            for (place, row) in &mut of.rows {
                row.forget(before, now);
                if let Some(last) = subject.cells.get(*place).and_then(|c| c.last) {
                    row.add(last.at, last.value, now);
                }
            }
        }
        rows.retain(|_, of| of.pass == snapshot.pass.number);
    }

    /// What the last `window` holds of a row; `None` if nothing, or if the row has no history.
    pub fn summary(&self, container_id: &str, place: usize, window: Duration, now: Now) -> Option<Summary> {
        let rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let of = rows.get(container_id)?;
        let (_, row) = of.rows.iter().find(|(p, _)| *p == place)?;
        let aged = row.points.iter().map(|p| (p.age(of.seen, now), *p));
        let within: Vec<(Duration, Point)> = aged.filter(|(age, _)| *age <= window).collect();
        drop(rows);
        let mut values: Vec<f64> = within.iter().map(|(_, p)| f64::from(p.mean)).collect();
        values.sort_by(f64::total_cmp);
        #[allow(clippy::cast_precision_loss)] // at most 124
        let average = values.iter().sum::<f64>() / values.len() as f64;
        Some(Summary {
            points: values.len(),
            average,
            maximum: within.iter().map(|(_, p)| p.maximum()).max_by(f64::total_cmp)?,
            p50: percentile(&values, 50)?,
            p90: percentile(&values, 90)?,
            p99: percentile(&values, 99)?,
            oldest: now.earlier_by(within.first()?.0),
        })
    }
}

// === impl Row ===

impl Row {
    fn new() -> Self {
        Self { points: VecDeque::new(), readings: 0, largest: 0.0, first_ms: 0, last_ms: 0 }
    }

    /// The same reading told again is none, nor is one that is older than anything that is kept.
    fn add(&mut self, at: Now, value: f64, now: Now) {
        let at_ms = millis(at);
        if now.since(at) > WINDOW || (!self.points.is_empty() && self.last_ms == at_ms) {
            return;
        }
        self.last_ms = at_ms;
        match self.points.back_mut() {
            Some(newest) if at_ms.wrapping_sub(self.first_ms) < STEP_MS => {
                (self.readings, self.largest) = (self.readings + 1, self.largest.max(narrow(value)));
                newest.take_up(value, self.readings, self.largest);
            }
            _ => {
                if self.points.len() >= MOST {
                    self.points.pop_front();
                }
                (self.first_ms, self.readings, self.largest) = (at_ms, 1, narrow(value));
                self.points.reserve_exact(MOST - self.points.len());
                self.points.push_back(Point::new(at, value));
            }
        }
    }

    fn forget(&mut self, seen: Now, now: Now) {
        while self.points.front().is_some_and(|p| p.age(seen, now) > WINDOW) {
            self.points.pop_front();
        }
    }
}

// === impl Point ===

impl Point {
    fn new(at: Now, value: f64) -> Self {
        Self { mean: narrow(value), peak: 0, at: hundredths(at) }
    }

    /// Another reading, the `readings`th of this point; of them this is the largest.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // within 0..=65535
    fn take_up(&mut self, value: f64, readings: u32, largest: f32) {
        let mean = f64::from(self.mean);
        self.mean = narrow(mean + (value - mean) / f64::from(readings));
        let ratio = f64::from(largest) / f64::from(self.mean);
        self.peak = if ratio > 1.0 { (ratio.log2() * STEPS).round().min(65_535.0) as u16 } else { 0 };
    }

    fn maximum(&self) -> f64 {
        f64::from(self.mean) * (f64::from(self.peak) / STEPS).exp2()
    }

    /// How old it is. When it was `seen` last it was less than 655 s old.
    fn age(self, seen: Now, now: Now) -> Duration {
        Duration::from_millis(u64::from(hundredths(seen).wrapping_sub(self.at)) * 10) + now.since(seen)
    }
}

#[allow(clippy::cast_possible_truncation)] // of seven digits on purpose
fn narrow(value: f64) -> f32 {
    value as f32
}

#[allow(clippy::cast_possible_truncation)] // modulo 49 days on purpose
fn millis(at: Now) -> u32 {
    (at.monotonic_ns / 1_000_000) as u32
}

#[allow(clippy::cast_possible_truncation)] // modulo 655 s on purpose
fn hundredths(at: Now) -> u16 {
    (at.monotonic_ns / 10_000_000) as u16
}

// === impl Marked ===

impl Marked {
    fn new(scope: Scope) -> Self {
        let rows = catalogue::of(scope).iter().enumerate().filter(|(_, m)| m.history);
        Self { rows: rows.map(|(place, _)| (place, Row::new())).collect(), pass: 0, seen: Now::default() }
    }
}

/// Nearest rank: the smallest value that `percent` of 100 do not exceed.
fn percentile(sorted: &[f64], percent: usize) -> Option<f64> {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::sample::{Cell, Reading};
    use crate::store::{Id, Subject};

    fn at(seconds: u64) -> Now {
        Now { monotonic_ns: seconds * 1_000_000_000, unix_ns: 0 }
    }

    fn snapshot(seconds: u64, value: f64, id: &str) -> Snapshot {
        let (place, _) = catalogue::find("cpu.usage.container").unwrap();
        let id = Id { container_id: id.to_owned(), ..Id::default() };
        let mut subject = Subject::unknown(Scope::Container, id);
        *subject.cells.get_mut(place).unwrap() =
            Cell::default().after(Ok(Reading::level(value, at(seconds))));
        let mut snapshot = Snapshot { containers: vec![Arc::new(subject)], ..Snapshot::default() };
        snapshot.pass.finished = Some(at(seconds));
        snapshot
    }

    #[test]
    fn a_window_is_summed_up_and_nothing_outlives_ten_minutes_or_its_container() {
        let (place, _) = catalogue::find("cpu.usage.container").unwrap();
        let histories = Histories::default();
        for n in 1..=200 {
            histories.add(&snapshot(n * 5, n as f64, "c"));
            // The same reading told again is no point.
            histories.add(&snapshot(n * 5, n as f64, "c"));
        }
        let ten = histories.summary("c", place, Duration::from_secs(45), at(1000)).unwrap();
        assert_eq!((ten.points, ten.maximum, ten.average, ten.p50), (10, 200.0, 195.5, 195.0));
        assert_eq!((ten.p90, ten.p99, ten.oldest.monotonic_ns), (199.0, 200.0, at(955).monotonic_ns));
        let all = histories.summary("c", place, Duration::from_secs(9999), at(1000)).unwrap();
        assert_eq!(all.points, 121, "ten minutes of five seconds, both ends");
        assert_eq!(histories.summary("c", place, Duration::ZERO, at(1001)), None);
        let mut next = snapshot(1005, 1.0, "other");
        next.pass.number = 1;
        histories.add(&next);
        assert_eq!(histories.summary("c", place, WINDOW, at(1005)), None);
    }

    #[test]
    fn passes_of_a_second_take_no_more_room_and_their_peaks_are_kept() {
        let (place, _) = catalogue::find("cpu.usage.container").unwrap();
        let histories = Histories::default();
        let tenth = |n: u64| Now { monotonic_ns: n * 100_000_000, unix_ns: 0 };
        for n in 1..=9000_u64 {
            let mut snapshot = snapshot(1, if n == 8995 { 7.0 } else { 2.0 }, "c");
            let (mut subject, at) = (Subject::clone(&snapshot.containers[0]), tenth(n));
            subject.cells.get_mut(place).unwrap().last.as_mut().unwrap().at = at;
            (snapshot.containers[0], snapshot.pass.finished) = (Arc::new(subject), Some(at));
            histories.add(&snapshot);
        }
        assert_eq!(size_of::<Point>(), 8);
        let rows = histories.rows.lock().unwrap();
        for (of, row) in &rows["c"].rows {
            let room = if *of == place { MOST } else { 0 };
            assert_eq!(row.points.capacity(), room, "it never grows, and what nobody tells takes none");
        }
        drop(rows);
        let all = histories.summary("c", place, WINDOW, tenth(9000)).unwrap();
        assert!((119..=MOST).contains(&all.points), "{all:?}");
        assert!((all.maximum - 7.0).abs() < 0.002 && (all.average - 2.0).abs() < 0.01, "{all:?}");
        let age = tenth(9000).since(all.oldest);
        assert!(age <= WINDOW && age > WINDOW - Duration::from_secs(10), "{age:?}");
        // Nobody adds any more: points are as old as they are.
        assert_eq!(histories.summary("c", place, WINDOW, tenth(9000 + 6100)), None);
        let last = histories.summary("c", place, WINDOW, tenth(9000 + 5900)).unwrap();
        assert!(last.points <= 3, "{last:?}");
    }

    proptest::proptest! {
        #[test]
        fn a_point_holds_mean_and_largest_of_its_readings(values in proptest::collection::vec(0.0..1e12f64, 1..50)) {
            let mut row = Row::new();
            for (n, value) in values.iter().enumerate() {
                let at = Now { monotonic_ns: (n as u64 + 1) * 10_000_000, unix_ns: 0 };
                row.add(at, *value, at);
            }
            proptest::prop_assert_eq!(row.points.len(), 1);
            let point = row.points[0];
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            let largest = values.iter().copied().fold(0.0, f64::max);
            proptest::prop_assert!((f64::from(point.mean) - mean).abs() <= mean * 1e-5);
            proptest::prop_assert!((point.maximum() - largest).abs() <= largest * 0.0002, "{} {largest}", point.maximum());
        }

        #[test]
        fn a_percentile_is_a_value_and_grows_with_its_rank(mut values in proptest::collection::vec(0.0..1e6f64, 1..50)) {
            values.sort_by(f64::total_cmp);
            let ranks: Vec<f64> = (0..=100).filter_map(|p| percentile(&values, p)).collect();
            proptest::prop_assert_eq!(ranks.len(), 101);
            proptest::prop_assert!(ranks.is_sorted() && ranks.iter().all(|v| values.contains(v)));
            proptest::prop_assert_eq!(ranks[100], *values.last().unwrap());
        }
    }
}
