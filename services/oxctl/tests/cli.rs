//! The real command against imitated services on unix sockets.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::os::unix::net::UnixListener as Listener;
use std::path::Path;
use std::pin::Pin;
use std::process::{Command, Output};

use oxalyst_proto::gateway::v1::gateway_server::{Gateway, GatewayServer};
use oxalyst_proto::gateway::v1::{
    AppliedContainer, DiagnoseReply, DiagnoseRequest, Finding, HandOverReply, HandOverRequest,
    ListContainersReply, ListContainersRequest,
};
use oxalyst_proto::mesh::v1::introspection_server::{Introspection, IntrospectionServer};
use oxalyst_proto::mesh::v1::{GetStatusRequest, Pending, Status as ServiceStatus};
use oxalyst_proto::metrics::v1 as metrics;
use oxalyst_proto::metrics::v1::metrics_server::{Metrics, MetricsServer};
use oxalyst_proto::metrics::v1::{
    ListMetricsReply, ListMetricsRequest, ListSourcesReply, ListSourcesRequest, Quality, QueryReply,
    QueryRequest, Sample, Scope,
};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::transport::Server;
use tonic::{Request, Response, Status};

const SERVICES: [&str; 5] = ["nri-gateway", "orm", "meta-server", "metrics-fetcher", "reporter"];

/// A service that answers everything asked of it here.
#[derive(Clone)]
struct Imitation {
    service: &'static str,
    ready: bool,
}

#[tonic::async_trait]
impl Introspection for Imitation {
    async fn get_status(&self, _: Request<GetStatusRequest>) -> Result<Response<ServiceStatus>, Status> {
        let waits = Pending { name: "orm-stream".into(), detail: "no orm yet".into() };
        Ok(Response::new(ServiceStatus {
            service: self.service.into(),
            version: "1.2.3".into(),
            started_unix_ms: 1,
            ready: self.ready,
            pending: if self.ready { vec![] } else { vec![waits] },
            facts: [("runtime".to_owned(), "containerd v2".to_owned())].into(),
            pid: 42,
        }))
    }
}

#[tonic::async_trait]
impl Gateway for Imitation {
    async fn list_containers(
        &self,
        _: Request<ListContainersRequest>,
    ) -> Result<Response<ListContainersReply>, Status> {
        let container = AppliedContainer {
            container_id: "c1".into(),
            pod_uid: "u1".into(),
            namespace: "ns".into(),
            pod: "web".into(),
            name: "app".into(),
            wanted_cpus: "0-1".into(),
            ..AppliedContainer::default()
        };
        Ok(Response::new(ListContainersReply {
            containers: vec![container],
            ..ListContainersReply::default()
        }))
    }

    async fn hand_over(&self, _: Request<HandOverRequest>) -> Result<Response<HandOverReply>, Status> {
        Err(Status::unimplemented("not asked here"))
    }

    async fn diagnose(&self, _: Request<DiagnoseRequest>) -> Result<Response<DiagnoseReply>, Status> {
        let finding = |check: &str, verdict: &str| Finding {
            check: check.into(),
            verdict: verdict.into(),
            detail: format!("{check} is {verdict}"),
            remedy: if self.ready { String::new() } else { "set disable = false".into() },
        };
        let findings = match self.ready {
            true => vec![finding("nri-enabled", "ok"), finding("kubelet-cpu-manager", "unknown")],
            false => vec![finding("nri-enabled", "fault"), finding("kubelet-cpu-manager", "warning")],
        };
        Ok(Response::new(DiagnoseReply { findings }))
    }
}

