//! The HTTP side of the kubelet's pod list.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use http::header::{ACCEPT, AUTHORIZATION, HeaderValue};
use tracing::instrument::WithSubscriber as _;
use tracing::subscriber::NoSubscriber;

use super::{KubeletPod, Reserved, parse};
use crate::settings::Kubelet;

/// Asks one kubelet.
#[derive(Clone)]
pub struct Client {
    endpoint: String,
    path: String,
    configz_path: String,
    token_file: Option<PathBuf>,
    timeout: Duration,
    http: kube::Client,
}

/// Why no client can be made of the settings.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The endpoint is no URL.
    #[error("kubelet.endpoint {given:?} is not usable: {what}: write it as https://127.0.0.1:10250")]
    Endpoint {
        /// As set.
        given: String,
        /// What is wrong with it.
        what: String,
    },
    /// The CA file cannot be read.
    #[error("cannot read kubelet.ca_file {path}: {source}", path = path.display())]
    CaFile {
        /// The file.
        path: PathBuf,
        /// What came back.
        source: io::Error,
    },
    /// TLS cannot be set up.
    #[error("cannot make a client for the kubelet at {endpoint}: {source}")]
    Build {
        /// The endpoint.
        endpoint: String,
        /// What came back.
        #[source]
        source: Box<kube::Error>,
    },
}

/// Why a list could not be had.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// The token file cannot be read, or holds what no header can carry.
    #[error("cannot use kubelet.token_file {path}: {what}", path = path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The path does not make a URL.
    #[error("kubelet.{key} {path:?} is not a path: {what}")]
    Path {
        /// The setting.
        key: &'static str,
        /// As set.
        path: String,
        /// What is wrong.
        what: String,
    },
    /// No answer in time.
    #[error("the kubelet at {endpoint} did not answer within {} ms", .timeout.as_millis())]
    Late {
        /// The endpoint.
        endpoint: String,
        /// The deadline.
        timeout: Duration,
    },
    /// The kubelet could not be reached, or refused.
    #[error("the kubelet at {endpoint} gave no {wanted}: {what}")]
    Refused {
        /// The endpoint.
        endpoint: String,
        /// What it was asked for.
        wanted: &'static str,
        /// What came back, with its causes.
        what: String,
    },
    /// The answer is no pod list.
    #[error("the kubelet at {endpoint} answered {bytes} bytes that are not a pod list: {source}")]
    Malformed {
        /// The endpoint.
        endpoint: String,
        /// Length of the answer.
        bytes: usize,
        /// Where it went wrong.
        source: serde_json::Error,
    },
    /// The answer is no configuration of a kubelet.
    #[error(
        "the kubelet at {endpoint} answered what is no configuration of it: {source}: check kubelet.configz_path"
    )]
    NoConfiguration {
        /// The endpoint.
        endpoint: String,
        /// Where it went wrong.
        source: serde_json::Error,
    },
    /// The list is empty: a kubelet that has just started says so too, and this service's own pod should be there.
    #[error("the kubelet at {endpoint} listed no pods at all; what it listed before is kept")]
    Empty {
        /// The endpoint.
        endpoint: String,
    },
}

// === impl Client ===

impl Client {
    /// A client for `endpoint`. Nothing is asked yet.
    ///
    /// # Errors
    /// An endpoint or a CA file that cannot be used.
    pub fn new(endpoint: &str, settings: &Kubelet) -> Result<Self, ClientError> {
        let fault = |what: String| ClientError::Endpoint { given: endpoint.to_owned(), what };
        let url: http::Uri = endpoint.parse().map_err(|e: http::uri::InvalidUri| fault(e.to_string()))?;
        if !matches!(url.scheme_str(), Some("http" | "https")) {
            return Err(fault("it names neither http nor https".to_owned()));
        }
        if let Some(path) = &settings.ca_file {
            std::fs::metadata(path).map_err(|source| ClientError::CaFile { path: path.clone(), source })?;
        }
        let timeout = Duration::from_millis(settings.timeout_ms);
        let mut config = kube::Config::new(url);
        config.accept_invalid_certs = settings.skip_tls_verify;
        config.root_cert_file.clone_from(&settings.ca_file);
        config.connect_timeout = Some(timeout);
        config.default_retry = false;
        let http = kube::Client::try_from(config)
            .map_err(|e| ClientError::Build { endpoint: endpoint.to_owned(), source: Box::new(e) })?;
        Ok(Self {
            endpoint: endpoint.to_owned(),
            path: settings.pods_path.clone(),
            configz_path: settings.configz_path.clone(),
            token_file: settings.token_file.clone(),
            timeout,
            http,
        })
    }

    /// Where it asks.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// All pods of the node; never an empty list.
    ///
    /// # Errors
    /// [`ListError`]; whatever it is, the caller keeps what it knew.
    pub async fn list(&self) -> Result<Vec<KubeletPod>, ListError> {
        let text = self.get(("pods_path", &self.path), "list").await?;
        let endpoint = self.endpoint.clone();
        match parse(&text) {
            Ok(pods) if pods.is_empty() => Err(ListError::Empty { endpoint }),
            Ok(pods) => Ok(pods),
            Err(source) => Err(ListError::Malformed { endpoint, bytes: text.len(), source }),
        }
    }

    /// What the kubelet keeps of the CPUs, as its configuration says.
    ///
    /// # Errors
    /// [`ListError`].
    pub async fn reserved(&self) -> Result<Reserved, ListError> {
        let text = self.get(("configz_path", &self.configz_path), "configuration").await?;
        Reserved::parse(&text)
            .map_err(|source| ListError::NoConfiguration { endpoint: self.endpoint.clone(), source })
    }

    async fn get(
        &self,
        (key, path): (&'static str, &String),
        wanted: &'static str,
    ) -> Result<String, ListError> {
        let mut request = http::Request::get(path)
            .header(ACCEPT, "application/json")
            .body(Vec::new())
            .map_err(|e| ListError::Path { key, path: path.clone(), what: e.to_string() })?;
        if let Some(token) = self.token()? {
            request.headers_mut().insert(AUTHORIZATION, token);
        }
        let endpoint = self.endpoint.clone();
        // The client library logs every failed request by itself; here a failure is a change of state, logged once by the table.
        let answer = self.http.request_text(request).with_subscriber(NoSubscriber::default());
        tokio::time::timeout(self.timeout, answer)
            .await
            .map_err(|_| ListError::Late { endpoint: endpoint.clone(), timeout: self.timeout })?
            .map_err(|e| ListError::Refused { endpoint, wanted, what: reason(&e) })
    }

    /// Tokens rotate, so the file is read each time; it is small and lies in memory.
    fn token(&self) -> Result<Option<HeaderValue>, ListError> {
        let Some(path) = &self.token_file else { return Ok(None) };
        let fault = |what: String| ListError::Token { path: path.clone(), what };
        let token = std::fs::read_to_string(path).map_err(|e| fault(e.to_string()))?;
        let mut value = HeaderValue::try_from(format!("Bearer {}", token.trim()))
            .map_err(|_| fault("it holds characters that no header can carry".to_owned()))?;
        value.set_sensitive(true);
        Ok(Some(value))
    }
}

/// What the kubelet answered, or the error and its causes, on one line: the outermost alone often says only "client error".
fn reason(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error {
        return format!("HTTP {}: {}", status.code, status.message).replace('\n', " ");
    }
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(e) = cause {
        let more = e.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = e.source();
    }
    text.replace('\n', " ")
}
