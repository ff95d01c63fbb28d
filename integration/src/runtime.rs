//! What a scenario may ask of a container runtime. Two worlds answer: [`crate::containerd`] is the real one, the imitated
//! NRI runtime keeps a made-up machine and a made-up kernel. A scenario is written once against [`Runtime`] and holds in both.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Annotation by which a pod names its QoS level.
pub const QOS_ANNOTATION: &str = "katalyst.kubewharf.io/qos_level";

/// Id of a sandbox, as the runtime gave it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SandboxId(pub String);

/// Id of a container, as the runtime gave it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContainerId(pub String);

/// A pod as a kubelet would bring it to the runtime.
#[derive(Clone, Debug)]
pub struct PodSpec {
    /// Name in its namespace; also the base of the log file's name.
    pub name: String,
    /// "default" unless said otherwise.
    pub namespace: String,
    /// Unique for a pod; two sandboxes of one pod share it.
    pub uid: String,
    /// Number of the sandbox within its pod: 0 for the first, 1 when it is made anew. The runtime wants (name, uid, attempt) unique.
    pub attempt: u32,
    /// Annotations of the pod, the QoS level among them.
    pub annotations: BTreeMap<String, String>,
    /// Labels of the pod.
    pub labels: BTreeMap<String, String>,
    /// Pod total in milli-CPU, told in the sandbox's `linux.resources` as shares. None: a client that tells nothing.
    pub request_milli_cpu: Option<u64>,
    /// Pod total memory limit in bytes, told with the request.
    pub memory_limit_bytes: Option<i64>,
}

/// A container within a pod.
#[derive(Clone, Debug)]
pub struct ContainerSpec {
    /// Name, unique within its pod and attempt.
    pub name: String,
    /// Number of the container among those of this name: a restart counts up.
    pub attempt: u32,
    /// What it runs, in the busybox image. It is preceded by a line that prints its own `Cpus_allowed_list`.
    pub run: Workload,
    /// Request in milli-CPU, told in the container's resources as shares. None: nothing told.
    pub request_milli_cpu: Option<u64>,
    /// Memory limit in bytes.
    pub memory_limit_bytes: Option<i64>,
}

/// What a container does after it has printed its `Cpus_allowed_list`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Sleeps until it is stopped.
    Sleep,
    /// Keeps one CPU busy until it is stopped.
    Busy,
    /// Ends at once with this code.
    Exit(u8),
}

/// State of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Created, not started.
    Created,
    /// Its first process runs.
    Running,
    /// Its first process has ended, with this code.
    Exited(i32),
    /// The runtime does not know.
    Unknown,
}

/// A container in the runtime's list.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Its id.
    pub id: ContainerId,
    /// The sandbox it belongs to.
    pub sandbox: SandboxId,
    /// Its name within the pod.
    pub name: String,
    /// Its state.
    pub state: State,
}

/// Why a runtime did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The runtime answered no; with a pod that the mesh refuses, the mesh's sentence is in the message.
    #[error("{doing}: refused: {message}")]
    Refused {
        /// What was asked.
        doing: String,
        /// What the runtime said.
        message: String,
    },
    /// The runtime did not answer, or cannot be driven.
    #[error("{doing}: {message}")]
    Failed {
        /// What was being done, to what.
        doing: String,
        /// What came back.
        message: String,
    },
}

/// A container runtime with NRI, and the kernel's view of what it runs.
///
/// Every call has a deadline of its own. Ids that are unknown are errors, except where a call is said to be idempotent.
#[allow(async_fn_in_trait, reason = "driven on a current-thread runtime: no future crosses a thread")]
pub trait Runtime {
    /// "containerd v2.1.9", "imitation".
    fn describe(&self) -> String;
    /// Where it serves NRI, whether it runs or not.
    fn nri_socket(&self) -> PathBuf;
    /// Root under which the services find `/sys` and `/proc`: `/`, or a folder that imitates them.
    fn host_root(&self) -> PathBuf;
    /// Online CPUs of the machine, Linux list format.
    fn online_cpus(&self) -> String;
    /// Whether its events take the path of a real kernel; figures from an imitation are marked as such.
    fn is_real(&self) -> bool;

    /// Starts it. Already running: nothing happens.
    async fn start(&mut self) -> Result<(), RuntimeError>;
    /// Stops the runtime itself; its containers run on.
    async fn stop(&mut self) -> Result<(), RuntimeError>;
    /// Stops and starts it; pods and containers run on, and are known again.
    async fn restart(&mut self) -> Result<(), RuntimeError> {
        self.stop().await?;
        self.start().await
    }

    /// Runs a sandbox of `pod`. [`RuntimeError::Refused`] where NRI refused it.
    async fn run_pod(&mut self, pod: &PodSpec) -> Result<SandboxId, RuntimeError>;
    /// Creates a container, which does not run yet. [`RuntimeError::Refused`] where NRI refused it.
    async fn create_container(
        &mut self,
        sandbox: &SandboxId,
        container: &ContainerSpec,
    ) -> Result<ContainerId, RuntimeError>;
    /// Starts a created container.
    async fn start_container(&mut self, container: &ContainerId) -> Result<(), RuntimeError>;
    /// Stops a container; idempotent.
    async fn stop_container(&mut self, container: &ContainerId) -> Result<(), RuntimeError>;
    /// Removes a container, running or not; idempotent.
    async fn remove_container(&mut self, container: &ContainerId) -> Result<(), RuntimeError>;
    /// Stops a sandbox and its containers; idempotent.
    async fn stop_pod(&mut self, sandbox: &SandboxId) -> Result<(), RuntimeError>;
    /// Stops and removes a sandbox with its containers; idempotent.
    async fn remove_pod(&mut self, sandbox: &SandboxId) -> Result<(), RuntimeError>;

