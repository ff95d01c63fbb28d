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
    /// How many connections may be open at once, at the unix socket and at `http_listen` each (1..=65536); more are closed.
    pub max_connections: u32,
    /// How often clients are asked whether they live, in ms (100..=3600000). A connection from which nothing came for three times
    /// as long is ended, also one of HTTP/1 that asks nothing.
    pub ping_period_ms: u64,
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
            max_connections: 256,
            ping_period_ms: 20_000,
        }
    }
}

impl Common {
    /// The keys that `OXALYST_<KEY>` sets for every service at once.
    pub(crate) const KEYS: [&'static str; 8] = [
        "run_dir",
        "host_root",
        "log",
        "log_format",
        "otlp_endpoint",
        "http_listen",
        "max_connections",
        "ping_period_ms",
    ];
}
