//! Brings what runs to where it is to run, outside of any call of the runtime, and verifies it by reading the kernel's files.
//!
//! Lives as long as one synchronised session and alone holds the means to call the runtime.

use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use oxalyst_mesh::{Condition, Facts};
use oxalyst_nri::CallError;
use oxalyst_nri::plugin::RuntimeClient;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::adjustment::{self, Dialect};
use crate::duties::Duties;
use crate::few::Few;
use crate::kernel::Kernel;
use crate::metrics::Metrics;
use crate::pinning::Corrections;
use crate::roster::{Applied, Check, Observed, Reported, Roster, Seen, ToCheck};
use crate::translate::update;
use crate::updates::Updates;
use crate::written::{self, WriteError};

/// Comparisons of everything after a synchronisation, then every period: the runtime dropped updates of containers that it was
/// starting meanwhile.
const EARLY: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];

/// Updates in one call.
const BATCH: usize = 128;

/// For a call of the runtime, which may have to wait for hooks of its own.
const CALL_DEADLINE: Duration = Duration::from_secs(5);

/// For a pass over the kernel's files.
const LOOK_DEADLINE: Duration = Duration::from_secs(2);

/// Wakes the mender. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Nudge {
    notify: Arc<Notify>,
}

/// What a mender works with, but for the session.
#[derive(Clone, Debug)]
pub struct Tools {
    /// What runs.
    pub roster: Addr<Roster>,
    /// The kernel's files.
    pub kernel: Kernel,
    /// What the orm has to be told.
    pub duties: Duties,
    /// Ticks when the orm decided something.
    pub decided: watch::Receiver<u64>,
    /// Wakes it.
    pub nudge: Nudge,
    /// Counts.
    pub metrics: Metrics,
    /// What an operator is told.
    pub facts: Facts,
    /// Whether the kernel's files can be read and take what is written.
    pub kernel_files: Arc<Condition>,
    /// Between two comparisons of everything.
    pub period: Duration,
}

// === impl Tools ===

impl Tools {
    /// Tells what the kernel's files refused when they were last read or written.
    fn tell_files(&self, fault: Option<&str>) {
        self.facts.set("kernel_files", fault.unwrap_or("ok"));
        match fault {
            Some(fault) => self.kernel_files.pending(fault),
            None => self.kernel_files.fulfilled(),
        }
    }
}

// === impl Nudge ===

impl Nudge {
    /// Now.
    pub fn now(&self) {
        self.notify.notify_one();
    }

    /// After the runtime had time to do what it was told.
    pub fn after(&self, delay: Duration) {
        let notify = self.notify.clone();
        tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            notify.notify_one();
        });
    }
}

/// Mends until the task is aborted with its session.
pub async fn mend(runtime: RuntimeClient, mut tools: Tools, dialect: Dialect, updates: Updates) {
    let start = Instant::now();
    let mut early = EARLY.into_iter().map(|after| start + after);
    let mut next = early.next().unwrap_or(start);
    let mut everything = false;
    loop {
        tools.decided.mark_unchanged();
        match updates {
            Updates::Runtime => round(&runtime, &tools, dialect, everything).await,
            Updates::Files => write(&tools, everything).await,
        }
        everything = tokio::select! {
            () = tokio::time::sleep_until(next) => true,
            () = tools.nudge.notify.notified() => false,
            decided = tools.decided.changed() => match decided {
                Ok(()) => false,
                Err(_) => return,
            },
        };
        if everything {
            next = early.next().unwrap_or_else(|| Instant::now() + tools.period);
            tools.duties.reconcile();
        }
    }
}

/// What a look found.
struct Found {
    /// What was looked at.
    checks: Vec<Check>,
    corrections: Corrections,
    /// Those that lack something beside CPUs and memory nodes.
    unheld: Vec<Check>,
}

/// Looks, tells the runtime, looks again; what the runtime did not do is written directly.
async fn round(runtime: &RuntimeClient, tools: &Tools, dialect: Dialect, everything: bool) {
    let Some(found) = look(tools, everything).await else { return };
    if found.corrections.is_empty() && found.unheld.is_empty() {
        return;
    }
    let told = async {
        let failed = tell(runtime, tools, found.corrections).await?;
        Ok(failed + tell_others(runtime, tools, dialect, &found.unheld).await?)
    };
    // A runtime that refuses or does not answer, if only for one container, holds up nobody: what it left is written directly.
    match told.await {
        Ok(0) => tools.facts.set("runtime_updates", "ok"),
        Ok(failed) => {
            let what = format!("the runtime could not make the last {failed}, written directly instead");
            tools.facts.set("runtime_updates", what);
        }
        Err::<_, CallError>(e) => {
            tracing::warn!(error = %e, "containers could not be updated by the runtime: they are written directly");
            tools.facts.set("runtime_updates", format!("the last failed, written directly instead: {e}"));
        }
    }
    let Some(left) = look(tools, false).await else { return };
    let Found { mut checks, corrections, .. } = left;
    let unheld: Vec<_> = found.unheld.iter().map(|check| check.container_id.clone()).collect();
    if corrections.is_empty() && unheld.is_empty() {
        return;
    }
    // One that lacked something else is written whether or not it was looked at again.
    let is_new = |check: &Check| checks.iter().all(|other| other.container_id != check.container_id);
    let rest: Vec<_> = found.unheld.into_iter().filter(is_new).collect();
    checks.extend(rest.into_iter().map(|check| Check { wanted: None, ..check }));
    let Tools { roster, kernel, metrics, .. } = tools;
    match written::apply(roster, kernel, metrics, "rewritten", (checks, corrections, unheld)).await {
        Ok(outcome) => {
            if !outcome.wrote.is_empty() {
                tracing::warn!(containers = %Few(&outcome.wrote), "the runtime did not apply an update: written directly");
            }
            if outcome.fault.is_some() {
                tools.tell_files(outcome.fault.as_deref());
            }
        }
        Err(e) => tracing::debug!(error = %e, "nothing is written"),
    }
}