    /// Sandboxes the runtime holds.
    async fn sandboxes(&mut self) -> Result<Vec<SandboxId>, RuntimeError>;
    /// Containers the runtime holds.
    async fn containers(&mut self) -> Result<Vec<Listed>, RuntimeError>;
    /// State of one container.
    async fn state(&mut self, container: &ContainerId) -> Result<State, RuntimeError>;

    /// The kernel's `Cpus_allowed_list` of the running container's first process.
    async fn cpus_allowed(&mut self, container: &ContainerId) -> Result<String, RuntimeError>;
    /// The kernel's `Mems_allowed_list` of the running container's first process.
    async fn mems_allowed(&mut self, container: &ContainerId) -> Result<String, RuntimeError>;
    /// `Cpus_allowed_list` as the container's first instruction saw it. Waits a little for the container to say it.
    async fn first_cpus(&mut self, container: &ContainerId) -> Result<String, RuntimeError>;
}

/// A runtime whose containers can be changed while they run.
#[allow(async_fn_in_trait, reason = "driven on a current-thread runtime: no future crosses a thread")]
pub trait Resizes: Runtime {
    /// What the kubelet does when a pod is resized: other CPU shares for a running container. [`RuntimeError::Refused`] where NRI
    /// refused it.
    async fn update_shares(&mut self, container: &ContainerId, milli_cpu: u64) -> Result<(), RuntimeError>;
}

// === impl PodSpec ===

impl PodSpec {
    /// A pod of QoS level `level` ("shared_cores", "dedicated_cores", …) that asks for `milli_cpu` in total.
    pub fn new(name: &str, level: &str, milli_cpu: u64) -> Self {
        Self {
            name: name.to_owned(),
            namespace: "default".to_owned(),
            uid: fresh_uid(),
            attempt: 0,
            annotations: BTreeMap::from([(QOS_ANNOTATION.to_owned(), level.to_owned())]),
            labels: BTreeMap::from([("app".to_owned(), name.to_owned())]),
            request_milli_cpu: Some(milli_cpu),
            memory_limit_bytes: None,
        }
    }

    /// The same pod, as a client brings it that leaves the sandbox's resources out.
    #[must_use]
    pub fn bare(mut self) -> Self {
        self.request_milli_cpu = None;
        self
    }

    /// The same pod's next sandbox.
    #[must_use]
    pub fn next_attempt(&self) -> Self {
        Self { attempt: self.attempt + 1, ..self.clone() }
    }

    /// Where the kubelet would put the pod: dedicated pods are Guaranteed, those with a request Burstable, else BestEffort.
    pub fn cgroup_parent(&self) -> String {
        let level = self.annotations.get(QOS_ANNOTATION).map(String::as_str);
        match (level, self.request_milli_cpu) {
            (Some("dedicated_cores"), _) => format!("/kubepods/pod{}", self.uid),
            (Some("reclaimed_cores"), _) => format!("/kubepods/besteffort/pod{}", self.uid),
            (_, Some(n)) if n > 0 => format!("/kubepods/burstable/pod{}", self.uid),
            _ => format!("/kubepods/besteffort/pod{}", self.uid),
        }
    }
}

// === impl ContainerSpec ===

impl ContainerSpec {
    /// A sleeping container that asks for `milli_cpu`.
    pub fn new(name: &str, milli_cpu: u64) -> Self {
        Self {
            name: name.to_owned(),
            attempt: 0,
            run: Workload::Sleep,
            request_milli_cpu: Some(milli_cpu),
            memory_limit_bytes: Some(64 << 20),
        }
    }

    /// The same container with another workload.
    #[must_use]
    pub fn running(mut self, run: Workload) -> Self {
        self.run = run;
        self
    }

    /// The same container after a restart.
    #[must_use]
    pub fn next_attempt(&self) -> Self {
        Self { attempt: self.attempt + 1, ..self.clone() }
    }
}

// === impl RuntimeError ===

impl RuntimeError {
    /// The runtime's own words.
    pub fn message(&self) -> &str {
        match self {
            Self::Refused { message, .. } | Self::Failed { message, .. } => message,
        }
    }
}

/// `cpu.shares` of a request, as the kubelet derives it: floor(milli-CPU × 1024 / 1000), at least 2.
pub fn shares(milli_cpu: u64) -> u64 {
    (milli_cpu.saturating_mul(1024) / 1000).max(2)
}

/// A random UID in the usual notation.
pub fn fresh_uid() -> String {
    let (high, low) = (fastrand::u64(..), fastrand::u64(..));
    format!(
        "{:08x}-{:04x}-4{:03x}-a{:03x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xffff,
        high & 0xfff,
        low >> 52,
        low & 0xffff_ffff_ffff
    )
}

/// Asks `probe` until it gives a value or `limit` has passed; then the last reason why not is the error.
pub async fn poll_until<T, E, F>(limit: Duration, mut probe: F) -> Result<T, E>
where
    F: AsyncFnMut() -> Result<T, E>,
{
    let end = tokio::time::Instant::now() + limit;
    loop {
        match probe().await {
            Ok(value) => return Ok(value),
            Err(reason) if tokio::time::Instant::now() >= end => return Err(reason),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// The value behind `key` in a file like `/proc/<pid>/status`.
pub fn status_value(path: &Path, key: &str) -> Result<String, RuntimeError> {
    let failed = |message: String| RuntimeError::Failed {
        doing: format!("read {key} of {}", path.display()),
        message,
    };
    let text = std::fs::read_to_string(path).map_err(|e| failed(e.to_string()))?;
    text.lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))
        .map(|value| value.trim().to_owned())
        .ok_or_else(|| failed("no such line".to_owned()))
}
