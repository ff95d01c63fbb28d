//! Answers the runtime's calls. A handler asks the orm with a deadline, the roster, and the kernel's files with a deadline; it
//! has no means to call the runtime, which holds its lock meanwhile.

mod creating;
mod starting;
mod updating;
mod validate;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use actix::Addr;
use oxalyst_nri::api::{
    ConfigureRequest, ConfigureResponse, CreateContainerRequest, CreateContainerResponse, Event, PodSandbox,
    StopContainerRequest, StopContainerResponse, UpdateContainerRequest, UpdateContainerResponse,
    ValidateContainerAdjustmentRequest, ValidateContainerAdjustmentResponse,
};
use oxalyst_nri::events::mask_for;
use oxalyst_nri::plugin::{Happened, Plugin};
use oxalyst_nri::sync_chunks::Inventory;
use oxalyst_nri::{Code, Status, api};
use oxalyst_proto::orm::v1::{AdmitReply, Refusal, admit_reply};
use oxalyst_proto::runtime::v1::Sandbox;
use tokio::sync::watch;

use crate::adjustment::{Dialect, Runtime};
use crate::diagnosis::Diagnosis;
use crate::duties::{Duties, reconcile};
use crate::few::Few;
use crate::hands::{Hands, Turn};
use crate::kernel::Kernel;
use crate::mender::Nudge;
use crate::metrics::Metrics;
use crate::orm::{Orm, OrmError};
use crate::owner::Calls;
use crate::pinning::Change;
use crate::policy;
use crate::refuse_at::Stage;
use crate::roster::{
    Born, Entrance, Moved, Phase, PutSandbox, RefreshSandbox, RemoveContainer, RemoveSandbox, Replace,
    Resynchronise, Roster, StopSandbox, ToCheck,
};
use crate::session::{Progress, Synchronised};
use crate::settings::Settings;
use crate::translate;
use crate::updates::Updates;

/// For a round of bypass mode to end before Synchronize is answered; with what follows it stays below the runtime's 2 s.
const TURN_DEADLINE: Duration = Duration::from_millis(500);

/// For the pass over the kernel's files within Synchronize, and before a start.
const LOOK_DEADLINE: Duration = Duration::from_millis(500);

/// How long after a reply its updates are looked for in the kernel.
const AFTER_REPLY: Duration = Duration::from_millis(250);

/// Events beyond those that every runtime knows, asked for where it tells a version of NRI.
pub const NEWER: [Event; 3] =
    [Event::UpdatePodSandbox, Event::PostUpdatePodSandbox, Event::ValidateContainerAdjustment];

/// What the hooks of every session share.
#[derive(Clone, Debug)]
pub struct HooksContext {
    /// Deadline and policy.
    pub settings: Arc<Settings>,
    /// Decides.
    pub orm: Orm,
    /// Owns what runs.
    pub roster: Addr<Roster>,
    /// The kernel's files.
    pub kernel: Kernel,
    /// What the orm has to be told in any case.
    pub duties: Duties,
    /// Wakes the mender.
    pub nudge: Nudge,
    /// Counts.
    pub metrics: Metrics,
    /// Calls that are being answered.
    pub calls: Calls,
    /// Hears what stands in the way.
    pub diagnosis: Diagnosis,
    /// How many of [`NEWER`] are asked for: one less each time that this runtime may have refused the last of them.
    pub newer_events: Arc<AtomicUsize>,
}

/// The hooks of one session.
#[derive(Debug)]
pub struct Hooks {
    context: HooksContext,
    hands: Hands,
    /// From Synchronize on, until this session has ended: nothing is written past it. A runtime that never gets so far, for it
    /// hangs, keeps nobody from what it does not do.
    turn: Option<Turn>,
    runtime: String,
    refused_at: Stage,
    dialect: Dialect,
    updates: Updates,
    progress: watch::Sender<Progress>,
}

// === impl Hooks ===

