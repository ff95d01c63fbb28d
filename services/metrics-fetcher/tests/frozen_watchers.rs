//! Watchers whose process stands still.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use oxalyst_cgroups::CgroupPath;
use oxalyst_cgroups::fixture::{Fixture, Layout};
use oxalyst_mesh::connect;
use oxalyst_proto::metrics::v1::QueryRequest;
use oxalyst_proto::metrics::v1::metrics_client::MetricsClient;
use tonic::Code;

const DEADLINE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn of_container() -> QueryRequest {
    QueryRequest { metrics: vec!["mem.rss.container".to_owned()], ..QueryRequest::default() }
}

#[tokio::test]
async fn watchers_that_stand_still_are_let_go_and_their_places_are_free_again() {
    let dir = tempfile::tempdir().unwrap();
    let (host, run_dir) = (dir.path().join("host"), dir.path().join("run"));
    let fixture = Fixture::create(&host, Layout::V2).unwrap();
    fixture.cgroup(&CgroupPath::new("kubepods/burstable/poduid-1/c1").unwrap()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_metrics-fetcher"));
    let places =
        [format!("common.run_dir={}", run_dir.display()), format!("common.host_root={}", host.display())];
    command.env_clear().args(places.iter().flat_map(|place| ["--set", place.as_str()]));
    command.args(["--set", "max_watchers=2", "--set", "common.ping_period_ms=100", "--set", "period_ms=100"]);
    let _process = Process(command.stderr(Stdio::null()).spawn().unwrap());
    let mut client = MetricsClient::new(connect(&run_dir, "metrics-fetcher"));
    let began = Instant::now();
    while client.query(of_container()).await.map_or(true, |reply| reply.get_ref().samples.is_empty()) {
        assert!(began.elapsed() < DEADLINE, "nothing is measured");
        tokio::time::sleep(POLL).await;
    }
    let (stand, still) = std::sync::mpsc::channel::<()>();
    let (watching, mut watches) = tokio::sync::mpsc::unbounded_channel();
    // A runtime of its own that runs no more once the streams are there: nothing is read, no ping is answered.
    let frozen = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let streams = runtime.block_on(async {
            let mut streams = Vec::new();
            for _ in 0..2 {
                let mut client = MetricsClient::new(connect(&run_dir, "metrics-fetcher"));
                let mut stream = client.watch(QueryRequest::default()).await.unwrap().into_inner();
                assert!(stream.message().await.unwrap().is_some());
                streams.push((client, stream));
            }
            streams
        });
        watching.send(()).unwrap();
        // Until the test is over, however that ends.
        let _ = still.recv();
        drop(streams);
    });
    watches.recv().await.expect("both watch");
    let began = Instant::now();
    let mut living = loop {
        match client.watch(of_container()).await {
            Ok(stream) => break stream.into_inner(),
            Err(status) => assert_eq!(status.code(), Code::ResourceExhausted, "{status}"),
        }
        assert!(began.elapsed() < DEADLINE, "the places stay taken");
        tokio::time::sleep(POLL).await;
    };
    // Who reads stays, for longer than the others were borne.
    let (since, mut last) = (living.message().await.unwrap().unwrap().now_unix_ms, 0);
    while last < since + 1000 {
        last = living.message().await.unwrap().expect("the stream goes on").now_unix_ms;
    }
    drop(stand);
    frozen.join().unwrap();
}
