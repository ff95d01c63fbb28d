//! The last look at a container before its program begins.

use std::time::{Duration, Instant};

use oxalyst_nri::Status;
use oxalyst_proto::runtime::v1::Container;

use super::HooksContext;
use crate::few::Few;
use crate::roster::{Check, CheckStart, Moved, Observed, Phase, Reported, Seen, Wrote};
use crate::updates::Updates;

impl HooksContext {
    /// Its cgroup exists and its program has not begun. An update that the runtime dropped is made good here.
    pub(super) async fn start_container(&self, container: Container, updates: Updates) -> Result<(), Status> {
        let id = container.container_id.clone();
        self.ask(Moved { container, phase: Phase::Created }).await?;
        let checks = self.ask(CheckStart(id.clone())).await?;
        let (own, others) = checks.into_iter().partition(|check| check.container_id == id);
        // Its own files first: a thousand others that have to leave its CPUs are not waited for beyond the deadline.
        let (since, deadline) = (Instant::now(), self.settings.hook_deadline());
        self.corrected(&id, own, deadline, updates).await?;
        self.corrected(&id, others, deadline.saturating_sub(since.elapsed()), updates).await
    }

    /// Makes good what the runtime has not done of these. What is late is the mender's work, whose turn it is as soon as the program
    /// has begun.
    async fn corrected(
        &self,
        starting: &str,
        checks: Vec<Check>,
        deadline: Duration,
        updates: Updates,
    ) -> Result<(), Status> {
        if checks.is_empty() {
            return Ok(());
        }
        let count = checks.len();
        match self.kernel.correct(checks, Some(starting.to_owned()), deadline).await {
            Ok(look) => {
                if !look.wrote.is_empty() {
                    tracing::info!(starting, containers = %Few(&look.wrote), "the runtime had not applied their cpusets: written directly");
                }
                if let Some(fault) = look.fault {
                    tracing::warn!(starting, %fault, "starts unchecked");
                }
                self.ask(Reported { reports: look.reports, whole: look.whole }).await?;
                let seen = look.seen.into_iter().filter(|(_, seen)| matches!(seen, Seen::Files(_))).collect();
                // What is left differing is the mender's work.
                let _ = self.ask(Observed(seen)).await?;
                if updates == Updates::Runtime {
                    self.ask(Wrote(look.wrote)).await?;
                }
            }
            Err(e) => tracing::warn!(starting, containers = count, error = %e, "starts unchecked"),
        }
        Ok(())
    }
}
