//! Memory traffic of L3 caches, as resctrl's counters tell it: rates, corrections by processor, sums by NUMA node.

use std::collections::BTreeMap;
use std::time::Duration;

/// A container's rate above it is a counter that jumped, not traffic.
const IMPOSSIBLE: f64 = 400e9;
/// A cache's rate that grows by more than this from one reading to the next ...
const SUSPICIOUS: f64 = 50e9;
/// ... is taken to have grown by this much.
const STEP: f64 = 3e9;

/// Processors whose counters need a correction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Processor {
    /// AMD Zen 3: evictions are not in the total.
    Zen3,
    /// AMD Zen 4: local traffic is counted to three fifths.
    Zen4,
    /// Any other, by the most that one of its caches can do.
    Other(u64),
    /// Unknown.
    #[default]
    Unknown,
}

/// Counters of one cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// All traffic, bytes.
    pub total: u64,
    /// Of it to local memory, bytes.
    pub local: u64,
    /// Evictions, bytes a second, as told; not every processor counts them.
    pub victim: Option<u64>,
}

/// Rates, bytes per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    /// All.
    pub total: f64,
    /// Of it to local memory.
    pub local: f64,
    /// Evictions, where they are told.
    pub victim: Option<f64>,
}

/// The counters of one subject's caches, by cache, between readings.
#[derive(Clone, Debug, Default)]
pub struct Monitor {
    counters: BTreeMap<u64, Counters>,
    rates: BTreeMap<u64, Traffic>,
    /// Seconds since the Unix epoch.
    at: Option<i64>,
}

// === impl Processor ===

impl Processor {
    /// By the code name that malachite tells.
    pub fn of(code: &str) -> Self {
        match code {
            _ if code.contains("Zen4") => Self::Zen4,
            _ if code.contains("Zen3") => Self::Zen3,
            _ if code.contains("Zen2") => Self::Other(142_000_000_000 / 8),
            _ if code.contains("Rapids") => Self::Other(215_000_000_000),
            _ if code.contains("Lake") => Self::Other(98_000_000_000),
            _ => Self::Unknown,
        }
    }

    /// By what `/proc/cpuinfo` says of its first CPU, as far as a correction depends on it.
    pub fn of_cpuinfo(text: &str) -> Self {
        let of = |key: &str| {
            let line = text.lines().find(|line| line.split(':').next().is_some_and(|k| k.trim() == key))?;
            Some(line.split_once(':')?.1.trim())
        };
        let number = |key| of(key)?.parse::<u32>().ok();
        match (of("vendor_id"), number("cpu family"), number("model")) {
            (Some("AuthenticAMD"), Some(0x19), Some(0x10..=0x1f | 0x60..=0x7f | 0xa0..=0xaf)) => Self::Zen4,
            (Some("AuthenticAMD"), Some(0x19), Some(_)) => Self::Zen3,
            _ => Self::Unknown,
        }
    }

    /// The most that one cache can do, bytes per second.
    pub fn most(self) -> u64 {
        match self {
            Self::Zen4 => 322_000_000_000 / 12,
            Self::Zen3 => 142_000_000_000 / 8,
            Self::Other(most) => most,
            Self::Unknown => 400_000_000_000,
        }
    }
}

// === impl Monitor ===

impl Monitor {
    /// Rates of each cache since the reading before: `None` at first, and while the source does not advance.
    pub fn advance(
        &mut self,
        now: BTreeMap<u64, Counters>,
        at: i64,
        most: f64,
    ) -> Option<&BTreeMap<u64, Traffic>> {
        let Some(before) = self.at else {
            (self.counters, self.at) = (now, Some(at));
            return None;
        };
        let elapsed = at.saturating_sub(before);
        if elapsed <= 0 {
            return (!self.rates.is_empty()).then_some(&self.rates);
        }
        let interval = Duration::from_secs(elapsed.unsigned_abs());
        let mut rates = BTreeMap::new();
        for (cache, counters) in &now {
            let Some(old) = self.counters.get(cache) else { continue };
            let previous = self.rates.get(cache).copied();
            let rate = |new, old, previous: Option<f64>| {
                let rate = bytes_per_second(new, old, interval);
                previous.map_or(rate, |previous| clamp(rate, previous, SUSPICIOUS, STEP))
            };
            let total = rate(counters.total, old.total, previous.map(|p| p.total));
            let local = rate(counters.local, old.local, previous.map(|p| p.local));
            if local <= most && total <= 2.0 * most {
                rates.insert(*cache, Traffic { total, local, victim: old.victim.map(float) });
            }
        }
        (self.counters, self.rates, self.at) = (now, rates, Some(at));
        Some(&self.rates)
    }
}

/// Bytes per second between two counters; 0 if there was none, if it went down, and without an interval.
pub fn bytes_per_second(current: u64, previous: u64, interval: Duration) -> f64 {
    if previous == 0 || current < previous || interval.is_zero() {
        return 0.0;
    }
    float(current - previous) / interval.as_secs_f64()
}

/// A rate that grew by more than `most` is taken to have grown by `step`.
pub fn clamp(current: f64, previous: f64, most: f64, step: f64) -> f64 {
    if current - previous > most { previous + step } else { current }
}