#[tonic::async_trait]
impl Metrics for Imitation {
    async fn query(&self, request: Request<QueryRequest>) -> Result<Response<QueryReply>, Status> {
        let asked = request.into_inner();
        if asked.metrics.iter().any(|name| name == "nosuch") {
            return Err(Status::invalid_argument("there is no metric \"nosuch\""));
        }
        let sample = |metric: &String| Sample {
            metric: metric.clone(),
            scope: asked.scopes.first().copied().unwrap_or(Scope::Node as i32),
            value: Some(asked.max_age_ms.unwrap_or(0) as f64),
            unit: "count".into(),
            time_unix_ns: 1,
            quality: Quality::Fresh as i32,
            ..Sample::default()
        };
        let mut samples: Vec<Sample> = asked.metrics.iter().map(sample).collect();
        if asked.metrics.iter().any(|name| name == "cpu.usage.container") {
            samples.extend((0..40).map(|n| Sample {
                container_id: format!("{n:064}"),
                resolution: Some(0.5),
                read_time_unix_ns: 2,
                cycle: 3,
                ..sample(&"cpu.usage.container".to_owned())
            }));
        }
        Ok(Response::new(QueryReply { samples, now_unix_ms: 1 }))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<QueryReply, Status>> + Send>>;

    async fn watch(&self, request: Request<QueryRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let forever = request.get_ref().metrics.iter().any(|name| name == "forever");
        let reply = self.query(request).await?.into_inner();
        let replies = tokio_stream::iter(vec![Ok(reply.clone()), Ok(reply)]);
        Ok(Response::new(match forever {
            true => Box::pin(replies.chain(tokio_stream::pending())),
            false => Box::pin(replies),
        }))
    }

    async fn aggregate(
        &self,
        _: Request<metrics::AggregateRequest>,
    ) -> Result<Response<metrics::AggregateReply>, Status> {
        Err(Status::unimplemented("not asked here"))
    }

    async fn history(
        &self,
        _: Request<metrics::HistoryRequest>,
    ) -> Result<Response<metrics::HistoryReply>, Status> {
        Err(Status::unimplemented("not asked here"))
    }

    async fn list_metrics(
        &self,
        _: Request<ListMetricsRequest>,
    ) -> Result<Response<ListMetricsReply>, Status> {
        let availability = vec![metrics::Availability {
            source: "cgroup-v1".into(),
            available: false,
            reason: "v1 tells no pressure".into(),
        }];
        let info = metrics::MetricInfo {
            name: "cpu.psi".into(),
            unit: "ratio".into(),
            scope: Scope::Container.into(),
            help: "Pressure".into(),
            sources: vec!["cgroup-v2".into()],
            availability,
            history: true,
            ..metrics::MetricInfo::default()
        };
        Ok(Response::new(ListMetricsReply { metrics: vec![info] }))
    }

    async fn list_sources(
        &self,
        _: Request<ListSourcesRequest>,
    ) -> Result<Response<ListSourcesReply>, Status> {
        let source = metrics::SourceInfo {
            name: "malachite".into(),
            period_ms: 5000,
            error: "it hangs".into(),
            ..Default::default()
        };
        Ok(Response::new(ListSourcesReply { sources: vec![source] }))
    }

    async fn push(&self, _: Request<metrics::PushRequest>) -> Result<Response<metrics::PushReply>, Status> {
        Err(Status::unimplemented("not asked here"))
    }
}

/// Serves until the test's process ends; the socket listens when this returns.
fn serve(run_dir: &Path, service: &'static str, ready: bool) {
    let listener = Listener::bind(run_dir.join(format!("{service}.sock"))).unwrap();
    listener.set_nonblocking(true).unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let imitation = Imitation { service, ready };
            let incoming = UnixListenerStream::new(UnixListener::from_std(listener).unwrap());
            Server::builder()
                .add_service(IntrospectionServer::new(imitation.clone()))
                .add_service(GatewayServer::new(imitation.clone()))
                .add_service(MetricsServer::new(imitation))
                .serve_with_incoming(incoming)
                .await
                .unwrap();
        });
    });
}

