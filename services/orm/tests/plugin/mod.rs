//! A resource plugin that is this test, and a meta-server that tells specs.
#![allow(dead_code, unreachable_pub)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use futures::Stream;
use oxalyst_proto::meta::v1 as meta;
use oxalyst_proto::meta::v1::meta_server::{Meta, MetaServer};
use oxalyst_proto::pluginregistration::v1 as intro;
use oxalyst_proto::pluginregistration::v1::registration_server::{
    Registration as Introduction, RegistrationServer as IntroductionServer,
};
use oxalyst_proto::resourceplugin::v1alpha1::registration_client::RegistrationClient;
use oxalyst_proto::resourceplugin::v1alpha1::resource_plugin_server::{ResourcePlugin, ResourcePluginServer};
use oxalyst_proto::resourceplugin::v1alpha1::*;
use tokio::net::UnixListener;
use tokio::sync::{oneshot, watch};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::{UnixListenerStream, WatchStream};
use tonic::{Request, Response, Status};

use crate::host::{DEADLINE, Host, Orm};

/// Tells the pods that it is told to tell.
#[derive(Clone)]
pub struct Specs(watch::Sender<Vec<meta::Pod>>);

/// How a plugin behaves, and what it was asked.
#[derive(Default)]
pub struct Conduct {
    /// Hints that it has; empty: no preference.
    pub hints: Vec<(Vec<u64>, bool)>,
    /// Errors with which it answers.
    pub hints_fail: Option<Status>,
    /// How often more it says that it is unavailable when it is asked for hints.
    pub unavailable: usize,
    pub allocate_fails: Option<Status>,
    pub remove_fails: Option<Status>,
    /// Calls that it never answers.
    pub hangs: bool,
    /// The same for `Allocate` alone.
    pub hangs_in_allocate: bool,
    /// What else it gives.
    pub company: BTreeMap<String, ResourceAllocationInfo>,
    pub info: ResourceAllocationInfo,
    /// What it gives these containers instead.
    pub infos: BTreeMap<String, ResourceAllocationInfo>,
    pub asked_hints: Vec<ResourceRequest>,
    pub allocated: Vec<ResourceRequest>,
    pub removed: Vec<String>,
    pub registered: Vec<intro::RegistrationStatus>,
}

/// The plugin; shared with the test.
#[derive(Clone)]
pub struct Plugin {
    pub name: String,
    pub versions: Vec<String>,
    pub conduct: Arc<Mutex<Conduct>>,
}

/// A thread of its own, so that all its connections end with it.
pub struct Serving(pub PathBuf, Option<oneshot::Sender<()>>, Option<JoinHandle<()>>);

impl Plugin {
    pub fn new(name: &str, hints: &[(&[u64], bool)]) -> Self {
        let hints = hints.iter().map(|(nodes, preferred)| (nodes.to_vec(), *preferred)).collect();
        let info = ResourceAllocationInfo {
            is_scalar_resource: true,
            allocated_quantity: 1.0,
            allocation_result: "dev-1".into(),
            envs: [("VISIBLE".to_owned(), "dev-1".to_owned())].into(),
            ..ResourceAllocationInfo::default()
        };
        let conduct = Conduct { hints, info, ..Conduct::default() };
        Self { name: name.into(), versions: vec!["v1alpha1".into()], conduct: Arc::new(Mutex::new(conduct)) }
    }

    pub fn now<T>(&self, of: impl FnOnce(&mut Conduct) -> T) -> T {
        of(&mut self.conduct.lock().unwrap())
    }

    /// Serves at this socket until it is stopped.
    pub fn serve(&self, socket: &Path) -> Serving {
        std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
        let _ = std::fs::remove_file(socket);
        let listener = std::os::unix::net::UnixListener::bind(socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        let server = tonic::transport::Server::builder()
            .add_service(ResourcePluginServer::new(self.clone()))
            .add_service(IntroductionServer::new(self.clone()));
        let (end, ended) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let incoming = UnixListenerStream::new(UnixListener::from_std(listener).unwrap());
                tokio::select! {
                    _ = server.serve_with_incoming(incoming) => {}
                    _ = ended => {}
                }
            });
        });
        Serving(socket.to_owned(), Some(end), Some(thread))
    }

    /// In the folder in which plugins are found.
    pub fn found(&self, host: &Host) -> Serving {
        self.serve(&host.dir.path().join("var/lib/katalyst/plugin-socks").join(self.file()))
    }

    /// Comes by itself.
    pub async fn register(&self, host: &Host, version: &str) -> Result<Serving, Status> {
        let dir = host.dir.path().join("var/lib/katalyst/resource-plugins");
        let registry = dir.join("kubelet.sock");
        until("the registry socket is there", async || registry.exists().then_some(())).await;
        let serving = self.serve(&dir.join(self.file()));
        let request = RegisterRequest {
            version: version.into(),
            endpoint: self.file(),
            resource_name: self.name.clone(),
            options: None,
        };
        let mut client = RegistrationClient::new(oxalyst_mesh::connect_to(registry));
        client.register(request).await.map(|_| serving)
    }

    fn file(&self) -> String {
        format!("{}.sock", self.name.replace('/', "_"))
    }

    async fn may_hang(&self) {
        if self.now(|conduct| conduct.hangs) {
            std::future::pending::<()>().await;
        }
    }
}

