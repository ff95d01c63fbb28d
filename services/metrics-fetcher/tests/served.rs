//! The real process on an imitated machine, as its peers see it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use oxalyst_cgroups::CgroupPath;
use oxalyst_cgroups::fixture::{Fixture, Layout, Load};
use oxalyst_mesh::{Mesh, connect, socket_path};
use oxalyst_proto::mesh::v1::GetStatusRequest;
use oxalyst_proto::mesh::v1::introspection_client::IntrospectionClient;
use oxalyst_proto::meta::v1::meta_server::{Meta, MetaServer};
use oxalyst_proto::meta::v1::{
    GetNodeRequest, ListPodsRequest, Node, Pod, PodContainer, PodList, ReportRuntimeReply, RuntimeEvent,
    WatchPodsRequest,
};
use oxalyst_proto::metrics::v1::metrics_client::MetricsClient;
use oxalyst_proto::metrics::v1::{
    AggregateRequest, Aggregation, ListMetricsRequest, ListSourcesRequest, PushRequest, PushedValue, Quality,
    QueryReply, QueryRequest, Sample, Scope,
};
use oxalyst_settings::Common;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tonic::service::Routes;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status, Streaming};

const DEADLINE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn command(run_dir: &Path, host_root: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_metrics-fetcher"));
    command.env_clear().args([
        "--set".to_owned(),
        format!("common.run_dir={}", run_dir.display()),
        "--set".to_owned(),
        format!("common.host_root={}", host_root.display()),
        "--set".to_owned(),
        "period_ms=100".to_owned(),
        // Stale for seconds, so that a slow machine cannot miss it between two looks.
        "--set".to_owned(),
        "withdraw_after_periods=40".to_owned(),
        "--set".to_owned(),
        "forget_after_periods=80".to_owned(),
        "--set".to_owned(),
        "read_deadline_ms=300".to_owned(),
    ]);
    command
}

struct World {
    dir: tempfile::TempDir,
    fixture: Fixture,
    _process: Process,
    client: MetricsClient<Channel>,
}

impl World {
    fn start(layout: Layout) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let fixture = Fixture::create(&dir.path().join("host"), layout).unwrap();
        let cgroup = CgroupPath::new("kubepods/burstable/poduid-1/c1").unwrap();
        fixture.cgroup(&cgroup).unwrap();
        let child =
            command(&dir.path().join("run"), &dir.path().join("host")).stderr(Stdio::null()).spawn().unwrap();
        let client = MetricsClient::new(connect(&dir.path().join("run"), "metrics-fetcher"));
        Self { dir, fixture, _process: Process(child), client }
    }

    fn run_dir(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    /// Asks until the answer is as wanted.
    async fn until(&mut self, request: QueryRequest, wanted: impl Fn(&[Sample]) -> bool) -> Vec<Sample> {
        let began = Instant::now();
        let mut last = None;
        while began.elapsed() < DEADLINE {
            if let Ok(reply) = self.client.query(request.clone()).await {
                let QueryReply { samples, .. } = reply.into_inner();
                if wanted(&samples) {
                    return samples;
                }
                last = Some(samples);
            }
            tokio::time::sleep(POLL).await;
        }
        panic!("never as wanted: {last:?}");
    }
}

fn of_container(metric: &str) -> QueryRequest {
    QueryRequest { metrics: vec![metric.to_owned()], ids: vec!["c1".to_owned()], ..QueryRequest::default() }
}

fn is(samples: &[Sample], quality: Quality) -> bool {
    samples.len() == 1 && samples[0].quality() == quality
}

/// Names of the node's gauges, each behind `oxalyst_`.
const GOLDEN: &str = include_str!("golden/node_metrics.txt");

