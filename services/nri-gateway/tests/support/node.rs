//! The machine, the runtime on it and the gateway.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use nri_gateway::settings::OnDeadline;
use nri_gateway::{SERVICE, Settings, gateway_until};
use oxalyst_cgroups::fixture::{Fixture, Layout};
use oxalyst_cgroups::{CgroupPath, Controller};
use oxalyst_mesh::Mesh;
use oxalyst_nri::api::*;
use oxalyst_nri::runtime::{EventStyle, RuntimeOptions, RuntimeService, RuntimeSession, SessionError};
use oxalyst_nri::{Status, api};
use oxalyst_proto::gateway::v1::gateway_client::GatewayClient;
use oxalyst_proto::gateway::v1::{AppliedContainer, ListContainersReply, ListContainersRequest};
use oxalyst_proto::mesh::v1::GetStatusRequest;
use oxalyst_proto::mesh::v1::introspection_client::IntrospectionClient;
use tokio::net::UnixListener;
use tokio::sync::oneshot;

use super::orm::{FakeOrm, QOS, Serving};
use super::until;

pub struct Node {
    pub dir: tempfile::TempDir,
    pub orm: FakeOrm,
    pub cgroups: Cgroups,
    pub listener: Option<UnixListener>,
    pub options: RuntimeOptions,
    /// Of containerd.
    pub version: &'static str,
    serving: Option<Serving>,
    gateway: Option<(oneshot::Sender<()>, tokio::task::JoinHandle<()>)>,
    settings: Settings,
}

/// What runc would do, and what the runtime notes of each container.
#[derive(Clone)]
pub struct Cgroups {
    fixture: Fixture,
    inner: Arc<Mutex<Notes>>,
}

#[derive(Default)]
struct Notes {
    /// Container id to its cpuset in the runtime's notes.
    cpus: BTreeMap<String, String>,
    paths: BTreeMap<String, String>,
    /// Updates are answered with success and dropped.
    deaf: bool,
    /// Updates are refused.
    refuses: bool,
    /// Updates that name this container are never answered.
    hangs_for: Option<String>,
    calls: Vec<Vec<String>>,
}

pub fn pod(uid: &str, level: &str) -> PodSandbox {
    PodSandbox {
        id: format!("s-{uid}"),
        uid: uid.into(),
        name: uid.into(),
        namespace: "default".into(),
        annotations: [(QOS.to_owned(), level.to_owned())].into(),
        ..Default::default()
    }
}

pub fn container(uid: &str, id: &str) -> Container {
    let cgroups_path = format!("/kubepods/pod{uid}/{id}");
    Container {
        id: id.into(),
        pod_sandbox_id: format!("s-{uid}"),
        name: "main".into(),
        linux: Some(LinuxContainer { cgroups_path, ..Default::default() }),
        ..Default::default()
    }
}

pub fn running(uid: &str, id: &str) -> Container {
    Container { state: ContainerState::ContainerRunning.into(), ..container(uid, id) }
}

pub fn cpus_of(update: &ContainerUpdate) -> (String, String) {
    let cpu = update.linux.clone().unwrap().resources.unwrap().cpu.unwrap();
    (cpu.cpus, cpu.mems)
}

impl Cgroups {
    fn new(root: &Path) -> Self {
        Self { fixture: Fixture::create(root, Layout::V2).unwrap(), inner: Arc::default() }
    }

    fn path(&self, id: &str) -> CgroupPath {
        CgroupPath::new(&self.inner.lock().unwrap().paths[id]).unwrap()
    }

    /// Makes the cgroup as it is before anybody sets a cpuset.
    pub fn make(&self, container: &Container) {
        let path = container.linux.clone().unwrap().cgroups_path;
        self.inner.lock().unwrap().paths.insert(container.id.clone(), path);
        let path = self.path(&container.id);
        self.fixture.cgroup(&path).unwrap();
        self.fixture.set(Controller::Cpuset, &path, "cpuset.cpus.effective", "0-3\n").unwrap();
    }

