//! The gRPC face of the allocator: translates, asks, translates back.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use actix::{Addr, Message};
use futures::Stream;
use oxalyst_planner::plan::{Flag, Reason};
use oxalyst_planner::pods::PodRequest;
use oxalyst_planner::topology_manager::Scope;
use oxalyst_proto::orm::v1::allocator_server::Allocator;
use oxalyst_proto::orm::v1::{
    AdmitContainerRequest, AdmitPodRequest, AdmitReply, GetStateRequest, GetTopologyRequest, PlacementEvent,
    ReconcileReply, ReconcileRequest, ReleasePodReply, ReleasePodRequest, ResizeContainerRequest, State,
    Topology, WatchPlacementsRequest,
};
use oxalyst_proto::runtime::v1::{Container, Sandbox};
use oxalyst_qos::QosLevel;
use tokio::time::{Instant, timeout_at};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::BroadcastStream;
use tonic::{Code, Request, Response, Status};

use crate::allocations::{
    Admit, Allocations, AskConcern, GetState, GetTopology, IsHeld, IsKnown, Occasion, Reconcile,
    RefuseResize, Release, Reserve, ResizeContainer, SpecTold, SpecsTold, Subscribe,
};
use crate::plugins::{Admission, Ask, Plugins, Resizing, asks};
use crate::resize::Told;
use crate::specs::{PodSpec, Reader, ResourceNames, SpecChange, SpecFault};
use crate::{clock, uid, wire};

/// No answer of the actor takes longer, unless the disk hangs.
const PATIENCE: Duration = Duration::from_secs(10);

/// The face. Until the allocator is there, callers are told that it is not available.
#[derive(Debug, Clone, Default)]
pub struct Face {
    allocations: Arc<OnceLock<Addr<Allocations>>>,
    reader: Reader,
    plugins: Option<(Plugins, Scope)>,
}

// === impl Face ===

impl Face {
    /// A face that reads pods so, and asks these plugins with this scope.
    pub fn new(reader: Reader, plugins: Plugins, scope: Scope) -> Self {
        Self { allocations: Arc::default(), reader, plugins: Some((plugins, scope)) }
    }

    /// Decides for a pod, with the plugins that give out what its spec asks for.
    async fn decide(&self, mut admit: Admit) -> Result<AdmitReply, Status> {
        admit.request.plugins_unasked = admit.spec.is_none() && self.has_plugins();
        match self.asked_of_plugins(&admit).await {
            Some((spec, asks)) => self.with_plugins(admit, spec, asks).await,
            None => self.ask(admit).await,
        }
    }

    fn has_plugins(&self) -> bool {
        self.plugins.as_ref().is_some_and(|(plugins, _)| !plugins.is_empty())
    }

    /// What a spec asks for that came after its pod had been decided, which then has nothing of plugins.
    fn late(&self, spec: &PodSpec, now_unix_ms: i64) -> Result<PodRequest, SpecFault> {
        let mut pod = self.reader.request(spec, "", now_unix_ms)?;
        let knows =
            |resource: &str| self.plugins.as_ref().is_some_and(|(plugins, _)| plugins.knows(resource));
        if takes_part(&pod) && asks(spec, self.reader.names(), knows).is_ok_and(|asks| !asks.is_empty()) {
            pod.flags.insert(Flag::PluginsUnasked);
        }
        Ok(pod)
    }

    /// What the pod asks of plugins; `None`: nothing, or nothing any more, or its spec is not known. Node agents take no part.
    async fn asked_of_plugins(&self, admit: &Admit) -> Option<(Arc<PodSpec>, Vec<Ask>)> {
        let (plugins, _) = self.plugins.as_ref().filter(|(plugins, _)| !plugins.is_empty())?;
        let pod = admit.spec.as_ref().and_then(|spec| spec.as_ref().ok())?;
        if !takes_part(pod) {
            return None;
        }
        let spec = self.reader.specs().get(&pod.uid)?;
        let asks = asks(&spec, self.reader.names(), |resource| plugins.knows(resource)).ok()?;
        if asks.is_empty() {
            return None;
        }
        // What it has it keeps: plugins need not be there for that.
        let held = self.ask(IsHeld { uid: pod.uid.clone() }).await.ok()?;
        (!held).then_some((spec, asks))
    }

