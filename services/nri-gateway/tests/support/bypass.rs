//! A gateway in bypass mode between a tree of cgroups, an imitated orm and an imitated meta-server.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use nri_gateway::settings::Mode;
use nri_gateway::{SERVICE, Settings, gateway_until};
use oxalyst_cgroups::fixture::{Fixture, Layout};
use oxalyst_cgroups::{CgroupPath, Controller, Hierarchy, read_text};
use oxalyst_mesh::Mesh;
use oxalyst_proto::gateway::v1::gateway_client::GatewayClient;
use oxalyst_proto::gateway::v1::{AppliedContainer, ListContainersReply, ListContainersRequest};
use oxalyst_proto::mesh::v1::GetStatusRequest;
use oxalyst_proto::mesh::v1::introspection_client::IntrospectionClient;
use oxalyst_proto::meta::v1::meta_server::{Meta, MetaServer};
use oxalyst_proto::meta::v1::runtime_event::Event;
use oxalyst_proto::meta::v1::{
    GetNodeRequest, ListPodsRequest, Pod, PodContainer, PodList, ReportRuntimeReply, RuntimeEvent,
    RuntimeSnapshot, WatchPodsRequest,
};
use tokio::net::UnixListener;
use tokio::sync::{oneshot, watch};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::{UnixListenerStream, WatchStream};
use tonic::{Request, Response, Status, Streaming};

use super::orm::{FakeOrm, QOS, Serving};
use super::until;

/// A pod as the kubelet lists it, with one container.
pub fn listed(uid: &str, level: &str, container: &str) -> Pod {
    let container = PodContainer {
        name: "main".into(),
        container_id: container.into(),
        r#type: "app".into(),
        request_milli_cpu: Some(1_000),
        ..PodContainer::default()
    };
    Pod {
        uid: uid.into(),
        namespace: "default".into(),
        name: format!("pod-{uid}"),
        annotations: [(QOS.to_owned(), level.to_owned())].into(),
        told_by: vec!["kubelet".into()],
        containers: vec![container],
        ..Pod::default()
    }
}

#[derive(Clone)]
pub struct FakeMeta {
    pods: watch::Sender<PodList>,
    told: Arc<Mutex<Vec<RuntimeSnapshot>>>,
}

impl FakeMeta {
    pub fn set(&self, pods: Vec<Pod>) {
        self.pods.send_replace(PodList { pods, ..PodList::default() });
    }

    /// What the gateway told last.
    pub fn told(&self) -> Option<RuntimeSnapshot> {
        self.told.lock().unwrap().last().cloned()
    }

    fn serve(&self, run_dir: &Path) {
        let incoming = UnixListenerStream::new(UnixListener::bind(run_dir.join("meta-server.sock")).unwrap());
        let server = tonic::transport::Server::builder().add_service(MetaServer::new(self.clone()));
        tokio::spawn(server.serve_with_incoming(incoming));
    }
}

#[tonic::async_trait]
impl Meta for FakeMeta {
    type WatchPodsStream =
        std::pin::Pin<Box<dyn tokio_stream::Stream<Item = Result<PodList, Status>> + Send>>;

    async fn report_runtime(
        &self,
        request: Request<Streaming<RuntimeEvent>>,
    ) -> Result<Response<ReportRuntimeReply>, Status> {
        let mut events = request.into_inner();
        while let Some(event) = events.message().await? {
            if let Some(Event::Snapshot(all)) = event.event {
                self.told.lock().unwrap().push(all);
            }
        }
        Ok(Response::new(ReportRuntimeReply {}))
    }

    async fn list_pods(&self, _: Request<ListPodsRequest>) -> Result<Response<PodList>, Status> {
        Ok(Response::new(self.pods.borrow().clone()))
    }

    async fn watch_pods(
        &self,
        _: Request<WatchPodsRequest>,
    ) -> Result<Response<Self::WatchPodsStream>, Status> {
        Ok(Response::new(Box::pin(WatchStream::new(self.pods.subscribe()).map(Ok))))
    }

    async fn get_node(
        &self,
        _: Request<GetNodeRequest>,
    ) -> Result<Response<oxalyst_proto::meta::v1::Node>, Status> {
        Err(Status::unimplemented("not asked here"))
    }
}

pub struct Plain {
    pub dir: tempfile::TempDir,
    pub orm: FakeOrm,
    pub meta: FakeMeta,
    pub settings: Settings,
    serving: Option<Serving>,
    gateways: Vec<(oneshot::Sender<()>, tokio::task::JoinHandle<()>)>,
}

