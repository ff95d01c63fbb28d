//! A process's socket as its peers see it.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::path::Path;
use std::time::Duration;

use oxalyst_mesh::{BindError, Mesh, connect, socket_path};
use oxalyst_proto::mesh::v1::GetStatusRequest;
use oxalyst_proto::mesh::v1::introspection_client::IntrospectionClient;
use oxalyst_settings::Common;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tonic::service::Routes;

fn mesh(dir: &Path) -> Mesh {
    Mesh::new("orm", "1.2.3", &Common { run_dir: dir.into(), ..Common::default() })
}

async fn get(dir: &Path, path: &str) -> String {
    let mut stream = UnixStream::connect(socket_path(dir, "orm")).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: mesh\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test]
async fn one_socket_answers_grpc_and_http() {
    let dir = tempfile::tempdir().unwrap();
    let mesh = mesh(dir.path());
    let bound = mesh.bind().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(bound.serve_until(Routes::default(), async { stopped.await.unwrap() }));
    let waiting = mesh.readiness.condition("runtime", "start the runtime");
    mesh.facts.set("answer", 42);

    let mut client = IntrospectionClient::new(connect(dir.path(), "orm"));
    let status = client.get_status(GetStatusRequest {}).await.unwrap().into_inner();
    assert_eq!((status.service.as_str(), status.version.as_str(), status.ready), ("orm", "1.2.3", false));
    assert_eq!(status.pending[0].name, "runtime");
    assert_eq!(status.facts["answer"], "42");

    assert!(get(dir.path(), "/livez").await.starts_with("HTTP/1.1 200"));
    let text = get(dir.path(), "/readyz?verbose").await;
    assert!(
        text.starts_with("HTTP/1.1 503") && text.contains("[pending] runtime: start the runtime"),
        "{text}"
    );
    drop(waiting);
    assert!(get(dir.path(), "/readyz").await.starts_with("HTTP/1.1 200"));
    assert!(get(dir.path(), "/metrics").await.contains("# EOF"));

    stop.send(()).unwrap();
    tokio::time::timeout(Duration::from_secs(5), serving).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn a_second_process_is_told_that_the_socket_is_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let _first = mesh(dir.path()).bind().unwrap();
    let second = mesh(dir.path()).bind();
    assert!(matches!(second, Err(BindError::InUse { .. })));
}

#[tokio::test]
async fn what_a_dead_process_left_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    drop(mesh(dir.path()).bind().unwrap());
    assert!(socket_path(dir.path(), "orm").exists());
    mesh(dir.path()).bind().unwrap();
}

#[tokio::test]
async fn the_way_to_an_absent_peer_fails_in_time_and_works_once_it_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let mut client = IntrospectionClient::new(connect(dir.path(), "orm"));
    assert!(client.get_status(GetStatusRequest {}).await.is_err());
    let bound = mesh(dir.path()).bind().unwrap();
    tokio::spawn(bound.serve_until(Routes::default(), std::future::pending()));
    assert!(client.get_status(GetStatusRequest {}).await.is_ok());
}