    /// Makes a pod's own cgroup.
    pub fn make_parent(&self, parent: &str) {
        self.fixture.cgroup(&CgroupPath::of_parent(parent).unwrap().0).unwrap();
    }

    pub fn write(&self, id: &str, cpus: &str) {
        self.fixture.set(Controller::Cpuset, &self.path(id), "cpuset.cpus", &format!("{cpus}\n")).unwrap();
    }

    /// Somebody gives a container's pod these CPUs alone, and the kernel makes it hold.
    pub fn narrow_pod(&self, id: &str, cpus: &str) {
        let own = self.path(id);
        let pod = CgroupPath::new(own.as_str().rsplit_once('/').unwrap().0).unwrap();
        self.fixture.cgroup(&pod).unwrap();
        let list = format!("{cpus}\n");
        for (path, file) in
            [(&pod, "cpuset.cpus"), (&pod, "cpuset.cpus.effective"), (&own, "cpuset.cpus.effective")]
        {
            self.fixture.set(Controller::Cpuset, path, file, &list).unwrap();
        }
    }

    pub fn write_mems(&self, id: &str, mems: &str) {
        self.fixture.set(Controller::Cpuset, &self.path(id), "cpuset.mems", &format!("{mems}\n")).unwrap();
    }

    pub fn read(&self, id: &str) -> String {
        let file = self.fixture.dir(Controller::Cpuset, &self.path(id)).join("cpuset.cpus");
        std::fs::read_to_string(file).unwrap().trim().to_owned()
    }

    /// One of its files on the imitated tree, which is v2.
    pub fn file(&self, id: &str, name: &str) -> String {
        let file = self.fixture.dir(Controller::Cpuset, &self.path(id)).join(name);
        std::fs::read_to_string(file).unwrap().trim().to_owned()
    }

    pub fn deaf(&self, deaf: bool) {
        self.inner.lock().unwrap().deaf = deaf;
    }

    pub fn refuses(&self) {
        self.inner.lock().unwrap().refuses = true;
    }

    pub fn hangs_for(&self, id: &str) {
        self.inner.lock().unwrap().hangs_for = Some(id.into());
    }

    /// Ids in each UpdateContainers call so far.
    pub fn calls(&self) -> Vec<Vec<String>> {
        self.inner.lock().unwrap().calls.clone()
    }

    pub fn apply(&self, update: &ContainerUpdate) {
        let of = |update: &ContainerUpdate| update.linux.clone()?.resources?.cpu;
        let (cpus, mems) = of(update).map(|_| cpus_of(update)).unwrap_or_default();
        let known = self.inner.lock().unwrap().paths.contains_key(&update.container_id);
        if self.inner.lock().unwrap().deaf || !known {
            return;
        }
        if !cpus.is_empty() {
            self.write(&update.container_id, &cpus);
            self.inner.lock().unwrap().cpus.insert(update.container_id.clone(), cpus);
        }
        if !mems.is_empty() {
            let path = self.path(&update.container_id);
            self.fixture.set(Controller::Cpuset, &path, "cpuset.mems", &format!("{mems}\n")).unwrap();
        }
    }

    /// As the runtime would list it, with the cpuset that it notes.
    pub fn listed(&self, container: Container) -> Container {
        let cpus = self.inner.lock().unwrap().cpus.get(&container.id).cloned().unwrap_or_default();
        let cpu = Some(LinuxCpu { cpus, ..Default::default() });
        let resources = Some(LinuxResources { cpu, ..Default::default() });
        let linux = container.linux.map(|linux| LinuxContainer { resources, ..linux });
        Container { linux, ..container }
    }
}