impl Plain {
    /// A machine without a tree of cgroups, without services.
    pub fn new(mode: Mode) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut settings = Settings {
            mode,
            bypass_after_ms: 300,
            bypass_scan_ms: 50,
            reconcile_period_ms: 200,
            ..Settings::default()
        };
        settings.common.run_dir = dir.path().join("run");
        settings.common.host_root = dir.path().join("host");
        settings.nri_socket = dir.path().join("nri.sock");
        std::fs::create_dir_all(&settings.common.run_dir).unwrap();
        std::fs::create_dir_all(&settings.common.host_root).unwrap();
        let meta = FakeMeta { pods: watch::Sender::new(PodList::default()), told: Arc::default() };
        Self { orm: FakeOrm::new(), meta, settings, serving: None, gateways: Vec::new(), dir }
    }

    pub fn host_root(&self) -> PathBuf {
        self.settings.common.host_root.clone()
    }

    /// An imitated tree with these cgroups, on all CPUs.
    pub fn tree(&self, layout: Layout, paths: &[&str]) -> Fixture {
        let fixture = Fixture::create(&self.host_root(), layout).unwrap();
        for path in paths {
            self.make(&fixture, path);
        }
        fixture
    }

    /// Makes a cgroup, and those above it, as they are before anybody narrows them.
    pub fn make(&self, fixture: &Fixture, path: &str) {
        for (end, _) in path.match_indices('/').chain([(path.len(), "")]) {
            let at = CgroupPath::new(&path[..end]).unwrap();
            if at.as_str().is_empty() || fixture.dir(Controller::Cpuset, &at).join("cpuset.cpus").exists() {
                continue;
            }
            fixture.cgroup(&at).unwrap();
            let has_own_tree = fixture.dir(Controller::Cpuset, &at) != fixture.dir(Controller::Memory, &at);
            let holds = if has_own_tree { "cpuset.effective_cpus" } else { "cpuset.cpus.effective" };
            fixture.set(Controller::Cpuset, &at, holds, "0-3\n").unwrap();
            if has_own_tree {
                fixture.set(Controller::Cpuset, &at, "cpuset.cpus", "0-3\n").unwrap();
                fixture.set(Controller::Cpuset, &at, "cpuset.mems", "0\n").unwrap();
            }
        }
    }

    pub fn start(&mut self) {
        self.serving = Some(self.orm.serve(&self.settings.common.run_dir));
        self.meta.serve(&self.settings.common.run_dir);
        self.start_gateway();
    }

    /// One more gateway of the same settings.
    pub fn start_gateway(&mut self) {
        let settings = self.settings.clone();
        let mesh = Mesh::new(SERVICE, "0.0.0", &settings.common);
        let (stop, stopped) = oneshot::channel();
        let task = actix::spawn(async move {
            let stopped = async { stopped.await.unwrap_or_default() };
            gateway_until(settings, mesh, stopped).await.unwrap();
        });
        self.gateways.push((stop, task));
    }

    /// Ends the gateway that was started first, and waits for it.
    pub async fn stop_first(&mut self) {
        let (stop, task) = self.gateways.remove(0);
        let _ = stop.send(());
        task.await.unwrap();
    }

    /// Ends the gateway that was started last, and waits for it.
    pub async fn stop_last(&mut self) {
        let (stop, task) = self.gateways.pop().unwrap();
        let _ = stop.send(());
        task.await.unwrap();
    }

    pub fn reads(&self, path: &str, file: &str) -> String {
        let hierarchy = Hierarchy::detect(&self.host_root()).unwrap();
        let dir = hierarchy.dir(Controller::Cpuset, &CgroupPath::new(path).unwrap()).unwrap();
        read_text(&dir.join(file)).unwrap_or_default()
    }

    pub async fn runs_on(&self, path: &str, cpus: &str) {
        let what = format!("{path} on {cpus}");
        until(&what, async || (self.reads(path, "cpuset.cpus") == cpus).then_some(())).await;
    }

    pub async fn list(&self) -> Option<ListContainersReply> {
        let channel = oxalyst_mesh::connect(&self.settings.common.run_dir, SERVICE);
        let reply = GatewayClient::new(channel).list_containers(ListContainersRequest {}).await;
        reply.ok().map(Response::into_inner)
    }

    pub async fn applied(&self, id: &str) -> Option<AppliedContainer> {
        self.list().await?.containers.into_iter().find(|c| c.container_id == id)
    }

    pub async fn status(&self) -> Option<oxalyst_proto::mesh::v1::Status> {
        let channel = oxalyst_mesh::connect(&self.settings.common.run_dir, SERVICE);
        let reply = IntrospectionClient::new(channel).get_status(GetStatusRequest {}).await;
        reply.ok().map(Response::into_inner)
    }

    /// Waits until this is pending with such a detail.
    pub async fn lacks(&self, name: &str, detail: &str) {
        until(&format!("{name}: {detail}"), async || {
            let status = self.status().await?;
            status.pending.iter().any(|p| p.name == name && p.detail.contains(detail)).then_some(())
        })
        .await;
    }

    pub async fn mode(&self, mode: &str) {
        until(&format!("mode {mode}"), async || {
            (self.status().await?.facts.get("mode").map(String::as_str) == Some(mode)).then_some(())
        })
        .await;
    }
}
