//! The real binary over its socket: decisions, their durability, and starts that cannot succeed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use oxalyst_proto::orm::v1::admit_reply::Outcome;
use oxalyst_proto::orm::v1::allocator_client::AllocatorClient;
use oxalyst_proto::orm::v1::{
    AdmitContainerRequest, AdmitPodRequest, AdmitReply, GetStateRequest, GetTopologyRequest, PodPlacement,
    ReconcileRequest, Refusal, ReleasePodRequest, State, WatchPlacementsRequest,
};
use oxalyst_proto::runtime::v1::{Container, ContainerState, Resources, Sandbox};
use tempfile::TempDir;
use tonic::transport::Channel;

const DEADLINE: Duration = Duration::from_secs(20);

/// A folder with a machine of two CPUs and one node, a run folder and a ledger.
struct Host {
    dir: TempDir,
}

/// The process; killed when dropped.
struct Orm {
    child: Child,
    client: AllocatorClient<Channel>,
}

impl Host {
    fn new() -> Self {
        let host = Self { dir: tempfile::tempdir().unwrap() };
        for cpu in 0..2 {
            host.write(&format!("sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"), "0\n");
            host.write(
                &format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"),
                &format!("{cpu}\n"),
            );
            host.write(
                &format!("sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list"),
                &format!("{cpu}\n"),
            );
        }
        host.write("sys/devices/system/cpu/online", "0-1\n");
        host.write("sys/devices/system/cpu/present", "0-1\n");
        host.write("sys/devices/system/node/online", "0\n");
        host.write("sys/devices/system/node/has_memory", "0\n");
        host.write("sys/devices/system/node/node0/cpulist", "0-1\n");
        host.write("sys/devices/system/node/node0/distance", "10\n");
        host.write("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:       16777216 kB\n");
        host
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn command(&self, run: &str, more: &[&str]) -> Command {
        let at = |name: &str| self.dir.path().join(name).display().to_string();
        let mut command = Command::new(env!("CARGO_BIN_EXE_orm"));
        command
            .args(["--set", &format!("common.run_dir={}", at(run))])
            .args(["--set", &format!("common.host_root={}", self.dir.path().display())])
            .args(["--set", &format!("ledger_dir={}", at("ledger"))])
            .args(["--set", "watch_period_s=1", "--set", "absent_grace_s=1"])
            .args(more)
            .stderr(Stdio::piped());
        command
    }

    async fn start(&self, more: &[&str]) -> Orm {
        let child = self.command("run", more).stderr(Stdio::inherit()).spawn().unwrap();
        let mut client = AllocatorClient::new(oxalyst_mesh::connect(&self.dir.path().join("run"), "orm"));
        let end = Instant::now() + DEADLINE;
        while client.get_state(GetStateRequest {}).await.is_err() {
            assert!(Instant::now() < end, "orm did not answer in time");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Orm { child, client }
    }

    /// Runs it where it cannot start, and gives what it said.
    async fn fails(&self, run: &str, more: &[&str]) -> Output {
        let mut child = self.command(run, more).spawn().unwrap();
        let end = Instant::now() + DEADLINE;
        while child.try_wait().unwrap().is_none() {
            if Instant::now() > end {
                child.kill().unwrap();
                panic!("orm was expected to end by itself");
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        child.wait_with_output().unwrap()
    }
}

impl Drop for Orm {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Orm {
    async fn admit(&mut self, sandbox: &Sandbox) -> AdmitReply {
        let request = AdmitPodRequest { sandbox: Some(sandbox.clone()), ..AdmitPodRequest::default() };
        self.client.admit_pod(request).await.unwrap().into_inner()
    }

    async fn admit_container(&mut self, sandbox: &Sandbox, shares: u64) -> AdmitReply {
        let container = Container { resources: told(shares), ..Container::default() };
        let request = AdmitContainerRequest {
            sandbox: Some(sandbox.clone()),
            container: Some(container),
            ..AdmitContainerRequest::default()
        };
        self.client.admit_container(request).await.unwrap().into_inner()
    }

    async fn release(&mut self, uid: &str, sandbox_id: &str) -> bool {
        let request = ReleasePodRequest { pod_uid: uid.into(), sandbox_id: sandbox_id.into() };
        self.client.release_pod(request).await.unwrap().into_inner().released
    }

    async fn state(&mut self) -> State {
        self.client.get_state(GetStateRequest {}).await.unwrap().into_inner()
    }

    async fn cpus(&mut self) -> BTreeMap<String, String> {
        self.state().await.pods.into_iter().map(|pod| (pod.pod_uid, pod.cpus)).collect()
    }
}

fn told(shares: u64) -> Option<Resources> {
    Some(Resources { cpu_shares: Some(shares), ..Resources::default() })
}

fn sandbox(uid: &str, level: &str, shares: Option<u64>) -> Sandbox {
    Sandbox {
        sandbox_id: format!("{uid}-1"),
        pod_uid: uid.into(),
        namespace: "default".into(),
        name: uid.into(),
        annotations: [("katalyst.kubewharf.io/qos_level".to_owned(), level.to_owned())].into(),
        resources: shares.and_then(told),
        ..Sandbox::default()
    }
}

fn placed(reply: &AdmitReply) -> &PodPlacement {
    match &reply.outcome {
        Some(Outcome::Placed(placed)) => placed,
        other => panic!("expected a placement, got {other:?}"),
    }
}

fn refused(reply: &AdmitReply) -> &Refusal {
    match &reply.outcome {
        Some(Outcome::Refused(refusal)) => refusal,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

#[tokio::test]
async fn an_exclusive_set_is_carved_out_of_the_shared_pool_and_given_back() {
    let host = Host::new();
    let mut orm = host.start(&[]).await;
    let shared = orm.admit(&sandbox("a", "shared_cores", Some(512))).await;
    assert_eq!(placed(&shared).cpus, "0-1");

    let carved = orm.admit(&sandbox("d", "dedicated_cores", Some(1024))).await;
    assert!(placed(&carved).exclusive);
    assert_eq!(placed(&carved).cpus, "0");
    let others: Vec<_> =
        carved.changed.iter().filter(|pod| pod.pod_uid == "a").map(|pod| &pod.cpus).collect();
    assert_eq!(others, ["1"], "what others lost travels in the same reply");

    assert!(orm.release("d", "d-1").await);
    assert_eq!(orm.cpus().await, [("a".to_owned(), "0-1".to_owned())].into());
}

#[tokio::test]
async fn the_last_cpu_that_others_run_on_is_refused_with_numbers_and_leaves_no_trace() {
    let host = Host::new();
    let mut orm = host.start(&[]).await;
    orm.admit(&sandbox("a", "shared_cores", Some(512))).await;
    let before = orm.state().await;
    let reply = orm.admit(&sandbox("d", "dedicated_cores", Some(2048))).await;
    let refusal = refused(&reply);
    assert_eq!((refusal.reason.as_str(), refusal.asked_milli_cpu), ("insufficient", 2000));
    assert_eq!((refusal.free[0].node, refusal.free[0].cpus), (0, 2));
    assert_eq!(orm.state().await, before);
}

#[tokio::test]
async fn a_silent_sandbox_is_settled_by_its_container() {
    let host = Host::new();
    let mut orm = host.start(&[]).await;
    let bare = sandbox("d", "dedicated_cores", None);
    assert!(!placed(&orm.admit(&bare).await).settled);
    assert!(orm.state().await.pods.is_empty(), "nothing is decided, so nothing is held");
    assert_eq!(placed(&orm.admit_container(&bare, 1024).await).cpus, "0");
    let again = orm.admit_container(&bare, 1024).await;
    assert_eq!(placed(&again).cpus, "0");
}

#[tokio::test]
async fn an_older_sandbox_of_the_pod_frees_nothing() {
    let host = Host::new();
    let mut orm = host.start(&[]).await;
    let first = sandbox("d", "dedicated_cores", Some(1024));
    orm.admit(&first).await;
    let second = Sandbox { sandbox_id: "d-2".into(), ..first.clone() };
    assert_eq!(placed(&orm.admit(&second).await).cpus, "0", "a new sandbox keeps the set");
    assert!(!orm.release("d", "d-1").await);
    assert_eq!(orm.cpus().await["d"], "0");
    assert!(orm.release("d", "d-2").await);
    assert_eq!(refused(&orm.admit(&second).await).reason, "expired", "a late admission brings nothing back");
}

#[tokio::test]
async fn what_was_answered_survives_kill_9() {
    let host = Host::new();
    let mut orm = host.start(&[]).await;
    orm.admit(&sandbox("a", "shared_cores", Some(512))).await;
    orm.admit(&sandbox("d", "dedicated_cores", Some(1024))).await;
    let before = orm.state().await;
    drop(orm);
    let mut orm = host.start(&[]).await;
    assert_eq!(orm.state().await, before);
}

#[tokio::test]
async fn an_expired_request_commits_nothing() {
    let host = Host::new();
    let mut orm = host.start(&[]).await;
    let request = AdmitPodRequest {
        sandbox: Some(sandbox("d", "dedicated_cores", Some(1024))),
        deadline_unix_ms: 1,
        ..AdmitPodRequest::default()
    };
    let reply = orm.client.admit_pod(request).await.unwrap().into_inner();
    assert_eq!(refused(&reply).reason, "expired");
    assert!(orm.state().await.pods.is_empty());
}

#[tokio::test]
async fn watchers_hear_a_snapshot_and_then_each_change() {
    let host = Host::new();
    let mut orm = host.start(&[]).await;
    orm.admit(&sandbox("a", "shared_cores", Some(512))).await;
    let mut events = orm.client.watch_placements(WatchPlacementsRequest {}).await.unwrap().into_inner();
    let first = events.message().await.unwrap().unwrap();
    assert!(first.snapshot && first.placed.len() == 1);

    orm.admit(&sandbox("d", "dedicated_cores", Some(1024))).await;
    let carved = events.message().await.unwrap().unwrap();
    let cpus: BTreeMap<_, _> =
        carved.placed.iter().map(|pod| (pod.pod_uid.as_str(), pod.cpus.as_str())).collect();
    assert_eq!(cpus, [("a", "1"), ("d", "0")].into());
    assert!(carved.generation > first.generation);

    orm.release("d", "d-1").await;
    let freed = events.message().await.unwrap().unwrap();
    assert_eq!(freed.removed_pod_uids, ["d"]);
    assert_eq!(freed.placed[0].cpus, "0-1");
}

#[tokio::test]
async fn the_runtimes_list_brings_in_what_runs_and_frees_what_is_gone() {
    let host = Host::new();
    let mut orm = host.start(&[]).await;
    orm.admit(&sandbox("gone", "dedicated_cores", Some(1024))).await;
    let mut container = Container {
        sandbox_id: "new-1".into(),
        resources: Some(Resources {
            cpuset_cpus: Some("1".into()),
            cpu_shares: Some(1024),
            ..Resources::default()
        }),
        ..Container::default()
    };
    container.set_state(ContainerState::Running);
    let list = ReconcileRequest {
        sandboxes: vec![sandbox("new", "dedicated_cores", None)],
        containers: vec![container],
    };
    let reply = orm.client.reconcile(list).await.unwrap().into_inner();
    assert_eq!(reply.adopted_pod_uids, ["new"]);
    assert_eq!(orm.cpus().await["new"], "1", "it stays where it runs");
    let end = Instant::now() + DEADLINE;
    while orm.cpus().await.contains_key("gone") {
        assert!(Instant::now() < end, "an absent pod was never freed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_listed_dedicated_pod_in_which_nothing_runs_gets_no_exclusive_set() {
    let host = Host::new();
    let mut orm = host.start(&[]).await;
    orm.admit(&sandbox("known", "dedicated_cores", Some(1024))).await;
    let mut ended = Container { sandbox_id: "ended-1".into(), resources: told(512), ..Container::default() };
    ended.set_state(ContainerState::Stopped);
    let list = |containers| ReconcileRequest {
        sandboxes: ["known", "bare", "ended"].map(|uid| sandbox(uid, "dedicated_cores", Some(512))).into(),
        containers,
    };
    let reply = orm.client.reconcile(list(vec![ended.clone()])).await.unwrap().into_inner();
    assert_eq!(reply.adopted_pod_uids, Vec::<String>::new());
    let exclusive = orm.state().await.pods.into_iter().filter(|pod| pod.exclusive).map(|pod| pod.pod_uid);
    assert_eq!(exclusive.collect::<Vec<_>>(), ["known"]);

    ended.set_state(ContainerState::Created);
    let reply = orm.client.reconcile(list(vec![ended])).await.unwrap().into_inner();
    assert_eq!(reply.adopted_pod_uids, ["ended"]);
}

#[tokio::test]
async fn a_pod_without_a_uid_goes_by_its_sandbox() {
    let host = Host::new();
    let mut orm = host.start(&[]).await;
    let bare = Sandbox { pod_uid: String::new(), ..sandbox("d", "dedicated_cores", Some(1024)) };
    assert_eq!(placed(&orm.admit(&bare).await).pod_uid, "d-1");
    let listed =
        ["d", "s"].map(|uid| Sandbox { pod_uid: String::new(), ..sandbox(uid, "shared_cores", None) });
    let list = ReconcileRequest { sandboxes: listed.into(), containers: vec![] };
    let reply = orm.client.reconcile(list).await.unwrap().into_inner();
    assert_eq!(reply.adopted_pod_uids, ["s-1"], "the other is known");
    assert!(orm.release("", "d-1").await);
}

#[tokio::test]
async fn a_cpu_that_goes_offline_leaves_the_pool() {
    let host = Host::new();
    let mut orm = host.start(&[]).await;
    orm.admit(&sandbox("a", "shared_cores", Some(512))).await;
    host.write("sys/devices/system/cpu/online", "0\n");
    let end = Instant::now() + DEADLINE;
    while orm.cpus().await["a"] != "0" {
        assert!(Instant::now() < end, "the pool kept an offline CPU");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(orm.client.get_topology(GetTopologyRequest {}).await.unwrap().into_inner().online, "0");
}

#[tokio::test]
async fn a_start_that_cannot_succeed_says_why_on_one_line_and_ends_with_2() {
    let host = Host::new();
    let _running = host.start(&[]).await;
    let missing = host.dir.path().join("missing.yaml");
    let unknown = host.dir.path().join("unknown.yaml");
    std::fs::write(&unknown, "reserved_cpu: '0'\n").unwrap();
    let cases: [(&str, &[&str], &str); 8] = [
        ("run", &[], "already in use"),
        ("other", &[], "locked by process"),
        ("other", &["--config", path(&missing)], "missing.yaml"),
        ("other", &["--config", path(&unknown)], "reserved_cpu"),
        ("other", &["--set", "reserved_cpus=x", "--set", "ledger_dir=/nowhere"], "reserved_cpus"),
        ("other", &["--set", "reserved_cpus=0-1", "--set", "ledger_dir=/nowhere"], "leaves none"),
        ("other", &["--set", "common.host_root=/proc"], "/proc/sys/devices/system/cpu"),
        ("other", &["--set", "watch_period_s=0"], "watch_period_s"),
    ];
    for (run, more, expected) in cases {
        let output = host.fails(run, more).await;
        let text = String::from_utf8(output.stderr).unwrap();
        let last = text.lines().last().unwrap_or_default();
        assert!(last.starts_with("orm: ") && last.contains(expected), "{more:?}: {text}");
        assert_eq!(output.status.code(), Some(2), "{more:?}: {text}");
    }
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}