    async fn with_plugins(
        &self,
        admit: Admit,
        spec: Arc<PodSpec>,
        asks: Vec<Ask>,
    ) -> Result<AdmitReply, Status> {
        let Admit { request, spec: told, deadline_unix_ms, occasion } = admit;
        let (Some(Ok(pod)), Some((plugins, scope))) = (told, &self.plugins) else {
            return Err(Status::internal("a pod without a spec asks nothing of plugins"));
        };
        let scope = *scope;
        let admission =
            Admission { face: self, plugins, request, spec, pod, asks, deadline_unix_ms, occasion, scope };
        admission.decide().await
    }

    /// From now on this actor answers; the first one that is named stays.
    pub fn show(&self, allocations: Addr<Allocations>) {
        let _ = self.allocations.set(allocations);
    }

    /// The specs of pods are new, or others than before.
    pub async fn told(&self, changes: Vec<SpecChange>) {
        let now = clock::unix_ms();
        let read = |spec: &PodSpec| self.late(spec, now);
        let told = changes.iter().filter_map(|SpecChange { before, after }| match read(after) {
            Ok(now) => Some(SpecTold { before: before.as_ref().and_then(|spec| read(spec).ok()), now }),
            Err(fault) => {
                tracing::warn!(uid = after.uid, pod = after.name, %fault, "the pod's spec cannot be followed");
                None
            }
        });
        // Where the allocator is not there yet, or stops, nothing is lost: pods that start bring their specs.
        let _ = self.ask(SpecsTold(told.collect())).await;
        if let Some((plugins, _)) = &self.plugins {
            plugins.due.notify_one();
        }
    }

    /// The kubelet reserves this: a list, or an amount. Whether that was taken up, or cannot be.
    pub async fn reserve(&self, told: String) -> bool {
        match self.ask(Reserve(told)).await {
            Ok(Ok(())) => true,
            Ok(Err(fault)) => {
                tracing::error!(fault, "what the kubelet reserves cannot be; what was reserved before stays");
                // Said again it would be no better.
                true
            }
            Err(_) => false,
        }
    }

    /// The pod's spec, where it is known.
    pub(crate) fn spec_of(&self, uid: &str) -> Option<Arc<PodSpec>> {
        self.reader.specs().get(uid)
    }

    /// Under which names resources are asked for.
    pub(crate) fn names(&self) -> &ResourceNames {
        self.reader.names()
    }

    /// Whether plugins are asked for a pod of this spec at all.
    pub(crate) fn is_asked_for(&self, spec: &PodSpec) -> bool {
        self.reader.request(spec, "", 0).is_ok_and(|pod| takes_part(&pod))
    }

    /// As [`Face::ask`] for a resize of which plugins have to be told; `None`: they need not be.
    async fn resize_with_plugins(
        &self,
        told: &Told,
        deadline_unix_ms: i64,
        occasion: &Occasion,
    ) -> Result<Option<AdmitReply>, Status> {
        let Some((plugins, _)) = self.plugins.as_ref().filter(|(plugins, _)| !plugins.is_empty()) else {
            return Ok(None);
        };
        let ask = || self.ask(AskConcern { told: told.clone() });
        let Some(concern) = ask().await? else { return Ok(None) };
        let end = Instant::now() + plugins.deadline;
        let Ok(_claim) = timeout_at(end, plugins.claims.claim(&told.uid)).await else {
            let message = "another call works for this pod: it has not come to its end in time".to_owned();
            let (resize, reason) = (concern.resize, Reason::Unavailable);
            let refuse = RefuseResize { resize, reason, message, occasion: occasion.clone() };
            return self.ask(refuse).await.map(Some);
        };
        // Whoever worked for it may have changed it.
        let Some(concern) = ask().await? else { return Ok(None) };
        let resizing = Resizing { face: self, plugins, concern, deadline_unix_ms };
        resizing.decide(occasion.clone(), end).await.map(Some)
    }

    /// What the spec of the sandbox's pod asks for, where it is known.
    fn spec(&self, sandbox: &Sandbox) -> Option<Result<PodRequest, SpecFault>> {
        let spec = self.reader.specs().get(&sandbox.pod_uid)?;
        Some(self.reader.request(&spec, &sandbox.sandbox_id, clock::unix_ms()))
    }