impl Serving {
    /// As a process that dies: the socket is gone, and every connection with it.
    pub fn stop(mut self) {
        drop(self.1.take());
        self.2.take().unwrap().join().unwrap();
        let _ = std::fs::remove_file(&self.0);
    }
}

#[tonic::async_trait]
impl Introduction for Plugin {
    async fn get_info(&self, _: Request<intro::InfoRequest>) -> Result<Response<intro::PluginInfo>, Status> {
        Ok(Response::new(intro::PluginInfo {
            r#type: "ResourcePlugin".into(),
            name: self.name.clone(),
            endpoint: String::new(),
            supported_versions: self.versions.clone(),
        }))
    }

    async fn notify_registration_status(
        &self,
        status: Request<intro::RegistrationStatus>,
    ) -> Result<Response<intro::RegistrationStatusResponse>, Status> {
        self.now(|conduct| conduct.registered.push(status.into_inner()));
        Ok(Response::new(intro::RegistrationStatusResponse {}))
    }
}

#[tonic::async_trait]
impl ResourcePlugin for Plugin {
    async fn get_topology_hints(
        &self,
        request: Request<ResourceRequest>,
    ) -> Result<Response<ResourceHintsResponse>, Status> {
        let request = request.into_inner();
        self.now(|conduct| conduct.asked_hints.push(request.clone()));
        self.may_hang().await;
        let left = self.now(|conduct| {
            let left = conduct.unavailable;
            conduct.unavailable = left.saturating_sub(1);
            left
        });
        if left > 0 {
            return Err(Status::unavailable("not now"));
        }
        if let Some(status) = self.now(|conduct| conduct.hints_fail.clone()) {
            return Err(status);
        }
        let hint = |(nodes, preferred): &(Vec<u64>, bool)| TopologyHint {
            nodes: nodes.clone(),
            preferred: *preferred,
        };
        let hints = self.now(|conduct| conduct.hints.iter().map(hint).collect());
        Ok(Response::new(ResourceHintsResponse {
            resource_hints: [(request.resource_name, ListOfTopologyHints { hints })].into(),
            ..ResourceHintsResponse::default()
        }))
    }

    async fn allocate(
        &self,
        request: Request<ResourceRequest>,
    ) -> Result<Response<ResourceAllocationResponse>, Status> {
        let request = request.into_inner();
        self.now(|conduct| conduct.allocated.push(request.clone()));
        if self.now(|conduct| conduct.hangs_in_allocate) {
            std::future::pending::<()>().await;
        }
        self.may_hang().await;
        if let Some(status) = self.now(|conduct| conduct.allocate_fails.clone()) {
            return Err(status);
        }
        let container = &request.container_name;
        let info = self.now(|conduct| conduct.infos.get(container).unwrap_or(&conduct.info).clone());
        let own = (request.resource_name, info);
        let company = self.now(|conduct| conduct.company.clone());
        Ok(Response::new(ResourceAllocationResponse {
            allocation_result: Some(ResourceAllocation {
                resource_allocation: company.into_iter().chain([own]).collect(),
            }),
            ..ResourceAllocationResponse::default()
        }))
    }

    async fn remove_pod(
        &self,
        request: Request<RemovePodRequest>,
    ) -> Result<Response<RemovePodResponse>, Status> {
        self.now(|conduct| conduct.removed.push(request.into_inner().pod_uid));
        self.may_hang().await;
        match self.now(|conduct| conduct.remove_fails.clone()) {
            Some(status) => Err(status),
            None => Ok(Response::new(RemovePodResponse {})),
        }
    }

    async fn get_resource_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<ResourcePluginOptions>, Status> {
        Ok(Response::new(ResourcePluginOptions {
            with_topology_alignment: true,
            ..ResourcePluginOptions::default()
        }))
    }

    async fn get_pod_topology_hints(
        &self,
        _: Request<PodResourceRequest>,
    ) -> Result<Response<PodResourceHintsResponse>, Status> {
        Err(Status::unimplemented("not asked here"))
    }