impl Hooks {
    /// For a session; `progress` hears how far it has come.
    pub fn new(context: HooksContext, hands: Hands, progress: watch::Sender<Progress>) -> Self {
        Self {
            context,
            hands,
            turn: None,
            runtime: String::new(),
            refused_at: Stage::default(),
            dialect: Dialect::default(),
            updates: Updates::default(),
            progress,
        }
    }

    async fn take_turn(&mut self) -> Result<(), Status> {
        if self.turn.is_none() {
            let turn = tokio::time::timeout(TURN_DEADLINE, self.hands.for_session()).await;
            let late =
                |_| Status::new(Code::Unavailable, "oxalyst: a round of bypass mode has not ended yet");
            self.turn = Some(turn.map_err(late)?);
        }
        Ok(())
    }

    async fn timed<T>(
        &self,
        method: &'static str,
        answer: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        let since = Instant::now();
        let _calling = self.context.calls.begin();
        let outcome = answer.await;
        self.context.metrics.hook(method, outcome.is_ok(), since);
        outcome
    }
}

impl Plugin for Hooks {
    async fn configure(&mut self, request: ConfigureRequest) -> Result<ConfigureResponse, Status> {
        self.context.diagnosis.configured(&request);
        let refuse_at = self.context.settings.refuse_at;
        self.refused_at = refuse_at.stage(&request.runtime_name, &request.runtime_version);
        self.updates = Updates::of(&request.runtime_name, &request.runtime_version);
        self.dialect = Dialect {
            runtime: Runtime::named(&request.runtime_name),
            unified: self.context.kernel.is_unified(LOOK_DEADLINE).await.unwrap_or_default(),
        };
        self.runtime = format!("{} {}", request.runtime_name, request.runtime_version).trim().to_owned();
        let newer = NEWER.get(..self.context.newer_events.load(Ordering::Relaxed)).unwrap_or(&NEWER);
        self.progress.send_replace(Progress::Configured);
        Ok(ConfigureResponse { events: mask_for(&request, newer) })
    }

    async fn synchronize(&mut self, list: Inventory) -> Result<Vec<api::ContainerUpdate>, Status> {
        self.progress.send_replace(Progress::Lists);
        self.take_turn().await?;
        let (changes, listed) = self.timed("Synchronize", self.context.synchronise(list)).await?;
        self.progress.send_replace(Progress::Synchronised(Synchronised {
            runtime: self.runtime.clone(),
            listed,
            pinned: changes.len(),
            dialect: self.dialect,
            updates: self.updates,
        }));
        Ok(updates(&changes))
    }

    async fn create_container(
        &mut self,
        request: CreateContainerRequest,
    ) -> Result<CreateContainerResponse, Status> {
        let (Some(pod), Some(container)) = (request.pod, request.container) else {
            return Err(incomplete("CreateContainer"));
        };
        let born = Born::of(&container);
        let (sandbox, container) = (translate::sandbox(pod), translate::container(container));
        let created = self.context.create_container(sandbox, (container, born), self.dialect);
        self.timed("CreateContainer", created).await
    }

    async fn update_container(
        &mut self,
        request: UpdateContainerRequest,
    ) -> Result<UpdateContainerResponse, Status> {
        let Some(container) = request.container else { return Err(incomplete("UpdateContainer")) };
        let told = request.linux_resources.map(translate::resources).unwrap_or_default();
        let answer = self.context.update_container(container.id, told);
        let update = self.timed("UpdateContainer", answer).await?;
        Ok(UpdateContainerResponse { update, evict: Vec::new() })
    }

    async fn stop_container(
        &mut self,
        request: StopContainerRequest,
    ) -> Result<StopContainerResponse, Status> {
        let Some(container) = request.container else { return Err(incomplete("StopContainer")) };
        // An exit frees nothing: a crash loop keeps its set.
        let moved = Moved { container: translate::container(container), phase: Phase::Stopped };
        self.timed("StopContainer", self.context.ask(moved)).await?;
        Ok(StopContainerResponse::default())
    }

    async fn validate_adjustment(
        &mut self,
        request: ValidateContainerAdjustmentRequest,
    ) -> Result<ValidateContainerAdjustmentResponse, Status> {
        self.timed("ValidateContainerAdjustment", self.context.validate(request)).await
    }

