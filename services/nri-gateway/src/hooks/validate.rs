//! The last word of all plugins on a container that is about to be made.

use oxalyst_nri::api::{ValidateContainerAdjustmentRequest, ValidateContainerAdjustmentResponse};
use oxalyst_nri::{Status, api};

use super::HooksContext;
use crate::pinning::difference;
use crate::placements::Cpuset;
use crate::roster::Standing;

impl HooksContext {
    /// The last word before a container is made. Another plugin's on its CPUs is told, and not refused: once the container runs,
    /// its CPUs are made ours again.
    pub(super) async fn validate(
        &self,
        request: ValidateContainerAdjustmentRequest,
    ) -> Result<ValidateContainerAdjustmentResponse, Status> {
        self.diagnosis.validated();
        let ValidateContainerAdjustmentRequest { container, adjust, owners, .. } = request;
        let id = container.map(|container| container.id).unwrap_or_default();
        let cpus = adjust
            .and_then(|adjust| adjust.linux)
            .and_then(|linux| linux.resources)
            .and_then(|resources| resources.cpu)
            .map(|cpu| cpu.cpus)
            .unwrap_or_default();
        let Some(ours) = self.ask(Standing(id.clone())).await? else {
            return Ok(ValidateContainerAdjustmentResponse::default());
        };
        let theirs = Cpuset { cpus, mems: String::new() };
        if !theirs.cpus.is_empty() && difference(Some(&theirs), &ours).cpus {
            let field = i32::from(api::Field::CpuSetCpUs);
            let owner =
                owners.and_then(|all| all.owners.get(&id).and_then(|of| of.simple.get(&field).cloned()));
            let owner = owner.unwrap_or_else(|| "another plugin".to_owned());
            let what = format!("{owner} set CPUs {} for container {id}, ours are {}", theirs.cpus, ours.cpus);
            tracing::warn!(container = %id, %owner, theirs = %theirs.cpus, ours = %ours.cpus, "another plugin set a container's CPUs");
            self.diagnosis.conflict(what);
        }
        Ok(ValidateContainerAdjustmentResponse::default())
    }
}
