//! A private containerd: every path it uses lies in one folder given by the caller, NRI is on, and nothing is left behind.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tokio::net::UnixStream;

use crate::cri::Cri;
use crate::image;
use crate::process::{Process, ProcessError};
use crate::runtime::{
    ContainerId, ContainerSpec, Listed, PodSpec, Resizes, Runtime, RuntimeError, SandboxId, State,
    poll_until, status_value,
};

mod leftovers;
pub(crate) mod outside;

use outside::Outside;
pub use outside::clear;

/// How long a start may take; 0.3 s is usual.
const START: Duration = Duration::from_secs(60);

/// A containerd of our own with what it runs.
#[derive(Debug)]
pub struct Containerd {
    binaries: PathBuf,
    folder: PathBuf,
    version: String,
    process: Option<Process>,
    cri: Cri,
    outside: Outside,
}

// === impl Containerd ===

impl Containerd {
    /// Folder of the containerd binaries: named by `OXALYST_CONTAINERD_DIR`, else what `lab/containerd.sh` finds or fetches.
    /// The error says why this machine cannot have one.
    pub fn find() -> Result<PathBuf, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("containerd needs root".to_owned());
        }
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("lab/containerd.sh");
        let mut command = Command::new(&script);
        command.args(std::env::var("OXALYST_CONTAINERD_LINE")).stdin(Stdio::null());
        let output = command.output().map_err(|e| format!("run {}: {e}", script.display()))?;
        let said = String::from_utf8_lossy(&output.stdout);
        match said.lines().last() {
            Some(folder) if output.status.success() => Ok(PathBuf::from(folder)),
            _ => {
                let errors = String::from_utf8_lossy(&output.stderr);
                Err(errors.lines().last().unwrap_or("containerd.sh said nothing").to_owned())
            }
        }
    }

    /// Prepares a containerd from `binaries` that keeps everything in `folder` (short: unix sockets lie there), starts it
    /// and imports the images. The caller removes `folder` after [`Containerd::remove`].
    pub async fn start(binaries: &Path, folder: &Path) -> Result<Self, RuntimeError> {
        let version = Command::new(binaries.join("containerd")).arg("--version").output();
        let version = version.map_err(|e| failed("ask containerd for its version", e.to_string()))?;
        let version = String::from_utf8_lossy(&version.stdout).into_owned();
        let major_1 =
            version.split_whitespace().nth(2).is_some_and(|v| v.trim_start_matches('v').starts_with("1."));

        let logs = folder.join("logs");
        let write = || -> std::io::Result<()> {
            for dir in ["logs", "nri/plugins", "nri/conf.d", "opt", "cni"] {
                std::fs::create_dir_all(folder.join(dir))?;
            }
            let config = if major_1 { config_v2(folder) } else { config_v3(folder) };
            std::fs::write(folder.join("config.toml"), config)
        };
        write().map_err(|e| failed(&format!("prepare {}", folder.display()), e.to_string()))?;

        let mut this = Self {
            binaries: binaries.to_owned(),
            folder: folder.to_owned(),
            version: version.split_whitespace().nth(2).unwrap_or("unknown").to_owned(),
            process: None,
            cri: Cri::new(&folder.join("containerd.sock"), &logs),
            outside: Outside::new(folder).map_err(|e| failed("note what is there", e.to_string()))?,
        };
        Runtime::start(&mut this).await?;
        this.version = this.cri.version().await?;
        this.import_images()?;
        Ok(this)
    }

    /// Finds, starts and tries a containerd in `folder`. The error says why this machine cannot run one (no root, nothing to
    /// fetch, no permission to make containers), for a suite to skip by and the demo to tell.
    pub async fn try_start(folder: &Path) -> Result<Self, String> {
        let binaries = Self::find()?;
        let mut this = Self::start(&binaries, folder).await.map_err(|e| e.to_string())?;
        match this.probe().await {
            Ok(()) => Ok(this),
            Err(e) => Err(format!("containerd starts, but runs no pod: {e}")),
        }
    }

    /// Runs a pod while nobody listens to NRI.
    async fn probe(&mut self) -> Result<(), RuntimeError> {
        let pod = PodSpec::new("probe", "shared_cores", 10);
        let sandbox = self.run_pod(&pod).await?;
        let container = self.create_container(&sandbox, &ContainerSpec::new("main", 10)).await?;
        self.start_container(&container).await?;
        self.remove_pod(&sandbox).await
    }

    /// The CRI client, for what [`Runtime`] does not offer.
    pub fn cri(&mut self) -> &mut Cri {
        &mut self.cri
    }

    /// Process id of containerd while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::pid)
    }

    /// What containerd has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("containerd.log")).unwrap_or_default()
    }

    /// A file of the running container's cgroup: `v1` is (hierarchy, file), `v2` the file.
    pub async fn cgroup_file(
        &mut self,
        container: &ContainerId,
        v1: (&str, &str),
        v2: &str,
    ) -> Result<PathBuf, RuntimeError> {
        let pid = self.pid_of(container).await?;
        let path = format!("/proc/{pid}/cgroup");
        let text =
            std::fs::read_to_string(&path).map_err(|e| failed(&format!("read {path}"), e.to_string()))?;
        let of = |hierarchy: &str| {
            text.lines().find_map(|line| {
                let mut parts = line.splitn(3, ':').skip(1);
                let (names, at) = (parts.next()?, parts.next()?);
                names.split(',').any(|name| name == hierarchy).then(|| at.trim_start_matches('/').to_owned())
            })
        };
        let root = Path::new("/sys/fs/cgroup");
        match (of(v1.0), of("")) {
            (Some(at), _) => Ok(root.join(v1.0).join(at).join(v1.1)),
            (None, Some(at)) => Ok(root.join(at).join(v2)),
            (None, None) => Err(failed(&format!("find {} of {}", v1.0, container.0), text)),
        }
    }

    /// Removes every pod, ends containerd and its shims, and removes mounts and cgroups. Errors name what is left.
    pub async fn remove(mut self) -> Result<(), RuntimeError> {
        Runtime::start(&mut self).await?;
        for sandbox in self.cri.sandboxes().await? {
            Runtime::remove_pod(&mut self, &sandbox).await?;
        }
        Runtime::stop(&mut self).await?;
        self.sweep()
    }

    fn sweep(&mut self) -> Result<(), RuntimeError> {
        let left = self.outside.sweep(&self.folder);
        if left.is_empty() { Ok(()) } else { Err(failed("clean up", format!("still there: {left:?}"))) }
    }

    fn import_images(&self) -> Result<(), RuntimeError> {
        let busybox = image::find_busybox()
            .map_err(|e| failed("read a static busybox (package busybox-static)", e.to_string()))?;
        for reference in [image::PAUSE, image::BUSYBOX] {
            let doing = format!("import {reference}");
            let archive = self.folder.join("image.tar");
            std::fs::write(&archive, image::archive(reference, &busybox))
                .map_err(|e| failed(&doing, e.to_string()))?;
            let output = Command::new(self.binaries.join("ctr"))
                .arg("--address")
                .arg(self.folder.join("containerd.sock"))
                .args(["--namespace", "k8s.io", "images", "import", "--no-unpack"])
                .arg(&archive)
                .output()
                .map_err(|e| failed(&doing, e.to_string()))?;
            if !output.status.success() {
                return Err(failed(&doing, String::from_utf8_lossy(&output.stderr).into_owned()));
            }
        }
        Ok(())
    }

    async fn pid_of(&mut self, container: &ContainerId) -> Result<u32, RuntimeError> {
        let (state, pid) = self.cri.state(container).await?;
        pid.filter(|_| state == State::Running).ok_or_else(|| {
            failed(&format!("find the process of {}", container.0), format!("it is {state:?}"))
        })
    }

    async fn status_of(&mut self, container: &ContainerId, key: &str) -> Result<String, RuntimeError> {
        let pid = self.pid_of(container).await?;
        status_value(Path::new(&format!("/proc/{pid}/status")), key)
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        // After a failed test: the process is killed by its own drop, the rest here. Nobody is left to hear of an error.
        drop(self.process.take());
        let _ = self.sweep();
    }
}

