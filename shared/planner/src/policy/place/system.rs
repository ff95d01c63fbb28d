//! System containers.

use super::{super::pools::system_cpus, Placing};

// === impl Placing ===

impl Placing<'_> {
    /// On the pool that they name, or else everywhere.
    pub(super) fn system(&mut self) {
        let mut entry = self.entry();
        entry.owner = entry.wishes.cpuset_pool().map(|pool| format!("system-{pool}"));
        entry.cpus = system_cpus(&self.state, self.machine, &entry.wishes);
        self.put(entry);
    }
}
