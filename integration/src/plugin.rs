//! A resource plugin that gives what it is told to give, on a thread of its own so that it can end like a process.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use oxalyst_proto::pluginregistration::v1 as intro;
use oxalyst_proto::pluginregistration::v1::registration_server::{Registration, RegistrationServer};
use oxalyst_proto::resourceplugin::v1alpha1::resource_plugin_server::{ResourcePlugin, ResourcePluginServer};
use oxalyst_proto::resourceplugin::v1alpha1::*;
use tokio::net::UnixListener;
use tokio::sync::oneshot;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

/// Where plugins are found, below the host's root.
const FOLDER: &str = "var/lib/katalyst/plugin-socks";

/// How a plugin behaves, and what it was asked.
#[derive(Debug, Default)]
pub struct Conduct {
    /// What it gives, by container.
    pub gives: BTreeMap<String, ResourceAllocationInfo>,
    /// The error with which it answers hints.
    pub refuses: Option<Status>,
    /// What it was asked to give.
    pub allocated: Vec<ResourceRequest>,
    /// Pods of which it was told that they are gone.
    pub removed: Vec<String>,
}

/// A plugin. What it did is kept when it ends.
#[derive(Clone, Debug)]
pub struct FakePlugin {
    resource: String,
    conduct: Arc<Mutex<Conduct>>,
}

/// It serves until this is dropped: then its socket is gone, and every connection with it.
#[derive(Debug)]
pub struct ServedPlugin {
    socket: PathBuf,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

// === impl FakePlugin ===

impl FakePlugin {
    /// It gives out this resource, and serves nobody yet.
    pub fn new(resource: &str) -> Self {
        Self { resource: resource.to_owned(), conduct: Arc::default() }
    }

    /// Its conduct, to be read or changed.
    pub fn conduct(&self) -> MutexGuard<'_, Conduct> {
        self.conduct.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves where the allocator of this host looks for plugins.
    ///
    /// # Errors
    /// The socket cannot be made.
    pub fn serve(&self, host_root: &Path) -> io::Result<ServedPlugin> {
        self.serve_in(&host_root.join(FOLDER))
    }

    /// Serves in this folder, which is made if it is not there.
    ///
    /// # Errors
    /// The socket cannot be made.
    pub fn serve_in(&self, folder: &Path) -> io::Result<ServedPlugin> {
        std::fs::create_dir_all(folder)?;
        let socket = folder.join(format!("{}.sock", self.resource.replace('/', "_")));
        let _ = std::fs::remove_file(&socket);
        let listener = std::os::unix::net::UnixListener::bind(&socket)?;
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (end, ended) = oneshot::channel();
        let this = self.clone();
        let thread = std::thread::spawn(move || runtime.block_on(this.until(listener, ended)));
        Ok(ServedPlugin { socket, end: Some(end), thread: Some(thread) })
    }

    async fn until(self, listener: std::os::unix::net::UnixListener, ended: oneshot::Receiver<()>) {
        let Ok(listener) = UnixListener::from_std(listener) else { return };
        let server = tonic::transport::Server::builder()
            .add_service(ResourcePluginServer::new(self.clone()))
            .add_service(RegistrationServer::new(self));
        tokio::select! {
            _ = server.serve_with_incoming(UnixListenerStream::new(listener)) => {}
            _ = ended => {}
        }
    }
}

impl Drop for ServedPlugin {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.socket);
    }
}

#[tonic::async_trait]
impl Registration for FakePlugin {
    async fn get_info(&self, _: Request<intro::InfoRequest>) -> Result<Response<intro::PluginInfo>, Status> {
        Ok(Response::new(intro::PluginInfo {
            r#type: "ResourcePlugin".to_owned(),
            name: self.resource.clone(),
            endpoint: String::new(),
            supported_versions: vec!["v1alpha1".to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        _: Request<intro::RegistrationStatus>,
    ) -> Result<Response<intro::RegistrationStatusResponse>, Status> {
        Ok(Response::new(intro::RegistrationStatusResponse {}))
    }
}

#[tonic::async_trait]
impl ResourcePlugin for FakePlugin {
    async fn get_topology_hints(
        &self,
        request: Request<ResourceRequest>,
    ) -> Result<Response<ResourceHintsResponse>, Status> {
        if let Some(status) = self.conduct().refuses.clone() {
            return Err(status);
        }
        let resource = request.into_inner().resource_name;
        Ok(Response::new(ResourceHintsResponse {
            resource_hints: [(resource, ListOfTopologyHints::default())].into(),
            ..ResourceHintsResponse::default()
        }))
    }

    async fn allocate(
        &self,
        request: Request<ResourceRequest>,
    ) -> Result<Response<ResourceAllocationResponse>, Status> {
        let request = request.into_inner();
        let mut conduct = self.conduct();
        let own = conduct.gives.get(&request.container_name).cloned().unwrap_or_default();
        let resource_allocation = [(request.resource_name.clone(), own)].into();
        conduct.allocated.push(request);
        Ok(Response::new(ResourceAllocationResponse {
            allocation_result: Some(ResourceAllocation { resource_allocation }),
            ..ResourceAllocationResponse::default()
        }))
    }

    async fn remove_pod(
        &self,
        request: Request<RemovePodRequest>,
    ) -> Result<Response<RemovePodResponse>, Status> {
        self.conduct().removed.push(request.into_inner().pod_uid);
        Ok(Response::new(RemovePodResponse {}))
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