    async fn named(&self, sandbox: Option<Sandbox>) -> Result<Sandbox, Status> {
        let sandbox = sandbox.ok_or_else(|| Status::invalid_argument("sandbox is missing"))?;
        if sandbox.sandbox_id.is_empty() {
            return Err(Status::invalid_argument("the sandbox has no id"));
        }
        let sandbox = with_uid(sandbox);
        self.can_be_known(&sandbox.pod_uid).await?;
        Ok(sandbox)
    }

    /// Whether there can be a pod of this uid. One that is held goes by the uid that it has, whatever that is: it has to be let go.
    async fn can_be_known(&self, uid: &str) -> Result<(), Status> {
        let Err(fault) = uid::check(uid) else { return Ok(()) };
        if self.ask(IsKnown { uid: uid.to_owned() }).await? {
            return Ok(());
        }
        tracing::warn!(%fault, "a call is passed over");
        Err(Status::invalid_argument(fault.to_string()))
    }

    pub(crate) async fn ask<M>(&self, message: M) -> Result<M::Result, Status>
    where
        M: Message + Send + 'static,
        M::Result: Send,
        Allocations: actix::Handler<M>,
    {
        let Some(allocations) = self.allocations.get() else {
            return Err(Status::unavailable(
                "the allocator waits for its ledger: /readyz?verbose says what for",
            ));
        };
        match allocations.send(message).timeout(PATIENCE).await {
            Ok(answer) => Ok(answer),
            Err(actix::MailboxError::Timeout) => Err(Status::deadline_exceeded(
                "the allocator waits for its disk: look at the ledger's folder",
            )),
            Err(actix::MailboxError::Closed) => Err(Status::unavailable("the allocator is stopping")),
        }
    }
}

#[tonic::async_trait]
impl Allocator for Face {
    type WatchPlacementsStream = Pin<Box<dyn Stream<Item = Result<PlacementEvent, Status>> + Send>>;

    async fn admit_pod(&self, request: Request<AdmitPodRequest>) -> Result<Response<AdmitReply>, Status> {
        let asked = request.into_inner();
        let sandbox = self.reader.sandbox(self.named(asked.sandbox).await?);
        let mut request = wire::sandbox_request(&sandbox, clock::unix_ms());
        request.kept_labels = self.reader.kept_labels(&sandbox.labels);
        let spec = self.spec(&sandbox);
        let AdmitPodRequest { deadline_unix_ms, trace_id, .. } = asked;
        let occasion = Occasion::traced(trace_id);
        self.decide(Admit { request, spec, deadline_unix_ms, occasion }).await.map(Response::new)
    }

    async fn admit_container(
        &self,
        request: Request<AdmitContainerRequest>,
    ) -> Result<Response<AdmitReply>, Status> {
        let asked = request.into_inner();
        let sandbox = self.reader.sandbox(self.named(asked.sandbox).await?);
        let container = asked.container.ok_or_else(|| Status::invalid_argument("container is missing"))?;
        let mut request = wire::container_request(&sandbox, &container, clock::unix_ms());
        request.kept_labels = self.reader.kept_labels(&sandbox.labels);
        let spec = self.spec(&sandbox);
        let AdmitContainerRequest { deadline_unix_ms, trace_id, .. } = asked;
        let occasion = Occasion::traced(trace_id);
        self.decide(Admit { request, spec, deadline_unix_ms, occasion }).await.map(Response::new)
    }

    async fn resize_container(
        &self,
        request: Request<ResizeContainerRequest>,
    ) -> Result<Response<AdmitReply>, Status> {
        let request = request.into_inner();
        if request.container.is_none() || request.sandbox.is_none() {
            return Err(Status::invalid_argument("container or sandbox is missing"));
        }
        let told = Told::from(&request);
        self.can_be_known(&told.uid).await?;
        let ResizeContainerRequest { deadline_unix_ms, trace_id, .. } = request;
        let occasion = Occasion::traced(trace_id);
        if let Some(reply) = self.resize_with_plugins(&told, deadline_unix_ms, &occasion).await? {
            return Ok(Response::new(reply));
        }
        self.ask(ResizeContainer { told, deadline_unix_ms, occasion }).await.map(Response::new)
    }

