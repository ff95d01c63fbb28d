//! A container is about to be made: where it runs, and what others have to leave.

use oxalyst_nri::api::CreateContainerResponse;
use oxalyst_nri::{Code, Status};
use oxalyst_proto::runtime::v1::{Container, Sandbox};

use super::{AFTER_REPLY, HooksContext, refusal, refuse, updates};
use crate::adjustment::Dialect;
use crate::orm::OrmError;
use crate::placements::Cpuset;
use crate::roster::{Born, Create, Others, RefusedAgain, RefusedBefore};
use crate::{policy, translate};

impl HooksContext {
    pub(super) async fn create_container(
        &self,
        sandbox: Sandbox,
        (container, born): (Container, Born),
        dialect: Dialect,
    ) -> Result<CreateContainerResponse, Status> {
        let placements = self.orm.placements();
        let name = translate::container_name(&container).to_owned();
        let decided = placements.load().settled_cpuset_of(&sandbox.pod_uid, &name);
        let (cpuset, by_policy) = match decided {
            Some(cpuset) => (Some(cpuset), false),
            None => self.admit_container(&sandbox, &container).await?,
        };
        let told = container.resources.as_ref().and_then(|r| r.cpuset_cpus.as_deref());
        if let (Some(told), Some(ours)) = (told, &cpuset)
            && told != ours.cpus
        {
            tracing::info!(
                container = %container.container_id, pod = %sandbox.name, told, ours = %ours.cpus,
                "the kubelet or another plugin had set other CPUs"
            );
        }
        let others = self.ask(Others { pod_uid: sandbox.pod_uid.clone(), container: name }).await?;
        let adjust = cpuset.as_ref().and_then(|cpuset| translate::adjustment(cpuset, &others, dialect));
        let born = if adjust.is_some() { born.with(&others) } else { born };
        let create = Create { container, pod_uid: sandbox.pod_uid, cpuset, by_policy, born };
        let others = self.ask(create).await?;
        if !others.is_empty() {
            self.nudge.after(AFTER_REPLY);
        }
        Ok(CreateContainerResponse { adjust, update: updates(&others), evict: Vec::new() })
    }

    /// The pod's placement is not settled: the orm is asked for this container.
    async fn admit_container(
        &self,
        sandbox: &Sandbox,
        container: &Container,
    ) -> Result<(Option<Cpuset>, bool), Status> {
        let deadline = self.releases_first().await;
        let fault = match self.orm.admit_container(sandbox.clone(), container.clone(), deadline).await {
            Ok(reply) => match refusal(&reply) {
                Some(refused) if refused.reason != "expired" => {
                    let refused = refuse(sandbox, refused);
                    let message = refused.message.clone();
                    self.ask(RefusedAgain { sandbox_id: sandbox.sandbox_id.clone(), message }).await?;
                    return Err(refused);
                }
                Some(_) => OrmError::Late(deadline),
                None => match self
                    .orm
                    .placements()
                    .load()
                    .cpuset_of(&sandbox.pod_uid, translate::container_name(container))
                {
                    Some(cpuset) => return Ok((Some(cpuset), false)),
                    None => OrmError::Failed("it placed the container nowhere".to_owned()),
                },
            },
            Err(e) => e,
        };
        // The orm's last word on the pod was a no: without a new one it stands.
        if let Some(message) = self.ask(RefusedBefore(sandbox.sandbox_id.clone())).await? {
            return Err(Status::new(Code::FailedPrecondition, message));
        }
        self.policy(sandbox, &fault)?;
        Ok((policy::place(&self.orm.placements().load()), true))
    }
}
