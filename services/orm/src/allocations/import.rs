//! A node that moves over from Katalyst: its pods keep what they have.

use std::path::Path;

use oxalyst_ledger::{CommitError, Ledger};
use oxalyst_mesh::Facts;

use crate::{clock, katalyst, record};
use oxalyst_planner::pods::{self, Rules};
use oxalyst_topology::{CpuSet, Machine};

/// Lines of the log that one import may take.
const MAX_LINES: usize = 100;
const FACT: &str = "import.katalyst";

/// Takes over what Katalyst's files in `dir` say, in one commit, if the ledger is new: what it says later is newer than they are.
/// Where they could not be understood then, it is tried again at each start, for pods of which the ledger says nothing.
///
/// # Errors
/// The disk refuses. The ledger is then as it was.
pub(super) fn take_over(
    ledger: &mut Ledger,
    dir: &Path,
    (machine, rules, reserved): (&Machine, &Rules, &CpuSet),
    facts: &Facts,
) -> Result<(), CommitError> {
    let again = record::is_import_pending(ledger);
    if ledger.generation() > 0 && !again {
        let why = "not needed: the ledger is not new";
        tracing::info!(dir = %dir.display(), "Katalyst's files: {why}");
        facts.set(FACT, why);
        return Ok(());
    }
    let (files, missing) = katalyst::read(dir);
    let mut import = katalyst::import(&files, clock::unix_ms());
    import.faults.splice(0..0, missing);
    // A file that is taken away is not repaired.
    let pending =
        import.not_understood().or_else(|| import.missing().filter(|_| again)).map(ToString::to_string);
    import.hold_against(&(machine.online() | machine.offline()));
    // Records that cannot be understood are told when the state is made of them.
    let (held, _) = pods::record::load(ledger.records(), machine, rules, reserved.clone());
    import.leave_to(&held);
    let plan = pods::take_over(&held, machine, rules, &import.pods);
    let changes = pods::record::changes(&plan, rules).into_iter().map(record::change);
    let changes: Vec<_> = changes.chain([record::import_pending(pending.is_some())]).collect();
    ledger.commit(&changes)?;
    let taken = import.taken();
    tracing::info!(dir = %dir.display(), "Katalyst's files: {taken}");
    for fault in import.faults.iter().take(MAX_LINES) {
        tracing::warn!("Katalyst's files: {fault}");
    }
    if import.faults.len() > MAX_LINES {
        tracing::warn!("Katalyst's files: {} more like these", import.faults.len() - MAX_LINES);
    }
    match pending {
        Some(why) => {
            tracing::warn!(
                "Katalyst's files: the import is not complete and is tried again at the next start"
            );
            facts.set(FACT, format!("incomplete: {why}; it is tried again at the next start"));
        }
        None => facts.set(FACT, taken),
    }
    Ok(())
}
