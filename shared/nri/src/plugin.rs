//! The plugin's end: serves the `Plugin` service on connection 1, calls the `Runtime` service on connection 2.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::api::{
    ConfigureRequest, ConfigureResponse, Container, ContainerUpdate, CreateContainerRequest,
    CreateContainerResponse, Empty, Event, PodSandbox, RegisterPluginRequest, StateChangeEvent,
    StopContainerRequest, StopContainerResponse, SynchronizeRequest, SynchronizeResponse,
    UpdateContainerRequest, UpdateContainerResponse, UpdateContainersRequest, UpdateContainersResponse,
    UpdatePodSandboxRequest, ValidateContainerAdjustmentRequest, ValidateContainerAdjustmentResponse,
};
use crate::client::{CallError, Client};
use crate::frame::ConnId;
use crate::message::Request;
use crate::server::{Handler, decode, unimplemented};
use crate::status::{Code, Status};
use crate::sync_chunks::{self, Assembly, Inventory};
use crate::trunk::{Trunk, TrunkError};

/// Name of the service that a plugin serves.
pub const PLUGIN_SERVICE: &str = "nri.pkg.api.v1alpha1.Plugin";

/// Name of the service that a runtime serves.
pub const RUNTIME_SERVICE: &str = "nri.pkg.api.v1alpha1.Runtime";

/// The version of the NRI library whose messages are understood, told at registration.
pub const NRI_VERSION: &str = "0.12.0";

/// What happened to a pod or a container, in whichever of the two forms the runtime told it: as a `StateChange` (NRI up to
/// 0.11) or as a call of its own (from 0.12). An error refuses it, where the runtime still can.
#[derive(Clone, Debug, PartialEq)]
pub struct Happened {
    /// Which event.
    pub event: Event,
    /// The pod it happened to. In [`Event::UpdatePodSandbox`], with the resources that it is to have.
    pub pod: PodSandbox,
    /// The container it happened to; `None` for events of a pod.
    pub container: Option<Container>,
}

/// What a plugin does with each call. Calls come one at a time, in order; the runtime holds its own lock meanwhile, so a
/// handler has no means of calling the runtime.
pub trait Plugin: Send + 'static {
    /// The first call: who the runtime is; the answer is the event mask.
    fn configure(
        &mut self,
        request: ConfigureRequest,
    ) -> impl Future<Output = Result<ConfigureResponse, Status>> + Send;

    /// The whole list of pods and containers, put together from its parts; the answer is what has to change.
    fn synchronize(
        &mut self,
        list: Inventory,
    ) -> impl Future<Output = Result<Vec<ContainerUpdate>, Status>> + Send;

    /// A container is about to be created.
    fn create_container(
        &mut self,
        request: CreateContainerRequest,
    ) -> impl Future<Output = Result<CreateContainerResponse, Status>> + Send;

    /// Somebody (the kubelet) asks for other resources of a container.
    fn update_container(
        &mut self,
        request: UpdateContainerRequest,
    ) -> impl Future<Output = Result<UpdateContainerResponse, Status>> + Send;

    /// A container stops; also at each crash.
    fn stop_container(
        &mut self,
        request: StopContainerRequest,
    ) -> impl Future<Output = Result<StopContainerResponse, Status>> + Send;

    /// All plugins have said what they adjust: the last word before the container is made. Asked of those alone that asked for
    /// it ([`crate::events::mask_for`]).
    fn validate_adjustment(
        &mut self,
        _: ValidateContainerAdjustmentRequest,
    ) -> impl Future<Output = Result<ValidateContainerAdjustmentResponse, Status>> + Send {
        async { Ok(ValidateContainerAdjustmentResponse::default()) }
    }

    /// Every event whose answer is empty.
    fn happened(&mut self, happened: Happened) -> impl Future<Output = Result<(), Status>> + Send;

    /// The runtime will close the connection.
    fn shutdown(&mut self) -> impl Future<Output = ()> + Send;
}

/// A trunk to a runtime, on which the plugin is being served. Dropping it closes the socket.
#[derive(Debug)]
pub struct PluginSession {
    trunk: Trunk,
    runtime: RuntimeClient,
}

