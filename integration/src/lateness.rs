//! How far behind this machine is: what a bound in milliseconds is worth where compilers have the CPUs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// One short sleep after another.
const STEP: Duration = Duration::from_millis(5);

/// Watches from its making on.
#[derive(Debug)]
pub struct Lateness {
    most_ms: Arc<AtomicU64>,
    /// Ends when this is dropped.
    watch: Option<JoinHandle<()>>,
    ends: Arc<AtomicU64>,
}

// === impl Lateness ===

impl Lateness {
    /// Begins.
    pub fn watch() -> Self {
        let (most_ms, ends) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (most, end) = (Arc::clone(&most_ms), Arc::clone(&ends));
        let watch = std::thread::spawn(move || {
            while end.load(Ordering::Relaxed) == 0 {
                let start = Instant::now();
                std::thread::park_timeout(STEP);
                let late = start.elapsed().saturating_sub(STEP);
                most.fetch_max(u64::try_from(late.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
            }
        });
        Self { most_ms, watch: Some(watch), ends }
    }

    /// The longest time by which a program that wanted to run was late since this began.
    pub fn most(&self) -> Duration {
        Duration::from_millis(self.most_ms.load(Ordering::Relaxed))
    }
}

impl Drop for Lateness {
    fn drop(&mut self) {
        self.ends.store(1, Ordering::Relaxed);
        if let Some(watch) = self.watch.take() {
            watch.thread().unpark();
            // It has nothing that could fail.
            let _ = watch.join();
        }
    }
}