impl RuntimeService for Cgroups {
    async fn update_containers(
        &mut self,
        updates: Vec<ContainerUpdate>,
    ) -> Result<Vec<ContainerUpdate>, Status> {
        let ids: Vec<_> = updates.iter().map(|u| u.container_id.clone()).collect();
        let (refuses, hangs) = {
            let mut notes = self.inner.lock().unwrap();
            let hangs = notes.hangs_for.as_ref().is_some_and(|id| ids.contains(id));
            notes.calls.push(ids);
            (notes.refuses, hangs)
        };
        if hangs {
            std::future::pending::<()>().await;
        }
        if refuses {
            return Err(Status { code: oxalyst_nri::Code::Other(2), message: "boom".into() });
        }
        updates.iter().for_each(|u| self.apply(u));
        Ok(vec![])
    }
}

impl Node {
    /// A machine with a runtime's socket, without orm and gateway.
    pub fn bare() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut settings = Settings::default();
        settings.common.run_dir = dir.path().join("run");
        settings.common.host_root = dir.path().join("host");
        settings.nri_socket = dir.path().join("nri.sock");
        settings.hook_deadline_ms = 300;
        settings.reconcile_period_ms = 500;
        std::fs::create_dir_all(&settings.common.run_dir).unwrap();
        let listener = Some(UnixListener::bind(&settings.nri_socket).unwrap());
        let cgroups = Cgroups::new(&settings.common.host_root);
        Self {
            orm: FakeOrm::new(),
            cgroups,
            listener,
            options: RuntimeOptions::default(),
            version: "v2.4.0",
            serving: None,
            gateway: None,
            settings,
            dir,
        }
    }

    /// All of it, synchronised with an empty runtime.
    pub async fn up() -> (Self, RuntimeSession) {
        Self::bare().risen().await
    }

    /// As [`Node::up`], with a containerd of this version.
    pub async fn up_with(version: &'static str) -> (Self, RuntimeSession) {
        Self { version, ..Self::bare() }.risen().await
    }

    /// As [`Node::up`], from a bare one.
    pub async fn risen(mut self) -> (Self, RuntimeSession) {
        self.start_orm();
        self.start_gateway(OnDeadline::Open);
        self.ready("orm-stream").await;
        let (session, updates) = self.session(vec![], vec![]).await;
        assert!(updates.is_empty());
        self.connected().await;
        (self, session)
    }

    pub fn run_dir(&self) -> PathBuf {
        self.settings.common.run_dir.clone()
    }

    pub fn socket(&self) -> PathBuf {
        self.settings.nri_socket.clone()
    }

    pub fn start_orm(&mut self) {
        self.serving = Some(self.orm.serve(&self.settings.common.run_dir));
    }

    pub async fn stop_orm(&mut self) {
        self.serving.take().unwrap().stop().await;
    }

    pub fn start_gateway(&mut self, on_deadline: OnDeadline) {
        let settings = Settings { on_deadline, ..self.settings.clone() };
        let mesh = Mesh::new(SERVICE, "0.0.0", &settings.common);
        let (stop, stopped) = oneshot::channel();
        let task = actix::spawn(async move {
            let stopped = async { stopped.await.unwrap_or_default() };
            gateway_until(settings, mesh, stopped).await.unwrap();
        });
        self.gateway = Some((stop, task));
    }

    /// Waits for the gateway, takes it in as a runtime does and synchronises; gives its updates, applied.
    pub async fn session(
        &self,
        pods: Vec<PodSandbox>,
        containers: Vec<Container>,
    ) -> (RuntimeSession, Vec<ContainerUpdate>) {
        let (socket, _) = self.listener.as_ref().unwrap().accept().await.unwrap();
        let mut session = RuntimeSession::start(socket, self.cgroups.clone(), self.options);
        session.registered().await.unwrap();
        let known = (1 << self.options.last_event as i32) - 1;
        assert_eq!(session.configure("containerd", self.version).await.unwrap(), known);
        let updates = session.synchronize(pods, containers).await.unwrap();
        updates.iter().for_each(|u| self.cgroups.apply(u));
        (session, updates)
    }

    pub async fn list(&self) -> Option<ListContainersReply> {
        let channel = oxalyst_mesh::connect(&self.run_dir(), SERVICE);
        let reply = GatewayClient::new(channel).list_containers(ListContainersRequest {}).await;
        reply.ok().map(tonic::Response::into_inner)
    }

    pub async fn listed(&self, id: &str) -> AppliedContainer {
        let list = self.list().await.unwrap();
        list.containers.into_iter().find(|c| c.container_id == id).unwrap()
    }

    pub async fn status(&self) -> Option<oxalyst_proto::mesh::v1::Status> {
        let channel = oxalyst_mesh::connect(&self.run_dir(), SERVICE);
        let reply = IntrospectionClient::new(channel).get_status(GetStatusRequest {}).await;
        reply.ok().map(tonic::Response::into_inner)
    }

    pub async fn fact(&self, name: &str) -> String {
        self.status().await.unwrap().facts.get(name).cloned().unwrap_or_default()
    }

    /// Waits until nothing of that name is pending.
    pub async fn ready(&self, name: &str) {
        until(name, async || {
            self.status().await.filter(|s| s.pending.iter().all(|p| p.name != name)).map(drop)
        })
        .await;
    }

    pub async fn connected(&self) {
        until("the session counts as synchronised", async || {
            self.list().await.filter(|l| l.connected).map(drop)
        })
        .await;
    }

    /// Waits until the kernel says so.
    pub async fn kernel_says(&self, id: &str, cpus: &str) {
        let what = format!("{id} runs on {cpus}");
        until(&what, async || (self.cgroups.read(id) == cpus).then_some(())).await;
    }

    /// Everything from RunPodSandbox to PostStart, as containerd does it; gives the reply of CreateContainer.
    pub async fn run(
        &self,
        session: &RuntimeSession,
        pod: &PodSandbox,
        id: &str,
    ) -> Result<CreateContainerResponse, SessionError> {
        session.tell(Event::RunPodSandbox, pod.clone(), None).await?;
        let reply = self.create(session, pod, id).await?;
        self.start(session, pod, id).await;
        Ok(reply)
    }

    /// RunPodSandbox and all of CreateContainer.
    pub async fn create_after_sandbox(
        &self,
        session: &RuntimeSession,
        pod: &PodSandbox,
        id: &str,
    ) -> CreateContainerResponse {
        session.tell(Event::RunPodSandbox, pod.clone(), None).await.unwrap();
        self.create(session, pod, id).await.unwrap()
    }

    pub async fn create(
        &self,
        session: &RuntimeSession,
        pod: &PodSandbox,
        id: &str,
    ) -> Result<CreateContainerResponse, SessionError> {
        let container = container(&pod.uid, id);
        let reply = session.create_container(pod.clone(), container.clone()).await?;
        reply.update.iter().for_each(|u| self.cgroups.apply(u));
        self.cgroups.make(&container);
        if let Some(adjust) = &reply.adjust {
            let resources = adjust.linux.clone().unwrap().resources;
            let linux = Some(LinuxContainerUpdate { resources });
            self.cgroups.apply(&api::ContainerUpdate {
                container_id: id.into(),
                linux,
                ..Default::default()
            });
        }
        session.tell(Event::PostCreateContainer, pod.clone(), Some(container)).await?;
        Ok(reply)
    }

    pub async fn start(&self, session: &RuntimeSession, pod: &PodSandbox, id: &str) {
        let created = container(&pod.uid, id);
        session.tell(Event::StartContainer, pod.clone(), Some(created)).await.unwrap();
        session.tell(Event::PostStartContainer, pod.clone(), Some(running(&pod.uid, id))).await.unwrap();
    }
}

pub fn own_calls() -> RuntimeOptions {
    RuntimeOptions { style: EventStyle::OwnCalls, ..Default::default() }
}

/// The adjusted CPUs and memory nodes; empty where nothing is adjusted.
pub fn adjusted(reply: &CreateContainerResponse) -> (String, String) {
    let cpu = reply.adjust.clone().and_then(|a| a.linux).and_then(|l| l.resources).and_then(|r| r.cpu);
    cpu.map(|cpu| (cpu.cpus, cpu.mems)).unwrap_or_default()
}
