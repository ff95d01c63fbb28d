//! A private CRI-O: every path it uses lies in one folder given by the caller, NRI is on, and nothing is left behind.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use tokio::net::UnixStream;

use crate::containerd::outside::Outside;
use crate::cri::Cri;
use crate::image;
use crate::lab;
use crate::process::{Process, ProcessError, end_stranger, with_argument_below};
use crate::runtime::{
    ContainerId, ContainerSpec, Listed, PodSpec, Resizes, Runtime, RuntimeError, SandboxId, State,
    poll_until, status_value,
};

/// How long a start may take; 0.5 s is usual.
const START: Duration = Duration::from_secs(60);
/// Where Debian's conmon is.
const CONMON: &str = "/usr/bin/conmon";
/// Where Debian's runc is.
const RUNC: &str = "/usr/sbin/runc";
/// The one place outside of its folder that CRI-O cannot be talked out of, deepest first.
const CACHE: [&str; 2] = ["/var/lib/containers/cache", "/var/lib/containers"];

/// A CRI-O of our own with what it runs.
#[derive(Debug)]
pub struct Crio {
    binaries: PathBuf,
    folder: PathBuf,
    version: String,
    process: Option<Process>,
    cri: Cri,
    outside: Outside,
    /// Those of [`CACHE`] that were not there before.
    caches: Vec<PathBuf>,
}

// === impl Crio ===

impl Crio {
    /// Folder of CRI-O's binaries, as `lab/crio.sh` finds or builds them. The error says why this machine cannot have them.
    pub fn find() -> Result<PathBuf, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("CRI-O needs root".to_owned());
        }
        lab::script("crio.sh", &[])
    }

    /// Prepares a CRI-O from `binaries` that keeps everything in `folder` (short: unix sockets lie there), imports the images
    /// and starts it. The caller removes `folder` after [`Crio::remove`].
    pub async fn start(binaries: &Path, folder: &Path) -> Result<Self, RuntimeError> {
        let write = || -> std::io::Result<()> {
            for dir in ["logs", "nri/plugins", "nri/conf.d", "cni", "policies"] {
                std::fs::create_dir_all(folder.join(dir))?;
            }
            std::fs::write(folder.join("policy.json"), r#"{"default":[{"type":"insecureAcceptAnything"}]}"#)?;
            std::fs::write(folder.join("crio.conf"), config(binaries, folder))
        };
        write().map_err(|e| failed(&format!("prepare {}", folder.display()), e.to_string()))?;
        let mut this = Self {
            binaries: binaries.to_owned(),
            folder: folder.to_owned(),
            version: "cri-o".to_owned(),
            process: None,
            cri: Cri::new(&folder.join("crio.sock"), &folder.join("logs")),
            outside: Outside::new(folder).map_err(|e| failed("note what is there", e.to_string()))?,
            caches: CACHE.iter().map(PathBuf::from).filter(|path| !path.exists()).collect(),
        };
        this.import_images()?;
        Runtime::start(&mut this).await?;
        this.version = this.cri.version().await?;
        Ok(this)
    }

    /// Finds, starts and tries a CRI-O in `folder`. The error says why this machine cannot run one.
    pub async fn try_start(folder: &Path) -> Result<Self, String> {
        let binaries = Self::find()?;
        let mut this = Self::start(&binaries, folder).await.map_err(|e| e.to_string())?;
        match this.probe().await {
            Ok(()) => Ok(this),
            Err(e) => Err(format!("CRI-O starts, but runs no pod: {e}; its log:\n{}", this.tail())),
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

    /// Process id of CRI-O while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::pid)
    }

    /// What CRI-O has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("crio.log")).unwrap_or_default()
    }

    /// Removes every pod, ends CRI-O, and removes mounts and cgroups. Errors name what is left.
    pub async fn remove(mut self) -> Result<(), RuntimeError> {
        Runtime::start(&mut self).await?;
        for sandbox in self.cri.sandboxes().await? {
            Runtime::remove_pod(&mut self, &sandbox).await?;
        }
        Runtime::stop(&mut self).await?;
        let left = self.sweep();
        if left.is_empty() { Ok(()) } else { Err(failed("clean up", format!("still there: {left:?}"))) }
    }

    /// As a kubelet does: CRI-O gives what still runs in a sandbox that it stops ten seconds to obey.
    async fn stop_containers(&mut self, sandbox: &SandboxId) -> Result<(), RuntimeError> {
        for container in self.cri.containers().await? {
            if container.sandbox == *sandbox && container.state == State::Running {
                self.cri.stop_container(&container.id).await?;
            }
        }
        Ok(())
    }

    fn sweep(&mut self) -> Vec<String> {
        // A container's monitor ends by itself once the container is gone, but not before it has told so.
        for pid in with_argument_below("", &self.folder) {
            if !end_stranger(pid, Signal::TERM, Duration::from_secs(2)) {
                end_stranger(pid, Signal::KILL, Duration::from_secs(2));
            }
        }
        let mut left = self.outside.sweep(&self.folder);
        for cache in &self.caches {
            let _ = std::fs::remove_file(cache.join("blob-info-cache-v1.sqlite"));
            let _ = std::fs::remove_dir(cache);
        }
        left.extend(with_argument_below("", &self.folder).iter().map(|pid| format!("process {pid}")));
        left
    }

    fn import_images(&self) -> Result<(), RuntimeError> {
        let busybox = image::find_busybox()
            .map_err(|e| failed("read a static busybox (package busybox-static)", e.to_string()))?;
        for reference in [image::PAUSE, image::BUSYBOX] {
            let doing = format!("import {reference}");
            let archive = self.folder.join("image.tar");
            std::fs::write(&archive, image::archive(reference, &busybox))
                .map_err(|e| failed(&doing, e.to_string()))?;
            let output = Command::new(self.binaries.join("copyimg"))
                .arg("--root")
                .arg(self.folder.join("storage"))
                .arg("--runroot")
                .arg(self.folder.join("run-storage"))
                .args(["--storage-driver", "vfs", "--signature-policy"])
                .arg(self.folder.join("policy.json"))
                .args(["--image-name", reference, "--import-from"])
                .arg(format!("oci-archive:{}", archive.display()))
                .output()
                .map_err(|e| failed(&doing, e.to_string()))?;
            if !output.status.success() {
                return Err(failed(&doing, String::from_utf8_lossy(&output.stderr).into_owned()));
            }
        }
        Ok(())
    }

    fn tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(5)..].join("\n")
    }

    async fn status_of(&mut self, container: &ContainerId, key: &str) -> Result<String, RuntimeError> {
        let (state, pid) = self.cri.state(container).await?;
        let pid = pid.filter(|_| state == State::Running).ok_or_else(|| {
            failed(&format!("find the process of {}", container.0), format!("it is {state:?}"))
        })?;
        status_value(Path::new(&format!("/proc/{pid}/status")), key)
    }
}