/// What a page of the docs calls a metric of the service itself.
fn own_names(page: &str) -> impl Iterator<Item = &str> {
    let starts = page.match_indices("`oxalyst_").filter_map(|(at, _)| page.get(at + 1..));
    starts
        .filter_map(|rest| rest.split(|c: char| c != '_' && !c.is_ascii_lowercase()).next())
        .filter(|name| !name.ends_with('_'))
}

async fn http(run_dir: &Path, path: &str) -> String {
    let mut stream = UnixStream::connect(socket_path(run_dir, "metrics-fetcher")).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: mesh\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test]
async fn a_container_is_measured_by_its_ids_and_ages_when_the_tree_is_lost() {
    for (layout, source) in [(Layout::V1, "cgroup-v1"), (Layout::V2, "cgroup-v2")] {
        let mut world = World::start(layout);
        let samples = world.until(of_container("mem.rss.container"), |s| is(s, Quality::Fresh)).await;
        let sample = &samples[0];
        assert_eq!((sample.value, sample.unit.as_str()), (Some(f64::from(1 << 20)), "bytes"));
        assert_eq!((sample.pod_uid.as_str(), sample.source.as_str()), ("uid-1", source));
        assert!(sample.time_unix_ns > 0 && sample.reason.is_empty());
        assert_eq!((sample.pod.as_str(), sample.container.as_str()), ("", ""), "nobody told names");

        // The status is ready once a pass has ended.
        let mut mesh = IntrospectionClient::new(connect(&world.run_dir(), "metrics-fetcher"));
        let status = mesh.get_status(GetStatusRequest {}).await.unwrap().into_inner();
        assert!(status.ready, "{:?}", status.pending);

        let root = world.fixture.root();
        std::fs::rename(&root, world.dir.path().join("away")).unwrap();
        let stale = world.until(of_container("mem.rss.container"), |s| is(s, Quality::Stale)).await;
        assert!(stale[0].value.is_some() && !stale[0].reason.is_empty(), "{:?}", stale[0]);
        let missing = world.until(of_container("mem.rss.container"), |s| is(s, Quality::Missing)).await;
        assert_eq!(missing[0].value, None);
        assert!(missing[0].time_unix_ns > 0, "the last time is told");
        let sources = world.client.list_sources(ListSourcesRequest {}).await.unwrap().into_inner().sources;
        assert!(sources[0].error.contains("cgroup"), "{sources:?}");
        std::fs::rename(world.dir.path().join("away"), &root).unwrap();
        world.until(of_container("mem.rss.container"), |s| is(s, Quality::Fresh)).await;
    }
}

#[tokio::test]
async fn the_cpu_of_a_busy_container_is_told_in_cores() {
    let mut world = World::start(Layout::V2);
    let cgroup = CgroupPath::new("kubepods/burstable/poduid-1/c1").unwrap();
    world.until(of_container("cpu.usage.container"), |s| is(s, Quality::Fresh)).await;
    // It goes on using CPU while it is looked at: a rate is told until the next pass only.
    let (fixture, used) = (world.fixture.clone(), AtomicU64::new(0));
    let look = |s: &[Sample]| {
        let cpu_ns = used.fetch_add(1_000_000_000, Ordering::Relaxed);
        fixture.load(&cgroup, &Load { cpu_ns, ..Load::default() }).unwrap();
        s[0].value.is_some_and(|v| v > 0.0)
    };
    let busy = world.until(of_container("cpu.usage.container"), look).await;
    assert_eq!(busy[0].unit, "cores");
    assert!(busy[0].interval_ms >= 20, "{:?}", busy[0]);
}

