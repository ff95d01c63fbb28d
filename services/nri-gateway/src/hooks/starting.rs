//! The last look at a container before its program begins.

use oxalyst_nri::Status;
use oxalyst_proto::runtime::v1::Container;

use super::{HooksContext, LOOK_DEADLINE};
use crate::roster::{CheckStart, Moved, Observed, Phase, Reported, Seen, Wrote};
use crate::updates::Updates;

impl HooksContext {
    /// Its cgroup exists and its program has not begun. An update that the runtime dropped is made good here.
    pub(super) async fn start_container(&self, container: Container, updates: Updates) -> Result<(), Status> {
        let id = container.container_id.clone();
        self.ask(Moved { container, phase: Phase::Created }).await?;
        let checks = self.ask(CheckStart(id.clone())).await?;
        match self.kernel.correct(checks, Some(id.clone()), LOOK_DEADLINE).await {
            Ok(look) => {
                if !look.wrote.is_empty() {
                    tracing::info!(starting = %id, containers = ?look.wrote, "the runtime had not applied their cpusets: written directly");
                }
                if let Some(fault) = look.fault {
                    tracing::warn!(container = %id, %fault, "starts unchecked");
                }
                self.ask(Reported { reports: look.reports, whole: look.whole }).await?;
                let seen = look.seen.into_iter().filter(|(_, seen)| matches!(seen, Seen::Files(_))).collect();
                // What is left differing is the mender's work.
                let _ = self.ask(Observed(seen)).await?;
                if updates == Updates::Runtime {
                    self.ask(Wrote(look.wrote)).await?;
                }
            }
            Err(e) => tracing::warn!(container = %id, error = %e, "starts unchecked"),
        }
        Ok(())
    }
}
