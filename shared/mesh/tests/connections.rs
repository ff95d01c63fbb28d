//! How many connections a process takes, and which of them it ends.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::path::Path;
use std::time::Duration;

use oxalyst_mesh::{Mesh, connect, socket_path};
use oxalyst_proto::mesh::v1::GetStatusRequest;
use oxalyst_proto::mesh::v1::introspection_client::IntrospectionClient;
use oxalyst_settings::Common;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::timeout;
use tonic::Request;
use tonic::service::Routes;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

const LIMIT: Duration = Duration::from_secs(30);

/// What begins HTTP/2: the preface and an empty frame of settings.
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";

fn serve(dir: &Path, max_connections: u32, ping_period_ms: u64) -> Mesh {
    let common = Common { run_dir: dir.into(), max_connections, ping_period_ms, ..Common::default() };
    let mesh = Mesh::new("orm", "1.2.3", &common);
    tokio::spawn(mesh.bind().unwrap().serve_until(Routes::default(), std::future::pending()));
    mesh
}

async fn open(dir: &Path) -> UnixStream {
    UnixStream::connect(socket_path(dir, "orm")).await.unwrap()
}

/// Whether a question over HTTP/1 is answered.
async fn answers(stream: &mut UnixStream) -> bool {
    if stream.write_all(b"GET /livez HTTP/1.1\r\nHost: mesh\r\n\r\n").await.is_err() {
        return false;
    }
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n\r\nok\n") {
        if !stream.read_buf(&mut text).await.is_ok_and(|read| read > 0) {
            return false;
        }
    }
    text.starts_with(b"HTTP/1.1 200")
}

/// Reads until the other side ends it.
async fn end(mut stream: UnixStream) {
    let mut rest = Vec::new();
    // Cut off is ended as well.
    let _ = timeout(LIMIT, stream.read_to_end(&mut rest)).await.expect("the connection stays");
}

#[tokio::test]
async fn one_more_than_may_be_is_closed_until_a_place_is_free() {
    let dir = tempfile::tempdir().unwrap();
    let _mesh = serve(dir.path(), 2, 600_000);
    let (mut one, mut two) = (open(dir.path()).await, open(dir.path()).await);
    assert!(answers(&mut one).await && answers(&mut two).await);
    assert!(!answers(&mut open(dir.path()).await).await, "a third");
    assert!(answers(&mut two).await, "those that have a place keep it");
    drop(one);
    timeout(LIMIT, async {
        while !answers(&mut open(dir.path()).await).await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("the place is free again");
}

#[tokio::test]
async fn who_says_nothing_asks_nothing_more_or_answers_no_ping_is_let_go_and_who_waits_stays() {
    let dir = tempfile::tempdir().unwrap();
    let mesh = serve(dir.path(), 256, 100);
    // A stream on which nothing is told for long: its client answers pings.
    let mut health = HealthClient::new(connect(dir.path(), "orm"));
    let mut watch = health.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    watch.message().await.unwrap().unwrap();

    let silent = open(dir.path()).await;
    let mut idle = open(dir.path()).await;
    assert!(answers(&mut idle).await);
    let mut frozen = open(dir.path()).await;
    frozen.write_all(HTTP2).await.unwrap();
    tokio::join!(end(silent), end(idle), end(frozen));

    // All three have gone after several pings; the stream tells on.
    let waiting = mesh.readiness.condition("runtime", "start the runtime");
    drop(waiting);
    let told = timeout(LIMIT, watch.message()).await.expect("the stream lives").unwrap();
    assert!(told.is_some());
}

#[tokio::test(start_paused = true)]
async fn who_asks_once_a_minute_over_http1_keeps_its_connection() {
    let dir = tempfile::tempdir().unwrap();
    let _mesh = serve(dir.path(), 256, Common::default().ping_period_ms);
    let mut scraper = open(dir.path()).await;
    for minute in 0..4 {
        assert!(answers(&mut scraper).await, "minute {minute}");
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
}

#[tokio::test]
async fn a_client_that_stood_still_reconnects_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let _mesh = serve(dir.path(), 1, 100);
    let (asked, ask) = std::sync::mpsc::channel::<()>();
    let (said, says) = tokio::sync::mpsc::unbounded_channel();
    let (run_dir, mut says) = (dir.path().to_owned(), says);
    // A runtime of its own, which runs nothing between two questions, as of a stopped process.
    let client = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut client = {
            let _inside = runtime.enter();
            IntrospectionClient::new(connect(&run_dir, "orm"))
        };
        for () in ask {
            let mut request = Request::new(GetStatusRequest {});
            request.set_timeout(LIMIT);
            said.send(runtime.block_on(client.get_status(request)).is_ok()).unwrap();
        }
    });
    asked.send(()).unwrap();
    assert!(says.recv().await.unwrap());
    // Its place, the only one, is freed while it stands still.
    timeout(LIMIT, async {
        while !answers(&mut open(dir.path()).await).await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("its connection ends");
    timeout(LIMIT, async {
        loop {
            asked.send(()).unwrap();
            if says.recv().await.unwrap() {
                return;
            }
        }
    })
    .await
    .expect("it reconnects");
    drop(asked);
    client.join().unwrap();
}

#[tokio::test]
async fn n01_what_was_given_up_while_the_server_stood_still_costs_its_client_no_stream() {
    let dir = tempfile::tempdir().unwrap();
    let mesh = serve(dir.path(), 256, 600_000);
    let (opened, is_open) = tokio::sync::oneshot::channel();
    let (given_up, gave_up) = std::sync::mpsc::channel();
    let run_dir = dir.path().to_owned();
    let client = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut health = HealthClient::new(connect(&run_dir, "orm"));
            let mut watch = health.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
            watch.message().await.unwrap().unwrap();
            opened.send(()).unwrap();
            for _ in 0..100 {
                let asked = health.check(HealthCheckRequest::default());
                let _ = timeout(Duration::from_millis(5), asked).await;
            }
            given_up.send(()).unwrap();
            timeout(LIMIT, watch.message()).await.expect("something is told").map(|told| told.is_some())
        })
    });
    is_open.await.unwrap();
    // The server shares this thread: it stands still.
    gave_up.recv().unwrap();
    drop(mesh.readiness.condition("runtime", "start the runtime"));
    let told = tokio::task::spawn_blocking(|| client.join().unwrap()).await.unwrap();
    assert!(told.expect("the stream lives"));
}