#[tokio::test]
async fn what_was_asked_for_is_answered_and_nothing_else() {
    let mut world = World::start(Layout::V1);
    world.until(of_container("mem.rss.container"), |s| is(s, Quality::Fresh)).await;
    let mut ask = async |request| world.client.query(request).await;

    let none = ask(QueryRequest { ids: vec!["c2".to_owned()], ..QueryRequest::default() }).await.unwrap();
    assert!(none.into_inner().samples.is_empty());
    let pod = QueryRequest {
        ids: vec!["uid-1".to_owned()],
        metrics: vec!["cpu.psi.some.avg10.container".to_owned()],
        ..QueryRequest::default()
    };
    let pod = ask(pod).await.unwrap().into_inner().samples;
    assert!(is(&pod, Quality::Missing) && pod[0].value.is_none() && !pod[0].reason.is_empty(), "{pod:?}");
    let node =
        ask(QueryRequest { scopes: vec![Scope::Node.into()], ..QueryRequest::default() }).await.unwrap();
    let node = node.into_inner().samples;
    assert!(!node.is_empty() && node.iter().all(|s| s.scope() == Scope::Node && s.container_id.is_empty()));
    let strict = QueryRequest { max_age_ms: Some(0), ..of_container("mem.rss.container") };
    let strict = ask(strict).await.unwrap().into_inner().samples;
    assert_ne!(strict[0].quality(), Quality::Fresh, "nothing is that young: {strict:?}");
    let unknown = ask(QueryRequest { metrics: vec!["mem.typo".to_owned()], ..QueryRequest::default() }).await;
    let unknown = unknown.unwrap_err();
    assert_eq!(unknown.code(), Code::InvalidArgument);
    assert!(unknown.message().contains("mem.typo"), "{unknown}");
    for scope in [0, 99] {
        let no_scope =
            ask(QueryRequest { scopes: vec![scope], ..QueryRequest::default() }).await.unwrap_err();
        assert_eq!(no_scope.code(), Code::InvalidArgument, "{no_scope}");
    }
    let of_nobody = |aggregation: Aggregation| AggregateRequest {
        metric: "mem.rss.container".to_owned(),
        ids: vec!["c2".to_owned()],
        aggregation: aggregation.into(),
        ..AggregateRequest::default()
    };
    let unspecified = world.client.aggregate(of_nobody(Aggregation::Unspecified)).await.unwrap_err();
    assert_eq!(unspecified.code(), Code::InvalidArgument, "{unspecified}");
    let nobody = world.client.aggregate(of_nobody(Aggregation::Sum)).await.unwrap().into_inner();
    assert_eq!((nobody.value, nobody.counted, nobody.unit.as_str()), (None, 0, "bytes"));

    let metrics = world.client.list_metrics(ListMetricsRequest {}).await.unwrap().into_inner().metrics;
    let psi = metrics.iter().find(|m| m.name == "cpu.psi.some.avg10.container").unwrap();
    assert_eq!(psi.sources, ["cgroup-v2", "malachite"]);
    let v1 = psi.availability.iter().find(|a| a.source == "cgroup-v1").unwrap();
    assert!(!v1.available && v1.reason.contains("v1"), "{v1:?}");
}

#[derive(Debug)]
struct Names;

type PodStream = Pin<Box<dyn tokio_stream::Stream<Item = Result<PodList, Status>> + Send>>;

#[tonic::async_trait]
impl Meta for Names {
    type WatchPodsStream = PodStream;

    async fn report_runtime(
        &self,
        _: Request<Streaming<RuntimeEvent>>,
    ) -> Result<Response<ReportRuntimeReply>, Status> {
        Err(Status::unimplemented("not asked here"))
    }

    async fn list_pods(&self, _: Request<ListPodsRequest>) -> Result<Response<PodList>, Status> {
        Err(Status::unimplemented("not asked here"))
    }

    async fn watch_pods(&self, _: Request<WatchPodsRequest>) -> Result<Response<PodStream>, Status> {
        let container =
            PodContainer { name: "app".to_owned(), container_id: "c1".to_owned(), ..PodContainer::default() };
        let pod = Pod {
            uid: "uid-1".to_owned(),
            namespace: "default".to_owned(),
            name: "web".to_owned(),
            containers: vec![container],
            ..Pod::default()
        };
        let list = PodList { pods: vec![pod], ..PodList::default() };
        let first = tokio_stream::once(Ok(list));
        Ok(Response::new(Box::pin(tokio_stream::StreamExt::chain(first, tokio_stream::pending()))))
    }

