//! The real binary on a made-up machine, and a client of it.
// Each test file uses a part of it.
#![allow(dead_code, unreachable_pub)]

use std::collections::BTreeMap;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use oxalyst_proto::mesh::v1::introspection_client::IntrospectionClient;
use oxalyst_proto::mesh::v1::{GetStatusRequest, Status};
use oxalyst_proto::orm::v1::admit_reply::Outcome;
use oxalyst_proto::orm::v1::allocator_client::AllocatorClient;
use oxalyst_proto::orm::v1::{
    AdmitContainerRequest, AdmitPodRequest, AdmitReply, GetStateRequest, PodPlacement, Refusal,
    ReleasePodRequest, State,
};
use oxalyst_proto::runtime::v1::{Container, Resources, Sandbox};
use tempfile::TempDir;
use tonic::transport::Channel;

pub const DEADLINE: Duration = Duration::from_secs(20);

/// A folder with a machine, a run folder and a ledger.
pub struct Host {
    pub dir: TempDir,
}

/// The process; killed when dropped.
pub struct Orm {
    pub child: Child,
    pub client: AllocatorClient<Channel>,
    pub introspection: IntrospectionClient<Channel>,
}

impl Host {
    /// Two CPUs on one node.
    pub fn new() -> Self {
        Self::with_machine(2, 1)
    }

    /// So many CPUs without threads, in equal parts on so many nodes of one socket.
    pub fn with_machine(cpus: u32, nodes: u32) -> Self {
        let host = Self { dir: tempfile::tempdir().unwrap() };
        let list = |n: u32| if n == 1 { "0\n".to_owned() } else { format!("0-{}\n", n - 1) };
        for cpu in 0..cpus {
            let file = |name: &str| format!("sys/devices/system/cpu/cpu{cpu}/topology/{name}");
            host.write(&file("physical_package_id"), "0\n");
            host.write(&file("thread_siblings_list"), &format!("{cpu}\n"));
            host.write(&file("core_cpus_list"), &format!("{cpu}\n"));
        }
        for name in ["cpu/online", "cpu/present"] {
            host.write(&format!("sys/devices/system/{name}"), &list(cpus));
        }
        for name in ["node/online", "node/has_memory"] {
            host.write(&format!("sys/devices/system/{name}"), &list(nodes));
        }
        for node in 0..nodes {
            let file = |name: &str| format!("sys/devices/system/node/node{node}/{name}");
            let (first, last) = (node * cpus / nodes, (node + 1) * cpus / nodes - 1);
            host.write(&file("cpulist"), &format!("{first}-{last}\n"));
            let distances: Vec<&str> =
                (0..nodes).map(|other| if other == node { "10" } else { "20" }).collect();
            host.write(&file("distance"), &format!("{}\n", distances.join(" ")));
            host.write(&file("meminfo"), &format!("Node {node} MemTotal:       16777216 kB\n"));
        }
        host
    }

    pub fn write(&self, path: &str, text: &str) {
        let path = self.dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    pub fn command(&self, run: &str, more: &[&str]) -> Command {
        let at = |name: &str| self.dir.path().join(name).display().to_string();
        let mut command = Command::new(env!("CARGO_BIN_EXE_orm"));
        command
            .args(["--set", &format!("common.run_dir={}", at(run))])
            .args(["--set", &format!("common.host_root={}", self.dir.path().display())])
            .args(["--set", &format!("ledger_dir={}", at("ledger"))])
            .args(["--set", "watch_period_s=1", "--set", "absent_grace_s=1"])
            .args(more)
            .stderr(Stdio::piped());
        command
    }

    pub async fn start(&self, more: &[&str]) -> Orm {
        let mut orm = self.spawn(more);
        let end = Instant::now() + DEADLINE;
        while orm.client.get_state(GetStateRequest::default()).await.is_err() {
            assert!(Instant::now() < end, "orm did not answer in time");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        orm
    }

    /// Starts it, and does not wait for an answer.
    pub fn spawn(&self, more: &[&str]) -> Orm {
        self.attach(self.command("run", more).stderr(Stdio::inherit()).spawn().unwrap())
    }

    /// A process that serves in the folder `run`.
    pub fn attach(&self, child: Child) -> Orm {
        let channel = oxalyst_mesh::connect(&self.dir.path().join("run"), "orm");
        Orm {
            child,
            client: AllocatorClient::new(channel.clone()),
            introspection: IntrospectionClient::new(channel),
        }
    }

    /// Runs it where it cannot start, and gives what it said.
    pub async fn fails(&self, run: &str, more: &[&str]) -> Output {
        let mut child = self.command(run, more).spawn().unwrap();
        let end = Instant::now() + DEADLINE;
        while child.try_wait().unwrap().is_none() {
            if Instant::now() > end {
                child.kill().unwrap();
                panic!("orm was expected to end by itself");
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        child.wait_with_output().unwrap()
    }
}

impl Drop for Orm {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Orm {
    pub async fn admit(&mut self, sandbox: &Sandbox) -> AdmitReply {
        let request = AdmitPodRequest { sandbox: Some(sandbox.clone()), ..AdmitPodRequest::default() };
        self.client.admit_pod(request).await.unwrap().into_inner()
    }

    pub async fn admit_container(&mut self, sandbox: &Sandbox, shares: u64) -> AdmitReply {
        let container = Container { resources: told(shares), ..Container::default() };
        let request = AdmitContainerRequest {
            sandbox: Some(sandbox.clone()),
            container: Some(container),
            ..AdmitContainerRequest::default()
        };
        self.client.admit_container(request).await.unwrap().into_inner()
    }

    pub async fn release(&mut self, uid: &str, sandbox_id: &str) -> bool {
        let request = ReleasePodRequest { pod_uid: uid.into(), sandbox_id: sandbox_id.into() };
        self.client.release_pod(request).await.unwrap().into_inner().released
    }

    pub async fn status(&mut self) -> Result<Status, tonic::Status> {
        self.introspection.get_status(GetStatusRequest {}).await.map(tonic::Response::into_inner)
    }

    pub async fn state(&mut self) -> State {
        self.client.get_state(GetStateRequest::default()).await.unwrap().into_inner()
    }

    pub async fn cpus(&mut self) -> BTreeMap<String, String> {
        self.state().await.pods.into_iter().map(|pod| (pod.pod_uid, pod.cpus)).collect()
    }
}

pub fn told(shares: u64) -> Option<Resources> {
    Some(Resources { cpu_shares: Some(shares), ..Resources::default() })
}

pub fn sandbox(uid: &str, level: &str, shares: Option<u64>) -> Sandbox {
    Sandbox {
        sandbox_id: format!("{uid}-1"),
        pod_uid: uid.into(),
        namespace: "default".into(),
        name: uid.into(),
        annotations: [("katalyst.kubewharf.io/qos_level".to_owned(), level.to_owned())].into(),
        resources: shares.and_then(told),
        ..Sandbox::default()
    }
}

pub fn placed(reply: &AdmitReply) -> &PodPlacement {
    match &reply.outcome {
        Some(Outcome::Placed(placed)) => placed,
        other => panic!("expected a placement, got {other:?}"),
    }
}

pub fn refused(reply: &AdmitReply) -> &Refusal {
    match &reply.outcome {
        Some(Outcome::Refused(refusal)) => refusal,
        other => panic!("expected a refusal, got {other:?}"),
    }
}
