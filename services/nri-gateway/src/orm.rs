//! The way to the orm: one stream of placements, calls with deadlines, and when not to ask at all.

mod health;
mod stream;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use oxalyst_proto::mesh::v1::GetStatusRequest;
use oxalyst_proto::mesh::v1::introspection_client::IntrospectionClient;
use oxalyst_proto::orm::v1::allocator_client::AllocatorClient;
use oxalyst_proto::orm::v1::{
    AdmitContainerRequest, AdmitPodRequest, AdmitReply, ReconcileReply, ReconcileRequest, ReleasePodReply,
    ReleasePodRequest, ResizeContainerRequest, WatchPlacementsRequest,
};
use oxalyst_proto::runtime::v1::{Container, Sandbox};
use tokio::sync::watch;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use health::Health;
pub use stream::follow;

use crate::placements::Placements;

/// The way to the orm. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Orm {
    allocator: AllocatorClient<Channel>,
    introspection: IntrospectionClient<Channel>,
    placements: Arc<ArcSwap<Placements>>,
    health: Arc<Health>,
    changed: watch::Sender<u64>,
    streaming: watch::Sender<bool>,
    recovered: watch::Sender<u64>,
}

/// Why the orm gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OrmError {
    /// Nobody serves its socket, or the call failed on the way.
    #[error("the orm is not there: {0}")]
    Absent(String),
    /// It answered with an error of the call itself.
    #[error("the orm failed: {0}")]
    Failed(String),
    /// No answer in time.
    #[error("the orm did not answer in {} ms", .0.as_millis())]
    Late(Duration),
    /// It missed its deadlines before; it is not asked until it answers a probe.
    #[error("the orm missed its last deadlines and is not asked until it answers again")]
    Suspended,
}

// === impl OrmError ===

impl OrmError {
    /// Of a closed set, for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Absent(_) => "absent",
            Self::Failed(_) => "failed",
            Self::Late(_) => "late",
            Self::Suspended => "suspended",
        }
    }
}

// === impl Orm ===

impl Orm {
    /// A way that connects when it is first used.
    pub fn new(channel: Channel) -> Self {
        Self {
            allocator: AllocatorClient::new(channel.clone())
                .max_decoding_message_size(oxalyst_mesh::MESSAGE_LIMIT),
            introspection: IntrospectionClient::new(channel),
            placements: Arc::default(),
            health: Arc::default(),
            changed: watch::Sender::new(0),
            streaming: watch::Sender::new(false),
            recovered: watch::Sender::new(0),
        }
    }

    /// What was decided, as last heard.
    pub fn placements(&self) -> Arc<ArcSwap<Placements>> {
        self.placements.clone()
    }

    /// Ticks at each change of what was decided.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Ticks whenever the orm answers again after it was not asked for a while: its stream may have lived through that, and it has
    /// not heard of what was let in meanwhile.
    pub fn recovered(&self) -> watch::Receiver<u64> {
        self.recovered.subscribe()
    }

    /// Whether it missed its last deadlines and has not answered since; then [`Orm::recovered`] will tick.
    pub fn is_suspended(&self) -> bool {
        self.health.is_suspended()
    }

    /// Whether the stream of placements is up.
    pub fn streaming(&self) -> watch::Receiver<bool> {
        self.streaming.subscribe()
    }

    /// Asks for a pod.
    ///
    /// # Errors
    /// [`OrmError`]; a refusal is an answer, not an error.
    pub async fn admit_pod(&self, sandbox: Sandbox, deadline: Duration) -> Result<AdmitReply, OrmError> {
        let request = AdmitPodRequest {
            sandbox: Some(sandbox),
            deadline_unix_ms: unix_ms_in(deadline),
            trace_id: oxalyst_telemetry::current_trace_id(),
        };
        let reply = self
            .guarded(deadline, || {
                let (mut client, request) = (self.allocator.clone(), request.clone());
                async move { client.admit_pod(Request::new(request)).await }
            })
            .await?;
        self.take_up(|placements| placements.with_reply(&reply));
        Ok(reply)
    }

    /// Asks for a container of a pod that is not settled.
    ///
    /// # Errors
    /// As [`Orm::admit_pod`].
    pub async fn admit_container(
        &self,
        sandbox: Sandbox,
        container: Container,
        deadline: Duration,
    ) -> Result<AdmitReply, OrmError> {
        let request = AdmitContainerRequest {
            sandbox: Some(sandbox),
            container: Some(container),
            deadline_unix_ms: unix_ms_in(deadline),
            trace_id: oxalyst_telemetry::current_trace_id(),
        };
        let reply = self
            .guarded(deadline, || {
                let (mut client, request) = (self.allocator.clone(), request.clone());
                async move { client.admit_container(Request::new(request)).await }
            })
            .await?;
        self.take_up(|placements| placements.with_reply(&reply));
        Ok(reply)
    }