    async fn get_node(&self, _: Request<GetNodeRequest>) -> Result<Response<Node>, Status> {
        Err(Status::unimplemented("not asked here"))
    }
}

#[tokio::test]
async fn names_come_once_the_meta_server_is_there_and_stay_when_it_goes() {
    let mut world = World::start(Layout::V2);
    world.until(of_container("mem.rss.container"), |s| is(s, Quality::Fresh)).await;
    let common = Common { run_dir: world.run_dir(), ..Common::default() };
    let bound = Mesh::new("meta-server", "0.0.0", &common).bind().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(bound.serve_until(Routes::new(MetaServer::new(Names)), async {
        let _ = stopped.await;
    }));
    let named = world.until(of_container("mem.rss.container"), |s| s.len() == 1 && s[0].pod == "web").await;
    assert_eq!((named[0].namespace.as_str(), named[0].container.as_str()), ("default", "app"));
    stop.send(()).unwrap();
    serving.await.unwrap().unwrap();
    let still = world.until(of_container("mem.rss.container"), |s| is(s, Quality::Fresh)).await;
    assert_eq!(still[0].pod, "web");
}

#[tokio::test]
async fn what_a_plugin_pushes_is_told_beside_the_rest() {
    let mut world = World::start(Layout::V2);
    world.until(of_container("mem.rss.container"), |s| is(s, Quality::Fresh)).await;
    let now = world.client.query(of_container("mem.rss.container")).await.unwrap().into_inner().now_unix_ms;
    let value = PushedValue {
        metric: "duty.cycle".to_owned(),
        scope: Scope::Container.into(),
        container_id: "c1".to_owned(),
        value: 0.25,
        unit: "ratio".to_owned(),
        time_unix_ns: now * 1_000_000,
        ..PushedValue::default()
    };
    let push = PushRequest { source: "gpu".to_owned(), period_ms: 60_000, values: vec![value] };
    let mut watch = world.client.watch(of_container("gpu/duty.cycle")).await.unwrap().into_inner();
    assert_eq!(world.client.push(push.clone()).await.unwrap().into_inner().held, 1);
    let told = watch.message().await.unwrap().unwrap().samples;
    assert!(is(&told, Quality::Fresh), "{told:?}");
    assert_eq!((told[0].value, told[0].source.as_str(), told[0].unit.as_str()), (Some(0.25), "gpu", "ratio"));
    let all = QueryRequest { ids: vec!["c1".to_owned()], ..QueryRequest::default() };
    let all = world.client.query(all).await.unwrap().into_inner().samples;
    assert!(
        all.iter().any(|s| s.metric == "gpu/duty.cycle")
            && all.iter().any(|s| s.metric == "mem.rss.container")
    );
    let sources = world.client.list_sources(ListSourcesRequest {}).await.unwrap().into_inner().sources;
    assert!(
        sources.iter().any(|s| s.name == "gpu" && s.period_ms == 60_000 && s.subjects == 1),
        "{sources:?}"
    );
    // What cannot be added is not.
    let other =
        PushedValue { unit: "bytes".to_owned(), container_id: "c3".to_owned(), ..push.values[0].clone() };
    world.client.push(PushRequest { values: vec![other], ..push.clone() }).await.unwrap();
    let sum = AggregateRequest {
        metric: "gpu/duty.cycle".to_owned(),
        aggregation: Aggregation::Sum.into(),
        ..AggregateRequest::default()
    };
    let mixed = world.client.aggregate(sum).await.unwrap_err();
    assert!(mixed.code() == Code::FailedPrecondition && mixed.message().contains("ratio"), "{mixed}");
    // It cannot pass for one of the fetcher's own.
    let forged = PushRequest { source: "proc".to_owned(), ..push };
    assert_eq!(world.client.push(forged).await.unwrap_err().code(), Code::InvalidArgument);
    let text = http(&world.run_dir(), "/metrics").await;
    assert!(!text.contains("duty"), "what others push is no gauge of the node");
}

