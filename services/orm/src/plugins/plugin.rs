//! One plugin: a socket, and calls with a deadline.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use oxalyst_proto::resourceplugin::v1alpha1 as wire;
use oxalyst_proto::resourceplugin::v1alpha1::resource_plugin_client::ResourcePluginClient;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};
use tonic::transport::Channel;
use tonic::{Code, Status};

/// The one version of the protocol that is spoken here.
pub const VERSION: &str = "v1alpha1";
/// Calls to one plugin that may be under way.
const CALLS: usize = 16;
/// The most that an answer may hold, in bytes.
const ANSWER: usize = 4 << 20;
/// After an answer that says "unavailable", how long until the same is asked once more.
const AGAIN: Duration = Duration::from_millis(10);

/// A plugin. Cheap to share; connects when first used and again after each loss.
#[derive(Debug)]
pub struct Plugin {
    /// The resource that it gives out, which is its name too.
    pub name: String,
    /// Its socket.
    pub socket: PathBuf,
    client: ResourcePluginClient<Channel>,
    options: ArcSwap<wire::ResourcePluginOptions>,
    answers: AtomicBool,
    calls: Arc<Semaphore>,
}

/// Why a plugin could not be asked, or what it said.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PluginError {
    /// It is not there.
    #[error("the plugin of {plugin} is not there: start it, and see `oxctl status` for where it is awaited")]
    Away {
        /// The resource.
        plugin: String,
    },
    /// It did not answer in time.
    #[error("the plugin of {plugin} did not answer {call} in time")]
    Late {
        /// The resource.
        plugin: String,
        /// What it was asked.
        call: &'static str,
    },
    /// Too many calls wait for it already.
    #[error("the plugin of {plugin} has {CALLS} calls under way and answers none")]
    Busy {
        /// The resource.
        plugin: String,
    },
    /// Its answer cannot be used.
    #[error("the plugin of {plugin} gave an answer to {call} that cannot be used: {fault}: mend the plugin")]
    Answer {
        /// The resource.
        plugin: String,
        /// What it was asked.
        call: &'static str,
        /// What is wrong with it.
        fault: String,
    },
    /// It answered with an error.
    #[error("the plugin of {plugin} answered {call} with {code}: {message}", message = status.message(), code = status.code())]
    Said {
        /// The resource.
        plugin: String,
        /// What it was asked.
        call: &'static str,
        /// Its words.
        status: Status,
    },
}

// === impl PluginError ===

impl PluginError {
    /// Whether it is the plugin's own word, and not that it could not be heard.
    pub fn is_its_word(&self) -> bool {
        match self {
            Self::Said { status, .. } => {
                !matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled)
            }
            Self::Away { .. } | Self::Late { .. } | Self::Busy { .. } | Self::Answer { .. } => false,
        }
    }

    /// Whether it was heard, and what it said cannot be.
    pub fn is_unusable(&self) -> bool {
        matches!(self, Self::Answer { .. })
    }
}

// === impl Plugin ===

impl Plugin {
    /// A plugin at this socket. Nothing is asked of it yet.
    pub fn new(name: String, socket: PathBuf, options: wire::ResourcePluginOptions) -> Self {
        let channel = oxalyst_mesh::connect_to(socket.clone());
        Self {
            name,
            socket,
            client: ResourcePluginClient::new(channel).max_decoding_message_size(ANSWER),
            options: ArcSwap::from_pointee(options),
            answers: AtomicBool::new(true),
            calls: Arc::new(Semaphore::new(CALLS)),
        }
    }

    /// Whether it has answered when it was last asked how it is.
    pub fn answers(&self) -> bool {
        self.answers.load(Ordering::Relaxed)
    }

    /// Notes how it is; true where that is news.
    pub fn is(&self, answers: bool) -> bool {
        self.answers.swap(answers, Ordering::Relaxed) != answers
    }

    /// Whether it has hints.
    pub fn has_hints(&self) -> bool {
        self.options.load().with_topology_alignment
    }

    /// Takes up what it is like.
    pub fn learn(&self, options: wire::ResourcePluginOptions) {
        if **self.options.load() != options {
            self.options.store(Arc::new(options));
        }
    }

    /// What it is like.
    ///
    /// # Errors
    /// It does not tell in time.
    pub async fn options(&self, end: Instant) -> Result<wire::ResourcePluginOptions, PluginError> {
        let mut client = self.client.clone();
        self.call("GetResourcePluginOptions", end, async move {
            client.get_resource_plugin_options(wire::Empty {}).await
        })
        .await
    }

    /// Where it could give what is asked for. Where it says that it is unavailable it is asked once more.
    ///
    /// # Errors
    /// It does not tell in time, or says that it cannot.
    pub async fn hints(
        &self,
        request: wire::ResourceRequest,
        end: Instant,
    ) -> Result<wire::ResourceHintsResponse, PluginError> {
        let once = |request: wire::ResourceRequest| {
            let mut client = self.client.clone();
            self.call("GetTopologyHints", end, async move { client.get_topology_hints(request).await })
        };
        match once(request.clone()).await {
            Err(e) if !e.is_its_word() && Instant::now() + AGAIN < end => {
                tokio::time::sleep(AGAIN).await;
                once(request).await
            }
            said => said,
        }
    }

    /// Has it give what is asked for.
    ///
    /// # Errors
    /// It does not say in time that it has, or says that it cannot.
    pub async fn allocate(
        &self,
        request: wire::ResourceRequest,
        end: Instant,
    ) -> Result<wire::ResourceAllocationResponse, PluginError> {
        let mut client = self.client.clone();
        self.call("Allocate", end, async move { client.allocate(request).await }).await
    }

    /// Tells it that the pod is gone.
    ///
    /// # Errors
    /// It does not say in time that it has heard it.
    pub async fn remove_pod(&self, pod_uid: String, end: Instant) -> Result<(), PluginError> {
        let mut client = self.client.clone();
        let request = wire::RemovePodRequest { pod_uid };
        self.call("RemovePod", end, async move { client.remove_pod(request).await }).await.map(|_| ())
    }

    async fn call<T>(
        &self,
        call: &'static str,
        end: Instant,
        asked: impl Future<Output = Result<tonic::Response<T>, Status>>,
    ) -> Result<T, PluginError> {
        let plugin = || self.name.clone();
        let Ok(_under_way) = self.calls.try_acquire() else {
            return Err(PluginError::Busy { plugin: plugin() });
        };
        match timeout_at(end, asked).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(PluginError::Said { plugin: plugin(), call, status }),
            Err(_) => Err(PluginError::Late { plugin: plugin(), call }),
        }
    }
}
