//! A real control plane and a real kubelet on a private containerd: etcd, API server, scheduler, controllers, on loopback, in a
//! folder of their own.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::lab;
use crate::process::Process;

/// How long the kubelet may take to end.
const END: Duration = Duration::from_secs(30);

/// etcd, API server, scheduler and controllers.
#[derive(Debug)]
pub struct ControlPlane {
    binaries: PathBuf,
    dir: PathBuf,
}

/// A kubelet, which may be stopped and started.
#[derive(Debug)]
pub struct Kubelet {
    binaries: PathBuf,
    socket: PathBuf,
    kube: PathBuf,
    dir: PathBuf,
    port: u16,
    process: Option<Process>,
}

/// A pod as the API server shows it.
#[derive(Clone, Debug)]
pub struct Shown {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// "Pending", "Running", …
    pub phase: String,
    /// The runtime's id of its only container, once it runs.
    pub container: Option<String>,
    /// Whether it is being deleted.
    pub ending: bool,
}

// === impl ControlPlane ===

impl ControlPlane {
    /// Starts one in `dir` (new, and removed by the caller) from the binaries of `lab/kube.sh`.
    ///
    /// # Errors
    /// What the script said last.
    pub fn start(binaries: &Path, dir: &Path) -> Result<Self, String> {
        let this = Self { binaries: binaries.to_owned(), dir: dir.to_owned() };
        let script = lab::path("kube-up.sh");
        let output = Command::new(&script)
            .arg(binaries)
            .arg(dir)
            .env("KUBE_CONTROL", "1")
            .stdin(Stdio::null())
            .output()
            .map_err(|e| format!("run {}: {e}", script.display()))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        Ok(this)
    }

    /// Where it is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What kubectl prints; its complaint as an error.
    ///
    /// # Errors
    /// What kubectl said.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        self.kubectl_with(arguments, "")
    }

    /// As [`ControlPlane::kubectl`], with `input` on its standard input.
    ///
    /// # Errors
    /// What kubectl said.
    pub fn kubectl_with(&self, arguments: &[&str], input: &str) -> Result<String, String> {
        let file = self.dir.join("kubectl.input");
        let run = || -> std::io::Result<std::process::Output> {
            std::fs::write(&file, input)?;
            Command::new(self.binaries.join("kubectl"))
                .arg("--kubeconfig")
                .arg(self.dir.join("kubeconfig"))
                .args(arguments)
                .stdin(std::fs::File::open(&file)?)
                .output()
        };
        let output = run().map_err(|e| format!("run kubectl: {e}"))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(format!("kubectl {arguments:?}: {}", String::from_utf8_lossy(&output.stderr)))
    }

    /// All pods of the namespace "default".
    ///
    /// # Errors
    /// What kubectl said.
    pub fn pods(&self) -> Result<Vec<Shown>, String> {
        let text = self.kubectl(&["get", "pods", "-o", "json"])?;
        let list: Value = serde_json::from_str(&text).map_err(|e| e.to_string())?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let shown = list["items"].as_array().into_iter().flatten().map(|pod| Shown {
            name: text(&pod["metadata"]["name"]),
            uid: text(&pod["metadata"]["uid"]),
            phase: text(&pod["status"]["phase"]),
            container: pod["status"]["containerStatuses"][0]["containerID"]
                .as_str()
                .and_then(|id| id.split_once("://"))
                .map(|(_, id)| id.to_owned()),
            ending: pod["metadata"]["deletionTimestamp"].is_string(),
        });
        Ok(shown.collect())
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        // It ends what is still there, and only that; nobody is left to hear of an error.
        let _ = Command::new(lab::path("kube-down.sh")).arg(&self.dir).stdin(Stdio::null()).status();
    }
}

// === impl Kubelet ===

impl Kubelet {
    /// A kubelet in `dir` that will run pods of `control` in the runtime at `socket`. It does not run yet.
    ///
    /// # Errors
    /// No port is free.
    pub fn new(control: &ControlPlane, socket: &Path, dir: &Path) -> std::io::Result<Self> {
        // Free now; the kubelet cannot choose one by itself and tell which.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        Ok(Self {
            binaries: control.binaries.clone(),
            socket: socket.to_owned(),
            kube: control.dir.clone(),
            dir: dir.to_owned(),
            port,
            process: None,
        })
    }

    /// Its https endpoint.
    pub fn endpoint(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// Starts it with these further lines of configuration.
    ///
    /// # Errors
    /// The script could not be started.
    pub fn start(&mut self, configuration: &str) -> Result<(), String> {
        std::fs::create_dir_all(&self.dir).map_err(|e| e.to_string())?;
        let mut command = Command::new(lab::path("kubelet.sh"));
        command.arg(&self.binaries).arg(&self.socket).arg(&self.kube).arg(&self.dir);
        command.arg(self.port.to_string()).env("KUBELET_CONFIG", configuration);
        let process = Process::spawn(command, &self.log_file()).map_err(|e| e.to_string())?;
        self.process = Some(process);
        Ok(())
    }

    /// Stops it; its pods run on.
    ///
    /// # Errors
    /// It did not end.
    pub async fn stop(&mut self) -> Result<(), String> {
        match self.process.take() {
            Some(mut process) => process.terminate(END).await.map(drop).map_err(|e| e.to_string()),
            None => Ok(()),
        }
    }

    /// Forgets which CPUs it gave to whom, without which it refuses to start under another policy. Only while no pod runs.
    ///
    /// # Errors
    /// The file could not be removed.
    pub fn forget_cpus(&self) -> std::io::Result<()> {
        match std::fs::remove_file(self.dir.join("root/cpu_manager_state")) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    /// How it ended, if it has, and its last lines.
    pub fn ended(&mut self) -> Option<String> {
        let status = self.process.as_mut()?.ended()?;
        let log = std::fs::read_to_string(self.log_file()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        Some(format!("{status}: {}", lines[lines.len().saturating_sub(10)..].join("\n")))
    }

    fn log_file(&self) -> PathBuf {
        self.dir.join("kubelet.log")
    }
}