#[tokio::test]
async fn watchers_that_do_not_read_take_bounded_memory_hold_up_no_pass_and_are_capped() {
    let mut world = World::start(Layout::V2);
    for n in 2..40 {
        let cgroup = CgroupPath::new(&format!("kubepods/burstable/poduid-{n}/c{n}")).unwrap();
        world.fixture.cgroup(&cgroup).unwrap();
    }
    let all = |s: &[Sample]| s.len() == 39 && s.iter().all(|s| s.quality() == Quality::Fresh);
    let rss = QueryRequest { metrics: vec!["mem.rss.container".to_owned()], ..QueryRequest::default() };
    world.until(rss.clone(), all).await;
    let resident = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", world._process.0.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    let before = resident();
    let mut idle = Vec::new();
    for _ in 0..64 {
        // A connection each, whose replies nobody takes.
        let mut client = MetricsClient::new(connect(&world.dir.path().join("run"), "metrics-fetcher"));
        let watch = client.watch(QueryRequest::default()).await.unwrap().into_inner();
        idle.push((client, watch));
    }
    let refused = world.client.clone().watch(rss.clone()).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(refused.message().contains("max_watchers"), "{refused}");
    let cycle = world.client.clone().query(of_container("mem.rss.container")).await.unwrap();
    let cycle = cycle.into_inner().samples[0].cycle;
    let mut asking = world.client.clone();
    let began = Instant::now();
    loop {
        let reply = asking.query(of_container("mem.rss.container")).await.unwrap().into_inner();
        if is(&reply.samples, Quality::Fresh) && reply.samples[0].cycle > cycle + 20 {
            break;
        }
        assert!(began.elapsed() < DEADLINE, "passes do not go on: {:?}", reply.samples);
        tokio::time::sleep(POLL).await;
    }
    // One message and what was seen of some 9,000 samples for each, not a list of all of them.
    let each = resident().saturating_sub(before) / 64;
    assert!(each < 1200, "{each} KiB for each watcher");
    // Who leaves makes room.
    idle.pop();
    let began = Instant::now();
    while let Err(status) = world.client.watch(rss.clone()).await {
        assert!(began.elapsed() < DEADLINE, "{status}");
        tokio::time::sleep(POLL).await;
    }
}

#[tokio::test]
async fn m14_every_exposed_name_is_listed_here() {
    let mut world = World::start(Layout::V2);
    world.until(of_container("cpu.usage.container"), |s| is(s, Quality::Fresh)).await;
    let text = http(&world.run_dir(), "/metrics").await;
    let exposed: Vec<&str> =
        text.lines().filter_map(|l| l.strip_prefix("# TYPE oxalyst_")?.split(' ').next()).collect();
    let node = metrics_fetcher::catalogue::NODE.iter().filter_map(|m| m.exposed);
    let own = [
        "metric_values",
        "metric_age_seconds",
        "metric_stale",
        "collect_open_files",
        "collect_failed_files",
        "collect_late_reads",
        "collect_containers",
        "collect_passes",
        "collect_pass_seconds",
    ];
    let mut golden: Vec<String> = node.map(str::to_owned).collect();
    assert_eq!(golden, GOLDEN.lines().collect::<Vec<_>>(), "documented names change on purpose only");
    golden.extend(own.map(str::to_owned));
    assert_eq!(exposed, golden);
    assert!(text.contains("oxalyst_node_memory_total_bytes 16777216000"), "{text}");
    let page = include_str!("../../../docs/services/metrics-fetcher.md");
    for documented in own_names(page) {
        let told =
            text.lines().any(|l| l.strip_prefix(documented).is_some_and(|l| l.starts_with(['{', ' ', '_'])));
        assert!(told, "{documented} is documented and has no line: {text}");
    }
    assert!(!text.contains("c1") && !text.contains("uid-1"), "containers are no labels");
}

