//! The object in an API server, by server-side apply.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams, ValidationDirective};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use oxalyst_kube_types::CustomNodeResource;
use serde_json::json;
use tracing::instrument::WithSubscriber as _;
use tracing::subscriber::NoSubscriber;

use super::{Part, PublishError};

/// Our name among those who write fields.
const FIELD_MANAGER: &str = "oxalyst-reporter";
/// How long one request may take.
const DEADLINE: Duration = Duration::from_secs(10);

/// An API server, connected when it is first needed and anew after each failure, with its credentials read again.
pub struct Cluster {
    source: ClusterSource,
    force: bool,
    connected: Option<Connected>,
}

/// Where the way to the API server is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClusterSource {
    /// A kubeconfig file.
    Kubeconfig(PathBuf),
    /// The service account that a pod has.
    ServiceAccount,
}

#[derive(Clone)]
struct Connected {
    server: String,
    // Dynamic: what comes back may hold fields and values that this version does not know.
    api: Api<DynamicObject>,
}

// === impl Cluster ===

impl Cluster {
    /// Nothing is read or asked yet.
    pub fn new(source: ClusterSource, force: bool) -> Self {
        Self { source, force, connected: None }
    }

    /// Applies one part of `object`.
    pub(crate) async fn apply(
        &mut self,
        part: Part,
        object: &CustomNodeResource,
    ) -> Result<(), PublishError> {
        let name = object.metadata.name.clone().unwrap_or_default();
        let mut body = json!({
            "apiVersion": object.api_version,
            "kind": object.kind,
            "metadata": { "name": name },
        });
        if let Some(body) = body.as_object_mut() {
            // Only plain data: it always becomes JSON.
            match part {
                Part::Spec => body.insert("spec".to_owned(), json!(object.spec)),
                Part::Status => body.insert("status".to_owned(), json!(object.status)),
            };
        }
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            field_validation: Some(ValidationDirective::Strict),
            force: self.force,
            dry_run: false,
        };
        let connected = self.connect().await?;
        let patch = Patch::Apply(body);
        let request = async {
            match part {
                Part::Spec => connected.api.patch(&name, &params, &patch).await,
                Part::Status => connected.api.patch_status(&name, &params, &patch).await,
            }
        };
        let answer = in_time(request).await;
        self.judged(&connected.server, &name, answer).map(|_| ())
    }

    /// Whether the server's object still says what `object` says.
    pub(crate) async fn holds(&mut self, object: &CustomNodeResource) -> Result<bool, PublishError> {
        let name = object.metadata.name.clone().unwrap_or_default();
        let connected = self.connect().await?;
        let answer = in_time(connected.api.get_opt(&name)).await;
        let found = self.judged(&connected.server, &name, answer)?;
        // What cannot be read as ours does not say what ours says.
        Ok(found
            .and_then(|found| found.try_parse::<CustomNodeResource>().ok())
            .is_some_and(|found| crate::kcnr::holds(&found, object)))
    }

    async fn connect(&mut self) -> Result<Connected, PublishError> {
        if let Some(connected) = &self.connected {
            return Ok(connected.clone());
        }
        let fault = |what: String| PublishError::Config { from: self.source.to_string(), what };
        let config = match &self.source {
            ClusterSource::Kubeconfig(path) => {
                let text = Kubeconfig::read_from(path).map_err(|e| fault(one_line(&e)))?;
                Config::from_custom_kubeconfig(text, &KubeConfigOptions::default())
                    .await
                    .map_err(|e| fault(one_line(&e)))
            }
            ClusterSource::ServiceAccount => Config::incluster().map_err(|e| fault(one_line(&e))),
        };
        let mut config = config?;
        config.connect_timeout = Some(DEADLINE);
        // Retries are the publisher's.
        config.default_retry = false;
        let server = config.cluster_url.to_string();
        let client = Client::try_from(config).map_err(|e| fault(one_line(&e)))?;
        let api = Api::all_with(client, &ApiResource::erase::<CustomNodeResource>(&()));
        let connected = Connected { server, api };
        self.connected = Some(connected.clone());
        Ok(connected)
    }

    /// Turns an answer into ours; after a failure that new credentials or a new connection may mend, both are made anew.
    fn judged<T>(
        &mut self,
        server: &str,
        name: &str,
        answer: Option<Result<T, kube::Error>>,
    ) -> Result<T, PublishError> {
        let (server, object) = (server.to_owned(), format!("CustomNodeResource {name}"));
        let error = match answer {
            Some(Ok(value)) => return Ok(value),
            Some(Err(error)) => error,
            None => {
                self.connected = None;
                return Err(PublishError::Late { server, deadline: DEADLINE });
            }
        };
        let kube::Error::Api(status) = &error else {
            self.connected = None;
            return Err(PublishError::Unreachable { server, what: one_line(&error) });
        };
        let what = status.message.replace('\n', " ");
        Err(match status.code {
            409 => PublishError::Conflict { object, server, what },
            404 => PublishError::Absent { object, server, what },
            code => {
                self.connected = None;
                PublishError::Refused { object, server, code, what }
            }
        })
    }
}

impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.connected {
            Some(connected) => write!(f, "API server {} by {}", connected.server, self.source),
            None => write!(f, "API server by {}", self.source),
        }
    }
}

// === impl ClusterSource ===

impl fmt::Display for ClusterSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kubeconfig(path) => write!(f, "kubeconfig {}", path.display()),
            Self::ServiceAccount => f.write_str("the pod's service account"),
        }
    }
}

/// The answer, or `None` past the deadline. The client library's own log lines are left out: it would write one for every
/// failed attempt, where the publisher writes one for each change of state.
async fn in_time<T>(request: impl Future<Output = Result<T, kube::Error>>) -> Option<Result<T, kube::Error>> {
    tokio::time::timeout(DEADLINE, request.with_subscriber(NoSubscriber::default())).await.ok()
}

/// The error and its causes on one line, each once.
fn one_line(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(e) = cause {
        let more = e.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = e.source();
    }
    text.replace('\n', " ")
}
