//! The real services, as processes: started, watched, killed and started again one by one. Builds nothing itself.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use oxalyst_mesh::{NODE_SERVICES, connect};
use oxalyst_proto::gateway::v1::gateway_client::GatewayClient;
use oxalyst_proto::gateway::v1::{ListContainersReply, ListContainersRequest};
use oxalyst_proto::mesh::v1::introspection_client::IntrospectionClient;
use oxalyst_proto::mesh::v1::{GetStatusRequest, Status};
use oxalyst_proto::metrics::v1::metrics_client::MetricsClient;
use oxalyst_proto::metrics::v1::{QueryRequest, Sample};
use oxalyst_proto::orm::v1::allocator_client::AllocatorClient;
use oxalyst_proto::orm::v1::{GetStateRequest, State};
use tonic::transport::Channel;

use crate::process::{Process, ProcessError};
use crate::runtime::{Runtime, poll_until};

/// How long a service may take to become ready, and to end.
const LIMIT: Duration = Duration::from_secs(60);
/// How long one question to a service may take.
const CALL: Duration = Duration::from_secs(5);

/// The five services of a node, stand-alone, in a folder of their own.
#[derive(Debug)]
pub struct Mesh {
    binaries: PathBuf,
    folder: PathBuf,
    host_root: PathBuf,
    nri_socket: PathBuf,
    /// `--set` arguments beyond those that every test needs, by service.
    extra: BTreeMap<String, Vec<String>>,
    processes: BTreeMap<&'static str, Process>,
}

/// What went wrong with the services.
#[derive(Debug, thiserror::Error)]
pub enum MeshError {
    /// A binary is not there.
    #[error("no {name} in {} or above: build the workspace first (cargo build --workspace), or set OXALYST_BIN_DIR", searched.display())]
    NoBinary {
        /// Its name.
        name: &'static str,
        /// Where it was looked for first.
        searched: PathBuf,
    },
    /// A process did not start or end.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A service ended although nobody told it to.
    #[error("{service} ended with {status}; its last lines:\n{log}")]
    Ended {
        /// The service.
        service: &'static str,
        /// How.
        status: ExitStatus,
        /// Its last lines.
        log: String,
    },
    /// A service did not become ready in time.
    #[error("{service} is not ready: {reason}; its last lines:\n{log}")]
    NotReady {
        /// The service.
        service: &'static str,
        /// What is pending, or why it cannot be asked.
        reason: String,
        /// Its last lines.
        log: String,
    },
    /// A service gave no answer.
    #[error("ask {service}: {message}")]
    Call {
        /// The service.
        service: &'static str,
        /// What came back.
        message: String,
    },
    /// A file could not be written or read.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: String,
        /// What came back.
        source: std::io::Error,
    },
}

// === impl Mesh ===

impl Mesh {
    /// Folder of the service binaries: `OXALYST_BIN_DIR`, else the one of the running program or one above it.
    pub fn binaries() -> Result<PathBuf, MeshError> {
        let exe = std::env::current_exe()
            .map_err(|source| MeshError::Io { doing: "find the running program".to_owned(), source })?;
        let given = std::env::var_os("OXALYST_BIN_DIR").map(PathBuf::from);
        let candidates: Vec<&Path> = match &given {
            Some(dir) => vec![dir],
            None => exe.ancestors().skip(1).take(2).collect(),
        };
        let names = || NODE_SERVICES.into_iter().chain(["oxctl"]);
        match candidates.iter().find(|dir| names().all(|name| dir.join(name).is_file())) {
            Some(dir) => Ok(dir.to_path_buf()),
            None => {
                let missing = names().find(|name| !candidates.iter().any(|dir| dir.join(name).is_file()));
                Err(MeshError::NoBinary {
                    name: missing.unwrap_or("orm"),
                    searched: candidates[0].to_owned(),
                })
            }
        }
    }

    /// Services that will keep their sockets, state and logs in `folder` (short: sockets lie there) and serve `runtime`.
    pub fn new(folder: &Path, runtime: &impl Runtime) -> Result<Self, MeshError> {
        Self::on(folder, &runtime.host_root(), &runtime.nri_socket())
    }

    /// As [`Mesh::new`], by the machine's root and the runtime's socket, which need not be there.
    pub fn on(folder: &Path, host_root: &Path, nri_socket: &Path) -> Result<Self, MeshError> {
        let this = Self {
            binaries: Self::binaries()?,
            folder: folder.to_owned(),
            host_root: host_root.to_owned(),
            nri_socket: nri_socket.to_owned(),
            extra: BTreeMap::new(),
            processes: BTreeMap::new(),
        };
        std::fs::create_dir_all(this.run_dir()).map_err(|source| MeshError::Io {
            doing: format!("make the folder {}", this.run_dir().display()),
            source,
        })?;
        Ok(this)
    }

    /// Folder of the sockets.
    pub fn run_dir(&self) -> PathBuf {
        self.folder.join("run")
    }

    /// Where the reporter writes the node's object.
    pub fn report(&self) -> PathBuf {
        self.folder.join("kcnr.yaml")
    }

    /// From its next start, `service` has this setting ("key=value").
    pub fn set(&mut self, service: &str, setting: &str) {
        self.extra.entry(service.to_owned()).or_default().push(setting.to_owned());
    }