impl Drop for Crio {
    fn drop(&mut self) {
        // After a failed test: the process is killed by its own drop, the rest here. Nobody is left to hear of an error.
        drop(self.process.take());
        let _ = self.sweep();
    }
}

impl Resizes for Crio {
    async fn update_shares(&mut self, container: &ContainerId, milli_cpu: u64) -> Result<(), RuntimeError> {
        self.cri.update_shares(container, milli_cpu).await
    }
}

impl Runtime for Crio {
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
        let mut command = Command::new(self.binaries.join("crio"));
        command
            .arg("--config")
            .arg(self.folder.join("crio.conf"))
            // No drop-in folder: the machine's own settings are not meant for this one.
            .args(["--config-dir", ""])
            // runc is in sbin, which a user's PATH may lack.
            .env("PATH", format!("{path}:/usr/sbin:/sbin"));
        let log = self.folder.join("crio.log");
        self.process = Some(Process::spawn(command, &log).map_err(process_error)?);

        let nri = self.folder.join("nri.sock");
        let ready = poll_until(START, async || {
            if let Some(status) = self.process.as_mut().and_then(Process::ended) {
                return Ok(Err(format!("CRI-O ended: {status}")));
            }
            UnixStream::connect(&nri).await.map_err(|e| format!("{}: {e}", nri.display()))?;
            self.cri.version().await.map_err(|e| e.to_string())?;
            Ok(Ok(()))
        });
        ready
            .await
            .and_then(|ended| ended)
            .map_err(|reason| failed("start CRI-O", format!("{reason}; last lines:\n{}", self.tail())))
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
        self.stop_containers(sandbox).await?;
        self.cri.stop_pod(sandbox).await
    }

    async fn remove_pod(&mut self, sandbox: &SandboxId) -> Result<(), RuntimeError> {
        self.stop_containers(sandbox).await?;
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
    failed("drive CRI-O", error.to_string())
}

/// Images are copied into place (the folder may itself lie on an overlay); no AppArmor, no seccomp, cgroupfs; monitors live in
/// their pods' cgroups.
fn config(binaries: &Path, folder: &Path) -> String {
    // A machine that this tree is not on has all capabilities.
    let runc = Path::new(env!("CARGO_MANIFEST_DIR")).join("lab/runc-without-capabilities.sh");
    let runc = if runc.exists() { runc } else { PathBuf::from(RUNC) };
    format!(
        r#"[crio]
root = "{folder}/storage"
runroot = "{folder}/run-storage"
storage_driver = "vfs"
log_dir = "{folder}/crio-logs"
version_file = "{folder}/version"
version_file_persist = "{folder}/version-persist"
clean_shutdown_file = "{folder}/clean.shutdown"
[crio.api]
listen = "{folder}/crio.sock"
stream_port = "0"
[crio.runtime]
default_runtime = "runc"
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
pinns_path = "{binaries}/pinns"
namespaces_dir = "{folder}/ns"
container_exits_dir = "{folder}/exits"
container_attach_socket_dir = "{folder}/attach"
apparmor_profile = "unconfined"
irqbalance_config_restore_file = "disable"
hooks_dir = []
disable_hostport_mapping = true
add_inheritable_capabilities = false
[crio.runtime.runtimes.runc]
runtime_path = "{runc}"
runtime_root = "{folder}/runc"
monitor_path = "{CONMON}"
monitor_cgroup = "pod"
[crio.image]
pause_image = "{pause}"
pause_command = ""
signature_policy = "{folder}/policy.json"
signature_policy_dir = "{folder}/policies"
[crio.network]
network_dir = "{folder}/cni"
plugin_dirs = ["{folder}/cni"]
[crio.nri]
enable_nri = true
nri_listen = "{folder}/nri.sock"
nri_plugin_dir = "{folder}/nri/plugins"
nri_plugin_config_dir = "{folder}/nri/conf.d"
"#,
        binaries = binaries.display(),
        folder = folder.display(),
        runc = runc.display(),
        pause = image::PAUSE
    )
}
