//! What an operator can set.

use std::path::PathBuf;
use std::time::Duration;

use oxalyst_settings::{Common, HasCommon};
use serde::{Deserialize, Serialize};

use crate::kubelet::{Client, ClientError};

/// Settings of the meta-server.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// What every service has.
    pub common: Common,
    /// Name of the node in the cluster; absent: the host name in lower case, as the kubelet takes it.
    pub node_name: Option<String>,
    /// The kubelet that lists pods.
    pub kubelet: Kubelet,
}

/// Where and how the kubelet is asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Kubelet {
    /// `https://127.0.0.1:10250`, or `http://127.0.0.1:10255` for the read-only port; absent: no kubelet is asked.
    pub endpoint: Option<String>,
    /// Path of the pod list.
    pub pods_path: String,
    /// Path of the kubelet's configuration, which is read where somebody wants to know what the kubelet reserves.
    pub configz_path: String,
    /// File with a bearer token, read anew for every list; absent: no token is sent.
    pub token_file: Option<PathBuf>,
    /// PEM file with the authority that signed the kubelet's certificate; absent: the host's own trust.
    pub ca_file: Option<PathBuf>,
    /// Takes any certificate: only where the kubelet signs its own and listens on loopback.
    pub skip_tls_verify: bool,
    /// Milliseconds between lists, at least 1000. A pod that the runtime tells first is asked for at once.
    pub period_ms: u64,
    /// Milliseconds that one list may take.
    pub timeout_ms: u64,
}

// === impl Settings ===

impl HasCommon for Settings {
    fn common(&self) -> &Common {
        &self.common
    }
}

// === impl Kubelet ===

impl Default for Kubelet {
    fn default() -> Self {
        Self {
            endpoint: None,
            pods_path: "/pods".to_owned(),
            configz_path: "/configz".to_owned(),
            token_file: None,
            ca_file: None,
            skip_tls_verify: false,
            period_ms: 30_000,
            timeout_ms: 5_000,
        }
    }
}

impl Kubelet {
    /// The client that these settings describe, if they name a kubelet.
    ///
    /// # Errors
    /// An endpoint or a CA file that cannot be used.
    pub fn client(&self) -> Result<Option<Client>, ClientError> {
        self.endpoint.as_deref().map(|endpoint| Client::new(endpoint, self)).transpose()
    }

    /// Time between lists.
    pub fn period(&self) -> Duration {
        Duration::from_millis(self.period_ms).max(crate::kubelet::LEAST_SPACING)
    }
}
