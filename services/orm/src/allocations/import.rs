//! A node that moves over from Katalyst: its pods keep what they have.

use std::path::Path;

use oxalyst_ledger::{CommitError, Ledger};
use oxalyst_mesh::Facts;

use crate::{clock, katalyst, record};
use oxalyst_planner::pods::{self, Rules, State};
use oxalyst_topology::{CpuSet, Machine};

/// Lines of the log that one import may take.
const MAX_LINES: usize = 100;
const FACT: &str = "import.katalyst";

/// Takes over what Katalyst's files in `dir` say, in one commit, if the ledger is new: what it says later is newer than they are.
///
/// # Errors
/// The disk refuses. The ledger is then still new.
pub(super) fn take_over(
    ledger: &mut Ledger,
    dir: &Path,
    (machine, rules, reserved): (&Machine, &Rules, &CpuSet),
    facts: &Facts,
) -> Result<(), CommitError> {
    if ledger.generation() > 0 {
        facts.set(FACT, "not needed: the ledger is not new");
        return Ok(());
    }
    let (files, missing) = katalyst::read(dir);
    let mut import = katalyst::import(&files, clock::unix_ms());
    import.faults.splice(0..0, missing);
    import.hold_against(&(machine.online() | machine.offline()));
    let plan = pods::take_over(&State::new(machine, reserved.clone()), machine, rules, &import.pods);
    let changes: Vec<_> = pods::record::changes(&plan, rules).into_iter().map(record::change).collect();
    ledger.commit(&changes)?;
    let taken = import.taken();
    tracing::info!(dir = %dir.display(), "Katalyst's files: {taken}");
    for fault in import.faults.iter().take(MAX_LINES) {
        tracing::warn!("Katalyst's files: {fault}");
    }
    if import.faults.len() > MAX_LINES {
        tracing::warn!("Katalyst's files: {} more like these", import.faults.len() - MAX_LINES);
    }
    facts.set(FACT, taken);
    Ok(())
}