    async fn get_resources_allocation(
        &self,
        _: Request<GetResourcesAllocationRequest>,
    ) -> Result<Response<GetResourcesAllocationResponse>, Status> {
        Err(Status::unimplemented("not asked here"))
    }

    async fn get_topology_aware_resources(
        &self,
        _: Request<GetTopologyAwareResourcesRequest>,
    ) -> Result<Response<GetTopologyAwareResourcesResponse>, Status> {
        Err(Status::unimplemented("not asked here"))
    }

    async fn get_topology_aware_allocatable_resources(
        &self,
        _: Request<GetTopologyAwareAllocatableResourcesRequest>,
    ) -> Result<Response<GetTopologyAwareAllocatableResourcesResponse>, Status> {
        Err(Status::unimplemented("not asked here"))
    }

    async fn allocate_for_pod(
        &self,
        _: Request<PodResourceRequest>,
    ) -> Result<Response<PodResourceAllocationResponse>, Status> {
        Err(Status::unimplemented("not asked here"))
    }

    async fn pre_start_container(
        &self,
        _: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        Err(Status::unimplemented("not asked here"))
    }
}

impl Specs {
    pub fn serve(host: &Host) -> Self {
        let specs = Self(watch::Sender::default());
        let run = host.dir.path().join("run");
        std::fs::create_dir_all(&run).unwrap();
        let socket = UnixListener::bind(run.join("meta-server.sock")).unwrap();
        let server = tonic::transport::Server::builder().add_service(MetaServer::new(specs.clone()));
        tokio::spawn(server.serve_with_incoming(UnixListenerStream::new(socket)));
        specs
    }

    /// Tells these, and waits until they are known.
    pub async fn tell(&self, orm: &mut Orm, pods: &[meta::Pod]) {
        self.0.send_replace(pods.to_vec());
        let count = pods.len().to_string();
        fact(orm, "specs", |known| known == count).await;
    }
}

#[tonic::async_trait]
impl Meta for Specs {
    type WatchPodsStream = Pin<Box<dyn Stream<Item = Result<meta::PodList, Status>> + Send>>;

    async fn watch_pods(
        &self,
        _: Request<meta::WatchPodsRequest>,
    ) -> Result<Response<Self::WatchPodsStream>, Status> {
        let lists = WatchStream::new(self.0.subscribe());
        let list = |pods| Ok(meta::PodList { pods, ..meta::PodList::default() });
        Ok(Response::new(Box::pin(lists.map(list))))
    }

    async fn report_runtime(
        &self,
        _: Request<tonic::Streaming<meta::RuntimeEvent>>,
    ) -> Result<Response<meta::ReportRuntimeReply>, Status> {
        Err(Status::unimplemented("not asked here"))
    }

    async fn list_pods(&self, _: Request<meta::ListPodsRequest>) -> Result<Response<meta::PodList>, Status> {
        Err(Status::unimplemented("not asked here"))
    }

    async fn get_node(&self, _: Request<meta::GetNodeRequest>) -> Result<Response<meta::Node>, Status> {
        Err(Status::unimplemented("not asked here"))
    }
}

pub async fn until<T>(what: &str, mut holds: impl AsyncFnMut() -> Option<T>) -> T {
    let end = Instant::now() + DEADLINE;
    loop {
        if let Some(it) = holds().await {
            return it;
        }
        assert!(Instant::now() < end, "never: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits for a fact that is so.
pub async fn fact(orm: &mut Orm, name: &str, is: impl Fn(&str) -> bool) {
    until(&format!("fact {name}"), async || {
        let facts = orm.status().await.ok()?.facts;
        facts.get(name).filter(|value| is(value)).map(|_| ())
    })
    .await;
}

/// A pod with one container that asks for CPUs and for units of other resources.
pub fn spec(uid: &str, level: &str, milli: u64, extended: &[(&str, u64)]) -> meta::Pod {
    let cpu = Some(milli).filter(|milli| *milli > 0);
    let container = meta::PodContainer {
        name: "app".into(),
        r#type: "app".into(),
        request_milli_cpu: cpu,
        limit_milli_cpu: cpu,
        request_memory_bytes: Some(1 << 20),
        limit_memory_bytes: Some(1 << 20),
        extended: extended.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect(),
        ..meta::PodContainer::default()
    };
    meta::Pod {
        uid: uid.into(),
        namespace: "default".into(),
        name: uid.into(),
        annotations: [("katalyst.kubewharf.io/qos_level".to_owned(), level.to_owned())].into(),
        kubernetes_qos: "Guaranteed".into(),
        told_by: vec!["kubelet".into()],
        containers: vec![container],
        ..meta::Pod::default()
    }
}
