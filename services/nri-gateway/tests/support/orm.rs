//! An orm that knows two levels on one NUMA node of four CPUs.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use oxalyst_proto::mesh::v1::introspection_server::{Introspection, IntrospectionServer};
use oxalyst_proto::mesh::v1::{GetStatusRequest, Status as MeshStatus};
use oxalyst_proto::orm::v1::allocator_server::{Allocator, AllocatorServer};
use oxalyst_proto::orm::v1::*;
use oxalyst_proto::runtime::v1::Sandbox;
use oxalyst_topology::CpuSet;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::{Request, Response, Status};

pub const QOS: &str = "katalyst.kubewharf.io/qos_level";
/// The pod is placed by its containers only.
pub const UNSETTLED: &str = "test/unsettled";

#[derive(Clone)]
pub struct FakeOrm {
    inner: Arc<Inner>,
}

struct Inner {
    books: Mutex<Books>,
    watchers: Mutex<Vec<mpsc::Sender<Result<PlacementEvent, Status>>>>,
    stalled: watch::Sender<bool>,
    log: Mutex<Vec<String>>,
    /// Pods for which every call fails.
    unlucky: Mutex<Vec<String>>,
}

#[derive(Clone)]
struct Books {
    cpus: &'static str,
    /// What every placement asks for beside CPUs and memory nodes.
    properties: Vec<(&'static str, &'static str)>,
    generation: u64,
    pods: BTreeMap<String, PodPlacement>,
}

pub struct Serving {
    stop: oneshot::Sender<()>,
    task: tokio::task::JoinHandle<()>,
    orm: FakeOrm,
}

impl Serving {
    /// As a killed process: every connection ends.
    pub async fn stop(self) {
        self.orm.inner.watchers.lock().unwrap().clear();
        let _ = self.stop.send(());
        let abort = self.task.abort_handle();
        let _ = tokio::time::timeout(std::time::Duration::from_secs(2), self.task).await;
        abort.abort();
    }
}

impl Books {
    fn pool(&self) -> CpuSet {
        let mut pool: CpuSet = self.cpus.parse().unwrap();
        for pod in self.pods.values().filter(|p| p.exclusive) {
            pool -= &pod.cpus.parse().unwrap();
        }
        pool
    }

    fn pools(&self) -> Vec<Pool> {
        vec![Pool { name: "share".into(), cpus: self.pool().to_string(), mems: "0".into(), pods: 0 }]
    }

    fn refresh(&mut self) {
        let pool = self.pool().to_string();
        for pod in self.pods.values_mut().filter(|p| !p.exclusive && p.settled) {
            pod.cpus.clone_from(&pool);
        }
        self.generation += 1;
    }

    fn resize(&mut self, uid: &str, count: u64) -> Result<(), Refusal> {
        let pool = self.pool();
        let Some(pod) = self.pods.get_mut(uid).filter(|pod| pod.exclusive) else { return Ok(()) };
        let mut own: Vec<u32> = pod.cpus.parse::<CpuSet>().unwrap().iter().collect();
        own.reverse();
        let more: Vec<u32> = pool.iter().collect();
        own.extend(more.into_iter().rev());
        let count = usize::try_from(count).unwrap();
        if count >= own.len() {
            let message = format!("asked {count} CPUs, the last one is not given away");
            return Err(Refusal { reason: "insufficient".into(), message, ..Default::default() });
        }
        own.truncate(count);
        pod.cpus = own.into_iter().collect::<CpuSet>().to_string();
        self.refresh();
        Ok(())
    }

    fn admit(&mut self, sandbox: &Sandbox, settle: bool) -> Result<(), Refusal> {
        let exclusive = sandbox.annotations.get(QOS).is_some_and(|l| l == "dedicated_cores");
        let settled = settle || !sandbox.annotations.contains_key(UNSETTLED);
        let mut pod = PodPlacement {
            pod_uid: sandbox.pod_uid.clone(),
            sandbox_id: sandbox.sandbox_id.clone(),
            name: sandbox.name.clone(),
            mems: "0".into(),
            settled,
            exclusive: exclusive && settled,
            qos_level: sandbox.annotations.get(QOS).cloned().unwrap_or_default(),
            oci_properties: self.properties.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            ..Default::default()
        };
        if let Some(known) = self.pods.get(&sandbox.pod_uid).filter(|k| k.settled) {
            pod.cpus.clone_from(&known.cpus);
        } else if exclusive && settled {
            let pool = self.pool();
            if pool.len() < 2 {
                return Err(Refusal {
                    reason: "insufficient".into(),
                    message: "asked 1 CPU, NUMA node 0 has 0 free".into(),
                    ..Default::default()
                });
            }
            pod.cpus = pool.last().unwrap().to_string();
        }
        self.pods.insert(sandbox.pod_uid.clone(), pod);
        self.refresh();
        Ok(())
    }
}

