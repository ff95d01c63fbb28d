//! A client of the Kubernetes container runtime interface, as far as the suites need it. Pods use the host's network, so
//! that no CNI plugin is needed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tower::service_fn;

use crate::image::BUSYBOX;
use crate::runtime::{
    ContainerId, ContainerSpec, Listed, PodSpec, RuntimeError, SandboxId, State, Workload, shares,
};
use proto::runtime_service_client::RuntimeServiceClient;
use proto::{
    ContainerConfig, ContainerMetadata, ContainerState, ImageSpec, LinuxContainerConfig,
    LinuxContainerResources, LinuxContainerSecurityContext, LinuxPodSandboxConfig,
    LinuxSandboxSecurityContext, NamespaceMode, NamespaceOption, PodSandboxConfig, PodSandboxMetadata,
};

#[allow(missing_docs, clippy::all, unreachable_pub)]
mod proto {
    tonic::include_proto!("runtime.v1");
}

/// Generous: a machine that builds on all its CPUs is slow to start processes.
const DEADLINE: Duration = Duration::from_secs(60);

/// For one attempt to end a sandbox, and how many there are: where containerd 1.7 misses the exit of a sandbox's process, it waits for
/// ever, and ends it when it is asked again, as a kubelet does.
const END: (Duration, u32) = (Duration::from_secs(20), 3);

/// A connection to a runtime's CRI socket.
#[derive(Clone, Debug)]
pub struct Cri {
    client: RuntimeServiceClient<Channel>,
    logs: PathBuf,
    /// What each sandbox was made from: CRI wants it again with every container.
    sandboxes: BTreeMap<SandboxId, PodSandboxConfig>,
    /// Where each container's output goes.
    outputs: BTreeMap<ContainerId, PathBuf>,
}

// === impl Cri ===

impl Cri {
    /// A client of `socket`, which need not be there yet: each call connects as needed. Containers' output goes below `logs`.
    pub fn new(socket: &Path, logs: &Path) -> Self {
        let socket = socket.to_owned();
        let channel = Endpoint::from_static("http://cri").timeout(DEADLINE).connect_with_connector_lazy(
            service_fn(move |_| {
                let socket = socket.clone();
                async move { UnixStream::connect(socket).await.map(TokioIo::new) }
            }),
        );
        Self {
            client: RuntimeServiceClient::new(channel),
            logs: logs.to_owned(),
            sandboxes: BTreeMap::new(),
            outputs: BTreeMap::new(),
        }
    }

    /// "containerd v2.1.9".
    pub async fn version(&mut self) -> Result<String, RuntimeError> {
        let reply = self.client.version(proto::VersionRequest { version: "v1".to_owned() }).await;
        let reply = reply.map_err(|s| outcome("ask for the version", &s))?.into_inner();
        Ok(format!("{} {}", reply.runtime_name, reply.runtime_version))
    }

    /// Runs a sandbox.
    pub async fn run_pod(&mut self, pod: &PodSpec) -> Result<SandboxId, RuntimeError> {
        let config = PodSandboxConfig {
            metadata: Some(PodSandboxMetadata {
                name: pod.name.clone(),
                uid: pod.uid.clone(),
                namespace: pod.namespace.clone(),
                attempt: pod.attempt,
            }),
            log_directory: self.logs.to_string_lossy().into_owned(),
            labels: pod.labels.clone().into_iter().chain(kubelet_labels(pod)).collect(),
            annotations: pod.annotations.clone().into_iter().collect(),
            linux: Some(LinuxPodSandboxConfig {
                cgroup_parent: pod.cgroup_parent(),
                security_context: Some(LinuxSandboxSecurityContext {
                    namespace_options: Some(host_network()),
                }),
                overhead: None,
                resources: pod.request_milli_cpu.map(|n| resources(n, pod.memory_limit_bytes)),
            }),
        };
        let request =
            proto::RunPodSandboxRequest { config: Some(config.clone()), runtime_handler: String::new() };
        let reply = self.client.run_pod_sandbox(request).await;
        let reply = reply.map_err(|s| outcome(&format!("run pod {}", pod.name), &s))?;
        let id = SandboxId(reply.into_inner().pod_sandbox_id);
        self.sandboxes.insert(id.clone(), config);
        Ok(id)
    }

