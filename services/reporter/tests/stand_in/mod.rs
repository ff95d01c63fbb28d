//! The reporter's binary among imitated peers: an allocator and a meta-server that say what the test tells them to.
#![allow(dead_code, unreachable_pub)]

use std::path::Path;
use std::pin::Pin;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use oxalyst_mesh::{connect, socket_path};
use oxalyst_proto::mesh::v1::introspection_client::IntrospectionClient;
use oxalyst_proto::mesh::v1::{GetStatusRequest, Status as ProcessStatus};
use oxalyst_proto::meta::v1::meta_server::{Meta, MetaServer};
use oxalyst_proto::meta::v1::{
    GetNodeRequest, ListPodsRequest, Node, PodList, ReportRuntimeReply, RuntimeEvent, WatchPodsRequest,
};
use oxalyst_proto::orm::v1::allocator_server::{Allocator, AllocatorServer};
use oxalyst_proto::orm::v1::*;
use tokio::net::UnixListener;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio_stream::wrappers::{UnixListenerStream, WatchStream};
use tokio_stream::{Stream, StreamExt as _};
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

pub const PATIENCE: Duration = Duration::from_secs(30);

type Events<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// What both peers say. The topology: two sockets, a NUMA node of two CPUs in each.
#[derive(Clone)]
pub struct Peers {
    state: watch::Sender<State>,
    node: Node,
}

/// The reporter's process, its folder and its peers.
pub struct Bench {
    pub peers: Peers,
    pub run_dir: tempfile::TempDir,
    pub child: Child,
    introspection: IntrospectionClient<tonic::transport::Channel>,
}

// === impl Peers ===

impl Peers {
    /// Starts both peers on their sockets in `run_dir`.
    pub fn start(run_dir: &Path) -> Self {
        let state = State { generation: 1, online: "0-3".into(), ..State::default() };
        let node = Node { name: "node-a".into(), memory_bytes: 4 << 30, ..Node::default() };
        let peers = Self { state: watch::Sender::new(state), node };
        let listen =
            |service| UnixListenerStream::new(UnixListener::bind(socket_path(run_dir, service)).unwrap());
        let (orm, meta) = (listen("orm"), listen("meta-server"));
        tokio::spawn(
            Server::builder().add_service(AllocatorServer::new(peers.clone())).serve_with_incoming(orm),
        );
        tokio::spawn(Server::builder().add_service(MetaServer::new(peers.clone())).serve_with_incoming(meta));
        peers
    }

    /// The allocator's ledger moves on: these pods, each (uid, cpus), have exclusive sets now.
    pub fn exclusive(&self, pods: &[(&str, &str)]) {
        self.state.send_modify(|state| {
            state.generation += 1;
            state.pods = pods
                .iter()
                .map(|(uid, cpus)| PodPlacement {
                    pod_uid: (*uid).into(),
                    namespace: "default".into(),
                    name: format!("pod-{uid}"),
                    cpus: (*cpus).into(),
                    mems: "0-1".into(),
                    exclusive: true,
                    settled: true,
                    ..PodPlacement::default()
                })
                .collect();
        });
    }

    pub fn generation(&self) -> u64 {
        self.state.borrow().generation
    }
}

fn unused<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented("not asked of by the reporter"))
}

#[tonic::async_trait]
impl Allocator for Peers {
    async fn admit_pod(&self, _: Request<AdmitPodRequest>) -> Result<Response<AdmitReply>, Status> {
        unused()
    }
    async fn admit_container(
        &self,
        _: Request<AdmitContainerRequest>,
    ) -> Result<Response<AdmitReply>, Status> {
        unused()
    }
    async fn resize_container(
        &self,
        _: Request<ResizeContainerRequest>,
    ) -> Result<Response<AdmitReply>, Status> {
        unused()
    }
    async fn release_pod(&self, _: Request<ReleasePodRequest>) -> Result<Response<ReleasePodReply>, Status> {
        unused()
    }
    async fn reconcile(&self, _: Request<ReconcileRequest>) -> Result<Response<ReconcileReply>, Status> {
        unused()
    }

    type WatchPlacementsStream = Events<PlacementEvent>;