    /// The command line of a service as this mesh starts it.
    pub fn command(&self, service: &str) -> Command {
        let mut command = Command::new(self.binaries.join(service));
        let mut set = |key: &str, value: &Path| {
            command.arg("--set").arg(format!("{key}={}", value.display()));
        };
        set("common.run_dir", &self.run_dir());
        set("common.host_root", &self.host_root);
        match service {
            "orm" => set("ledger_dir", &self.folder.join("ledger")),
            "nri-gateway" => set("nri_socket", &self.nri_socket),
            "reporter" => set("file", &self.report()),
            _ => {}
        }
        for setting in self.extra.get(service).into_iter().flatten() {
            command.arg("--set").arg(setting);
        }
        command
    }

    /// Starts one service; it need not be ready yet.
    pub fn start(&mut self, service: &'static str) -> Result<(), MeshError> {
        let log = self.folder.join(format!("{service}.log"));
        let process = Process::spawn(self.command(service), &log)?;
        self.processes.insert(service, process);
        Ok(())
    }

    /// Starts all services and waits until each is ready.
    pub async fn start_all(&mut self) -> Result<(), MeshError> {
        for service in NODE_SERVICES {
            self.start(service)?;
        }
        for service in NODE_SERVICES {
            self.ready(service).await?;
        }
        Ok(())
    }

    /// Waits until `service` is ready.
    pub async fn ready(&mut self, service: &'static str) -> Result<Status, MeshError> {
        poll_until(LIMIT, async || {
            if let Some(status) = self.processes.get_mut(service).and_then(Process::ended) {
                return Ok(Err(MeshError::Ended { service, status, log: self.tail(service) }));
            }
            let not_ready = |reason: String| MeshError::NotReady { service, reason, log: self.tail(service) };
            let status = self.status(service).await.map_err(|e| not_ready(e.to_string()))?;
            if status.ready { Ok(Ok(status)) } else { Err(not_ready(format!("{:?}", status.pending))) }
        })
        .await?
    }

    /// kill -9, and waits for its end.
    pub async fn kill(&mut self, service: &str) -> Result<(), MeshError> {
        if let Some(mut process) = self.processes.remove(service) {
            process.kill().await?;
        }
        Ok(())
    }

    /// SIGTERM, and waits for its end.
    pub async fn terminate(&mut self, service: &str) -> Result<Option<ExitStatus>, MeshError> {
        match self.processes.remove(service) {
            Some(mut process) => Ok(Some(process.terminate(LIMIT).await?)),
            None => Ok(None),
        }
    }

    /// SIGTERM to all, and waits for their ends.
    pub async fn stop(&mut self) -> Result<(), MeshError> {
        for service in NODE_SERVICES {
            self.terminate(service).await?;
        }
        Ok(())
    }

    /// Process id of a running service.
    pub fn pid(&mut self, service: &str) -> Option<u32> {
        let process = self.processes.get_mut(service)?;
        if process.ended().is_some() { None } else { Some(process.pid()) }
    }

    /// Everything a service has logged, over all its starts.
    pub fn log(&self, service: &str) -> String {
        std::fs::read_to_string(self.folder.join(format!("{service}.log"))).unwrap_or_default()
    }

    /// What a service tells about itself.
    pub async fn status(&self, service: &'static str) -> Result<Status, MeshError> {
        let mut client = IntrospectionClient::new(self.channel(service));
        let call = client.get_status(GetStatusRequest {});
        answer(service, tokio::time::timeout(CALL, call).await)
    }

    /// What the allocator holds.
    pub async fn state(&self) -> Result<State, MeshError> {
        let mut client = AllocatorClient::new(self.channel("orm"));
        let call = client.get_state(GetStateRequest::default());
        answer("orm", tokio::time::timeout(CALL, call).await)
    }

    /// What the gateway has applied.
    pub async fn applied(&self) -> Result<ListContainersReply, MeshError> {
        let mut client = GatewayClient::new(self.channel("nri-gateway"));
        let call = client.list_containers(ListContainersRequest {});
        answer("nri-gateway", tokio::time::timeout(CALL, call).await)
    }

    /// Samples of one container, or of all for "".
    pub async fn samples(&self, container: &str, max_age_ms: Option<u64>) -> Result<Vec<Sample>, MeshError> {
        let ids = if container.is_empty() { Vec::new() } else { vec![container.to_owned()] };
        let query = QueryRequest { ids, max_age_ms, ..QueryRequest::default() };
        let mut client = MetricsClient::new(self.channel("metrics-fetcher"));
        let call = client.query(query);
        Ok(answer("metrics-fetcher", tokio::time::timeout(CALL, call).await)?.samples)
    }

    /// What `oxctl` prints for these arguments; its error output where it fails.
    pub fn oxctl(&self, arguments: &[&str]) -> Result<String, MeshError> {
        let output = Command::new(self.binaries.join("oxctl"))
            .env("OXALYST_RUN_DIR", self.run_dir())
            .args(arguments)
            .output()
            .map_err(|source| MeshError::Io { doing: format!("run oxctl {arguments:?}"), source })?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = [output.stdout, output.stderr].concat();
        Err(MeshError::Call { service: "oxctl", message: String::from_utf8_lossy(&said).into_owned() })
    }

    /// A way to a service's socket.
    pub fn channel(&self, service: &str) -> Channel {
        connect(&self.run_dir(), service)
    }

    fn tail(&self, service: &str) -> String {
        let log = self.log(service);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }
}

type Timed<T> = Result<Result<tonic::Response<T>, tonic::Status>, tokio::time::error::Elapsed>;

fn answer<T>(service: &'static str, reply: Timed<T>) -> Result<T, MeshError> {
    let message = match reply {
        Ok(Ok(reply)) => return Ok(reply.into_inner()),
        Ok(Err(status)) => format!("{:?}: {}", status.code(), status.message()),
        Err(_) => format!("no answer within {CALL:?}"),
    };
    Err(MeshError::Call { service, message })
}
