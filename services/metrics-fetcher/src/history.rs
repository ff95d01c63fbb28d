//! Short histories of the rows of the catalogue that are marked so: ten minutes at most.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::catalogue::{self, Scope};
use crate::clock::Now;
use crate::store::Snapshot;

/// Nothing older is kept.
pub const WINDOW: Duration = Duration::from_secs(600);
/// So many points of one row of one subject are kept at most, whatever the period: one a second.
const MOST: usize = 600;

/// One value. Eight rows of five hundred containers over ten minutes are half a million of these, so they are small:
/// seven digits are more than any counter's own truth, and milliseconds are counted modulo 49 days.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    at_ms: u32,
    value: f32,
}

/// Points of one row of one subject, oldest first.
type Row = VecDeque<Point>;

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
}

/// What a window holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Points in it, at least 1.
    pub points: usize,
    /// Their mean.
    pub average: f64,
    /// The largest.
    pub maximum: f64,
    /// The one that half of them do not exceed.
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
            of.pass = snapshot.pass.number;
            for (place, row) in &mut of.rows {
                let Some(last) = subject.cells.get(*place).and_then(|c| c.last) else { continue };
                let point = Point::new(last.at, last.value);
                if row.back().is_none_or(|p| p.at_ms != point.at_ms) {
                    row.push_back(point);
                }
                while row.len() > MOST || row.front().is_some_and(|p| p.age(now) > WINDOW) {
                    row.pop_front();
                }
            }
        }
        rows.retain(|_, of| of.pass == snapshot.pass.number);
    }

    /// What the last `window` holds of a row; `None` if nothing, or if the row has no history.
    pub fn summary(&self, container_id: &str, place: usize, window: Duration, now: Now) -> Option<Summary> {
        let rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, row) = rows.get(container_id)?.rows.iter().find(|(p, _)| *p == place)?;
        let within: Vec<Point> = row.iter().filter(|p| p.age(now) <= window).copied().collect();
        drop(rows);
        let mut values: Vec<f64> = within.iter().map(|p| f64::from(p.value)).collect();
        values.sort_by(f64::total_cmp);
        #[allow(clippy::cast_precision_loss)] // at most 600
        let average = values.iter().sum::<f64>() / values.len() as f64;
        Some(Summary {
            points: values.len(),
            average,
            maximum: *values.last()?,
            p50: percentile(&values, 50)?,
            p90: percentile(&values, 90)?,
            p99: percentile(&values, 99)?,
            oldest: now.earlier_by(within.first()?.age(now)),
        })
    }
}

// === impl Point ===

impl Point {
    #[allow(clippy::cast_possible_truncation)] // of seven digits and modulo 49 days on purpose
    fn new(at: Now, value: f64) -> Self {
        Self { at_ms: (at.monotonic_ns / 1_000_000) as u32, value: value as f32 }
    }

    /// How old it is. Nothing is kept that is older than [`WINDOW`], so a difference modulo 49 days is the whole.
    fn age(self, now: Now) -> Duration {
        Duration::from_millis(Self::new(now, 0.0).at_ms.wrapping_sub(self.at_ms).into())
    }
}

// === impl Marked ===

impl Marked {
    fn new(scope: Scope) -> Self {
        let rows = catalogue::of(scope).iter().enumerate().filter(|(_, m)| m.history);
        Self { rows: rows.map(|(place, _)| (place, Row::new())).collect(), pass: 0 }
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

    proptest::proptest! {
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
