//! The thread that reads, and another in its place when a read hangs.
//!
//! The state of the pass lies on a desk that the thread leaves for each subject's reads, and for the search who is there. Whoever finds it away for too long
//! may thus hand the desk to another thread; the first one, once it comes back, sees that and ends.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::errand::Progress;
use super::lost::MOST_LOST;
use super::{Named, Pass};
use crate::store::Snapshot;

/// Makes passes on a thread of its own. Clones share it.
///
/// A detached thread rather than the runtime's pool: a read that hangs must not keep the process from ending.
#[derive(Clone, Debug)]
pub(super) struct Driver(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    desk: Mutex<Desk>,
    ordered: Condvar,
    lost: AtomicUsize,
}

#[derive(Debug)]
struct Desk {
    pass: Pass,
    order: Option<Order>,
    /// Who may sit here: the threads are numbered.
    owner: u64,
    /// Of the owner.
    progress: Arc<Progress>,
    /// The owner is away, reading.
    away: bool,
}

/// One pass, asked of the thread.
#[derive(Debug)]
struct Order {
    named: Arc<[Named]>,
    reply: oneshot::Sender<Snapshot>,
}

/// What a watcher saw last.
#[derive(Debug)]
pub(super) struct Watch {
    step: u64,
    since: Instant,
}

// === impl Driver ===

impl Driver {
    /// # Errors
    /// What the system says if it has no thread left.
    pub(super) fn new(pass: Pass) -> io::Result<Self> {
        let desk = Desk { pass, order: None, owner: 0, progress: Arc::default(), away: false };
        let shared = Shared { desk: Mutex::new(desk), ordered: Condvar::new(), lost: AtomicUsize::new(0) };
        let driver = Self(Arc::new(shared));
        driver.spawn(0, false)?;
        Ok(driver)
    }

    /// Asks for a pass, after the one before has been answered.
    pub(super) fn order(&self, named: Arc<[Named]>) -> oneshot::Receiver<Snapshot> {
        let (reply, answer) = oneshot::channel();
        self.0.desk().order = Some(Order { named, reply });
        self.0.ordered.notify_all();
        answer
    }

    /// How many threads hang.
    pub(super) fn lost(&self) -> usize {
        self.0.lost.load(Ordering::Relaxed)
    }

    /// Gives the thread up if it has been reading one file, or listing one folder, for longer than `deadline`; true if so.
    pub(super) fn watch(&self, seen: &mut Watch, deadline: Duration) -> bool {
        let mut desk = match self.0.desk.try_lock() {
            Ok(desk) => desk,
            Err(TryLockError::Poisoned(desk)) => desk.into_inner(),
            // It is at its desk.
            Err(TryLockError::WouldBlock) => return false,
        };
        let step = desk.progress.step();
        if !desk.away || step != seen.step {
            *seen = Watch { step, since: Instant::now() };
            return false;
        }
        if seen.since.elapsed() < deadline || self.lost() >= MOST_LOST {
            return false;
        }
        let thread = std::mem::take(&mut desk.progress);
        thread.give_up();
        desk.pass.give_up(&thread, deadline);
        (desk.owner, desk.away) = (desk.owner + 1, false);
        self.0.lost.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = self.spawn(desk.owner, true) {
            tracing::error!(%error, "no thread is left to go on with the pass");
            desk.order = None;
        }
        true
    }

    fn spawn(&self, number: u64, resume: bool) -> io::Result<()> {
        let shared = Arc::clone(&self.0);
        let thread = std::thread::Builder::new().name("cgroup-pass".to_owned());
        thread.spawn(move || shared.work(number, resume)).map(drop)
    }
}

// === impl Watch ===

impl Default for Watch {
    fn default() -> Self {
        Self { step: 0, since: Instant::now() }
    }
}

// === impl Shared ===

impl Shared {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes for ever, or until another has taken over. `resume`: goes on with the one that is under way.
    fn work(&self, number: u64, mut resume: bool) {
        let mut desk = self.desk();
        loop {
            let named = loop {
                if desk.owner != number {
                    return;
                }
                match &desk.order {
                    Some(order) => break Arc::clone(&order.named),
                    None => desk = self.ordered.wait(desk).unwrap_or_else(PoisonError::into_inner),
                }
            };
            let progress = Arc::clone(&desk.progress);
            if !std::mem::take(&mut resume)
                && let Some(mut search) = desk.pass.begin(&named)
            {
                desk.away = true;
                drop(desk);
                search.run(&progress);
                desk = self.desk();
                if desk.owner != number {
                    search.discard();
                    progress.come_back();
                    self.lost.fetch_sub(1, Ordering::Relaxed);
                    return;
                }
                desk.away = false;
                desk.pass.searched(search);
            }
            let mut hands = desk.pass.hands();
            while let Some(mut errand) = desk.pass.next() {
                desk.away = true;
                drop(desk);
                errand.run(&mut hands, &progress);
                desk = self.desk();
                if desk.owner != number {
                    errand.discard(&mut hands.descriptors);
                    progress.come_back();
                    self.lost.fetch_sub(1, Ordering::Relaxed);
                    return;
                }
                desk.away = false;
                desk.pass.take(errand, &mut hands);
            }
            let snapshot = desk.pass.end(hands);
            if let Some(order) = desk.order.take() {
                // If nobody waits any more the process is ending.
                let _ = order.reply.send(snapshot);
            }
        }
    }
}
