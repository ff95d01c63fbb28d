//! After the ledger was lost as a whole: nobody knows whose CPUs are whose until the runtime's list has come.

use oxalyst_ledger::{Ledger, Opened, Witness};
use oxalyst_mesh::Facts;
use oxalyst_planner::pods;

use super::Allocations;
use crate::record;

/// Fact that tells whether exclusive CPUs are held back.
const FACT: &str = "ledger.list";
/// Why a set is not given.
pub(super) const WHY: &str = "the ledger was lost, and CPUs are given exclusively only once the runtime has listed what runs: the gateway \
                              tells it as soon as it has the runtime's list";

/// Whether the runtime's list is to be awaited: the ledger was damaged, and no pod is left in it; or so it was when a process ended
/// before the list had come.
pub(super) fn awaits_list(ledger: &mut Ledger, opened: &Opened) -> bool {
    // sled is filled again from a sound journal: nothing is lost with it.
    let damaged = opened.damage.iter().any(|damage| damage.witness != Witness::Sled);
    // Of generation 0 there was never anything to lose.
    if damaged && ledger.generation() > 0 && !ledger.records().any(|(key, _)| pods::record::is_pod(key)) {
        if let Err(e) = ledger.commit(&[record::list_awaited(true)]) {
            tracing::warn!(error = %e, "that the runtime's list is awaited is known to this process only");
        }
        return true;
    }
    record::is_list_awaited(ledger)
}

/// Tells it.
pub(super) fn report(awaits_list: bool, facts: &Facts) {
    if awaits_list {
        tracing::warn!("{WHY}");
        facts.set(FACT, WHY);
    } else {
        facts.set(FACT, "not awaited");
    }
}

impl Allocations {
    /// Who runs is taken in: what is free now is free.
    pub(super) fn list_heard(&mut self) {
        if std::mem::take(&mut self.awaits_list) {
            tracing::info!(
                "the runtime's list has come after the ledger was lost: CPUs are given exclusively again"
            );
            self.facts.set(FACT, "not awaited");
            // It gives no CPUs away: what a failing disk refuses is written later.
            let _ = self.commit(std::iter::once(record::list_awaited(false)), false);
        }
    }
}
