//! Whose turn it is: decisions are applied by the session with the runtime, or past it, never by both.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oxalyst_mesh::Facts;
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use crate::metrics::Metrics;

/// By which way decisions are applied now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By none.
    Nobody,
    /// Through the runtime.
    Nri,
    /// Past it.
    Bypass,
}

/// The right to apply decisions. Cheap to clone; all clones are about the same.
#[derive(Clone, Debug)]
pub struct Hands {
    turn: Arc<tokio::sync::Mutex<()>>,
    now: Arc<Mutex<Now>>,
    tree: PathBuf,
    facts: Facts,
    metrics: Metrics,
}

#[derive(Debug)]
struct Now {
    way: Way,
    /// When the last session ended; at first, when the process began.
    down_since: Instant,
    /// The tree's lock, held until this gateway ends or hands over.
    lock: Option<File>,
    /// What another gateway was last seen to hold.
    others: Option<String>,
    /// What kept bypass mode from writing when it last asked.
    in_the_way: Option<String>,
}

/// A turn. It ends when this is dropped.
#[derive(Debug)]
pub struct Turn {
    _guard: OwnedMutexGuard<()>,
}

// === impl Way ===

impl Way {
    /// Of a closed set, for people and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nobody => "none",
            Self::Nri => "nri",
            Self::Bypass => "bypass",
        }
    }
}

// === impl Hands ===

impl Hands {
    /// Nobody's, of the tree of cgroups below `host_root`.
    pub fn new(host_root: &Path, facts: Facts, metrics: Metrics) -> Self {
        let now =
            Now { way: Way::Nobody, down_since: Instant::now(), lock: None, others: None, in_the_way: None };
        metrics.mode(Way::Nobody.name());
        facts.set("mode", Way::Nobody.name());
        Self {
            turn: Arc::default(),
            now: Arc::new(Mutex::new(now)),
            tree: host_root.join("sys/fs/cgroup"),
            facts,
            metrics,
        }
    }

    /// For a session, which waits for a round of bypass mode to end.
    pub async fn for_session(&self) -> Turn {
        Turn { _guard: self.turn.clone().lock_owned().await }
    }

    /// For one round of bypass mode; `None` while a session has it or waits for it.
    pub fn for_bypass(&self) -> Option<Turn> {
        self.turn.clone().try_lock_owned().ok().map(|guard| Turn { _guard: guard })
    }

    /// Takes the tree of cgroups for this gateway, once for all: its folder is the lock, whatever the run folders are. Gives what
    /// another gateway holds instead; then nothing may be written. A tree that cannot be opened or locked is nobody's.
    pub fn own(&self) -> Result<(), String> {
        let mut now = self.lock();
        if now.lock.is_none()
            && let Ok(file) = File::open(&self.tree)
        {
            match file.try_lock() {
                Ok(()) => now.lock = Some(file),
                Err(TryLockError::WouldBlock) => return Err(self.tree.display().to_string()),
                Err(TryLockError::Error(_)) => {}
            }
        }
        Ok(())
    }

    /// Another gateway serves the runtime, as the last attempt at a session showed.
    pub fn others(&self, held: Option<String>) {
        self.lock().others = held;
    }

    /// What another gateway holds, so that bypass mode may not write.
    pub fn is_others(&self) -> Option<String> {
        let served = self.lock().others.clone();
        let held = served.or_else(|| self.own().err());
        self.lock().in_the_way.clone_from(&held);
        held
    }

    /// The same as when bypass mode last asked, for whoever only tells of it and must not take the tree.
    pub fn was_others(&self) -> Option<String> {
        self.lock().in_the_way.clone()
    }

    /// The way now.
    pub fn way(&self) -> Way {
        self.lock().way
    }

    /// How long there has been no session; `None`: there is one.
    pub fn down_for(&self) -> Option<Duration> {
        let now = self.lock();
        (now.way != Way::Nri).then(|| now.down_since.elapsed())
    }

    /// From now on by this way. Said once.
    pub fn go(&self, way: Way) {
        let before = {
            let mut now = self.lock();
            if now.way == Way::Nri && way != Way::Nri {
                now.down_since = Instant::now();
            }
            std::mem::replace(&mut now.way, way)
        };
        if before == way {
            return;
        }
        self.metrics.mode(way.name());
        self.facts.set("mode", way.name());
        match way {
            Way::Bypass => {
                tracing::warn!("bypass mode: decisions are written to the kernel's files directly")
            }
            Way::Nri | Way::Nobody => {
                tracing::info!(
                    mode = way.name(),
                    before = before.name(),
                    "the way in which decisions are applied changed"
                );
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