/// Calls to the runtime. Not for use from within a [`Plugin`]'s handler: the runtime would deadlock.
#[derive(Debug)]
pub struct RuntimeClient {
    client: Client,
}

struct Dispatch<P> {
    plugin: P,
    list: Assembly,
    updates_left: VecDeque<SynchronizeResponse>,
}

// === impl PluginSession ===

impl PluginSession {
    /// Starts to serve `plugin` on a connected socket. The runtime calls nothing before [`PluginSession::register`].
    pub fn start<S>(socket: S, plugin: impl Plugin) -> Self
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let (trunk, client, inbox) = Trunk::start(socket, ConnId::Plugin);
        let dispatch = Dispatch { plugin, list: Assembly::default(), updates_left: VecDeque::new() };
        tokio::spawn(inbox.serve(dispatch));
        Self { trunk, runtime: RuntimeClient { client } }
    }

    /// Tells the runtime who we are; `index` is two digits, plugins are called in its order. The runtime configures and
    /// synchronises afterwards, or never: bound that wait.
    pub async fn register(&self, name: &str, index: &str, deadline: Duration) -> Result<(), CallError> {
        let request = RegisterPluginRequest {
            plugin_name: name.to_owned(),
            plugin_idx: index.to_owned(),
            nri_version: NRI_VERSION.to_owned(),
        };
        let client = &self.runtime.client;
        let Empty {} = client.call(RUNTIME_SERVICE, "RegisterPlugin", &request, deadline).await?;
        Ok(())
    }

    /// Waits for the end of the connection and tells its reason.
    pub async fn ended(&self) -> Arc<TrunkError> {
        self.trunk.ended().await
    }

    /// The trunk, which must be kept, and the calls to the runtime, for the task that makes them.
    pub fn split(self) -> (Trunk, RuntimeClient) {
        (self.trunk, self.runtime)
    }
}

// === impl RuntimeClient ===

impl RuntimeClient {
    /// Changes containers outside of any call of the runtime; gives those that it could not change. A runtime answers success
    /// for some that it did not change either: verify by reading the kernel's files.
    pub async fn update_containers(
        &self,
        update: Vec<ContainerUpdate>,
        deadline: Duration,
    ) -> Result<Vec<ContainerUpdate>, CallError> {
        let request = UpdateContainersRequest { update, evict: Vec::new() };
        let answer: UpdateContainersResponse =
            self.client.call(RUNTIME_SERVICE, "UpdateContainers", &request, deadline).await?;
        Ok(answer.failed)
    }
}

// === impl Dispatch ===

impl<P: Plugin> Handler for Dispatch<P> {
    async fn call(&mut self, request: Request) -> Result<Vec<u8>, Status> {
        if request.service != PLUGIN_SERVICE {
            return Err(unimplemented(&request));
        }
        let payload = request.payload.as_slice();
        if let Some(event) = own_call_of(&request.method) {
            // Every such request holds the pod in field 1; the container, where it has one, in field 2.
            let happened = if event == Event::UpdatePodSandbox {
                let pod = as_it_will_be(decode(payload)?);
                StateChangeEvent { event: event.into(), pod, container: None }
            } else {
                let PodAndContainer { pod, container } = decode(payload)?;
                StateChangeEvent { event: event.into(), pod, container }
            };
            self.happened(happened).await?;
            return Ok(Vec::new());
        }
        match request.method.as_str() {
            "Configure" => encoded(self.plugin.configure(decode(payload)?).await),
            "Synchronize" => encoded(self.synchronize(decode(payload)?).await),
            "CreateContainer" => encoded(self.plugin.create_container(decode(payload)?).await),
            "UpdateContainer" => encoded(self.plugin.update_container(decode(payload)?).await),
            "StopContainer" => encoded(self.plugin.stop_container(decode(payload)?).await),
            "ValidateContainerAdjustment" => encoded(self.plugin.validate_adjustment(decode(payload)?).await),
            "StateChange" => {
                self.happened(decode(payload)?).await?;
                Ok(Vec::new())
            }
            "Shutdown" => {
                self.plugin.shutdown().await;
                Ok(Vec::new())
            }
            _ => Err(unimplemented(&request)),
        }
    }
}

