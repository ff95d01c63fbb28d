//! The runtime's end: serves the `Runtime` service on connection 2, calls the `Plugin` service on connection 1. For imitated
//! runtimes and tests; it behaves as containerd does where plugins can tell.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

use crate::api::{
    ConfigureRequest, ConfigureResponse, Container, ContainerUpdate, CreateContainerRequest,
    CreateContainerResponse, Empty, Event, PodSandbox, RegisterPluginRequest, StateChangeEvent,
    StopContainerRequest, StopContainerResponse, SynchronizeRequest, SynchronizeResponse,
    UpdateContainerRequest, UpdateContainerResponse, UpdateContainersRequest, UpdateContainersResponse,
    UpdatePodSandboxRequest, UpdatePodSandboxResponse, ValidateContainerAdjustmentRequest,
    ValidateContainerAdjustmentResponse,
};
use crate::client::{CallError, Client};
use crate::events::unknown_event;
use crate::frame::ConnId;
use crate::message::Request;
use crate::plugin::{OWN_CALLS, PLUGIN_SERVICE, PodAndContainer, RUNTIME_SERVICE};
use crate::server::{Handler, decode, unimplemented};
use crate::status::{Code, Status};
use crate::sync_chunks;
use crate::trunk::{Trunk, TrunkError};

/// How a runtime tells events whose answer is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventStyle {
    /// As `StateChange{event}`: NRI up to 0.11 (containerd 1.7 and 2.1, CRI-O 1.34).
    StateChange,
    /// As a call of its own each: NRI 0.12 and later.
    OwnCalls,
}

/// How a runtime behaves.
#[derive(Clone, Copy, Debug)]
pub struct RuntimeOptions {
    /// Form of the events.
    pub style: EventStyle,
    /// The last event it knows; a mask beyond it is refused.
    pub last_event: Event,
    /// How long a plugin may take to register. containerd: 5 s.
    pub registration_timeout: Duration,
    /// How long a plugin may take for a call; past it the connection is closed. containerd: 2 s.
    pub request_timeout: Duration,
    /// Largest Synchronize request; containerd: one message, [`sync_chunks::PART`].
    pub sync_part: usize,
}

/// What a runtime does with a plugin's calls.
pub trait RuntimeService: Send + 'static {
    /// Changes containers; gives those that could not be changed.
    fn update_containers(
        &mut self,
        updates: Vec<ContainerUpdate>,
    ) -> impl Future<Output = Result<Vec<ContainerUpdate>, Status>> + Send;
}

/// A trunk to one plugin. Dropping it closes the socket.
#[derive(Debug)]
pub struct RuntimeSession {
    trunk: Trunk,
    client: Client,
    registrations: mpsc::Receiver<RegisterPluginRequest>,
    options: RuntimeOptions,
}

/// Why a plugin could not be taken in, or a call failed.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// No RegisterPlugin came in time, or the connection ended.
    #[error("the plugin did not register in {} ms", .0.as_millis())]
    NotRegistered(Duration),
    /// The plugin asked for events that this runtime does not know.
    #[error("invalid plugin events: event {0} is unknown")]
    InvalidEvents(u32),
    /// The plugin does not understand Synchronize in parts.
    #[error("the plugin does not handle a split Synchronize")]
    NoParts,
    /// A call failed.
    #[error(transparent)]
    Call(#[from] CallError),
}

struct Dispatch<R> {
    service: R,
    registrations: mpsc::Sender<RegisterPluginRequest>,
}

// === impl RuntimeOptions ===

impl Default for RuntimeOptions {
    /// As containerd 2.1.
    fn default() -> Self {
        Self {
            style: EventStyle::StateChange,
            last_event: Event::RemoveContainer,
            registration_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(2),
            sync_part: sync_chunks::PART,
        }
    }
}

// === impl RuntimeSession ===