fn oxctl(run_dir: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = Command::new(env!("CARGO_BIN_EXE_oxctl"))
        .args(args)
        .env("OXALYST_RUN_DIR", run_dir)
        .output()
        .unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

#[test]
fn status_of_a_whole_and_ready_mesh_is_well() {
    let dir = tempfile::tempdir().unwrap();
    SERVICES.iter().for_each(|s| serve(dir.path(), s, true));
    let (code, out, err) = oxctl(dir.path(), &["status", "-o", "json"]);
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, err.as_str(), &json["ready"]), (Some(0), "", &true.into()));
    let names: Vec<&str> =
        json["services"].as_array().unwrap().iter().map(|s| s["service"].as_str().unwrap()).collect();
    assert_eq!(names, SERVICES);
    assert_eq!(json["services"][1]["facts"]["runtime"], "containerd v2");
}

#[test]
fn status_tells_who_is_absent_who_waits_and_who_says_nothing() {
    let dir = tempfile::tempdir().unwrap();
    serve(dir.path(), "orm", true);
    serve(dir.path(), "nri-gateway", false);
    let _stopped = Listener::bind(dir.path().join("meta-server.sock")).unwrap();
    // A process that is gone leaves its socket behind.
    drop(Listener::bind(dir.path().join("reporter.sock")).unwrap());
    let (code, out, _) = oxctl(dir.path(), &["status"]);
    assert_eq!(code, Some(1));
    let row = |service: &str| out.lines().find(|l| l.starts_with(service)).unwrap_or_else(|| panic!("{out}"));
    assert!(row("orm").contains(" ready ") && !row("orm").contains("not ready"), "{out}");
    assert!(
        row("nri-gateway").contains("not ready") && row("nri-gateway").contains("orm-stream (no orm yet)")
    );
    assert!(row("meta-server").contains("failing") && row("meta-server").contains("within 2 s"), "{out}");
    for absent in ["metrics-fetcher", "reporter"] {
        assert!(row(absent).contains("absent") && row(absent).contains("start it or set --run-dir"), "{out}");
    }
}

#[test]
fn status_of_nobody_tells_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (code, out, _) = oxctl(dir.path(), &["status"]);
    assert_eq!((code, out.matches(" absent ").count()), (Some(2), 5), "{out}");
}

#[test]
fn a_wrong_name_of_a_metric_is_the_askers_fault_and_an_unknown_id_is_named() {
    let dir = tempfile::tempdir().unwrap();
    serve(dir.path(), "metrics-fetcher", true);
    let (code, _, err) = oxctl(dir.path(), &["metrics", "nosuch"]);
    assert_eq!((code, err.as_str()), (Some(2), "metrics-fetcher: there is no metric \"nosuch\"\n"));
    let (code, out, err) = oxctl(dir.path(), &["metrics", "--id", "nope"]);
    assert_eq!((code, out.as_str()), (Some(1), "no measurements\n"));
    assert!(err.starts_with("nothing is measured for nope: ") && err.lines().count() == 1, "{err}");
    let (code, out, err) = oxctl(dir.path(), &["metrics", "--scope", "node", "sources"]);
    assert!(code == Some(2) && out.is_empty() && err.contains("behind `get`"), "{out}{err}");
}

#[test]
fn a_missing_socket_is_one_clear_line() {
    let dir = tempfile::tempdir().unwrap();
    for (command, service) in [("pools", "orm"), ("topology", "orm"), ("metrics", "metrics-fetcher")] {
        let (code, out, err) = oxctl(dir.path(), &[command]);
        let path = dir.path().join(format!("{service}.sock"));
        let line = format!(
            "{service} does not listen on {}: is the service running? start it or set --run-dir\n",
            path.display()
        );
        assert_eq!((code, out.as_str(), err), (Some(2), "", line));
    }
}

#[test]
fn pods_without_the_orm_are_what_the_gateway_knows_and_that_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let (code, _, err) = oxctl(dir.path(), &["pods"]);
    assert_eq!((code, err.lines().count()), (Some(2), 2), "{err}");
    serve(dir.path(), "nri-gateway", true);
    let (code, out, err) = oxctl(dir.path(), &["pods", "-o", "wide"]);
    assert_eq!(code, Some(1));
    assert!(err.starts_with("orm does not listen on ") && err.lines().count() == 1, "{err}");
    let row = out.lines().nth(1).unwrap();
    assert!(["ns", "web", "app", "0-1", "c1"].iter().all(|cell| row.contains(cell)), "{out}");
}