impl<P: Plugin> Dispatch<P> {
    async fn synchronize(&mut self, part: SynchronizeRequest) -> Result<SynchronizeResponse, Status> {
        let asks_for_the_rest = !part.more && part.pods.is_empty() && part.containers.is_empty();
        if asks_for_the_rest && let Some(next) = self.updates_left.pop_front() {
            return Ok(next);
        }
        let more = part.more;
        let Some(list) = self.list.push(part)? else {
            return Ok(SynchronizeResponse { update: Vec::new(), more });
        };
        let updates = self.plugin.synchronize(list).await?;
        self.updates_left = sync_chunks::responses(updates, sync_chunks::PART).into();
        Ok(self.updates_left.pop_front().unwrap_or_default())
    }

    async fn happened(&mut self, change: StateChangeEvent) -> Result<(), Status> {
        let event = match Event::try_from(change.event) {
            // An event from the future, not asked for: an error would refuse whatever it is about.
            Err(_) | Ok(Event::Unknown | Event::Last) => return Ok(()),
            Ok(event) => event,
        };
        let missing = |what| Status::new(Code::InvalidArgument, format!("{event:?} without a {what}"));
        let pod = change.pod.ok_or_else(|| missing("pod"))?;
        if is_of_container(event) && change.container.is_none() {
            return Err(missing("container"));
        }
        self.plugin.happened(Happened { event, pod, container: change.container }).await
    }
}

/// The pod with the resources that it is to have.
fn as_it_will_be(request: UpdatePodSandboxRequest) -> Option<PodSandbox> {
    let UpdatePodSandboxRequest { pod, overhead_linux_resources: overhead, linux_resources: own } = request;
    let mut pod = pod?;
    if overhead.is_some() || own.is_some() {
        let linux = pod.linux.get_or_insert_default();
        linux.pod_overhead = overhead.or_else(|| linux.pod_overhead.take());
        linux.pod_resources = own.or_else(|| linux.pod_resources.take());
    }
    Some(pod)
}

/// The common shape of the requests whose answer is empty.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PodAndContainer {
    #[prost(message, optional, tag = "1")]
    pub(crate) pod: Option<PodSandbox>,
    #[prost(message, optional, tag = "2")]
    pub(crate) container: Option<Container>,
}

/// Methods that are an event with an empty answer, in the form of NRI 0.12 and later.
pub(crate) const OWN_CALLS: [(&str, Event); 10] = [
    ("RunPodSandbox", Event::RunPodSandbox),
    ("UpdatePodSandbox", Event::UpdatePodSandbox),
    ("PostUpdatePodSandbox", Event::PostUpdatePodSandbox),
    ("StopPodSandbox", Event::StopPodSandbox),
    ("RemovePodSandbox", Event::RemovePodSandbox),
    ("PostCreateContainer", Event::PostCreateContainer),
    ("StartContainer", Event::StartContainer),
    ("PostStartContainer", Event::PostStartContainer),
    ("PostUpdateContainer", Event::PostUpdateContainer),
    ("RemoveContainer", Event::RemoveContainer),
];

fn own_call_of(method: &str) -> Option<Event> {
    OWN_CALLS.iter().find(|(name, _)| *name == method).map(|(_, event)| *event)
}

fn is_of_container(event: Event) -> bool {
    matches!(
        event,
        Event::CreateContainer
            | Event::PostCreateContainer
            | Event::StartContainer
            | Event::PostStartContainer
            | Event::UpdateContainer
            | Event::PostUpdateContainer
            | Event::StopContainer
            | Event::RemoveContainer
    )
}

fn encoded(outcome: Result<impl Message, Status>) -> Result<Vec<u8>, Status> {
    outcome.map(|message| message.encode_to_vec())
}

/// Connects to the runtime's socket.
pub async fn connect(socket: &std::path::Path) -> std::io::Result<tokio::net::UnixStream> {
    tokio::net::UnixStream::connect(socket).await
}
