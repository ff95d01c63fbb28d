//! Rates of counters: none from one reading, none across a reset, never negative.

use std::time::Duration;

use crate::clock::Now;

/// Two readings closer than this give no rate: the noise of the clock and of the kernel's own flushing would be
/// larger than what is measured.
pub const MIN_INTERVAL: Duration = Duration::from_millis(20);

/// Which thing a counter belongs to. A counter of another identity is another counter, whatever its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Device of the cgroup's folder.
    pub device: u64,
    /// Inode of the cgroup's folder.
    pub inode: u64,
    /// When it was first seen: an inode may be used again.
    pub first_seen: Now,
}

/// One reading of a counter that only grows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counter {
    /// Of what.
    pub identity: Identity,
    /// In base units (seconds, counts).
    pub value: f64,
    /// When it was read.
    pub at: Now,
}

/// What two readings say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// There is no earlier reading of the same thing.
    First,
    /// The counter went down: it was reset, and nothing can be said of the interval.
    Reset,
    /// The readings are too close to each other; the earlier one stays the base.
    TooClose,
    /// Units per second over the interval.
    PerSecond {
        /// Never negative.
        value: f64,
        /// Between the two readings.
        interval: Duration,
    },
}

/// The rate between the `earlier` reading and the `later` one, over `least` or more.
pub fn rate(earlier: Option<&Counter>, later: &Counter, least: Duration) -> Rate {
    let Some(earlier) = earlier.filter(|e| e.identity == later.identity) else { return Rate::First };
    let grown = later.value - earlier.value;
    if grown < 0.0 || grown.is_nan() {
        return Rate::Reset;
    }
    let interval = later.at.since(earlier.at);
    if interval < least {
        return Rate::TooClose;
    }
    Rate::PerSecond { value: grown / interval.as_secs_f64(), interval }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CGROUP: Identity =
        Identity { device: 1, inode: 2, first_seen: Now { monotonic_ns: 0, unix_ns: 0 } };

    fn reading(value: f64, ms: u64) -> Counter {
        Counter { identity: CGROUP, value, at: Now { monotonic_ns: ms * 1_000_000, unix_ns: 0 } }
    }

    #[test]
    fn one_reading_gives_no_rate() {
        assert_eq!(rate(None, &reading(5.0, 0), MIN_INTERVAL), Rate::First);
    }

    #[test]
    fn another_cgroup_is_another_counter_even_if_it_counted_on() {
        let later = Counter { identity: Identity { inode: 3, ..CGROUP }, ..reading(9.0, 1000) };
        assert_eq!(rate(Some(&reading(5.0, 0)), &later, MIN_INTERVAL), Rate::First);
        let reused = Identity { first_seen: Now { monotonic_ns: 500, unix_ns: 0 }, ..CGROUP };
        assert_eq!(
            rate(Some(&reading(5.0, 0)), &Counter { identity: reused, ..reading(9.0, 1000) }, MIN_INTERVAL),
            Rate::First
        );
    }

    #[test]
    fn half_a_cpu_is_half_a_core() {
        let interval = Duration::from_secs(2);
        assert_eq!(
            rate(Some(&reading(5.0, 0)), &reading(6.0, 2000), MIN_INTERVAL),
            Rate::PerSecond { value: 0.5, interval }
        );
    }

    #[test]
    fn close_readings_keep_the_base() {
        assert_eq!(rate(Some(&reading(5.0, 0)), &reading(6.0, 19), MIN_INTERVAL), Rate::TooClose);
    }

    proptest::proptest! {
        #[test]
        fn a_rate_is_never_negative_nor_infinite(a in 0.0..1e12f64, b in 0.0..1e12f64, t in 0u64..1_000_000, dt in 0u64..1_000_000) {
            match rate(Some(&reading(a, t)), &reading(b, t + dt), MIN_INTERVAL) {
                Rate::PerSecond { value, .. } => proptest::prop_assert!(value >= 0.0 && value.is_finite()),
                Rate::Reset => proptest::prop_assert!(b < a),
                Rate::TooClose => proptest::prop_assert!(dt < 20),
                Rate::First => proptest::prop_assert!(false, "there is an earlier reading"),
            }
        }
    }
}