/// As [`round`], where the runtime must not be called.
async fn write(tools: &Tools, everything: bool) {
    let fault = match written::write(&tools.roster, &tools.kernel, &tools.metrics, everything).await {
        Ok(fault) => fault,
        Err(WriteError::Kernel(e)) => Some(e.to_string()),
        Err(WriteError::Stopping) => return,
    };
    tools.facts.set("runtime_updates", "not asked for: this version of containerd may stall over them");
    if everything || fault.is_some() {
        tools.tell_files(fault.as_deref());
    }
}

/// Compares with the kernel; `None`: the roster is gone.
async fn look(tools: &Tools, everything: bool) -> Option<Found> {
    let due = tools.roster.send(ToCheck { everything }).await.ok()?;
    let mut corrections = due.blind;
    let (seen, unheld) = match tools.kernel.read_in_parts(&due.checks, LOOK_DEADLINE).await {
        Ok(look) => {
            if everything || look.fault.is_some() {
                tools.tell_files(look.fault.as_deref());
            }
            let (reports, whole) = (look.reports, look.whole);
            tools.roster.send(Reported { reports, whole }).await.ok()?;
            let lacks = |check: &&Check| look.unheld.contains(&check.container_id);
            (look.seen, due.checks.iter().filter(lacks).cloned().collect())
        }
        Err(e) => {
            tracing::debug!(error = %e, "the kernel's files cannot be read");
            tools.facts.set("kernel_files", e.to_string());
            let unreadable = |check: &Check| (check.container_id.clone(), Seen::Unreadable);
            (due.checks.iter().map(unreadable).collect(), Vec::new())
        }
    };
    let found = tools.roster.send(Observed(seen)).await.ok()?;
    corrections.shrink.extend(found.shrink);
    corrections.grow.extend(found.grow);
    corrections.mems.extend(found.mems);
    Some(Found { checks: due.checks, corrections, unheld })
}

/// CPUs that are taken away first, then those given back, then memory nodes one container at a time. Gives how many the runtime
/// said it could not change.
async fn tell(runtime: &RuntimeClient, tools: &Tools, corrections: Corrections) -> Result<usize, CallError> {
    let mut all_failed = 0;
    let Corrections { shrink, grow, mems } = corrections;
    let batches = shrink.chunks(BATCH).chain(grow.chunks(BATCH)).chain(mems.chunks(1));
    for batch in batches {
        let ids: Vec<_> = batch.iter().map(|change| change.container_id.as_str()).collect();
        let updates = batch.iter().filter_map(|c| update(&c.container_id, &c.cpuset, true)).collect();
        // Noted before it is sent: what the runtime says of it afterwards changes nothing but the count.
        let _ = tools.roster.send(Applied(batch.to_vec())).await;
        let failed = runtime.update_containers(updates, CALL_DEADLINE).await?;
        tools.metrics.updated("failed", failed.len());
        tools.metrics.updated("applied", batch.len().saturating_sub(failed.len()));
        all_failed += failed.len();
        tracing::info!(containers = %Few(&ids), failed = failed.len(), "updated");
    }
    Ok(all_failed)
}

/// The rest, as far as this runtime applies it.
async fn tell_others(
    runtime: &RuntimeClient,
    tools: &Tools,
    dialect: Dialect,
    unheld: &[Check],
) -> Result<usize, CallError> {
    let mut all_failed = 0;
    let updates: Vec<_> = unheld
        .iter()
        .filter_map(|check| adjustment::update(&check.container_id, &check.others, dialect, true))
        .collect();
    for batch in updates.chunks(BATCH) {
        let failed = runtime.update_containers(batch.to_vec(), CALL_DEADLINE).await?;
        tools.metrics.updated("failed", failed.len());
        tools.metrics.updated("applied", batch.len().saturating_sub(failed.len()));
        all_failed += failed.len();
    }
    Ok(all_failed)
}
