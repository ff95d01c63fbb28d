//! What goes to the disk, and what holds while the disk fails.

use oxalyst_ledger::{Change, CommitError};

use super::Allocations;
use crate::clock;
use crate::record;
use oxalyst_planner::pods::{Plan, State};
use oxalyst_qos::QosLevel;
use oxalyst_topology::CpuSet;

impl Allocations {
    pub(super) fn commit(
        &mut self,
        changes: impl Iterator<Item = Change>,
        must_be_durable: bool,
    ) -> Result<(), CommitError> {
        let own: Vec<Change> = changes.collect();
        let all: Vec<Change> = self.unsaved.values().cloned().chain(own.iter().cloned()).collect();
        let timer = self.metrics.commit_timer();
        match self.ledger.commit(&all) {
            Ok(generation) => {
                self.notice_rebuilding();
                timer.observe();
                self.unsaved.clear();
                self.facts.set("ledger.generation", generation);
                self.storage_works();
                Ok(())
            }
            Err(e) => {
                self.storage_fails(&e);
                if must_be_durable {
                    return Err(e);
                }
                self.unsaved.extend(own.into_iter().map(|change| (change.key().to_owned(), change)));
                Ok(())
            }
        }
    }

    /// Whether the plan gives a pod exclusive CPUs that it does not have yet.
    pub(super) fn gives_away(&self, plan: &Plan) -> bool {
        plan.pods.iter().filter(|(_, pod)| pod.is_some()).any(|(uid, _)| {
            let (before, after) = (exclusive(&self.state, uid), exclusive(&plan.after, uid));
            !after.is_subset(&before)
        })
    }

    fn storage_fails(&mut self, e: &CommitError) {
        let text = e.to_string();
        self.metrics.commit_failed();
        if self.storage_fault.is_none() {
            tracing::error!(
                error = text,
                "the ledger cannot be written: new exclusive sets are refused meanwhile"
            );
            self.facts.set("ledger.fault", &text);
        }
        self.writable.pending(format!(
            "{text}; meanwhile new exclusive sets are refused, and other decisions are held in memory only"
        ));
        // With nothing else to write, this is what finds out that the disk works again.
        let probe = record::storage_probe(clock::unix_ms());
        self.unsaved.insert(probe.key().to_owned(), probe);
        self.storage_fault = Some(text);
    }

    pub(super) fn notice_rebuilding(&mut self) {
        if std::mem::replace(&mut self.rebuilt, self.ledger.rebuilt()) != self.ledger.rebuilt() {
            tracing::error!(
                "the ledger's folder was removed or replaced while in use; it was built anew from memory"
            );
            self.facts.set("ledger.damage", "folder removed while in use, built anew");
            self.metrics.damage_found();
        }
    }

    fn storage_works(&mut self) {
        if self.storage_fault.take().is_some() {
            tracing::info!("the ledger can be written again");
            self.facts.set("ledger.fault", "none");
            self.writable.fulfilled();
        }
    }
}

/// CPUs that the pod's containers have for themselves.
fn exclusive(state: &State, uid: &str) -> CpuSet {
    let own = state.cpus.of_pod(uid).filter(|(_, container)| container.qos == QosLevel::Dedicated);
    own.fold(CpuSet::new(), |all, (_, container)| &all | &container.cpus)
}