impl RuntimeSession {
    /// Starts on a socket that a plugin connected to.
    pub fn start<S>(socket: S, service: impl RuntimeService, options: RuntimeOptions) -> Self
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let (trunk, client, inbox) = Trunk::start(socket, ConnId::Runtime);
        let (tell, registrations) = mpsc::channel(1);
        tokio::spawn(inbox.serve(Dispatch { service, registrations: tell }));
        Self { trunk, client, registrations, options }
    }

    /// Waits for RegisterPlugin.
    pub async fn registered(&mut self) -> Result<RegisterPluginRequest, SessionError> {
        let limit = self.options.registration_timeout;
        match tokio::time::timeout(limit, self.registrations.recv()).await {
            Ok(Some(plugin)) => Ok(plugin),
            _ => {
                self.trunk.close();
                Err(SessionError::NotRegistered(limit))
            }
        }
    }

    /// Tells the plugin who we are; gives its event mask.
    pub async fn configure(&self, runtime_name: &str, runtime_version: &str) -> Result<i32, SessionError> {
        let millis = |d: Duration| i64::try_from(d.as_millis()).unwrap_or(i64::MAX);
        let tells_version = self.options.last_event != Event::RemoveContainer;
        let request = ConfigureRequest {
            config: String::new(),
            runtime_name: runtime_name.to_owned(),
            runtime_version: runtime_version.to_owned(),
            registration_timeout: millis(self.options.registration_timeout),
            request_timeout: millis(self.options.request_timeout),
            nri_version: if tells_version { crate::plugin::NRI_VERSION.to_owned() } else { String::new() },
        };
        let ConfigureResponse { events } = self.call("Configure", &request).await?;
        match unknown_event(events, self.options.last_event) {
            None => Ok(events),
            Some(event) => {
                self.trunk.close();
                Err(SessionError::InvalidEvents(event))
            }
        }
    }

    /// Tells the whole list, in parts where it is too large for one message; gives the plugin's updates.
    pub async fn synchronize(
        &self,
        pods: Vec<PodSandbox>,
        containers: Vec<Container>,
    ) -> Result<Vec<ContainerUpdate>, SessionError> {
        let mut updates = Vec::new();
        for part in sync_chunks::requests(pods, containers, self.options.sync_part) {
            let answer: SynchronizeResponse = self.call("Synchronize", &part).await?;
            if part.more && (!answer.more || !answer.update.is_empty()) {
                self.trunk.close();
                return Err(SessionError::NoParts);
            }
            updates.extend(answer.update);
            let mut rest = answer.more && !part.more;
            while rest {
                let next: SynchronizeResponse =
                    self.call("Synchronize", &SynchronizeRequest::default()).await?;
                updates.extend(next.update);
                rest = next.more;
            }
        }
        Ok(updates)
    }

    /// Tells an event whose answer is empty, in this runtime's form. An error refuses it.
    pub async fn tell(
        &self,
        event: Event,
        pod: PodSandbox,
        container: Option<Container>,
    ) -> Result<(), SessionError> {
        let method = OWN_CALLS.iter().find(|(_, e)| *e == event).map(|(name, _)| *name);
        let Empty {} = match (self.options.style, method) {
            (EventStyle::OwnCalls, Some(method)) => {
                self.call(method, &PodAndContainer { pod: Some(pod), container }).await?
            }
            _ => {
                let change = StateChangeEvent { event: event.into(), pod: Some(pod), container };
                self.call("StateChange", &change).await?
            }
        };
        Ok(())
    }

    /// A pod is to have other resources; the containers' own updates follow. An error refuses it.
    pub async fn update_sandbox(&self, request: UpdatePodSandboxRequest) -> Result<(), SessionError> {
        let UpdatePodSandboxResponse {} = self.call("UpdatePodSandbox", &request).await?;
        Ok(())
    }

    /// A container is about to be created.
    pub async fn create_container(
        &self,
        pod: PodSandbox,
        container: Container,
    ) -> Result<CreateContainerResponse, SessionError> {
        let request = CreateContainerRequest { pod: Some(pod), container: Some(container) };
        self.call("CreateContainer", &request).await
    }

    /// Somebody asks for other resources of a container.
    pub async fn update_container(
        &self,
        request: UpdateContainerRequest,
    ) -> Result<UpdateContainerResponse, SessionError> {
        self.call("UpdateContainer", &request).await
    }

    /// All plugins have said what they adjust.
    pub async fn validate_adjustment(
        &self,
        request: ValidateContainerAdjustmentRequest,
    ) -> Result<ValidateContainerAdjustmentResponse, SessionError> {
        self.call("ValidateContainerAdjustment", &request).await
    }

    /// A container stops.
    pub async fn stop_container(
        &self,
        pod: PodSandbox,
        container: Container,
    ) -> Result<StopContainerResponse, SessionError> {
        let request = StopContainerRequest { pod: Some(pod), container: Some(container) };
        self.call("StopContainer", &request).await
    }

    /// The connection will be closed.
    pub async fn shutdown(&self) -> Result<(), SessionError> {
        let Empty {} = self.call("Shutdown", &Empty {}).await?;
        Ok(())
    }

    /// Any call; past the request timeout the connection is closed, as a real runtime does.
    pub async fn call<A: Message + Default>(
        &self,
        method: &'static str,
        request: &impl Message,
    ) -> Result<A, SessionError> {
        let outcome = self.client.call(PLUGIN_SERVICE, method, request, self.options.request_timeout).await;
        if matches!(outcome, Err(CallError::Deadline { .. })) {
            self.trunk.close();
        }
        Ok(outcome?)
    }

    /// Waits for the end of the connection and tells its reason.
    pub async fn ended(&self) -> Arc<TrunkError> {
        self.trunk.ended().await
    }

    /// The reason, if the connection has ended.
    pub fn end_reason(&self) -> Option<Arc<TrunkError>> {
        self.trunk.end_reason()
    }

    /// Closes the connection.
    pub fn close(&self) {
        self.trunk.close();
    }
}

// === impl Dispatch ===

impl<R: RuntimeService> Handler for Dispatch<R> {
    async fn call(&mut self, request: Request) -> Result<Vec<u8>, Status> {
        let payload = request.payload.as_slice();
        match (request.service.as_str(), request.method.as_str()) {
            (RUNTIME_SERVICE, "RegisterPlugin") => {
                let plugin = decode::<RegisterPluginRequest>(payload)?;
                let index = plugin.plugin_idx.as_bytes();
                if index.len() != 2 || !index.iter().all(u8::is_ascii_digit) {
                    let why = format!("plugin index {:?} is not two digits", plugin.plugin_idx);
                    return Err(Status::new(Code::InvalidArgument, why));
                }
                self.registrations
                    .try_send(plugin)
                    .map_err(|_| Status::new(Code::FailedPrecondition, "already registered"))?;
                Ok(Vec::new())
            }
            (RUNTIME_SERVICE, "UpdateContainers") => {
                let UpdateContainersRequest { update, .. } = decode(payload)?;
                let failed = self.service.update_containers(update).await?;
                Ok(UpdateContainersResponse { failed }.encode_to_vec())
            }
            _ => Err(unimplemented(&request)),
        }
    }
}
