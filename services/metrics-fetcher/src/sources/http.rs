//! JSON over HTTP from a process that may hang, lie, or answer without end.

use std::future::poll_fn;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use http::header::{ACCEPT, AUTHORIZATION, HeaderValue};
use hyper::body::Body as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tracing::instrument::WithSubscriber as _;
use tracing::subscriber::NoSubscriber;

/// Where and how a source is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Endpoint {
    /// `https://127.0.0.1:10250` or the like; absent: the source is not asked.
    pub endpoint: Option<String>,
    /// From one pass to the next, milliseconds, at least 100.
    pub period_ms: u64,
    /// What one answer may take, milliseconds, at least 1.
    pub timeout_ms: u64,
    /// Longer answers are refused, bytes.
    pub max_body_bytes: usize,
    /// File with a bearer token, read anew for every question; absent: no token is sent.
    pub token_file: Option<PathBuf>,
    /// PEM file with the authority that signed the certificate; absent: the host's own trust.
    pub ca_file: Option<PathBuf>,
    /// Takes any certificate: only where the other side signs its own and listens on loopback.
    pub skip_tls_verify: bool,
}

/// Asks one process.
#[derive(Clone)]
pub struct Client {
    endpoint: String,
    settings: Endpoint,
    http: kube::Client,
}

/// Why no client can be made of the settings.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The endpoint is no URL.
    #[error("endpoint {given:?} is not usable: {what}: write it as https://127.0.0.1:10250")]
    Endpoint {
        /// As set.
        given: String,
        /// What is wrong with it.
        what: String,
    },
    /// The CA file cannot be read.
    #[error("cannot read ca_file {}: {source}", path.display())]
    CaFile {
        /// The file.
        path: PathBuf,
        /// What came back.
        source: io::Error,
    },
    /// TLS cannot be set up.
    #[error("cannot make a client for {endpoint}: {source}")]
    Build {
        /// The endpoint.
        endpoint: String,
        /// What came back.
        #[source]
        source: Box<kube::Error>,
    },
}

/// Why an answer could not be had.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The token file cannot be read, or holds what no header can carry.
    #[error("cannot use token_file {}: {what}", path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// No answer in time.
    #[error("{url} did not answer within {} ms", .timeout.as_millis())]
    Late {
        /// What was asked.
        url: String,
        /// The deadline.
        timeout: Duration,
    },
    /// It could not be reached.
    #[error("{url} cannot be reached: {what}")]
    Unreachable {
        /// What was asked.
        url: String,
        /// What came back, with its causes.
        what: String,
    },
    /// An answer that is none.
    #[error("{url} answered HTTP {code}")]
    Refused {
        /// What was asked.
        url: String,
        /// The status.
        code: u16,
    },
    /// Too long an answer; it was not read to its end.
    #[error("{url} answered more than {limit} bytes: raise max_body_bytes if the node is that large")]
    Endless {
        /// What was asked.
        url: String,
        /// The bound.
        limit: usize,
    },
    /// An answer without anything in it that is asked for.
    #[error("it answers, and its answers hold nothing of what is asked for")]
    Nothing,
    /// An answer that says that it is none.
    #[error("{url} says that it failed: its status is {status}, not 0")]
    Failed {
        /// What was asked.
        url: String,
        /// What it says.
        status: String,
    },
    /// JSON of another kind.
    #[error("{url} did not answer what was asked for: {what}")]
    Unusable {
        /// What was asked.
        url: String,
        /// What is wrong with it.
        what: String,
    },
    /// No JSON, or half of it.
    #[error("{url} answered {bytes} bytes that are not what was asked for: {what}")]
    Malformed {
        /// What was asked.
        url: String,
        /// Length of the answer.
        bytes: usize,
        /// Where it went wrong.
        what: String,
    },
}

// === impl Endpoint ===

impl Default for Endpoint {
    fn default() -> Self {
        Self {
            endpoint: None,
            period_ms: 5000,
            timeout_ms: 2000,
            max_body_bytes: 16 << 20,
            token_file: None,
            ca_file: None,
            skip_tls_verify: false,
        }
    }
}

impl Endpoint {
    /// The client that these settings describe, if they name somebody.
    ///
    /// # Errors
    /// An endpoint or a CA file that cannot be used.
    pub fn client(&self) -> Result<Option<Client>, ClientError> {
        self.endpoint.as_deref().map(|endpoint| Client::new(endpoint, self)).transpose()
    }

    /// From one pass to the next.
    pub fn period(&self) -> Duration {
        Duration::from_millis(self.period_ms)
    }
}

