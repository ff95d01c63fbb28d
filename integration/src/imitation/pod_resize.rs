//! A pod as a whole is to have other resources, before its containers' own updates: NRI 0.10 and later.

use oxalyst_nri::api::{Event, UpdatePodSandboxRequest};

use super::store::resources;
use super::{Imitation, failed};
use crate::runtime::{RuntimeError, SandboxId};

// === impl Imitation ===

impl Imitation {
    /// The kubelet resizes a pod: the plugins are asked, the new totals are noted, and the plugins are told.
    ///
    /// # Errors
    /// [`RuntimeError::Refused`] where a plugin does.
    pub async fn resize_pod(&mut self, sandbox: &SandboxId, milli_cpu: u64) -> Result<(), RuntimeError> {
        let doing = format!("resize pod {}", sandbox.0);
        let _listing = self.plugins.listing.read().await;
        let pod = self.plugins.state().store.pods.get(&sandbox.0).map(super::store::Pod::message);
        let pod = pod.ok_or_else(|| failed(&doing, "no such sandbox"))?;
        let request = UpdatePodSandboxRequest {
            pod: Some(pod),
            overhead_linux_resources: None,
            linux_resources: Some(resources(milli_cpu, None)),
        };
        let asked = self.plugins.update_sandbox(request).await;
        asked.map_err(|message| RuntimeError::Refused { doing: doing.clone(), message })?;
        let after = {
            let mut state = self.plugins.state();
            let pod = state.store.pods.get_mut(&sandbox.0);
            let pod = pod.ok_or_else(|| failed(&doing, "it has gone meanwhile"))?;
            pod.spec.request_milli_cpu = Some(milli_cpu);
            pod.message()
        };
        // It has happened: a refusal stops nothing.
        let _ = self.plugins.tell(Event::PostUpdatePodSandbox, &after, None).await;
        Ok(())
    }
}