impl Resizes for Containerd {
    async fn update_shares(&mut self, container: &ContainerId, milli_cpu: u64) -> Result<(), RuntimeError> {
        self.cri.update_shares(container, milli_cpu).await
    }
}

impl Runtime for Containerd {
    fn describe(&self) -> String {
        self.version.clone()
    }

    fn nri_socket(&self) -> PathBuf {
        self.folder.join("nri.sock")
    }

    fn host_root(&self) -> PathBuf {
        PathBuf::from("/")
    }

    fn online_cpus(&self) -> String {
        let list = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
        list.trim().to_owned()
    }

    fn is_real(&self) -> bool {
        true
    }

    async fn start(&mut self) -> Result<(), RuntimeError> {
        if self.process.is_some() {
            return Ok(());
        }
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new(self.binaries.join("containerd"));
        command
            .arg("--config")
            .arg(self.folder.join("config.toml"))
            // The shim is looked up there, and runc in sbin, which a user's PATH may lack.
            .env("PATH", format!("{}:{path}:/usr/sbin:/sbin", self.binaries.display()));
        let log = self.folder.join("containerd.log");
        self.process = Some(Process::spawn(command, &log).map_err(process_error)?);

        let (cri, nri) = (self.folder.join("containerd.sock"), self.folder.join("nri.sock"));
        let ready = poll_until(START, async || {
            if let Some(status) = self.process.as_mut().and_then(Process::ended) {
                return Ok(Err(format!("containerd ended: {status}")));
            }
            UnixStream::connect(&nri).await.map_err(|e| format!("{}: {e}", nri.display()))?;
            UnixStream::connect(&cri).await.map_err(|e| format!("{}: {e}", cri.display()))?;
            self.cri.version().await.map_err(|e| e.to_string())?;
            Ok(Ok(()))
        });
        ready.await.and_then(|ended| ended).map_err(|reason| {
            let log = self.log();
            let tail: Vec<&str> = log.lines().rev().take(5).collect();
            failed("start containerd", format!("{reason}; last lines, newest first: {tail:#?}"))
        })
    }