// === impl Client ===

impl Client {
    /// A client for `endpoint`. Nothing is asked yet.
    ///
    /// # Errors
    /// An endpoint or a CA file that cannot be used.
    pub fn new(endpoint: &str, settings: &Endpoint) -> Result<Self, ClientError> {
        let fault = |what: String| ClientError::Endpoint { given: endpoint.to_owned(), what };
        let url: http::Uri = endpoint.parse().map_err(|e: http::uri::InvalidUri| fault(e.to_string()))?;
        if !matches!(url.scheme_str(), Some("http" | "https")) {
            return Err(fault("it names neither http nor https".to_owned()));
        }
        if let Some(path) = &settings.ca_file {
            std::fs::metadata(path).map_err(|source| ClientError::CaFile { path: path.clone(), source })?;
        }
        let mut config = kube::Config::new(url);
        config.accept_invalid_certs = settings.skip_tls_verify;
        config.root_cert_file.clone_from(&settings.ca_file);
        config.connect_timeout = Some(Duration::from_millis(settings.timeout_ms));
        config.default_retry = false;
        let http = kube::Client::try_from(config)
            .map_err(|e| ClientError::Build { endpoint: endpoint.to_owned(), source: Box::new(e) })?;
        Ok(Self { endpoint: endpoint.trim_end_matches('/').to_owned(), settings: settings.clone(), http })
    }

    /// The JSON document at `path`, within the deadline and the bound of its length.
    ///
    /// # Errors
    /// [`FetchError`]; whatever it is, the caller keeps what it knew.
    pub async fn get(&self, path: &str) -> Result<Value, FetchError> {
        let url = self.url_of(path);
        let timeout = Duration::from_millis(self.settings.timeout_ms);
        // The library logs every failed request by itself; here a failure is a change of state, logged once.
        let answer = self.bytes(&url, path).with_subscriber(NoSubscriber::default());
        let bytes = tokio::time::timeout(timeout, answer)
            .await
            .map_err(|_| FetchError::Late { url: url.clone(), timeout })??;
        let length = bytes.len();
        // Megabytes of JSON take longer than the other tasks of this thread may wait.
        let parsed = tokio::task::spawn_blocking(move || serde_json::from_slice(&bytes)).await;
        let fault = |what: String| FetchError::Malformed { url: url.clone(), bytes: length, what };
        parsed.map_err(|e| fault(e.to_string()))?.map_err(|e| fault(e.to_string()))
    }

    /// Where `path` is asked for, for errors.
    pub(super) fn url_of(&self, path: &str) -> String {
        format!("{}{path}", self.endpoint)
    }

    async fn bytes(&self, url: &str, path: &str) -> Result<Vec<u8>, FetchError> {
        let unreachable = |what: String| FetchError::Unreachable { url: url.to_owned(), what };
        let mut request = http::Request::get(path)
            .header(ACCEPT, "application/json")
            .body(Vec::new().into())
            .map_err(|e| unreachable(e.to_string()))?;
        if let Some(token) = self.token()? {
            request.headers_mut().insert(AUTHORIZATION, token);
        }
        let response = self.http.send(request).await.map_err(|e| unreachable(causes(&e)))?;
        if !response.status().is_success() {
            return Err(FetchError::Refused { url: url.to_owned(), code: response.status().as_u16() });
        }
        let (mut body, limit) = (response.into_body(), self.settings.max_body_bytes);
        let mut bytes = Vec::new();
        while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            let frame = frame.map_err(|e| unreachable(causes(&e)))?;
            let Some(data) = frame.data_ref() else { continue };
            if bytes.len() + data.len() > limit {
                return Err(FetchError::Endless { url: url.to_owned(), limit });
            }
            bytes.extend_from_slice(data);
        }
        Ok(bytes)
    }

    /// Tokens rotate, so the file is read each time; it is small and lies in memory.
    fn token(&self) -> Result<Option<HeaderValue>, FetchError> {
        let Some(path) = &self.settings.token_file else { return Ok(None) };
        let fault = |what: String| FetchError::Token { path: path.clone(), what };
        let token = oxalyst_cgroups::read_text(path).map_err(|e| fault(e.to_string()))?;
        let mut value = HeaderValue::try_from(format!("Bearer {}", token.trim()))
            .map_err(|_| fault("it holds characters that no header can carry".to_owned()))?;
        value.set_sensitive(true);
        Ok(Some(value))
    }
}

/// An error and its causes on one line: the outermost alone often says only "client error".
fn causes(error: &dyn std::error::Error) -> String {
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