#[test]
fn a_service_of_another_version_is_named_as_such() {
    let dir = tempfile::tempdir().unwrap();
    serve(dir.path(), "orm", true);
    let (code, _, err) = oxctl(dir.path(), &["pools"]);
    assert_eq!(code, Some(2));
    assert!(err.starts_with("orm does not know GetState: it is of another version"), "{err}");
}

#[test]
fn the_flags_of_metrics_reach_the_service() {
    let dir = tempfile::tempdir().unwrap();
    serve(dir.path(), "metrics-fetcher", true);
    let args = ["metrics", "cpu_usage", "--scope", "container", "--max-age-ms", "700", "-o", "json"];
    let (code, out, err) = oxctl(dir.path(), &args);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    let sample = &json["samples"][0];
    assert_eq!(
        (&sample["metric"], &sample["scope"], &sample["value"], &sample["quality"]),
        (&"cpu_usage".into(), &"container".into(), &700.0.into(), &"fresh".into())
    );
}

#[test]
fn a_flag_beats_the_environment() {
    let (set, unset) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    serve(set.path(), "metrics-fetcher", true);
    let (code, out, _) = oxctl(unset.path(), &["metrics", "--run-dir", set.path().to_str().unwrap()]);
    assert_eq!((code, out.as_str()), (Some(0), "no measurements\n"));
}

