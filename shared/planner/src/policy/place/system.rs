//! System containers.

use super::{
    super::{Wishes, pools::system_cpus},
    Placing,
};

pub(super) fn owner(wishes: &Wishes) -> Option<String> {
    wishes.cpuset_pool().map(|pool| format!("system-{pool}"))
}

// === impl Placing ===

impl Placing<'_> {
    /// On the pool that they name, or else everywhere.
    pub(super) fn system(&mut self) {
        let mut entry = self.entry();
        entry.owner = owner(&entry.wishes);
        entry.cpus = system_cpus(&self.state, self.machine, &entry.wishes);
        self.put(entry);
    }
}