    async fn happened(&mut self, happened: Happened) -> Result<(), Status> {
        let Happened { event, pod, container } = happened;
        let context = &self.context;
        let container = container.map(translate::container);
        match (event, container) {
            (Event::RunPodSandbox, _) => {
                let sandbox = translate::sandbox(pod);
                self.timed("RunPodSandbox", context.run_sandbox(sandbox, self.refused_at)).await
            }
            (Event::StopPodSandbox, _) => self.timed("StopPodSandbox", context.stop_sandbox(pod)).await,
            (Event::RemovePodSandbox, _) => self.timed("RemovePodSandbox", context.remove_sandbox(pod)).await,
            (Event::PostCreateContainer, Some(container)) => {
                context.ask(Moved { container, phase: Phase::Created }).await
            }
            (Event::StartContainer, Some(container)) => {
                self.timed("StartContainer", context.start_container(container, self.updates)).await
            }
            (Event::PostStartContainer, Some(container)) => {
                context.ask(Moved { container, phase: Phase::Running }).await?;
                context.nudge.now();
                Ok(())
            }
            // Before it happens and after: its containers' updates, which come in between, are asked about with the new totals.
            (Event::UpdatePodSandbox | Event::PostUpdatePodSandbox, _) => {
                self.timed("UpdatePodSandbox", context.ask(RefreshSandbox(translate::sandbox(pod)))).await
            }
            (Event::PostUpdateContainer, _) => {
                context.nudge.now();
                Ok(())
            }
            (Event::RemoveContainer, Some(container)) => {
                context.ask(RemoveContainer(container.container_id)).await
            }
            _ => Ok(()),
        }
    }

    async fn shutdown(&mut self) {
        tracing::info!("the container runtime ends the session");
    }
}

// === impl HooksContext ===

impl HooksContext {
    /// Asks the roster, which answers at once unless the process is stopping.
    async fn ask<M>(&self, message: M) -> Result<M::Result, Status>
    where
        M: actix::Message + Send + 'static,
        M::Result: Send,
        Roster: actix::Handler<M>,
    {
        self.roster.send(message).await.map_err(|_| Status::new(Code::Unavailable, "the gateway is stopping"))
    }

    async fn synchronise(&self, list: Inventory) -> Result<(Vec<Change>, (usize, usize)), Status> {
        let sandboxes: Vec<_> = list.pods.into_iter().map(translate::sandbox).collect();
        let listed = list.containers.into_iter();
        let containers: Vec<_> =
            listed.map(|c| (Born::of(&c), c)).map(|(b, c)| (translate::container(c), b)).collect();
        let listed = (sandboxes.len(), containers.len());
        let placements = self.orm.placements().load_full();
        let all_placed = sandboxes.iter().all(|sandbox| placements.pod(&sandbox.pod_uid).is_some());
        self.ask(Replace { sandboxes, containers }).await?;
        // Without its answer, and where it has placed everybody already: the whole list is told as soon as the session counts as
        // synchronised, and the mender brings what differs then.
        if !all_placed && let Err(e) = self.reconcile().await {
            tracing::warn!(reason = %e, "synchronised without the orm");
        }
        let due = self.ask(ToCheck { everything: true }).await?;
        let seen = match self.kernel.read(due.checks, LOOK_DEADLINE).await {
            Ok(look) => look.seen,
            Err(e) => {
                tracing::warn!(error = %e, "synchronised without the kernel's files");
                Vec::new()
            }
        };
        let changes = self.ask(Resynchronise(seen)).await?;
        if !changes.is_empty() {
            let ids: Vec<_> = changes.iter().map(|change| change.container_id.as_str()).collect();
            tracing::info!(containers = %Few(&ids), "updated in the answer to the synchronisation");
        }
        Ok((changes, listed))
    }

    async fn reconcile(&self) -> Result<(), OrmError> {
        if self.orm.is_suspended() {
            return Err(OrmError::Suspended);
        }
        let deadline = self.settings.hook_deadline();
        let told = tokio::time::timeout(deadline, reconcile(&self.orm, &self.roster, &self.kernel)).await;
        told.unwrap_or(Err(OrmError::Late(deadline)))
    }

