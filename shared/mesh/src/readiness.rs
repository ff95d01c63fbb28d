use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// The set of conditions that a process still waits for; it is ready when none is pending.
#[derive(Debug, Clone)]
pub struct Readiness {
    pending: Arc<Mutex<BTreeMap<&'static str, String>>>,
    ready: watch::Sender<bool>,
}

/// One named condition. Dropping it fulfils it for good.
#[derive(Debug)]
pub struct Condition {
    name: &'static str,
    readiness: Readiness,
}

// === impl Readiness ===

impl Default for Readiness {
    fn default() -> Self {
        Self { pending: Arc::default(), ready: watch::Sender::new(true) }
    }
}

impl Readiness {
    /// Names a condition, pending from now on. `detail` says what is awaited and what an operator can do.
    #[must_use = "dropping the condition fulfils it"]
    pub fn condition(&self, name: &'static str, detail: impl Into<String>) -> Condition {
        let condition = Condition { name, readiness: self.clone() };
        condition.pending(detail);
        condition
    }

    /// Whether nothing is pending.
    pub fn is_ready(&self) -> bool {
        self.lock().is_empty()
    }

    /// What is pending, ascending by name, each with its detail.
    pub fn pending(&self) -> Vec<(&'static str, String)> {
        self.lock().iter().map(|(name, detail)| (*name, detail.clone())).collect()
    }

    /// Follows whether the process is ready.
    pub fn watch(&self) -> watch::Receiver<bool> {
        self.ready.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, String>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, ready: bool) {
        self.ready.send_if_modified(|now| std::mem::replace(now, ready) != ready);
    }
}

// === impl Condition ===

impl Condition {
    /// The condition does not hold (any more).
    pub fn pending(&self, detail: impl Into<String>) {
        self.readiness.lock().insert(self.name, detail.into());
        self.readiness.publish(false);
    }

    /// The condition holds (again).
    pub fn fulfilled(&self) {
        let ready = {
            let mut pending = self.readiness.lock();
            pending.remove(self.name);
            pending.is_empty()
        };
        self.readiness.publish(ready);
    }
}

impl Drop for Condition {
    fn drop(&mut self) {
        self.fulfilled();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_only_when_every_condition_is_fulfilled() {
        let readiness = Readiness::default();
        let a = readiness.condition("a", "first");
        let b = readiness.condition("b", "second");
        a.fulfilled();
        assert_eq!(readiness.pending(), vec![("b", "second".to_owned())]);
        assert!(!readiness.is_ready());
        drop(b);
        assert!(readiness.is_ready() && *readiness.watch().borrow());
    }

    #[test]
    fn a_condition_can_be_lost_again() {
        let readiness = Readiness::default();
        let a = readiness.condition("a", "");
        a.fulfilled();
        a.pending("lost");
        assert!(!*readiness.watch().borrow());
        assert_eq!(readiness.pending(), vec![("a", "lost".to_owned())]);
    }
}
