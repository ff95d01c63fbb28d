//! The real binary, an imitated kubelet, and a gateway that is this test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::get;
use oxalyst_mesh::connect;
use oxalyst_proto::mesh::v1::introspection_client::IntrospectionClient;
use oxalyst_proto::mesh::v1::{GetStatusRequest, Status};
use oxalyst_proto::meta::v1::meta_client::MetaClient;
use oxalyst_proto::meta::v1::runtime_event::Event;
use oxalyst_proto::meta::v1::{
    GetNodeRequest, ListPodsRequest, Node, PodList, RuntimeEvent, RuntimeSnapshot, WatchPodsRequest,
};
use oxalyst_proto::runtime::v1::Sandbox;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

const PATIENCE: Duration = Duration::from_secs(20);

struct Service {
    child: Child,
    meta: MetaClient<Channel>,
    introspection: IntrospectionClient<Channel>,
    run_dir: tempfile::TempDir,
}

impl Service {
    async fn start(set: &[String]) -> Self {
        let run_dir = tempfile::tempdir().unwrap();
        let child = command(run_dir.path(), set).spawn().unwrap();
        let channel = connect(run_dir.path(), "meta-server");
        let mut service = Self {
            child,
            meta: MetaClient::new(channel.clone()),
            introspection: IntrospectionClient::new(channel),
            run_dir,
        };
        let deadline = Instant::now() + PATIENCE;
        while service.introspection.get_status(GetStatusRequest {}).await.is_err() {
            assert!(Instant::now() < deadline, "the service does not serve");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        service
    }

    async fn status(&mut self) -> Status {
        self.introspection.get_status(GetStatusRequest {}).await.unwrap().into_inner()
    }

    async fn pods_when(&mut self, what: &str, holds: impl Fn(&PodList) -> bool) -> PodList {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let list = self.meta.list_pods(ListPodsRequest {}).await.unwrap().into_inner();
            if holds(&list) {
                return list;
            }
            assert!(Instant::now() < deadline, "never {what}: {list:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// A gateway's stream; dropping the sender ends it, aborting the task cuts it off.
    fn gateway(&self) -> (mpsc::Sender<RuntimeEvent>, tokio::task::JoinHandle<Result<(), tonic::Status>>) {
        let (sender, receiver) = mpsc::channel(16);
        let mut meta = self.meta.clone();
        let call =
            tokio::spawn(async move { meta.report_runtime(ReceiverStream::new(receiver)).await.map(|_| ()) });
        (sender, call)
    }
}

fn command(run_dir: &Path, set: &[String]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_meta-server"));
    command
        .arg("--set")
        .arg(format!("common.run_dir={}", run_dir.display()))
        .arg("--set")
        .arg("node_name=n1");
    for one in set {
        command.arg("--set").arg(one);
    }
    command.stderr(Stdio::inherit()).kill_on_drop(true);
    command
}

fn event(event: Event) -> RuntimeEvent {
    RuntimeEvent { event: Some(event) }
}

fn sandbox(uid: &str) -> Sandbox {
    Sandbox { sandbox_id: format!("s-{uid}"), pod_uid: uid.into(), name: uid.into(), ..Sandbox::default() }
}

fn snapshot(uids: &[&str]) -> RuntimeEvent {
    let sandboxes = uids.iter().map(|uid| sandbox(uid)).collect();
    event(Event::Snapshot(RuntimeSnapshot { sandboxes, containers: vec![] }))
}

fn uids(list: &PodList) -> Vec<&str> {
    list.pods.iter().map(|pod| pod.uid.as_str()).collect()
}

fn error_of<'a>(list: &'a PodList, source: &str) -> &'a str {
    &list.sources.iter().find(|s| s.source == source).unwrap().error
}

/// A kubelet that answers whatever it is told to, and counts.
#[derive(Clone, Default)]
struct Kubelet {
    answer: Arc<Mutex<(u16, String)>>,
    asked: Arc<AtomicU64>,
    token: Arc<Mutex<String>>,
    config: Arc<Mutex<Option<String>>>,
}

impl Kubelet {
    async fn start(answer: &str) -> (Self, String) {
        let kubelet = Self::default();
        kubelet.answers(200, answer);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new()
            .route("/pods", get(pods))
            .route("/configz", get(configz))
            .with_state(kubelet.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        (kubelet, endpoint)
    }

    fn answers(&self, code: u16, body: &str) {
        *self.answer.lock().unwrap() = (code, body.to_owned());
    }

    async fn asked_again(&self) {
        let before = self.asked.load(Ordering::SeqCst);
        let deadline = Instant::now() + PATIENCE;
        while self.asked.load(Ordering::SeqCst) == before {
            assert!(Instant::now() < deadline, "the kubelet is not asked");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

async fn configz(State(kubelet): State<Kubelet>) -> (StatusCode, String) {
    let config = kubelet.config.lock().unwrap().clone();
    match config {
        Some(config) => (StatusCode::OK, format!(r#"{{"kubeletconfig":{config}}}"#)),
        None => (
            StatusCode::FORBIDDEN,
            "Forbidden (user=x, verb=get, resource=nodes, subresource=configz)".into(),
        ),
    }
}

async fn pods(State(kubelet): State<Kubelet>, headers: HeaderMap) -> (StatusCode, String) {
    kubelet.asked.fetch_add(1, Ordering::SeqCst);
    let token = headers.get("authorization").map(|v| v.to_str().unwrap().to_owned()).unwrap_or_default();
    *kubelet.token.lock().unwrap() = token;
    let (code, body) = kubelet.answer.lock().unwrap().clone();
    (StatusCode::from_u16(code).unwrap(), body)
}

fn pod_list(uids: &[&str]) -> String {
    let items: Vec<String> = uids
        .iter()
        .map(|uid| {
            format!(r#"{{"metadata":{{"uid":"{uid}","name":"{uid}"}},"status":{{"qosClass":"Burstable"}}}}"#)
        })
        .collect();
    format!(r#"{{"items":[{}]}}"#, items.join(","))
}

#[tokio::test]
async fn what_the_kubelet_reserves_is_told_to_who_asks_and_stays_known() {
    let (kubelet, endpoint) = Kubelet::start(&pod_list(&["a"])).await;
    let mut service = Service::start(&[format!("kubelet.endpoint={endpoint}")]).await;
    let quiet = service.meta.get_node(GetNodeRequest::default()).await.unwrap().into_inner();
    assert_eq!((quiet.kubelet_reservation, quiet.kubelet_reservation_error.as_str()), (None, ""));
    let deadline = Instant::now() + PATIENCE;
    let mut when = async |wanted: &dyn Fn(&Node) -> bool| loop {
        let asked = GetNodeRequest { kubelet_reservation: true };
        let node = service.meta.get_node(asked).await.unwrap().into_inner();
        if wanted(&node) {
            return node;
        }
        assert!(Instant::now() < deadline, "{node:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let refused = when(&|node| !node.kubelet_reservation_error.is_empty()).await;
    assert!(refused.kubelet_reservation_error.contains("HTTP 403"), "{refused:?}");
    assert_eq!(refused.kubelet_reservation, None);

    *kubelet.config.lock().unwrap() = Some(r#"{"kubeReserved":{"cpu":"750m"}}"#.into());
    let told = when(&|node| node.kubelet_reservation.is_some()).await;
    let reservation = told.kubelet_reservation.unwrap();
    assert_eq!((reservation.cpus.as_str(), reservation.milli_cpu), ("", 750));
    assert!(reservation.heard_unix_ms > 0 && told.kubelet_reservation_error.is_empty());

    *kubelet.config.lock().unwrap() = None;
    let old = when(&|node| !node.kubelet_reservation_error.is_empty()).await;
    assert_eq!(old.kubelet_reservation, Some(reservation), "the last word stays");
}

#[tokio::test]
async fn the_runtime_alone_tells_pods_and_a_broken_stream_keeps_them() {
    let mut service = Service::start(&[]).await;
    assert_eq!(service.status().await.pending[0].name, "runtime");
    let mut watch = service.meta.watch_pods(WatchPodsRequest::default()).await.unwrap().into_inner();

    let (gateway, call) = service.gateway();
    gateway.send(snapshot(&["a", "b"])).await.unwrap();
    gateway.send(event(Event::RemovedSandboxId("s-b".into()))).await.unwrap();
    gateway.send(event(Event::Sandbox(sandbox("c")))).await.unwrap();
    let list = service.pods_when("a and c", |l| uids(l) == ["a", "c"]).await;
    assert!(list.sources.iter().all(|s| s.source == "runtime" && s.heard_unix_ms > 0 && s.error.is_empty()));
    assert!(service.status().await.ready);
    loop {
        let pushed = watch.message().await.unwrap().unwrap();
        if uids(&pushed) == ["a", "c"] {
            break;
        }
    }

    call.abort();
    let list = service.pods_when("a lost stream", |l| !error_of(l, "runtime").is_empty()).await;
    assert_eq!(uids(&list), ["a", "c"]);
    assert_eq!(service.status().await.pending[0].name, "runtime");

    let (again, call) = service.gateway();
    again.send(snapshot(&["c"])).await.unwrap();
    let list = service.pods_when("the new list", |l| uids(l) == ["c"]).await;
    assert_eq!(error_of(&list, "runtime"), "");

    // An orderly end is told too, if no other stream follows.
    drop(again);
    call.await.unwrap().unwrap();
    let list = service.pods_when("an ended stream", |l| !error_of(l, "runtime").is_empty()).await;
    assert_eq!(
        (uids(&list), error_of(&list, "runtime")),
        (vec!["c"], "the gateway ended its stream and began no other")
    );
}

#[tokio::test]
async fn a_newer_stream_ends_the_older_one_and_a_stream_without_a_list_is_refused() {
    let mut service = Service::start(&[]).await;
    let (old, old_call) = service.gateway();
    old.send(snapshot(&["a"])).await.unwrap();
    service.pods_when("a", |l| uids(l) == ["a"]).await;
    let (new, _new_call) = service.gateway();
    new.send(snapshot(&["b"])).await.unwrap();
    service.pods_when("b", |l| uids(l) == ["b"]).await;
    old.send(event(Event::Sandbox(sandbox("late")))).await.unwrap();
    assert_eq!(old_call.await.unwrap().unwrap_err().code(), tonic::Code::Aborted);
    let list = service.meta.list_pods(ListPodsRequest {}).await.unwrap().into_inner();
    assert_eq!((uids(&list), error_of(&list, "runtime")), (vec!["b"], ""));

    let (headless, call) = service.gateway();
    headless.send(event(Event::Sandbox(sandbox("c")))).await.unwrap();
    assert_eq!(call.await.unwrap().unwrap_err().code(), tonic::Code::InvalidArgument);
}

#[tokio::test]
async fn a_kubelet_that_fails_wipes_nothing_and_an_unknown_pod_makes_it_be_asked() {
    let token = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(token.path(), "one\n").unwrap();
    let (kubelet, endpoint) = Kubelet::start(&pod_list(&["a"])).await;
    let set = [
        format!("kubelet.endpoint={endpoint}"),
        format!("kubelet.token_file={}", token.path().display()),
        // So long that only an unknown pod explains the second question.
        "kubelet.period_ms=3600000".to_owned(),
    ];
    let mut service = Service::start(&set).await;
    let list = service.pods_when("the kubelet's pod", |l| uids(l) == ["a"]).await;
    assert_eq!(
        (list.pods[0].told_by.join(","), list.pods[0].kubernetes_qos.as_str()),
        ("kubelet".into(), "Burstable")
    );
    assert_eq!(*kubelet.token.lock().unwrap(), "Bearer one");

    std::fs::write(token.path(), "two").unwrap();
    kubelet.answers(200, &pod_list(&["a", "b"]));
    let (gateway, _call) = service.gateway();
    gateway.send(snapshot(&["b"])).await.unwrap();
    let list = service
        .pods_when("both sources", |l| {
            l.pods.iter().any(|p| p.uid == "b" && p.told_by == ["kubelet", "runtime"])
        })
        .await;
    assert_eq!(uids(&list), ["a", "b"]);
    assert_eq!(*kubelet.token.lock().unwrap(), "Bearer two");

    for (code, body) in
        [(500, "no"), (200, r#"{"items":[]}"#), (200, r#"{"items":[{"meta"#), (401, "Unauthorized")]
    {
        kubelet.answers(code, body);
        gateway.send(event(Event::Sandbox(sandbox("stranger")))).await.unwrap();
        kubelet.asked_again().await;
        let list = service.pods_when("a fault", |l| !error_of(l, "kubelet").is_empty()).await;
        assert_eq!(uids(&list), ["a", "b", "stranger"], "after {code} {body}");
    }
    let pending = service.status().await.pending;
    assert_eq!(pending[0].name, "kubelet");
    assert!(pending[0].detail.contains("HTTP 401: Unauthorized"), "{pending:?}");
}

#[tokio::test]
async fn a_kubelet_is_asked_at_most_once_a_second() {
    let (kubelet, endpoint) = Kubelet::start(&pod_list(&["a"])).await;
    let started = Instant::now();
    let mut service =
        Service::start(&[format!("kubelet.endpoint={endpoint}"), "kubelet.period_ms=1".to_owned()]).await;
    let (gateway, _call) = service.gateway();
    gateway.send(snapshot(&[])).await.unwrap();
    for n in 0..200 {
        gateway.send(event(Event::Sandbox(sandbox(&n.to_string())))).await.unwrap();
    }
    service.pods_when("all pods", |l| l.pods.len() == 201).await;
    let asked = kubelet.asked.load(Ordering::SeqCst);
    assert!(asked <= started.elapsed().as_secs() + 1, "{asked} lists in {:?}", started.elapsed());
}

#[tokio::test]
async fn the_node_is_told_and_a_second_process_is_refused_with_one_line() {
    let mut service = Service::start(&[]).await;
    let node = service.meta.get_node(GetNodeRequest::default()).await.unwrap().into_inner();
    assert_eq!(node.name, "n1");
    assert!(node.memory_bytes > 0 && node.cpus > 0 && !node.kernel.is_empty());

    let second = command(service.run_dir.path(), &[]).stderr(Stdio::piped()).output().await.unwrap();
    let text = String::from_utf8(second.stderr).unwrap();
    assert_eq!(second.status.code(), Some(2), "{text}");
    assert!(text.contains("already in use") && text.trim().lines().count() == 1, "{text}");
    assert!(service.child.try_wait().unwrap().is_none());
}

#[tokio::test]
async fn unusable_settings_end_with_one_line_that_names_the_key() {
    let run_dir = tempfile::tempdir().unwrap();
    for (set, named) in [
        ("kubelet.endpoint=ftp://x", "kubelet.endpoint"),
        ("kubelet.endpont=x", "endpont"),
        ("kubelet.period_ms=soon", "period_ms"),
    ] {
        let output =
            command(run_dir.path(), &[set.to_owned()]).stderr(Stdio::piped()).output().await.unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(named) && text.trim().lines().count() == 1, "{text}");
    }
}