    async fn watch_placements(
        &self,
        _: Request<WatchPlacementsRequest>,
    ) -> Result<Response<Self::WatchPlacementsStream>, Status> {
        let events = WatchStream::new(self.state.subscribe())
            .map(|state| Ok(PlacementEvent { generation: state.generation, ..PlacementEvent::default() }));
        Ok(Response::new(Box::pin(events)))
    }
    async fn get_state(&self, _: Request<GetStateRequest>) -> Result<Response<State>, Status> {
        Ok(Response::new(self.state.borrow().clone()))
    }
    async fn get_topology(&self, _: Request<GetTopologyRequest>) -> Result<Response<Topology>, Status> {
        let numa = |id: u32, cpus: &str, distances: [u32; 2]| NumaNode {
            id,
            socket: Some(id),
            cpus: cpus.into(),
            memory_bytes: 2 << 30,
            distances: distances.into(),
            huge_pages: Default::default(),
        };
        Ok(Response::new(Topology {
            nodes: vec![numa(0, "0-1", [10, 20]), numa(1, "2-3", [20, 10])],
            online: "0-3".into(),
            ..Topology::default()
        }))
    }
}

#[tonic::async_trait]
impl Meta for Peers {
    async fn report_runtime(
        &self,
        _: Request<Streaming<RuntimeEvent>>,
    ) -> Result<Response<ReportRuntimeReply>, Status> {
        unused()
    }
    async fn list_pods(&self, _: Request<ListPodsRequest>) -> Result<Response<PodList>, Status> {
        Ok(Response::new(PodList::default()))
    }

    type WatchPodsStream = Events<PodList>;

    async fn watch_pods(
        &self,
        _: Request<WatchPodsRequest>,
    ) -> Result<Response<Self::WatchPodsStream>, Status> {
        let silent = tokio_stream::once(Ok(PodList::default())).chain(tokio_stream::pending());
        Ok(Response::new(Box::pin(silent)))
    }
    async fn get_node(&self, _: Request<GetNodeRequest>) -> Result<Response<Node>, Status> {
        Ok(Response::new(self.node.clone()))
    }
}

// === impl Bench ===

impl Bench {
    /// Peers and the reporter's process with these settings.
    pub async fn start(set: &[String]) -> Self {
        let run_dir = tempfile::tempdir().unwrap();
        let peers = Peers::start(run_dir.path());
        let child = command(run_dir.path(), set).spawn().unwrap();
        Self::around(peers, run_dir, child)
    }

    /// A bench of what runs already.
    pub fn around(peers: Peers, run_dir: tempfile::TempDir, child: Child) -> Self {
        let introspection = IntrospectionClient::new(connect(run_dir.path(), "reporter"));
        Self { peers, run_dir, child, introspection }
    }

    /// Waits until this many attempts have failed.
    pub async fn failures(&mut self, least: u64) {
        self.status_when("enough failures", |s| {
            s.facts.get("failures").is_some_and(|n| n.parse::<u64>().unwrap() >= least)
        })
        .await;
    }

    /// The reporter's own status, once `holds` holds.
    pub async fn status_when(&mut self, what: &str, holds: impl Fn(&ProcessStatus) -> bool) -> ProcessStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = self.introspection.get_status(GetStatusRequest {}).await;
            match &answer {
                Ok(status) if holds(status.get_ref()) => return answer.unwrap().into_inner(),
                _ => assert!(Instant::now() < deadline, "never {what}: {answer:?}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until what the allocator says now is published, and tells how many writes that took so far.
    pub async fn published(&mut self) -> u64 {
        let generation = self.peers.generation().to_string();
        let status = self
            .status_when("the newest generation published", |s| {
                s.facts.get("published_generation") == Some(&generation)
            })
            .await;
        status.facts["patches_sent"].parse().unwrap()
    }

    /// What is pending under this name, once something is.
    pub async fn pending(&mut self, name: &str) -> String {
        let status = self.status_when(name, |s| s.pending.iter().any(|p| p.name == name)).await;
        status.pending.into_iter().find(|p| p.name == name).unwrap().detail
    }
}

/// The reporter's command line.
pub fn command(run_dir: &Path, set: &[String]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_reporter"));
    command.arg("--set").arg(format!("common.run_dir={}", run_dir.display()));
    for one in set {
        command.arg("--set").arg(one);
    }
    command.stderr(Stdio::inherit()).kill_on_drop(true);
    command
}

/// Lines that a process wrote to standard error, gathered as they come.
pub fn gather(child: &mut Child) -> Arc<Mutex<Vec<String>>> {
    use tokio::io::{AsyncBufReadExt as _, BufReader};
    let lines = Arc::new(Mutex::new(Vec::new()));
    let mut reader = BufReader::new(child.stderr.take().unwrap()).lines();
    let into = lines.clone();
    tokio::spawn(async move {
        while let Ok(Some(line)) = reader.next_line().await {
            into.lock().unwrap().push(line);
        }
    });
    lines
}