    async fn stop(&mut self) -> Result<(), RuntimeError> {
        let Some(mut process) = self.process.take() else { return Ok(()) };
        process.terminate(Duration::from_secs(30)).await.map(drop).map_err(process_error)
    }

    async fn run_pod(&mut self, pod: &PodSpec) -> Result<SandboxId, RuntimeError> {
        let cgroup = PathBuf::from(pod.cgroup_parent().trim_start_matches('/'));
        self.outside.add(&self.folder, [cgroup]);
        self.cri.run_pod(pod).await
    }

    async fn create_container(
        &mut self,
        sandbox: &SandboxId,
        container: &ContainerSpec,
    ) -> Result<ContainerId, RuntimeError> {
        self.cri.create_container(sandbox, container).await
    }

    async fn start_container(&mut self, container: &ContainerId) -> Result<(), RuntimeError> {
        self.cri.start_container(container).await
    }

    async fn stop_container(&mut self, container: &ContainerId) -> Result<(), RuntimeError> {
        self.cri.stop_container(container).await
    }

    async fn remove_container(&mut self, container: &ContainerId) -> Result<(), RuntimeError> {
        self.cri.stop_container(container).await?;
        self.cri.remove_container(container).await
    }

    async fn stop_pod(&mut self, sandbox: &SandboxId) -> Result<(), RuntimeError> {
        self.cri.stop_pod(sandbox).await
    }

    async fn remove_pod(&mut self, sandbox: &SandboxId) -> Result<(), RuntimeError> {
        // Somebody else's pod leaves a cgroup that is known only as long as it runs.
        let cgroups = leftovers::container_cgroups(&self.folder);
        self.outside.add(&self.folder, cgroups);
        self.cri.remove_pod(sandbox).await
    }

    async fn sandboxes(&mut self) -> Result<Vec<SandboxId>, RuntimeError> {
        self.cri.sandboxes().await
    }

    async fn containers(&mut self) -> Result<Vec<Listed>, RuntimeError> {
        self.cri.containers().await
    }

    async fn state(&mut self, container: &ContainerId) -> Result<State, RuntimeError> {
        Ok(self.cri.state(container).await?.0)
    }

    async fn cpus_allowed(&mut self, container: &ContainerId) -> Result<String, RuntimeError> {
        self.status_of(container, "Cpus_allowed_list").await
    }

    async fn mems_allowed(&mut self, container: &ContainerId) -> Result<String, RuntimeError> {
        self.status_of(container, "Mems_allowed_list").await
    }

    async fn first_cpus(&mut self, container: &ContainerId) -> Result<String, RuntimeError> {
        poll_until(Duration::from_secs(20), async || {
            let lines = self.cri.printed(container);
            let said = lines.iter().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
            said.map(|list| list.trim().to_owned()).ok_or_else(|| {
                failed(&format!("read the first line of {}", container.0), format!("it printed {lines:?}"))
            })
        })
        .await
    }
}

fn failed(doing: &str, message: String) -> RuntimeError {
    RuntimeError::Failed { doing: doing.to_owned(), message }
}

fn process_error(error: ProcessError) -> RuntimeError {
    failed("drive containerd", error.to_string())
}

// What both configurations say: images are copied into place (the folder may itself lie on an overlay), AppArmor is left alone,
// and the OOM score is never lowered below our own (without CAP_SYS_RESOURCE runc would fail).

fn config_v3(folder: &Path) -> String {
    let folder = folder.display();
    format!(
        r#"version = 3
root = "{folder}/root"
state = "{folder}/state"
[grpc]
  address = "{folder}/containerd.sock"
[plugins.'io.containerd.internal.v1.opt']
  path = "{folder}/opt"
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "native"
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = "{pause}"
[plugins.'io.containerd.cri.v1.runtime']
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["{folder}/cni"]
    conf_dir = "{folder}/cni"
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      SystemdCgroup = false
[plugins.'io.containerd.nri.v1.nri']
  disable = false
  disable_connections = false
  socket_path = "{folder}/nri.sock"
  plugin_path = "{folder}/nri/plugins"
  plugin_config_path = "{folder}/nri/conf.d"
"#,
        pause = image::PAUSE
    )
}

fn config_v2(folder: &Path) -> String {
    let folder = folder.display();
    format!(
        r#"version = 2
root = "{folder}/root"
state = "{folder}/state"
[grpc]
  address = "{folder}/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{folder}/cni"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
[plugins."io.containerd.nri.v1.nri"]
  disable = false
  disable_connections = false
  socket_path = "{folder}/nri.sock"
  plugin_path = "{folder}/nri/plugins"
  plugin_config_path = "{folder}/nri/conf.d"
"#,
        pause = image::PAUSE
    )
}