    async fn run_sandbox(&self, sandbox: Sandbox, refused_at: Stage) -> Result<(), Status> {
        let entrance = match self.admit_sandbox(&sandbox).await {
            Ok(entrance) => entrance,
            Err(refused) if refused_at == Stage::Container => Entrance::Refused(refused.message),
            Err(refused) => return Err(refused),
        };
        let by_policy = entrance == Entrance::ByPolicy;
        let noted = self.ask(PutSandbox { sandbox, entrance }).await;
        if by_policy {
            self.duties.reconcile();
        }
        // Not even a gateway that is stopping may refuse a sandbox of a runtime that is harmed by it.
        if refused_at == Stage::Container { Ok(()) } else { noted }
    }

    async fn admit_sandbox(&self, sandbox: &Sandbox) -> Result<Entrance, Status> {
        let deadline = self.releases_first().await;
        let fault = match self.orm.admit_pod(sandbox.clone(), deadline).await {
            Ok(reply) => match refusal(&reply) {
                Some(refused) if refused.reason != "expired" => return Err(refuse(sandbox, refused)),
                Some(_) => OrmError::Late(deadline),
                None => return Ok(Entrance::Admitted),
            },
            Err(e) => e,
        };
        self.policy(sandbox, &fault)?;
        Ok(Entrance::ByPolicy)
    }

    /// What was given back must not be missing when the next pod asks for it. A stop is acknowledged before the orm hears of it.
    /// Gives what is left of the hook's deadline.
    async fn releases_first(&self) -> Duration {
        let (since, deadline) = (Instant::now(), self.settings.hook_deadline());
        if *self.orm.streaming().borrow() && !self.orm.is_suspended() {
            self.duties.all_heard(deadline / 3).await;
        }
        deadline.saturating_sub(since.elapsed())
    }

    /// The answer without the orm: whether it may start.
    fn policy(&self, sandbox: &Sandbox, fault: &OrmError) -> Result<(), Status> {
        self.metrics.by_policy(fault.reason());
        if policy::refuses(self.settings.on_deadline, sandbox) {
            let why = format!(
                "oxalyst: {fault}, and on_deadline is closed: {}/{} is not started unplaced",
                sandbox.namespace, sandbox.name
            );
            return Err(Status::new(Code::Unavailable, why));
        }
        tracing::warn!(pod = %sandbox.name, namespace = %sandbox.namespace, reason = %fault, "answered by policy");
        Ok(())
    }

    async fn stop_sandbox(&self, pod: PodSandbox) -> Result<(), Status> {
        self.ask(StopSandbox(pod.id.clone())).await?;
        self.duties.release(translate::uid(&pod), pod.id);
        Ok(())
    }

    async fn remove_sandbox(&self, pod: PodSandbox) -> Result<(), Status> {
        self.ask(RemoveSandbox(pod.id.clone())).await?;
        self.duties.release(translate::uid(&pod), pod.id);
        Ok(())
    }
}

fn refusal(reply: &AdmitReply) -> Option<&Refusal> {
    match &reply.outcome {
        Some(admit_reply::Outcome::Refused(refused)) => Some(refused),
        _ => None,
    }
}

/// What the runtime, and through it the pod's events, are told.
fn refuse(sandbox: &Sandbox, refused: &Refusal) -> Status {
    tracing::info!(
        pod = %sandbox.name, namespace = %sandbox.namespace, reason = %refused.reason, message = %refused.message,
        "refused"
    );
    Status::new(Code::FailedPrecondition, format!("oxalyst: {}: {}", refused.reason, refused.message))
}

/// Updates of containers that the call is not about: none of them may fail it.
fn updates(changes: &[Change]) -> Vec<api::ContainerUpdate> {
    changes.iter().filter_map(|c| translate::update(&c.container_id, &c.cpuset, true)).collect()
}

fn incomplete(method: &str) -> Status {
    Status::new(Code::InvalidArgument, format!("{method} without a pod or a container"))
}
