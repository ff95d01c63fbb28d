//! A running container is to get other resources.

use oxalyst_nri::{Status, api};
use oxalyst_proto::runtime::v1::Resources;

use super::{AFTER_REPLY, HooksContext, refusal, refuse, updates};
use crate::orm::OrmError;
use crate::pinning::{Change, difference};
use crate::placements::Cpuset;
use crate::roster::{Applied, Resized, Standing, ToResize};
use crate::translate;

impl HooksContext {
    /// Our cpuset stands, whoever asks for another; the rest of the request passes. A container that is to have more or less CPU
    /// or memory gets its new set in the same reply, after the others have left it.
    pub(super) async fn update_container(
        &self,
        id: String,
        told: Resources,
    ) -> Result<Vec<api::ContainerUpdate>, Status> {
        let asked = Cpuset { cpus: told.cpuset_cpus.clone().unwrap_or_default(), mems: String::new() };
        let others = self.resize(&id, told).await?;
        let mut answer = updates(&others);
        if !others.is_empty() {
            self.nudge.after(AFTER_REPLY);
        }
        let Some(cpuset) = self.ask(Standing(id.clone())).await? else { return Ok(answer) };
        if !asked.cpus.is_empty() && difference(Some(&asked), &cpuset).cpus {
            tracing::info!(container = %id, told = %asked.cpus, ours = %cpuset.cpus, "asked for other CPUs: ours stand");
            self.metrics.foreign_cpuset();
            self.diagnosis.foreign_cpuset(&id, &asked.cpus, &cpuset.cpus);
        }
        answer.extend(translate::update(&id, &cpuset, false));
        self.ask(Applied(vec![Change { container_id: id, cpuset }])).await?;
        Ok(answer)
    }

    /// Asks the orm for what a container is to have from now on, if that is something else. Gives what others lose by it. A
    /// refusal is the runtime's answer too: the container keeps everything. Without the orm the update passes, and the orm hears
    /// of it later.
    async fn resize(&self, id: &str, told: Resources) -> Result<Vec<Change>, Status> {
        let Some(request) = self.ask(ToResize { container_id: id.to_owned(), told }).await? else {
            return Ok(Vec::new());
        };
        let deadline = self.releases_first().await;
        let fault = match self.orm.resize_container(request.clone(), deadline).await {
            Ok(reply) => match refusal(&reply) {
                Some(refused) if refused.reason != "expired" => {
                    return Err(refuse(&request.sandbox.unwrap_or_default(), refused));
                }
                Some(_) => Some(OrmError::Late(deadline)),
                None => None,
            },
            Err(e) => Some(e),
        };
        let accepted = fault.is_none();
        if let Some(fault) = fault {
            tracing::warn!(container = id, reason = %fault, "resized without the orm, which hears of it later");
            self.duties.resize(request.clone());
        }
        match request.container {
            Some(container) => self.ask(Resized { container, accepted }).await,
            None => Ok(Vec::new()),
        }
    }
}
