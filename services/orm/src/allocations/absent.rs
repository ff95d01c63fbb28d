//! Pods that the runtime does not list: freed only when that lasts, since a list may be a moment old.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use oxalyst_planner::pods::State;

/// Since when which pods have been absent from the runtime's list.
#[derive(Debug)]
pub(super) struct Absent {
    grace: Duration,
    since: BTreeMap<String, Instant>,
}

// === impl Absent ===

impl Absent {
    pub(super) fn new(grace: Duration) -> Self {
        Self { grace, since: BTreeMap::new() }
    }

    /// Compares with a whole list: `listed` says whether the runtime knows a pod's current sandbox.
    pub(super) fn compare(&mut self, state: &State, listed: impl Fn(&str, &str) -> bool) {
        let now = Instant::now();
        let before = std::mem::take(&mut self.since);
        for (uid, entry) in &state.pods {
            if !listed(uid, &entry.sandbox_id) {
                self.since.insert(uid.clone(), before.get(uid).copied().unwrap_or(now));
            }
        }
    }

    /// The pod was heard of.
    pub(super) fn heard(&mut self, uid: &str) {
        self.since.remove(uid);
    }

    /// Pods with their sandboxes whose grace time is over; each is given once.
    pub(super) fn overdue(&mut self, state: &State) -> Vec<(String, String)> {
        let now = Instant::now();
        let (over, waiting) =
            std::mem::take(&mut self.since).into_iter().partition(|(_, since)| now - *since >= self.grace);
        self.since = waiting;
        let over: BTreeMap<String, Instant> = over;
        over.into_keys()
            .filter_map(|uid| state.pods.get(&uid).map(|entry| (uid.clone(), entry.sandbox_id.clone())))
            .collect()
    }
}