fn ended(command: &mut Command) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(began.elapsed() < DEADLINE, "it does not end");
        std::thread::yield_now();
    }
    child.wait_with_output().unwrap()
}

#[test]
fn settings_that_cannot_be_are_one_line_and_exit_code_2() {
    let dir = tempfile::tempdir().unwrap();
    for (given, says) in [
        ("perio_ms=5", "perio_ms"),
        ("period_ms=5", "period_ms is 5"),
        ("cgroup_roots=[/../x]", "cgroup_roots"),
    ] {
        let output = ended(command(dir.path(), dir.path()).args(["--set", given]));
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{given}: {stderr}");
        assert!(stderr.contains(says) && stderr.trim().lines().count() == 1, "{given}: {stderr}");
    }
}

#[tokio::test]
async fn an_unreadable_machine_keeps_the_service_up_and_says_what_is_awaited() {
    let dir = tempfile::tempdir().unwrap();
    let (run_dir, host_root) = (dir.path().join("run"), dir.path().join("nothing"));
    let _process = Process(command(&run_dir, &host_root).stderr(Stdio::null()).spawn().unwrap());
    let mut mesh = IntrospectionClient::new(connect(&run_dir, "metrics-fetcher"));
    let began = Instant::now();
    loop {
        assert!(began.elapsed() < DEADLINE, "it never says what it waits for");
        if let Ok(status) = mesh.get_status(GetStatusRequest {}).await {
            let status = status.into_inner();
            assert!(!status.ready);
            if status.pending.iter().any(|p| p.name == "first-pass" && p.detail.contains("nothing")) {
                break;
            }
        }
        tokio::time::sleep(POLL).await;
    }
}

#[tokio::test]
async fn a_required_source_that_is_away_is_awaited_and_shown_and_the_rest_is_measured() {
    let dir = tempfile::tempdir().unwrap();
    let (run_dir, host_root) = (dir.path().join("run"), dir.path().join("host"));
    let fixture = Fixture::create(&host_root, Layout::V2).unwrap();
    fixture.cgroup(&CgroupPath::new("kubepods/burstable/poduid-1/c1").unwrap()).unwrap();
    let mut command = command(&run_dir, &host_root);
    // Nobody listens there.
    for setting in
        ["kubelet.endpoint=http://127.0.0.1:1", "kubelet.period_ms=100", "required_sources=[kubelet]"]
    {
        command.args(["--set", setting]);
    }
    let _process = Process(command.stderr(Stdio::null()).spawn().unwrap());
    let mut mesh = IntrospectionClient::new(connect(&run_dir, "metrics-fetcher"));
    let mut client = MetricsClient::new(connect(&run_dir, "metrics-fetcher"));
    let began = Instant::now();
    loop {
        assert!(began.elapsed() < DEADLINE, "it never says what it waits for");
        let status = mesh.get_status(GetStatusRequest {}).await.map(Response::into_inner);
        let sources = client.list_sources(ListSourcesRequest {}).await.map(Response::into_inner);
        if let (Ok(status), Ok(sources)) = (status, sources) {
            assert!(!status.ready);
            let alone = status.pending.len() == 1 && status.pending[0].name == "source-kubelet";
            let shown =
                sources.sources.iter().any(|s| s.name == "kubelet" && s.required && !s.error.is_empty());
            if alone && shown && status.pending[0].detail.contains("127.0.0.1:1") {
                break;
            }
        }
        tokio::time::sleep(POLL).await;
    }
    let measured = client.query(of_container("mem.usage.container")).await.unwrap().into_inner();
    assert!(measured.samples[0].value.is_some(), "{measured:?}");
}
