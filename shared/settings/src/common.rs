use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What every service can be told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Common {
    /// Folder of the mesh's sockets, one `<service>.sock` each.
    pub run_dir: PathBuf,
    /// Where the host's `/proc` and `/sys` are found; another folder makes the service see another machine.
    pub host_root: PathBuf,
    /// What is logged: a level, and levels of single targets: `info`, `warn,orm=debug`.
    pub log: String,
    /// How a log line is written.
    pub log_format: LogFormat,
    /// Where traces go (OTLP over gRPC), such as `http://127.0.0.1:4317`; absent: nowhere.
    pub otlp_endpoint: Option<String>,
    /// TCP address that serves `/livez`, `/readyz` and `/metrics` besides the unix socket; absent: none.
    pub http_listen: Option<SocketAddr>,
}

/// How a log line is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Settings that hold a [`Common`].
pub trait HasCommon {
    /// The part that every service has.
    fn common(&self) -> &Common;
}

// === impl Common ===

impl Default for Common {
    fn default() -> Self {
        Self {
            run_dir: PathBuf::from("/run/oxalyst"),
            host_root: PathBuf::from("/"),
            log: "info".to_owned(),
            log_format: LogFormat::Text,
            otlp_endpoint: None,
            http_listen: None,
        }
    }
}

impl Common {
    /// The keys that `OXALYST_<KEY>` sets for every service at once.
    pub(crate) const KEYS: [&'static str; 6] =
        ["run_dir", "host_root", "log", "log_format", "otlp_endpoint", "http_listen"];
}
