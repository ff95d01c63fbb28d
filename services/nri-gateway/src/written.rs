//! What was decided, written to the kernel's files past the runtime: in bypass mode, and where the runtime must not be called.

use std::time::Duration;

use actix::Addr;

use crate::few::Few;
use crate::kernel::{Kernel, KernelError, PART};
use crate::metrics::Metrics;
use crate::pinning::{Change, Corrections};
use crate::placements::Cpuset;
use crate::roster::{Check, Observed, Reported, Roster, ToCheck};

/// For a part of a pass over the kernel's files.
const LOOK_DEADLINE: Duration = Duration::from_secs(2);

/// For the memory nodes of one container: the kernel may move its pages before it answers.
const MEMS_DEADLINE: Duration = Duration::from_secs(5);

/// Why nothing could be compared.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The roster is gone: the process ends.
    #[error("the gateway stops")]
    Stopping,
    /// The files cannot be read.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

/// Compares with the kernel (everything, or what has changed) and writes what differs; gives the first fault.
///
/// # Errors
/// [`WriteError`] where nothing could be compared.
pub async fn write(
    roster: &Addr<Roster>,
    kernel: &Kernel,
    metrics: &Metrics,
    everything: bool,
) -> Result<Option<String>, WriteError> {
    let stopping = |_| WriteError::Stopping;
    let due = roster.send(ToCheck { everything }).await.map_err(stopping)?;
    let look = kernel.read_in_parts(&due.checks, LOOK_DEADLINE).await?;
    let (reports, whole) = (look.reports, look.whole);
    roster.send(Reported { reports, whole }).await.map_err(stopping)?;
    let corrections = roster.send(Observed(look.seen)).await.map_err(stopping)?;
    let found = (due.checks, corrections, look.unheld);
    let told = apply(roster, kernel, metrics, "written", found).await?;
    Ok(look.fault.or(told.fault))
}

/// What was done past the runtime.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Containers whose files were written.
    pub(crate) wrote: Vec<String>,
    /// The first fault.
    pub(crate) fault: Option<String>,
}

/// Writes these corrections of the containers that were checked, and whatever else those that lack something are to have.
/// `as_result` is what it counts as.
///
/// # Errors
/// [`WriteError::Stopping`]. Files that refuse or do not answer are told in the outcome: what they hold up is tried again.
pub(crate) async fn apply(
    roster: &Addr<Roster>,
    kernel: &Kernel,
    metrics: &Metrics,
    as_result: &'static str,
    (checks, corrections, unheld): (Vec<Check>, Corrections, Vec<String>),
) -> Result<Outcome, WriteError> {
    let stopping = |_| WriteError::Stopping;
    let mut outcome = Outcome::default();
    for (changes, deadline) in in_order(&checks, corrections, &unheld) {
        let look = match kernel.change(changes, deadline).await {
            Ok(look) => look,
            Err(e) => {
                outcome.fault.get_or_insert_with(|| e.to_string());
                continue;
            }
        };
        metrics.updated(as_result, look.wrote.len());
        outcome.wrote.extend(look.wrote);
        if let Some(told) = look.fault {
            metrics.updated("failed", 1);
            outcome.fault.get_or_insert(told);
        }
        let (reports, whole) = (look.reports, look.whole);
        roster.send(Reported { reports, whole }).await.map_err(stopping)?;
        let _left_for_the_next_round = roster.send(Observed(look.seen)).await.map_err(stopping)?;
    }
    if !outcome.wrote.is_empty() {
        tracing::info!(containers = %Few(&outcome.wrote), "written");
    }
    Ok(outcome)
}

/// What is taken away first, then what is given, in parts; then memory nodes, one container at a time.
fn in_order(
    checks: &[Check],
    corrections: Corrections,
    unheld: &[String],
) -> Vec<(Vec<(Check, Change)>, Duration)> {
    // Decisions may be newer than the checks: what is written is what is wanted.
    let mut checks = checks.to_vec();
    for change in corrections.shrink.iter().chain(&corrections.grow).chain(&corrections.mems) {
        if let Some(check) = checks.iter_mut().find(|check| check.container_id == change.container_id) {
            let wanted = check.wanted.get_or_insert_default();
            let Cpuset { cpus, mems } = &change.cpuset;
            for (part, new) in [(&mut wanted.cpus, cpus), (&mut wanted.mems, mems)] {
                if !new.is_empty() {
                    part.clone_from(new);
                }
            }
        }
    }
    let of = |id: &str| checks.iter().find(|check| check.container_id == id).cloned();
    let with = |change: Change| Some((of(&change.container_id)?, change));
    let Corrections { shrink, grow, mems } = corrections;
    let mut first: Vec<_> = shrink.into_iter().chain(grow).filter_map(with).collect();
    for id in unheld {
        if first.iter().all(|(check, _)| check.container_id != *id) {
            first.extend(with(Change { container_id: id.clone(), cpuset: Cpuset::default() }));
        }
    }
    let mut batches: Vec<_> = first.chunks(PART).map(|part| (part.to_vec(), LOOK_DEADLINE)).collect();
    batches.extend(mems.into_iter().filter_map(with).map(|change| (vec![change], MEMS_DEADLINE)));
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_decided_after_the_check_is_what_is_wanted_by_the_write() {
        let check = |id: &str, wanted: Option<(&str, &str)>| Check {
            container_id: id.into(),
            wanted: wanted.map(|(cpus, mems)| Cpuset { cpus: cpus.into(), mems: mems.into() }),
            ..Check::default()
        };
        let change = |id: &str, cpus: &str, mems: &str| Change {
            container_id: id.into(),
            cpuset: Cpuset { cpus: cpus.into(), mems: mems.into() },
        };
        let checks = [check("a", None), check("b", Some(("0", "0"))), check("c", None)];
        let corrections = Corrections {
            shrink: vec![change("a", "1-7", "")],
            grow: vec![change("b", "0-1", "")],
            mems: vec![change("b", "", "1")],
        };
        let batches = in_order(&checks, corrections, &["c".to_owned()]);
        let wanted: Vec<Vec<_>> =
            batches.iter().map(|(batch, _)| batch.iter().map(|(check, _)| check.clone()).collect()).collect();
        let first = vec![check("a", Some(("1-7", ""))), check("b", Some(("0-1", "1"))), check("c", None)];
        assert_eq!(wanted, [first, vec![check("b", Some(("0-1", "1")))]]);
    }
}
