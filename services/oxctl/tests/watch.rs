//! `oxctl metrics watch` beside a pager that waits, and after it stood still itself.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::io::Read as _;
use std::path::Path;
use std::pin::Pin;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use oxalyst_mesh::Mesh;
use oxalyst_proto::metrics::v1 as proto;
use oxalyst_proto::metrics::v1::metrics_server::{Metrics, MetricsServer};
use oxalyst_settings::Common;
use rustix::process::{Pid, Signal, kill_process};
use tokio_stream::Stream;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

const LIMIT: Duration = Duration::from_secs(30);
/// Long enough that a busy machine is no silent client.
const PING_MS: u64 = 500;

/// A service that has always something new, and counts.
#[derive(Clone, Default)]
struct Endless {
    opened: Arc<AtomicUsize>,
    ended: Arc<AtomicUsize>,
    messages: Arc<AtomicUsize>,
}

struct Replies(Endless);

// === impl Replies ===

impl Stream for Replies {
    type Item = Result<proto::QueryReply, Status>;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let n = self.0.messages.fetch_add(1, Ordering::Relaxed);
        let sample = |m: usize| proto::Sample {
            metric: format!("cpu.{n}.{m}"),
            value: Some(1.0),
            unit: "count".into(),
            ..proto::Sample::default()
        };
        let samples = (0..200).map(sample).collect();
        Poll::Ready(Some(Ok(proto::QueryReply { samples, now_unix_ms: 1 })))
    }
}

impl Drop for Replies {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
    }
}

// === impl Endless ===

#[tonic::async_trait]
impl Metrics for Endless {
    type WatchStream = Replies;

    async fn watch(&self, _: Request<proto::QueryRequest>) -> Result<Response<Replies>, Status> {
        self.opened.fetch_add(1, Ordering::Relaxed);
        Ok(Response::new(Replies(self.clone())))
    }

    async fn query(&self, _: Request<proto::QueryRequest>) -> Result<Response<proto::QueryReply>, Status> {
        Err(Status::unimplemented("not asked here"))
    }

    async fn aggregate(
        &self,
        _: Request<proto::AggregateRequest>,
    ) -> Result<Response<proto::AggregateReply>, Status> {
        Err(Status::unimplemented("not asked here"))
    }

    async fn history(
        &self,
        _: Request<proto::HistoryRequest>,
    ) -> Result<Response<proto::HistoryReply>, Status> {
        Err(Status::unimplemented("not asked here"))
    }

    async fn list_metrics(
        &self,
        _: Request<proto::ListMetricsRequest>,
    ) -> Result<Response<proto::ListMetricsReply>, Status> {
        Err(Status::unimplemented("not asked here"))
    }

    async fn list_sources(
        &self,
        _: Request<proto::ListSourcesRequest>,
    ) -> Result<Response<proto::ListSourcesReply>, Status> {
        Err(Status::unimplemented("not asked here"))
    }

    async fn push(&self, _: Request<proto::PushRequest>) -> Result<Response<proto::PushReply>, Status> {
        Err(Status::unimplemented("not asked here"))
    }
}

/// Serves on a thread of its own, as the mesh does, asking clients often whether they live.
fn serve(dir: &Path) -> Endless {
    let endless = Endless::default();
    let common = Common { run_dir: dir.into(), ping_period_ms: PING_MS, ..Common::default() };
    let mesh = Mesh::new("metrics-fetcher", "1.2.3", &common);
    let routes = Routes::new(MetricsServer::new(endless.clone()));
    let (bound, bind) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let socket = mesh.bind().unwrap();
            bound.send(()).unwrap();
            socket.serve_until(routes, std::future::pending()).await.unwrap();
        });
    });
    bind.recv().unwrap();
    endless
}

/// Ends with the test.
struct Watch(Child);

// === impl Watch ===

impl Drop for Watch {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn pause(time: Duration) {
    let began = Instant::now();
    while let Some(left) = time.checked_sub(began.elapsed()) {
        std::thread::park_timeout(left);
    }
}

fn watch(dir: &Path) -> Watch {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oxctl"));
    command.args(["--run-dir", dir.to_str().unwrap(), "metrics", "watch"]);
    Watch(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}

fn signal(watch: &Watch, signal: Signal) {
    kill_process(Pid::from_child(&watch.0), signal).unwrap();
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < LIMIT, "{what}");
        pause(Duration::from_millis(5));
    }
}

#[test]
fn a_pager_that_waits_costs_neither_the_connection_nor_the_interrupt() {
    let dir = tempfile::tempdir().unwrap();
    let endless = serve(dir.path());
    let mut child = watch(dir.path());
    // Nobody reads: at some time no more messages are asked for.
    let (made, pings) = (|| endless.messages.load(Ordering::Relaxed), Duration::from_millis(PING_MS * 5));
    until("it never waits", || {
        let before = made();
        pause(pings);
        before > 0 && made() == before
    });
    // It has waited for five pings.
    assert_eq!(endless.ended.load(Ordering::Relaxed), 0, "the connection was ended");
    let before = made();
    let mut out = child.0.stdout.take().unwrap();
    let mut page = vec![0; 1 << 16];
    while made() == before {
        out.read_exact(&mut page).unwrap();
    }
    // The pager waits again, and stays where it is.
    until("it never waits", || {
        let before = made();
        pause(pings);
        made() == before
    });
    signal(&child, Signal::INT);
    let mut code = None;
    let began = Instant::now();
    while code.is_none() {
        assert!(began.elapsed() < LIMIT, "it does not end");
        code = child.0.try_wait().unwrap();
        pause(Duration::from_millis(5));
    }
    assert_eq!(code.unwrap().code(), Some(0));
}

#[test]
fn who_stood_still_goes_on_with_what_is_new() {
    let dir = tempfile::tempdir().unwrap();
    let endless = serve(dir.path());
    let mut child = watch(dir.path());
    let mut out = child.0.stdout.take().unwrap();
    // Reads as long as there is something.
    let reader = std::thread::spawn(move || std::io::copy(&mut out, &mut std::io::sink()));
    until("it never begins", || endless.messages.load(Ordering::Relaxed) > 0);
    signal(&child, Signal::STOP);
    until("its connection stays", || endless.ended.load(Ordering::Relaxed) == 1);
    signal(&child, Signal::CONT);
    until("it does not begin anew", || endless.opened.load(Ordering::Relaxed) == 2);
    let before = endless.messages.load(Ordering::Relaxed);
    until("it tells nothing", || endless.messages.load(Ordering::Relaxed) > before + 10);
    signal(&child, Signal::INT);
    assert_eq!(child.0.wait().unwrap().code(), Some(0));
    reader.join().unwrap().unwrap();
}