    async fn release_pod(
        &self,
        request: Request<ReleasePodRequest>,
    ) -> Result<Response<ReleasePodReply>, Status> {
        let ReleasePodRequest { pod_uid, sandbox_id } = request.into_inner();
        let uid = if pod_uid.is_empty() { sandbox_id.clone() } else { pod_uid };
        match self.can_be_known(&uid).await {
            Ok(()) => {}
            // Whoever tells of an end repeats it until it is taken, and nothing is held under such a uid.
            Err(status) if status.code() == Code::InvalidArgument => {
                return Ok(Response::new(ReleasePodReply::default()));
            }
            Err(status) => return Err(status),
        }
        self.ask(Release { uid, sandbox_id }).await.map(Response::new)
    }

    async fn reconcile(
        &self,
        request: Request<ReconcileRequest>,
    ) -> Result<Response<ReconcileReply>, Status> {
        let ReconcileRequest { sandboxes, containers } = request.into_inner();
        let mut by_sandbox: BTreeMap<&str, Vec<&Container>> = BTreeMap::new();
        for container in &containers {
            by_sandbox.entry(&container.sandbox_id).or_default().push(container);
        }
        let now = clock::unix_ms();
        let running = sandboxes
            .into_iter()
            .filter(|sandbox| !sandbox.sandbox_id.is_empty())
            .map(with_uid)
            .map(|sandbox| self.reader.sandbox(sandbox))
            .map(|sandbox| {
                let own = by_sandbox.get(sandbox.sandbox_id.as_str()).map_or(&[][..], Vec::as_slice);
                let mut running = wire::running(&sandbox, own, now);
                running.request.plugins_unasked = self.has_plugins();
                running.request.kept_labels = self.reader.kept_labels(&sandbox.labels);
                running
            })
            .collect();
        let reply = self.ask(Reconcile { running }).await?;
        let specs = reply.adopted_pod_uids.iter().filter_map(|uid| self.reader.specs().get(uid));
        let adopted: Vec<_> = specs.map(|after| SpecChange { before: None, after }).collect();
        if !adopted.is_empty() {
            self.told(adopted).await;
        }
        Ok(Response::new(reply))
    }

    async fn watch_placements(
        &self,
        _: Request<WatchPlacementsRequest>,
    ) -> Result<Response<Self::WatchPlacementsStream>, Status> {
        let subscription = self.ask(Subscribe).await?;
        let first = tokio_stream::once(Ok(subscription.snapshot));
        let rest = BroadcastStream::new(subscription.events).map(|event| match event {
            Ok(event) => Ok(PlacementEvent::clone(&event)),
            Err(lag) => {
                Err(Status::data_loss(format!("the watcher is too slow ({lag}): come back for a snapshot")))
            }
        });
        Ok(Response::new(Box::pin(until_error(first.chain(rest)))))
    }

    async fn get_state(&self, request: Request<GetStateRequest>) -> Result<Response<State>, Status> {
        let GetStateRequest { exclusive_only } = request.into_inner();
        self.ask(GetState { exclusive_only }).await.map(Response::new)
    }

    async fn get_topology(&self, _: Request<GetTopologyRequest>) -> Result<Response<Topology>, Status> {
        self.ask(GetTopology).await.map(Response::new)
    }
}

/// Node agents ask nothing of plugins.
fn takes_part(pod: &PodRequest) -> bool {
    !(pod.node_agent && matches!(pod.qos, QosLevel::Shared | QosLevel::Reclaimed))
}

/// A pod whose client told no uid goes by its sandbox's id.
fn with_uid(mut sandbox: Sandbox) -> Sandbox {
    if sandbox.pod_uid.is_empty() {
        sandbox.pod_uid.clone_from(&sandbox.sandbox_id);
    }
    sandbox
}

/// Ends the stream after its first error, which is the last thing the watcher hears.
fn until_error<T>(
    stream: impl Stream<Item = Result<T, Status>> + Send,
) -> impl Stream<Item = Result<T, Status>> + Send {
    let mut failed = false;
    stream.take_while(move |item| {
        let go_on = !failed;
        failed = item.is_err();
        go_on
    })
}
