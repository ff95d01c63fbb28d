//! What every process of the mesh shares: how it starts, the socket it serves, readiness, status, and the way to its peers.
//!
//! A process serves one unix socket, `<run_dir>/<service>.sock`. On it answer gRPC (its own services, `grpc.health.v1`,
//! `oxalyst.mesh.v1.Introspection`) and HTTP/1 (`/livez`, `/readyz?verbose`, `/metrics`), told apart by the protocol.

mod bind;
mod connect;
mod connections;
mod http;
mod introspection;
mod process;
mod readiness;
mod serve;

pub use bind::{BindError, Bound};
pub use connect::{MESSAGE_LIMIT, connect, connect_to, socket_path};
pub use introspection::Facts;
pub use process::run;
pub use readiness::{Condition, Readiness};
pub use serve::stop_asked;

use std::path::PathBuf;
use std::time::SystemTime;

use oxalyst_settings::Common;
use oxalyst_telemetry::Registry;

/// The services of a node, in the order in which a reader meets them on a pod's way.
pub const NODE_SERVICES: [&str; 5] = ["nri-gateway", "orm", "meta-server", "metrics-fetcher", "reporter"];

/// One process of the mesh: what it is, and what it tells about itself. Cheap to clone; all clones tell the same.
#[derive(Debug, Clone)]
pub struct Mesh {
    /// Name of the service.
    pub service: &'static str,
    /// Semantic version of the binary.
    pub version: &'static str,
    /// When the process started.
    pub started: SystemTime,
    /// Folder of the mesh's sockets.
    pub run_dir: PathBuf,
    /// Where the host's `/proc` and `/sys` are found.
    pub host_root: PathBuf,
    /// What the process still waits for.
    pub readiness: Readiness,
    /// What it tells an operator.
    pub facts: Facts,
    /// Its metrics.
    pub registry: Registry,
    http_listen: Option<std::net::SocketAddr>,
    limits: connections::Limits,
}

// === impl Mesh ===

impl Mesh {
    /// A process that has not bound its socket yet.
    pub fn new(service: &'static str, version: &'static str, settings: &Common) -> Self {
        Self {
            service,
            version,
            started: SystemTime::now(),
            run_dir: settings.run_dir.clone(),
            host_root: settings.host_root.clone(),
            readiness: Readiness::default(),
            facts: Facts::default(),
            registry: Registry::default(),
            http_listen: settings.http_listen,
            limits: connections::Limits {
                // None at all would be a process that nobody can ask.
                most: settings.max_connections.clamp(1, 65_536) as usize,
                ping: std::time::Duration::from_millis(settings.ping_period_ms.clamp(100, 3_600_000)),
            },
        }
    }
}
