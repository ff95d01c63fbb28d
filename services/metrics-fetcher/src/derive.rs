//! Rows that are computed from other rows of the same subject and source.

use crate::catalogue::{self, Scope, Told};
use crate::cells::Cells;
use crate::sample::{Absent, Reading};

/// The most inputs that a formula has.
const INPUTS: usize = 4;

/// Fills the derived cells of a subject from its other cells. `before` is what was known before this pass.
pub fn derive(scope: Scope, before: &Cells, cells: &mut Cells) {
    for (at, inputs, formula) in catalogue::derived(scope) {
        if cells.get_mut(*at).is_none() {
            continue;
        }
        let mut values = [0.0; INPUTS];
        let mut result: Result<Option<Reading>, Absent> = Ok(None);
        for (value, place) in values.iter_mut().zip(inputs) {
            let Some(input) = cells.get(*place) else { continue };
            result = match (&input.absent, input.last, result) {
                (_, _, Err(why)) => Err(why),
                (Some(why), _, Ok(_)) => Err(why.clone()),
                (None, None, Ok(_)) => Err(Absent::NotYet),
                (None, Some(reading), Ok(whole)) => {
                    *value = reading.value;
                    Ok(Some(whole.map_or(reading, |w| older(w, reading))))
                }
            };
        }
        let can_be = |value| catalogue::of(scope).get(*at).is_none_or(|metric| metric.can_be(value));
        let attempt = match result {
            Err(why) => Err(why),
            Ok(None) => Err(Absent::NotYet),
            Ok(Some(whole)) => match (formula.by)(values.get(..inputs.len()).unwrap_or_default()) {
                Told::Value(value) | Told::Clamped(value) if !can_be(value) => Err(Absent::OutOfRange(value)),
                Told::Value(value) => Ok(Reading { value, ..whole }),
                Told::Clamped(value) => Ok(Reading { value, clamped: true, ..whole }),
                Told::Unlimited => Err(Absent::Unlimited),
                Told::Nothing => Err(Absent::NotTold),
            },
        };
        if let (Some(cell), Some(before)) = (cells.get_mut(*at), before.get(*at)) {
            *cell = before.after(attempt);
        }
    }
}

/// A result is as old as its oldest input, taken over the longest interval, clamped if one is.
fn older(a: Reading, b: Reading) -> Reading {
    Reading {
        value: 0.0,
        at: a.at.min(b.at),
        interval_s: a.interval_s.max(b.interval_s),
        clamped: a.clamped || b.clamped,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cells::Layout;
    use crate::clock::Now;
    use crate::sample::Cell;

    fn cells(values: &[(&str, Result<f64, Absent>)]) -> Cells {
        let mut cells = Cells::unknown(Layout::full(Scope::Container));
        for (seconds, (name, value)) in (1u64..).zip(values) {
            let at = Now { monotonic_ns: seconds, unix_ns: 0 };
            let attempt = value.clone().map(|v| Reading::level(v, at));
            *cells.get_mut(catalogue::find(name).unwrap().0).unwrap() = Cell::default().after(attempt);
        }
        let before = cells.clone();
        derive(Scope::Container, &before, &mut cells);
        cells
    }

    fn of(cells: &Cells, name: &str) -> Cell {
        cells.get(catalogue::find(name).unwrap().0).unwrap().clone()
    }

    #[test]
    fn m09_the_working_set_is_told_beside_anonymous_memory() {
        let cells = cells(&[("mem.usage.container", Ok(9.0)), ("mem.inactivefile.container", Ok(8.0))]);
        let reading = of(&cells, "mem.workingset.container").last.unwrap();
        assert_eq!((reading.value, reading.clamped, reading.at.monotonic_ns), (1.0, false, 1));
    }

    #[test]
    fn m03_more_page_cache_than_usage_is_zero_and_clamped() {
        let cells = cells(&[("mem.usage.container", Ok(5.0)), ("mem.inactivefile.container", Ok(8.0))]);
        let reading = of(&cells, "mem.workingset.container").last.unwrap();
        assert_eq!((reading.value, reading.clamped), (0.0, true));
    }

    #[test]
    fn without_a_quota_there_is_no_limit_and_no_ratio() {
        let unlimited = cells(&[
            ("cpu.usage.container", Ok(1.5)),
            ("cpu.quota.container", Err(Absent::Unlimited)),
            ("cpu.period.container", Ok(100_000.0)),
        ]);
        assert_eq!(of(&unlimited, "cpu.limit.container").absent, Some(Absent::Unlimited));
        assert_eq!(of(&unlimited, "cpu.usage.ratio.container").absent, Some(Absent::Unlimited));
        let limited = cells(&[
            ("cpu.usage.container", Ok(1.5)),
            ("cpu.quota.container", Ok(200_000.0)),
            ("cpu.period.container", Ok(100_000.0)),
        ]);
        assert_eq!(of(&limited, "cpu.limit.container").last.map(|r| r.value), Some(2.0));
        assert_eq!(of(&limited, "cpu.usage.ratio.container").last.map(|r| r.value), Some(0.75));
    }
}