#[test]
fn metrics_can_be_listed_watched_and_their_sources_told() {
    let dir = tempfile::tempdir().unwrap();
    serve(dir.path(), "metrics-fetcher", true);
    let (code, out, err) = oxctl(dir.path(), &["metrics", "--list", "-o", "wide"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(
        out.contains("cpu.psi") && out.contains("10m") && out.contains("cgroup-v1: v1 tells no pressure"),
        "{out}"
    );
    let (code, out, _) = oxctl(dir.path(), &["metrics", "sources"]);
    assert!(code == Some(1) && out.contains("it hangs"), "a source that ails is told: {code:?} {out}");
    let (code, out, err) = oxctl(dir.path(), &["metrics", "get", "cpu.a"]);
    assert!(code == Some(0) && out.contains("cpu.a"), "{out}{err}");
    let (code, out, err) = oxctl(dir.path(), &["metrics", "watch", "cpu.b"]);
    assert_eq!((code, out.matches("cpu.b").count()), (Some(0), 2), "{out}{err}");
    let (code, out, err) = oxctl(dir.path(), &["metrics", "export"]);
    assert!(code == Some(0) && out.starts_with("{\"resourceMetrics\":["), "{out}{err}");
    let (code, out, err) = oxctl(dir.path(), &["metrics", "-o", "json", "watch", "cpu.b"]);
    let each: Vec<serde_json::Value> = out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert!(code == Some(0) && each.len() == 2, "a line each: {out}{err}");
    let (code, out, _) = oxctl(dir.path(), &["metrics", "-o", "json", "sources"]);
    assert!(code == Some(1) && out.contains("it hangs"), "options may stand in front: {out}");
    let (code, out, err) = oxctl(dir.path(), &["metrics", "top"]);
    assert!(
        code == Some(0) && out.contains("\nPOD ") && out.lines().count() > 40 && !out.contains('\u{1b}'),
        "no terminal, once, whole: {out}{err}"
    );
    let (code, out, err) = oxctl(dir.path(), &["metrics", "top", "--containers"]);
    assert!(code == Some(0) && out.contains("\nCONTAINER "), "{out}{err}");
    let (code, out, err) = oxctl(dir.path(), &["metrics", "list", "-o", "wide"]);
    assert!(code == Some(0) && out.contains("cgroup-v1: v1 tells no pressure"), "{out}{err}");
    let (_, out, _) = oxctl(dir.path(), &["metrics", "get", "cpu.usage.container", "-o", "json"]);
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    let sample = json["samples"].as_array().unwrap().iter().find(|s| !s["container_id"].is_null()).unwrap();
    assert_eq!(
        (&sample["read_time_unix_ns"], &sample["cycle"], &sample["resolution"], &sample["removed"]),
        (&2.into(), &3.into(), &0.5.into(), &false.into())
    );
    let (code, _, err) = oxctl(dir.path(), &["metrics", "top", "--every", "0"]);
    assert!(code == Some(2) && err.contains("within 0.1"), "{err}");
}

/// A terminal of 24 lines of 60 characters: its own side, and what a process behind it gets.
fn terminal() -> (std::fs::File, std::fs::File) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let own = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&own).unwrap();
    unlockpt(&own).unwrap();
    let name = ptsname(&own, Vec::new()).unwrap().into_string().unwrap();
    let other = std::fs::File::options().read(true).write(true).open(name).unwrap();
    let size = rustix::termios::Winsize { ws_row: 24, ws_col: 60, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(&other, size).unwrap();
    (std::fs::File::from(own), other)
}

#[test]
fn top_fits_into_its_terminal_is_drawn_anew_and_ends_well_when_interrupted() {
    use std::io::Read as _;
    let dir = tempfile::tempdir().unwrap();
    serve(dir.path(), "metrics-fetcher", true);
    for action in ["top", "watch"] {
        let (mut own, other) = terminal();
        let mut command = Command::new(env!("CARGO_BIN_EXE_oxctl"));
        command.args(["--run-dir", dir.path().to_str().unwrap(), "metrics", action]);
        command.args(if action == "top" { ["--every", "0.1"] } else { ["forever", "--"] });
        command.stdout(other.try_clone().unwrap()).stderr(other);
        let mut child = command.spawn().unwrap();
        // Its last copy of the other side is closed with it, so that a reading ends if it dies.
        drop(command);
        let (mut seen, mut buffer) = (String::new(), [0u8; 4096]);
        let enough = |seen: &str| match action {
            "top" => seen.matches("\u{1b}[H\u{1b}[J").count() >= 3,
            _ => seen.contains("forever"),
        };
        while !enough(&seen) {
            let read = own.read(&mut buffer).unwrap_or_else(|e| panic!("{action}: {e}: {seen}"));
            seen.push_str(&String::from_utf8_lossy(&buffer[..read]));
        }
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0), "{action}: {seen}");
        if action == "top" {
            let screen = seen.split("\u{1b}[H\u{1b}[J").nth(1).unwrap();
            let lines: Vec<&str> = screen.lines().collect();
            assert!(lines.len() == 23 && lines.iter().all(|l| l.chars().count() <= 60), "{screen}");
            assert!(lines[0].contains("node: CPU") && lines[1].starts_with("POD "), "{screen}");
            assert!(lines[22].starts_with('…') && lines[22].ends_with("more"), "{screen}");
        }
    }
}

#[test]
fn doctor_says_what_stands_in_the_way_and_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    SERVICES.iter().for_each(|s| serve(dir.path(), s, true));
    let (code, out, err) = oxctl(dir.path(), &["doctor"]);
    assert!(code == Some(0) && out.contains("nri-enabled") && out.contains("unknown"), "{out}{err}");
    let dir = tempfile::tempdir().unwrap();
    serve(dir.path(), "nri-gateway", false);
    let (code, out, _) = oxctl(dir.path(), &["doctor"]);
    let row = |check: &str| out.lines().find(|l| l.starts_with(check)).unwrap_or_else(|| panic!("{out}"));
    assert_eq!(code, Some(1));
    assert!(row("nri-enabled").contains("fault") && row("nri-enabled").contains("set disable = false"));
    assert!(row("nri-gateway").contains("orm-stream: no orm yet"), "{out}");
    assert!(row("orm").contains("does not listen on"), "{out}");
}
