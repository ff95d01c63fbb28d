//! Which values can be, by unit: what a source says beyond is a fault of the source.

use super::{Kind, Metric, Told, Unit, take};
use crate::contents::Contents;

/// Counters of 64 bits end here with a sign; no machine has counted so far.
pub(crate) const COUNTER_END: f64 = 9_223_372_036_854_775_808.0;
/// Bytes that no machine has, nor has moved.
const MOST_COUNTED: f64 = COUNTER_END / 2.0;

// === impl Unit ===

impl Unit {
    /// The largest value in this unit that any machine can have; 0 is the smallest. Differences that went below 0 as unsigned
    /// numbers lie beyond it.
    pub const fn most(self) -> f64 {
        match self {
            Self::Cores => 65_536.0,
            Self::Percent => 101.0,
            Self::Ratio | Self::Watts | Self::GibPerSecond => 1e6,
            Self::MibPerSecond | Self::Kilohertz => 1e9,
            Self::MicrosecondsPerSecond => 65_536e6,
            Self::PerSecond | Self::BytesPerSecond => 1e15,
            Self::Pages => MOST_COUNTED / 4096.0,
            Self::Bytes => MOST_COUNTED,
            Self::Microseconds | Self::Nanoseconds | Self::Milliseconds | Self::Count => COUNTER_END,
        }
    }
}

// === impl Metric ===

impl Metric {
    /// Whether it can have that value. What a source says beyond it is a fault of the source, and no reading.
    pub fn can_be(&self, value: f64) -> bool {
        (0.0..=self.unit.most()).contains(&value)
    }

    /// The most that there is of a rate made of counters: a share of the time is 1 at most, and what CPUs did no more than there
    /// are CPUs. `contents` are those of the file that the counter stands in, where it comes from one.
    pub(crate) fn most_growth(&self, contents: Option<&Contents>) -> f64 {
        match (self.unit, self.kind, contents.map(take::cpus)) {
            (Unit::Ratio, ..) => 1.0,
            (Unit::Cores, Kind::Ticks, Some(Told::Value(cpus))) => cpus,
            _ => self.unit.most(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::all;

    #[test]
    fn m03_a_difference_that_went_below_zero_is_no_value_of_any_metric() {
        for metric in all() {
            for wrong in [18_446_744_073_709_551_449.0, -1.0, 1e308, f64::NAN, f64::INFINITY] {
                assert!(!metric.can_be(wrong), "{} {wrong}", metric.name);
            }
            assert!(metric.can_be(0.0) && metric.can_be(1.0), "{}", metric.name);
        }
    }
}