impl FakeOrm {
    pub fn new() -> Self {
        Self::of("0-3")
    }

    /// Of a machine with these CPUs.
    pub fn of(cpus: &'static str) -> Self {
        let books = Books { cpus, properties: Vec::new(), generation: 0, pods: BTreeMap::new() };
        let inner = Inner {
            books: Mutex::new(books),
            watchers: Mutex::default(),
            stalled: watch::Sender::new(false),
            log: Mutex::default(),
            unlucky: Mutex::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    pub fn serve(&self, run_dir: &Path) -> Serving {
        let socket = run_dir.join("orm.sock");
        let _ = std::fs::remove_file(&socket);
        let incoming = UnixListenerStream::new(UnixListener::bind(socket).unwrap());
        let (stop, stopped) = oneshot::channel();
        let server = tonic::transport::Server::builder()
            .add_service(AllocatorServer::new(self.clone()))
            .add_service(IntrospectionServer::new(self.clone()));
        let task = tokio::spawn(async move {
            let stopped = async { stopped.await.unwrap_or_default() };
            server.serve_with_incoming_shutdown(incoming, stopped).await.unwrap();
        });
        Serving { stop, task, orm: self.clone() }
    }

    pub fn stall(&self, stalled: bool) {
        self.inner.stalled.send_replace(stalled);
    }

    /// From now on, every question about this pod fails, and it is not taken in.
    pub fn fails_for(&self, uid: &str) {
        self.inner.unlucky.lock().unwrap().push(uid.to_owned());
    }

    fn luck(&self, uid: &str) -> Result<(), Status> {
        let unlucky = self.inner.unlucky.lock().unwrap().iter().any(|u| u == uid);
        if unlucky { Err(Status::internal("a fault of this orm")) } else { Ok(()) }
    }

    pub fn log(&self) -> Vec<String> {
        self.inner.log.lock().unwrap().clone()
    }

    pub fn cpus(&self, uid: &str) -> Option<String> {
        self.inner.books.lock().unwrap().pods.get(uid).map(|p| p.cpus.clone())
    }

    /// Every placement from now on asks for these.
    pub fn properties(&self, properties: &[(&'static str, &'static str)]) {
        self.inner.books.lock().unwrap().properties = properties.to_vec();
    }

    /// As if another had asked: decided here, heard by the gateway through the stream.
    pub fn remove(&self, uid: &str) {
        self.change(|books| {
            books.pods.remove(uid);
            books.refresh();
        });
    }

    async fn called(&self, what: String) {
        self.inner.log.lock().unwrap().push(what);
        let mut stalled = self.inner.stalled.subscribe();
        stalled.wait_for(|stalled| !stalled).await.unwrap();
    }

    fn change<T>(&self, change: impl FnOnce(&mut Books) -> T) -> (T, Books, Vec<PodPlacement>) {
        let mut books = self.inner.books.lock().unwrap();
        let before = books.clone();
        let outcome = change(&mut books);
        let changed: Vec<_> = books
            .pods
            .iter()
            .filter(|(uid, pod)| before.pods.get(*uid) != Some(pod))
            .map(|(_, pod)| pod.clone())
            .collect();
        let event = PlacementEvent {
            generation: books.generation,
            snapshot: false,
            placed: changed.clone(),
            removed_pod_uids: before
                .pods
                .keys()
                .filter(|uid| !books.pods.contains_key(*uid))
                .cloned()
                .collect(),
            pools: books.pools(),
        };
        if books.generation != before.generation {
            self.inner.watchers.lock().unwrap().retain(|w| w.try_send(Ok(event.clone())).is_ok());
        }
        (outcome, books.clone(), changed)
    }

    fn admit(&self, sandbox: &Sandbox, settle: bool) -> AdmitReply {
        let (outcome, books, changed) = self.change(|books| books.admit(sandbox, settle));
        AdmitReply {
            generation: books.generation,
            outcome: Some(match outcome {
                Ok(()) => admit_reply::Outcome::Placed(books.pods[&sandbox.pod_uid].clone()),
                Err(refusal) => admit_reply::Outcome::Refused(refusal),
            }),
            changed,
            pools: books.pools(),
        }
    }
}

#[tonic::async_trait]
impl Allocator for FakeOrm {
    type WatchPlacementsStream = ReceiverStream<Result<PlacementEvent, Status>>;

    async fn admit_pod(&self, request: Request<AdmitPodRequest>) -> Result<Response<AdmitReply>, Status> {
        let sandbox = request.into_inner().sandbox.unwrap();
        self.called(format!("admit {}", sandbox.pod_uid)).await;
        self.luck(&sandbox.pod_uid)?;
        Ok(Response::new(self.admit(&sandbox, false)))
    }

    async fn admit_container(
        &self,
        request: Request<AdmitContainerRequest>,
    ) -> Result<Response<AdmitReply>, Status> {
        let request = request.into_inner();
        self.called(format!("admit container {}", request.container.unwrap().container_id)).await;
        let sandbox = request.sandbox.unwrap();
        self.luck(&sandbox.pod_uid)?;
        Ok(Response::new(self.admit(&sandbox, true)))
    }

    /// Four CPUs at the most, and as many as the shares tell; what it has stays with it.
    async fn resize_container(
        &self,
        request: Request<ResizeContainerRequest>,
    ) -> Result<Response<AdmitReply>, Status> {
        let request = request.into_inner();
        let (sandbox, container) = (request.sandbox.unwrap(), request.container.unwrap());
        let shares = container.resources.and_then(|r| r.cpu_shares).unwrap_or_default();
        self.called(format!("resize {} {} {shares}", container.container_id, request.running.len())).await;
        self.luck(&sandbox.pod_uid)?;
        let (outcome, books, changed) = self.change(|books| books.resize(&sandbox.pod_uid, shares / 1024));
        Ok(Response::new(AdmitReply {
            generation: books.generation,
            outcome: Some(match outcome {
                Ok(()) => admit_reply::Outcome::Placed(books.pods[&sandbox.pod_uid].clone()),
                Err(refusal) => admit_reply::Outcome::Refused(refusal),
            }),
            changed,
            pools: books.pools(),
        }))
    }

    async fn release_pod(
        &self,
        request: Request<ReleasePodRequest>,
    ) -> Result<Response<ReleasePodReply>, Status> {
        let request = request.into_inner();
        self.called(format!("release {} {}", request.pod_uid, request.sandbox_id)).await;
        let (released, books, _) = self.change(|books| {
            let current =
                books.pods.get(&request.pod_uid).is_some_and(|p| p.sandbox_id == request.sandbox_id);
            if current {
                books.pods.remove(&request.pod_uid);
                books.refresh();
            }
            current
        });
        Ok(Response::new(ReleasePodReply { generation: books.generation, released }))
    }

    async fn reconcile(
        &self,
        request: Request<ReconcileRequest>,
    ) -> Result<Response<ReconcileReply>, Status> {
        let request = request.into_inner();
        let told: Vec<_> = request.sandboxes.iter().map(|s| s.sandbox_id.as_str()).collect();
        self.called(format!("reconcile {}", told.join(" "))).await;
        let (adopted, books, _) = self.change(|books| {
            let mut adopted = Vec::new();
            for sandbox in request.sandboxes.iter().filter(|s| self.luck(&s.pod_uid).is_ok()) {
                // What was admitted and is not settled yet waits for its containers.
                let runs = request.containers.iter().any(|c| c.sandbox_id == sandbox.sandbox_id);
                if books.pods.get(&sandbox.pod_uid).is_none_or(|p| !p.settled && runs) {
                    adopted.push(sandbox.pod_uid.clone());
                    let _ = books.admit(sandbox, true);
                }
            }
            adopted
        });
        let state = State {
            generation: books.generation,
            pools: books.pools(),
            pods: books.pods.values().cloned().collect(),
            ..Default::default()
        };
        Ok(Response::new(ReconcileReply {
            generation: books.generation,
            adopted_pod_uids: adopted,
            freed_pod_uids: vec![],
            state: Some(state),
        }))
    }

    async fn watch_placements(
        &self,
        _: Request<WatchPlacementsRequest>,
    ) -> Result<Response<Self::WatchPlacementsStream>, Status> {
        let (tell, told) = mpsc::channel(64);
        let books = self.inner.books.lock().unwrap();
        let snapshot = PlacementEvent {
            generation: books.generation,
            snapshot: true,
            placed: books.pods.values().cloned().collect(),
            removed_pod_uids: vec![],
            pools: books.pools(),
        };
        tell.try_send(Ok(snapshot)).unwrap();
        self.inner.watchers.lock().unwrap().push(tell);
        Ok(Response::new(ReceiverStream::new(told)))
    }

    async fn get_state(&self, _: Request<GetStateRequest>) -> Result<Response<State>, Status> {
        Err(Status::unimplemented("not asked here"))
    }

    async fn get_topology(&self, _: Request<GetTopologyRequest>) -> Result<Response<Topology>, Status> {
        Err(Status::unimplemented("not asked here"))
    }
}

#[tonic::async_trait]
impl Introspection for FakeOrm {
    async fn get_status(&self, _: Request<GetStatusRequest>) -> Result<Response<MeshStatus>, Status> {
        self.called("status".into()).await;
        Ok(Response::new(MeshStatus::default()))
    }
}
