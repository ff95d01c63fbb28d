//! Time as a value: ages by a clock that never jumps, and the date for people.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The monotonic clock of [`SystemClock`] begins at this: a source may tell of times before the process began, and they
/// must not seem younger for it.
const BEGIN: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// One moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Now {
    /// Nanoseconds of a monotonic clock; ages and intervals are differences of these.
    pub monotonic_ns: u64,
    /// Nanoseconds since the Unix epoch; may jump when the date is set.
    pub unix_ns: i64,
}

/// Tells the moment.
pub trait Clock: Debug + Send + Sync {
    /// The present moment.
    fn now(&self) -> Now;

    /// CPU time of the calling thread, where it is known.
    fn thread_cpu(&self) -> Option<Duration> {
        None
    }
}

/// The machine's clocks.
#[derive(Debug)]
pub struct SystemClock {
    base: Instant,
}

/// A clock that moves only when told to, for tests. Clones share their time.
#[derive(Debug, Clone, Default)]
pub struct ManualClock {
    ns: Arc<AtomicU64>,
}

// === impl Now ===

impl Now {
    /// How long ago `earlier` was; nothing if it was not earlier.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.monotonic_ns.saturating_sub(earlier.monotonic_ns))
    }

    /// The moment that lies `by` before this one.
    #[must_use]
    pub fn earlier_by(self, by: Duration) -> Self {
        let ns = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        Self {
            monotonic_ns: self.monotonic_ns.saturating_sub(ns),
            unix_ns: self.unix_ns.saturating_sub(i64::try_from(ns).unwrap_or(i64::MAX)),
        }
    }

    /// Milliseconds since the Unix epoch.
    pub fn unix_ms(self) -> i64 {
        self.unix_ns / 1_000_000
    }
}

// === impl SystemClock ===

impl Default for SystemClock {
    fn default() -> Self {
        Self { base: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Now {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now {
            monotonic_ns: u64::try_from((BEGIN + self.base.elapsed()).as_nanos()).unwrap_or(u64::MAX),
            unix_ns: i64::try_from(unix.as_nanos()).unwrap_or(i64::MAX),
        }
    }

    fn thread_cpu(&self) -> Option<Duration> {
        let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::try_from(used).ok()
    }
}

// === impl ManualClock ===

impl ManualClock {
    /// Lets time pass.
    pub fn advance(&self, by: Duration) {
        self.ns.fetch_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Now {
        let ns = self.ns.load(Ordering::Relaxed);
        // An arbitrary date, so that a confusion of the two clocks shows.
        Now {
            monotonic_ns: ns,
            unix_ns: 1_700_000_000_000_000_000i64.saturating_add(i64::try_from(ns).unwrap_or(0)),
        }
    }
}
