//! CPUs that are reserved as the kubelet does: the real binary, and a meta-server that is this test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod host;

use std::pin::Pin;
use std::time::{Duration, Instant};

use futures::Stream;
use host::{DEADLINE, Host, Orm, placed, sandbox};
use oxalyst_proto::meta::v1::meta_server::{Meta, MetaServer};
use oxalyst_proto::meta::v1::*;
use oxalyst_proto::orm::v1::GetStateRequest;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status, Streaming};

const SETTINGS: [&str; 2] = ["--set", "reserved_cpus=kubelet"];

/// Tells what the kubelet reserves.
#[derive(Clone, Default)]
struct Told(watch::Sender<Option<KubeletReservation>>);

/// A meta-server; away once dropped.
struct MetaAt(tokio::task::JoinHandle<Result<(), tonic::transport::Error>>, std::path::PathBuf);

impl Drop for MetaAt {
    fn drop(&mut self) {
        self.0.abort();
        std::fs::remove_file(&self.1).unwrap();
    }
}

impl Told {
    fn serve(&self, host: &Host) -> MetaAt {
        let path = host.dir.path().join("run/meta-server.sock");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let socket = UnixListener::bind(&path).unwrap();
        let server = tonic::transport::Server::builder().add_service(MetaServer::new(self.clone()));
        MetaAt(tokio::spawn(server.serve_with_incoming(UnixListenerStream::new(socket))), path)
    }

    fn tell(&self, cpus: &str, milli_cpu: u64) {
        self.0.send_replace(Some(KubeletReservation { cpus: cpus.into(), milli_cpu, heard_unix_ms: 1 }));
    }
}

#[tonic::async_trait]
impl Meta for Told {
    type WatchPodsStream = Pin<Box<dyn Stream<Item = Result<PodList, Status>> + Send>>;

    async fn watch_pods(
        &self,
        _: Request<WatchPodsRequest>,
    ) -> Result<Response<Self::WatchPodsStream>, Status> {
        Err(Status::unimplemented("not asked here"))
    }

    async fn report_runtime(
        &self,
        _: Request<Streaming<RuntimeEvent>>,
    ) -> Result<Response<ReportRuntimeReply>, Status> {
        Err(Status::unimplemented("not asked here"))
    }

    async fn list_pods(&self, _: Request<ListPodsRequest>) -> Result<Response<PodList>, Status> {
        Err(Status::unimplemented("not asked here"))
    }

    async fn get_node(&self, request: Request<GetNodeRequest>) -> Result<Response<Node>, Status> {
        assert!(request.into_inner().kubelet_reservation);
        let kubelet_reservation = self.0.borrow().clone();
        let error = if kubelet_reservation.is_none() { "the kubelet is away" } else { "" };
        let kubelet_reservation_error = error.to_owned();
        Ok(Response::new(Node { kubelet_reservation, kubelet_reservation_error, ..Node::default() }))
    }
}

/// Waits until the service says that this is reserved.
async fn reserved(orm: &mut Orm, wanted: &str) {
    let end = Instant::now() + DEADLINE;
    loop {
        let state = orm.client.get_state(GetStateRequest::default()).await;
        match state.map(|state| state.into_inner().reserved) {
            Ok(now) if now == wanted => return,
            other => assert!(Instant::now() < end, "{wanted} is not reserved: {other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn fact(orm: &mut Orm) -> String {
    orm.status().await.unwrap().facts["reserved.kubelet"].clone()
}

#[tokio::test]
async fn what_the_kubelet_reserves_is_reserved_and_a_change_is_taken_up() {
    let host = Host::with_machine(8, 2);
    let told = Told::default();
    told.tell("", 1750);
    let meta = told.serve(&host);
    let mut orm = host.start(&SETTINGS).await;
    reserved(&mut orm, "0,4").await;
    assert_eq!(fact(&mut orm).await, "1750m");
    let own = orm.admit(&sandbox("d", "dedicated_cores", Some(2048))).await;
    assert_eq!(placed(&own).cpus, "1-2");
    orm.admit(&sandbox("s", "shared_cores", Some(512))).await;

    told.tell("2-3", 0);
    reserved(&mut orm, "2-3").await;
    let state = orm.state().await;
    let by = |uid: &str| state.pods.iter().find(|pod| pod.pod_uid == uid).unwrap();
    assert_eq!((by("d").cpus.as_str(), &by("d").flags[..]), ("1-2", &["on-reserved".to_owned()][..]));
    assert_eq!(by("s").cpus, "0,4-7");

    // The meta-server is away when it starts again: what was told last counts.
    drop(orm);
    drop(meta);
    let mut orm = host.start(&SETTINGS).await;
    assert_eq!(orm.state().await.reserved, "2-3");
    assert_eq!(orm.state().await.pods, state.pods);
    assert!(fact(&mut orm).await.starts_with("not told: the meta-server is not there"));
}

#[tokio::test]
async fn a_reservation_that_was_never_told_is_waited_for_visibly() {
    let host = Host::with_machine(4, 1);
    let told = Told::default();
    let _meta = told.serve(&host);
    let mut orm = host.spawn(&SETTINGS);
    let end = Instant::now() + DEADLINE;
    let status = loop {
        match orm.status().await {
            Ok(status) if !status.pending.is_empty() => break status,
            other => assert!(Instant::now() < end, "{other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert!(!status.ready);
    assert_eq!(status.pending[0].name, "reservation");
    assert!(status.pending[0].detail.contains("has not told what the kubelet reserves"), "{status:?}");
    assert_eq!(status.facts["reserved.kubelet"], "not told: the kubelet is away");
    assert!(orm.client.get_state(GetStateRequest::default()).await.is_err());

    told.tell("0", 0);
    reserved(&mut orm, "0").await;
    assert!(orm.status().await.unwrap().ready);
}

#[tokio::test]
async fn a_reservation_that_cannot_be_leaves_the_one_before() {
    let host = Host::with_machine(4, 1);
    let told = Told::default();
    told.tell("", 500);
    let _meta = told.serve(&host);
    let mut orm = host.start(&SETTINGS).await;
    reserved(&mut orm, "0").await;
    told.tell("", 9000);
    let end = Instant::now() + DEADLINE;
    while fact(&mut orm).await != "9000m" {
        assert!(Instant::now() < end);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(orm.state().await.reserved, "0");
    told.tell("1", 0);
    reserved(&mut orm, "1").await;
}