    /// Creates a container, not started.
    pub async fn create_container(
        &mut self,
        sandbox: &SandboxId,
        spec: &ContainerSpec,
    ) -> Result<ContainerId, RuntimeError> {
        let doing = format!("create container {} in {}", spec.name, sandbox.0);
        let config = self.sandboxes.get(sandbox).ok_or_else(|| RuntimeError::Failed {
            doing: doing.clone(),
            message: "this client has made no such sandbox".to_owned(),
        })?;
        let log = format!("{}-{}-{}.log", sandbox.0.get(..12).unwrap_or(&sandbox.0), spec.name, spec.attempt);
        let container = ContainerConfig {
            metadata: Some(ContainerMetadata { name: spec.name.clone(), attempt: spec.attempt }),
            image: Some(ImageSpec { image: BUSYBOX.to_owned(), user_specified_image: BUSYBOX.to_owned() }),
            command: command(spec.run),
            labels: config
                .labels
                .clone()
                .into_iter()
                .chain([("io.kubernetes.container.name".to_owned(), spec.name.clone())])
                .collect(),
            log_path: log.clone(),
            linux: Some(LinuxContainerConfig {
                resources: spec.request_milli_cpu.map(|n| resources(n, spec.memory_limit_bytes)),
                security_context: Some(LinuxContainerSecurityContext {
                    namespace_options: Some(host_network()),
                }),
            }),
            ..ContainerConfig::default()
        };
        let request = proto::CreateContainerRequest {
            pod_sandbox_id: sandbox.0.clone(),
            config: Some(container),
            sandbox_config: Some(config.clone()),
        };
        let reply = self.client.create_container(request).await.map_err(|s| outcome(&doing, &s))?;
        let id = ContainerId(reply.into_inner().container_id);
        self.outputs.insert(id.clone(), self.logs.join(log));
        Ok(id)
    }

    /// Starts a created container.
    pub async fn start_container(&mut self, id: &ContainerId) -> Result<(), RuntimeError> {
        let request = proto::StartContainerRequest { container_id: id.0.clone() };
        let reply = self.client.start_container(request).await;
        reply.map(drop).map_err(|s| outcome(&format!("start container {}", id.0), &s))
    }

    /// Kills a container. CRI says: idempotent.
    pub async fn stop_container(&mut self, id: &ContainerId) -> Result<(), RuntimeError> {
        let request = proto::StopContainerRequest { container_id: id.0.clone(), timeout: 0 };
        let reply = self.client.stop_container(request).await;
        gone_is_fine(reply.map(drop)).map_err(|s| outcome(&format!("stop container {}", id.0), &s))
    }

    /// Removes a container. CRI says: idempotent.
    pub async fn remove_container(&mut self, id: &ContainerId) -> Result<(), RuntimeError> {
        let request = proto::RemoveContainerRequest { container_id: id.0.clone() };
        let reply = self.client.remove_container(request).await;
        gone_is_fine(reply.map(drop)).map_err(|s| outcome(&format!("remove container {}", id.0), &s))
    }

    /// Stops a sandbox with its containers. CRI says: idempotent.
    pub async fn stop_pod(&mut self, id: &SandboxId) -> Result<(), RuntimeError> {
        let reply = ended(async || {
            let request = proto::StopPodSandboxRequest { pod_sandbox_id: id.0.clone() };
            self.client.stop_pod_sandbox(timed(request)).await
        })
        .await;
        gone_is_fine(reply.map(drop)).map_err(|s| outcome(&format!("stop pod {}", id.0), &s))
    }

    /// Stops and removes a sandbox with its containers. CRI says: idempotent.
    pub async fn remove_pod(&mut self, id: &SandboxId) -> Result<(), RuntimeError> {
        self.stop_pod(id).await?;
        let reply = ended(async || {
            let request = proto::RemovePodSandboxRequest { pod_sandbox_id: id.0.clone() };
            self.client.remove_pod_sandbox(timed(request)).await
        })
        .await;
        gone_is_fine(reply.map(drop)).map_err(|s| outcome(&format!("remove pod {}", id.0), &s))
    }

    /// Sandboxes the runtime holds.
    pub async fn sandboxes(&mut self) -> Result<Vec<SandboxId>, RuntimeError> {
        let reply = self.client.list_pod_sandbox(proto::ListPodSandboxRequest {}).await;
        let reply = reply.map_err(|s| outcome("list sandboxes", &s))?.into_inner();
        Ok(reply.items.into_iter().map(|s| SandboxId(s.id)).collect())
    }

    /// Containers the runtime holds. The exit code is asked for only by [`Cri::state`]; here it is 0.
    pub async fn containers(&mut self) -> Result<Vec<Listed>, RuntimeError> {
        let reply = self.client.list_containers(proto::ListContainersRequest {}).await;
        let reply = reply.map_err(|s| outcome("list containers", &s))?.into_inner();
        let listed = reply.containers.into_iter().map(|c| Listed {
            state: state(c.state(), 0),
            id: ContainerId(c.id),
            sandbox: SandboxId(c.pod_sandbox_id),
            name: c.metadata.map(|m| m.name).unwrap_or_default(),
        });
        Ok(listed.collect())
    }