/// Sum of the caches of one NUMA node. The counters are whole bytes, and so is the correction.
pub fn of_node(caches: &[Traffic], processor: Processor) -> Traffic {
    let mut sum = Traffic { victim: caches.iter().map(|cache| cache.victim).sum(), ..Traffic::default() };
    for cache in caches {
        sum.total += cache.total;
        sum.local += cache.local;
        match processor {
            Processor::Zen3 => sum.total += cache.victim.unwrap_or_default(),
            Processor::Zen4 => sum.total += (cache.local.trunc() / 3.0).trunc() * 2.0,
            _ => {}
        }
    }
    sum
}

/// Traffic of one container: caches with an impossible rate count for nothing.
pub fn of_container(caches: impl IntoIterator<Item = Traffic>, processor: Processor) -> Traffic {
    let mut sum = Traffic::default();
    for cache in caches.into_iter().filter(|c| c.total <= IMPOSSIBLE && c.local <= IMPOSSIBLE) {
        sum.total += cache.total;
        sum.local += cache.local;
    }
    if processor == Processor::Zen4 {
        sum.local += sum.local / 3.0 * 2.0;
    }
    sum
}

/// Memory bandwidth of a NUMA node that may be given away: bytes per second of capacity and of what is allocatable.
/// `theory` is in GB/s; without it the configured capacity holds. `rates` are by code name.
pub fn capacity(
    theory: Option<f64>,
    configured: f64,
    code: &str,
    rates: &BTreeMap<String, f64>,
    rate: f64,
) -> (f64, f64) {
    let capacity = theory.map_or(configured, |gb| gb * 1e9);
    (capacity, capacity * rates.get(code).copied().unwrap_or(rate))
}

/// Counters of bytes stay below 2^53.
#[allow(clippy::cast_precision_loss)]
fn float(bytes: u64) -> f64 {
    bytes as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEN: Duration = Duration::from_secs(10);

    fn caches(total: u64, local: u64) -> BTreeMap<u64, Counters> {
        [(0, Counters { total, local, victim: Some(0) })].into()
    }

    #[test]
    fn t6_traffic_of_a_container_from_the_second_reading_on() {
        let mut monitor = Monitor::default();
        assert_eq!(monitor.advance(caches(100, 50), 1000, IMPOSSIBLE), None, "one reading is no rate");
        let rates = monitor.advance(caches(200, 100), 1010, IMPOSSIBLE).unwrap().clone();
        assert_eq!(of_container(rates.values().copied(), Processor::Unknown).total, 10.0);
        let zen4 = of_container(rates.values().copied(), Processor::Zen4);
        assert!((zen4.local - (5.0 + 5.0 / 3.0 * 2.0)).abs() < 1e-9, "{zen4:?}");
        let same = monitor.advance(caches(900, 900), 1010, IMPOSSIBLE).unwrap();
        assert_eq!(*same, rates, "a reading that is not newer changes nothing");
        let jump = Traffic { total: 401e9, local: 1.0, victim: None };
        assert_eq!(of_container([jump], Processor::Unknown), Traffic::default());
    }

    #[test]
    fn t7_helpers() {
        assert_eq!(bytes_per_second(200, 100, TEN), 10.0);
        assert_eq!(bytes_per_second(200, 0, TEN), 0.0);
        assert_eq!(bytes_per_second(100, 200, TEN), 0.0);
        assert_eq!(bytes_per_second(200, 100, Duration::ZERO), 0.0);
        assert_eq!(clamp(250.0, 100.0, 100.0, 50.0), 150.0);
        assert_eq!(clamp(150.0, 100.0, 100.0, 50.0), 150.0);
    }

    #[test]
    fn t8_caches_of_a_node_are_summed_and_corrected() {
        let cache = |total, local, victim| Traffic { total, local, victim: Some(victim) };
        let two = [cache(10.0, 5.0, 2.0), cache(20.0, 10.0, 4.0)];
        assert_eq!(of_node(&two, Processor::Unknown).total, 30.0);
        assert_eq!(of_node(&two, Processor::of("AMD_K19Zen3")).total, 36.0);
        assert_eq!(of_node(&two, Processor::of("AMD_K19Zen4")).total, 38.0);
    }

    #[test]
    fn the_processor_is_that_of_the_first_cpu() {
        let of = |family, model| {
            Processor::of_cpuinfo(&format!(
                "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: AMD EPYC\n"
            ))
        };
        assert_eq!((of(25, 1), of(25, 17)), (Processor::Zen3, Processor::Zen4));
        assert_eq!((of(23, 49), of(26, 2)), (Processor::Unknown, Processor::Unknown));
        assert_eq!(Processor::of_cpuinfo("garbage"), Processor::Unknown);
    }

    #[test]
    fn t29_capacity_of_a_node() {
        let rates = [("AMD_K19Zen4".to_owned(), 0.7)].into();
        assert_eq!(capacity(Some(100.0), 50e9, "x", &rates, 1.0).0, 100e9);
        assert_eq!(capacity(None, 50e9, "x", &rates, 1.0).0, 50e9);
        assert!((capacity(Some(100.0), 50e9, "AMD_K19Zen4", &rates, 0.9).1 - 70e9).abs() < 1.0);
        assert!((capacity(Some(100.0), 50e9, "unknown", &rates, 0.9).1 - 90e9).abs() < 1.0);
    }
}