    /// Asks for other resources for a container that runs.
    ///
    /// # Errors
    /// As [`Orm::admit_pod`].
    pub async fn resize_container(
        &self,
        resize: ResizeContainerRequest,
        deadline: Duration,
    ) -> Result<AdmitReply, OrmError> {
        let request = ResizeContainerRequest {
            deadline_unix_ms: unix_ms_in(deadline),
            trace_id: oxalyst_telemetry::current_trace_id(),
            ..resize
        };
        let reply = self
            .guarded(deadline, || {
                let (mut client, request) = (self.allocator.clone(), request.clone());
                async move { client.resize_container(Request::new(request)).await }
            })
            .await?;
        self.take_up(|placements| placements.with_reply(&reply));
        Ok(reply)
    }

    /// Gives a pod's set back.
    ///
    /// # Errors
    /// As [`Orm::admit_pod`]; to be repeated.
    pub async fn release(
        &self,
        release: ReleasePodRequest,
        deadline: Duration,
    ) -> Result<ReleasePodReply, OrmError> {
        bounded(deadline, || {
            let (mut client, request) = (self.allocator.clone(), release.clone());
            async move { client.release_pod(Request::new(request)).await }
        })
        .await
    }

    /// Tells everything that runs; takes up the state that the answer tells.
    ///
    /// # Errors
    /// As [`Orm::admit_pod`].
    pub async fn reconcile(
        &self,
        runs: ReconcileRequest,
        deadline: Duration,
    ) -> Result<ReconcileReply, OrmError> {
        let mut reply = bounded(deadline, || {
            let (mut client, request) = (self.allocator.clone(), runs.clone());
            async move { client.reconcile(Request::new(request)).await }
        })
        .await?;
        if let Some(state) = reply.state.take() {
            self.take_up(|placements| placements.with_state(state.clone()));
        }
        Ok(reply)
    }

    /// Asks nothing while the orm is suspected; counts missed deadlines; probes.
    async fn guarded<T, F>(&self, deadline: Duration, call: impl FnMut() -> F) -> Result<T, OrmError>
    where
        F: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        if self.health.is_suspended() {
            return Err(OrmError::Suspended);
        }
        let outcome = bounded(deadline, call).await;
        match &outcome {
            Ok(_) => self.health.answered(),
            Err(OrmError::Late(_)) => {
                if self.health.missed() {
                    tracing::warn!(
                        "the orm missed its last deadlines: hooks are answered by policy until it answers"
                    );
                    tokio::spawn(health::probe(self.clone(), deadline));
                }
            }
            Err(_) => {}
        }
        outcome
    }

    async fn probe(&self, deadline: Duration) -> bool {
        let status = bounded(deadline, || {
            let mut client = self.introspection.clone();
            async move { client.get_status(Request::new(GetStatusRequest {})).await }
        });
        // Whoever answers that it does not know the question is awake.
        matches!(status.await, Ok(_) | Err(OrmError::Failed(_)))
    }

    fn take_up(&self, next: impl Fn(&Placements) -> Placements) {
        self.placements.rcu(|now| next(now));
        self.changed.send_modify(|tick| *tick = tick.wrapping_add(1));
    }
}

/// One call with its deadline. A call that a dead connection ate is repeated once: the next one connects anew.
async fn bounded<T, F>(deadline: Duration, mut call: impl FnMut() -> F) -> Result<T, OrmError>
where
    F: Future<Output = Result<tonic::Response<T>, Status>>,
{
    let attempts = async {
        match call().await {
            Err(status) if status.code() == Code::Unavailable || status.code() == Code::Unknown => {
                call().await
            }
            outcome => outcome,
        }
    };
    match tokio::time::timeout(deadline, attempts).await {
        Ok(Ok(reply)) => Ok(reply.into_inner()),
        Ok(Err(status)) if status.code() == Code::DeadlineExceeded => Err(OrmError::Late(deadline)),
        Ok(Err(status)) if status.code() == Code::Unavailable || status.code() == Code::Unknown => {
            Err(OrmError::Absent(status.message().to_owned()))
        }
        Ok(Err(status)) => Err(OrmError::Failed(status.message().to_owned())),
        Err(_) => Err(OrmError::Late(deadline)),
    }
}

fn unix_ms_in(deadline: Duration) -> i64 {
    let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() + deadline;
    i64::try_from(at.as_millis()).unwrap_or(i64::MAX)
}