    /// State of a container, and the pid of its first process while it has one.
    pub async fn state(&mut self, id: &ContainerId) -> Result<(State, Option<u32>), RuntimeError> {
        let doing = format!("status of container {}", id.0);
        let request = proto::ContainerStatusRequest { container_id: id.0.clone(), verbose: true };
        let reply = self.client.container_status(request).await.map_err(|s| outcome(&doing, &s))?;
        let reply = reply.into_inner();
        let status = reply.status.unwrap_or_default();
        let pid = reply
            .info
            .get("info")
            .and_then(|text| serde_json::from_str::<serde_json::Value>(text).ok())
            .and_then(|info| u32::try_from(info.get("pid")?.as_u64()?).ok())
            .filter(|&pid| pid > 0);
        Ok((state(status.state(), status.exit_code), pid))
    }

    /// Runs a command in a running container; gives its exit code and standard output.
    pub async fn exec(&mut self, id: &ContainerId, cmd: &[&str]) -> Result<(i32, String), RuntimeError> {
        let mut request = Request::new(proto::ExecSyncRequest {
            container_id: id.0.clone(),
            cmd: cmd.iter().map(|&s| s.to_owned()).collect(),
            timeout: 20,
        });
        request.set_timeout(DEADLINE);
        let reply = self.client.exec_sync(request).await;
        let reply = reply.map_err(|s| outcome(&format!("run {cmd:?} in {}", id.0), &s))?.into_inner();
        Ok((reply.exit_code, String::from_utf8_lossy(&reply.stdout).into_owned()))
    }

    /// What the kubelet does when a pod is resized.
    pub async fn update_shares(&mut self, id: &ContainerId, milli_cpu: u64) -> Result<(), RuntimeError> {
        let request = proto::UpdateContainerResourcesRequest {
            container_id: id.0.clone(),
            linux: Some(resources(milli_cpu, None)),
        };
        let reply = self.client.update_container_resources(request).await;
        reply.map(drop).map_err(|s| outcome(&format!("resize container {}", id.0), &s))
    }

    /// Lines that the container has printed so far, without the runtime's prefix of time, stream and tag.
    pub fn printed(&self, id: &ContainerId) -> Vec<String> {
        let text =
            self.outputs.get(id).and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
        text.lines().filter_map(|line| line.splitn(4, ' ').nth(3)).map(str::to_owned).collect()
    }
}

fn kubelet_labels(pod: &PodSpec) -> [(String, String); 3] {
    [
        ("io.kubernetes.pod.name".to_owned(), pod.name.clone()),
        ("io.kubernetes.pod.namespace".to_owned(), pod.namespace.clone()),
        ("io.kubernetes.pod.uid".to_owned(), pod.uid.clone()),
    ]
}

fn host_network() -> NamespaceOption {
    NamespaceOption {
        network: NamespaceMode::Node.into(),
        pid: NamespaceMode::Container.into(),
        ipc: NamespaceMode::Pod.into(),
    }
}

fn resources(milli_cpu: u64, memory: Option<i64>) -> LinuxContainerResources {
    LinuxContainerResources {
        cpu_period: 100_000,
        cpu_shares: i64::try_from(shares(milli_cpu)).unwrap_or(i64::MAX),
        memory_limit_in_bytes: memory.unwrap_or(0),
        ..LinuxContainerResources::default()
    }
}

/// The first thing any container does is to say where it may run.
fn command(run: Workload) -> Vec<String> {
    let then = match run {
        Workload::Sleep => "exec sleep 1000000".to_owned(),
        Workload::Busy => "while :; do :; done".to_owned(),
        Workload::Exit(code) => format!("exit {code}"),
    };
    ["/bin/sh".to_owned(), "-c".to_owned(), format!("grep Cpus_allowed_list /proc/self/status; {then}")]
        .to_vec()
}

fn state(state: ContainerState, exit_code: i32) -> State {
    match state {
        ContainerState::ContainerCreated => State::Created,
        ContainerState::ContainerRunning => State::Running,
        ContainerState::ContainerExited => State::Exited(exit_code),
        ContainerState::ContainerUnknown => State::Unknown,
    }
}

fn timed<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(END.0);
    request
}

/// Asks again while there is no answer in time.
async fn ended<T>(mut ask: impl AsyncFnMut() -> Result<T, Status>) -> Result<T, Status> {
    for _ in 1..END.1 {
        match ask().await {
            Err(status) if matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled) => {
                eprintln!("the runtime has not ended a sandbox in {:?}: asked again", END.0);
            }
            outcome => return outcome,
        }
    }
    ask().await
}

fn gone_is_fine(reply: Result<(), Status>) -> Result<(), Status> {
    match reply {
        Err(status) if status.code() == Code::NotFound => Ok(()),
        other => other,
    }
}

/// An answer of the runtime is a refusal; a call that got no answer has failed.
fn outcome(doing: &str, status: &Status) -> RuntimeError {
    let (doing, message) = (doing.to_owned(), status.message().to_owned());
    match status.code() {
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unimplemented => {
            RuntimeError::Failed { doing, message: format!("{:?}: {message}", status.code()) }
        }
        _ => RuntimeError::Refused { doing, message },
    }
}
