//! What must hold of containers that are systemd's scopes, in bypass mode on cgroup v2. It is meant for the machine of
//! `lab/vm-run.sh` with systemd as its first process; runc makes the containers through it. Ends with a panic where something does
//! not hold.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    missing_docs
)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use integration::mesh::Mesh;
use integration::runtime::poll_until;
use serde_json::{Value, json};

/// Software emulation on a machine that is busy compiling.
const LIMIT: Duration = Duration::from_secs(120);
/// What the runtime asks for each container.
const ASKED: &str = "0-5";
/// All CPUs but the one that is kept for the system.
const POOL: &str = "1-7";
const UID: &str = "6a1f6e0c_1111_2222_3333_444455556666";

/// A container, and the unit that it is.
struct Scope {
    id: String,
    unit: String,
    cgroup: PathBuf,
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let start = Instant::now();
    let said = |what: &str| println!("{:4} s  {what}", start.elapsed().as_secs());
    assert_eq!(std::fs::read_to_string("/proc/1/comm").unwrap().trim(), "systemd");
    said(run("systemctl", &["--version"]).lines().next().unwrap());
    let folder = tempfile::Builder::new().prefix("oxalyst-").tempdir().unwrap();

    let slice = format!("kubepods-besteffort-pod{UID}.slice");
    let pod = Scope::run(folder.path(), &slice, 'a');
    let stranger = Scope::run(folder.path(), "strangers.slice", 'b');
    for scope in [&pod, &stranger] {
        assert_eq!((scope.cpus(), scope.property("AllowedCPUs")), (ASKED.to_owned(), ASKED.to_owned()));
    }
    said("runc has told systemd of both containers");

    // What a container suffers of whom systemd is not told.
    std::fs::write(stranger.cgroup.join("cpuset.cpus"), POOL).unwrap();
    assert_eq!(stranger.cpus(), POOL);
    stranger.change_weight(77);
    stranger.becomes(ASKED).await;
    said("what systemd is not told of, it undoes when the unit is changed");

    let mut mesh = Mesh::on(folder.path(), Path::new("/"), &folder.path().join("no-runtime")).unwrap();
    mesh.set("orm", "reserved_cpus=0");
    mesh.set("nri-gateway", "mode=bypass");
    mesh.set("nri-gateway", "common.log=info,nri_gateway::kernel=debug");
    mesh.start("orm").unwrap();
    mesh.start("nri-gateway").unwrap();
    pod.becomes(POOL).await;
    pod.told("AllowedCPUs", POOL, &mesh).await;
    pod.told("AllowedMemoryNodes", "0-3", &mesh).await;
    assert_eq!(pod.cpus(), POOL);
    said("the pod is on the share pool, and systemd knows");

    // With nobody there who could mend it.
    mesh.kill("nri-gateway").await.unwrap();
    for (what, command) in [("a daemon-reload", "daemon-reload"), ("a daemon-reexec", "daemon-reexec")] {
        run("systemctl", &[command]);
        pod.change_weight(if command == "daemon-reload" { 78 } else { 79 });
        // It is systemd's word for it that the change has been made.
        assert_eq!(pod.read("cpu.weight"), pod.property("CPUWeight"));
        assert_eq!((pod.cpus(), pod.property("AllowedCPUs")), (POOL.to_owned(), POOL.to_owned()), "{what}");
        assert_eq!(pod.read("cpuset.mems"), "0-3", "{what}");
        said(&format!("it outlives {what} and a change of the unit"));
    }

    // Somebody else tells systemd other CPUs, while the gateway is away and then beside it: ours come back, in both places.
    for others in ["6", "5"] {
        run("systemctl", &["set-property", "--runtime", &pod.unit, &format!("AllowedCPUs={others}")]);
        if others == "6" {
            assert_eq!(pod.cpus(), others);
            mesh.start("nri-gateway").unwrap();
        }
        pod.becomes(POOL).await;
        pod.told("AllowedCPUs", POOL, &mesh).await;
    }
    said("another's word to systemd is taken back");

    assert_eq!((stranger.cpus(), stranger.property("AllowedCPUs")), (ASKED.to_owned(), ASKED.to_owned()));
    mesh.stop().await.unwrap();
    for scope in [pod, stranger] {
        run("runc", &["--systemd-cgroup", "delete", "--force", &scope.id]);
    }
    said("all holds");
}

// === impl Scope ===

impl Scope {
    /// A container of runc's, made through systemd.
    fn run(folder: &Path, slice: &str, letter: char) -> Self {
        let id: String = std::iter::repeat_n(letter, 64).collect();
        let bundle = folder.join(&id);
        let bin = bundle.join("rootfs/bin");
        std::fs::create_dir_all(&bin).unwrap();
        std::fs::copy("/usr/bin/busybox", bin.join("busybox")).unwrap();
        run("runc", &["spec", "--bundle", bundle.to_str().unwrap()]);
        let config = bundle.join("config.json");
        let mut spec: Value = serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
        spec["process"]["terminal"] = json!(false);
        spec["process"]["args"] = json!(["/bin/busybox", "sleep", "100000"]);
        spec["linux"]["cgroupsPath"] = json!(format!("{slice}:cri-containerd:{id}"));
        spec["linux"]["resources"]["cpu"] = json!({"cpus": ASKED, "shares": 1024});
        std::fs::write(&config, spec.to_string()).unwrap();
        let mut command = Command::new("runc");
        command.args(["--systemd-cgroup", "run", "--detach", "--bundle"]).arg(&bundle).arg(&id);
        // It keeps them open for the container.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
        assert!(command.status().unwrap().success(), "runc run {id}");
        let unit = format!("cri-containerd-{id}.scope");
        let placed = run("systemctl", &["show", "--value", "--property=ControlGroup", &unit]);
        let cgroup = Path::new("/sys/fs/cgroup").join(placed.trim().trim_start_matches('/'));
        assert!(cgroup.is_dir(), "{}", cgroup.display());
        Self { id, unit, cgroup }
    }

    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.cgroup.join(file)).unwrap().trim().to_owned()
    }

    fn cpus(&self) -> String {
        self.read("cpuset.cpus")
    }

    fn property(&self, name: &str) -> String {
        let property = format!("--property={name}");
        run("systemctl", &["show", "--value", &property, &self.unit]).trim().to_owned()
    }

    fn change_weight(&self, weight: u32) {
        run("systemctl", &["set-property", "--runtime", &self.unit, &format!("CPUWeight={weight}")]);
    }

    async fn becomes(&self, cpus: &str) {
        let agreed = poll_until(LIMIT, async || {
            let now = self.cpus();
            if now == cpus { Ok(()) } else { Err(now) }
        });
        agreed.await.unwrap_or_else(|now| panic!("{} has {now}, not {cpus}", self.unit));
    }

    async fn told(&self, property: &str, list: &str, mesh: &Mesh) {
        let agreed = poll_until(LIMIT, async || {
            let now = self.property(property);
            if now == list { Ok(()) } else { Err(now) }
        });
        let outcome = agreed.await;
        outcome.unwrap_or_else(|now| {
            panic!(
                "{property} of {} is {now:?}, not {list}; the gateway:\n{}",
                self.unit,
                mesh.log("nri-gateway")
            )
        });
    }
}

/// What a program says; it must succeed.
fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{program} {arguments:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}
