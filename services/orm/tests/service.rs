//! The real binary over its socket: decisions, their durability, and starts that cannot succeed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod host;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use oxalyst_proto::orm::v1::{
    AdmitContainerRequest, AdmitPodRequest, GetStateRequest, GetTopologyRequest, ReconcileRequest,
    ReleasePodRequest, ResizeContainerRequest, WatchPlacementsRequest,
};
use oxalyst_proto::runtime::v1::{Container, ContainerState, Resources, Sandbox};

use host::{DEADLINE, Host, Orm, placed, refused, sandbox, told};

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
async fn a_uid_that_is_too_long_is_refused() {
    let host = Host::new();
    let mut orm = host.start(&[]).await;
    let long = |bytes: usize| AdmitPodRequest {
        sandbox: Some(Sandbox { pod_uid: "x".repeat(bytes), ..sandbox("s", "shared_cores", None) }),
        ..AdmitPodRequest::default()
    };
    let refused = orm.client.admit_pod(long(254)).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    assert!(refused.message().contains("254 bytes"), "{refused}");
    orm.client.admit_pod(long(253)).await.unwrap();
    assert_eq!(orm.status().await.unwrap().facts["cpu_policy"], "dynamic");
}

#[tokio::test]
async fn what_can_be_no_uid_is_refused_by_every_call_and_in_a_list_costs_no_other_pod() {
    let host = Host::new();
    let log = host.dir.path().join("log");
    let said = || std::fs::read_to_string(&log).unwrap();
    let file = std::fs::File::create(&log).unwrap();
    let mut orm = host.attach(host.command("run", &[]).stderr(file).spawn().unwrap());
    until_ready(&mut orm).await;
    orm.admit(&sandbox("held", "dedicated_cores", Some(1024))).await;
    for (uid, said) in [("x".repeat(1 << 20), "1048576 bytes"), ("a\nb".to_owned(), "blanks nor control")] {
        let odd = || Sandbox { pod_uid: uid.clone(), ..sandbox("odd", "shared_cores", Some(512)) };
        let nameless = || Sandbox { sandbox_id: uid.clone(), pod_uid: String::new(), ..odd() };
        let container = || Container { sandbox_id: "odd-1".into(), ..Container::default() };
        let mut refused = Vec::new();
        for sandbox in [odd(), nameless()] {
            let pod = AdmitPodRequest { sandbox: Some(sandbox.clone()), ..Default::default() };
            refused.push(orm.client.admit_pod(pod).await.unwrap_err());
            let (sandbox, container) = (Some(sandbox), Some(container()));
            let create = AdmitContainerRequest {
                sandbox: sandbox.clone(),
                container: container.clone(),
                ..Default::default()
            };
            refused.push(orm.client.admit_container(create).await.unwrap_err());
            let resize = ResizeContainerRequest { sandbox, container, ..Default::default() };
            refused.push(orm.client.resize_container(resize).await.unwrap_err());
        }
        let release = ReleasePodRequest { pod_uid: uid.clone(), sandbox_id: "odd-1".into() };
        let ended = orm.client.release_pod(release).await.unwrap().into_inner();
        assert!(!ended.released, "taken, so that it is not told again and again");
        for refused in refused {
            assert_eq!(refused.code(), tonic::Code::InvalidArgument);
            assert!(refused.message().contains(said), "{refused}");
        }
        let list = || ReconcileRequest {
            sandboxes: vec![odd(), sandbox("held", "dedicated_cores", Some(1024)), nameless()],
            containers: vec![],
        };
        for _ in 0..3 {
            let reply = orm.client.reconcile(list()).await.unwrap().into_inner();
            assert_eq!((reply.adopted_pod_uids, reply.freed_pod_uids), (vec![], vec![]));
        }
    }
    assert_eq!(orm.cpus().await.into_keys().collect::<Vec<_>>(), ["held"]);
    let told = said().matches("running pods are passed over").count();
    assert_eq!(told, 2, "once each time that they come:\n{}", said());
    assert!(said().lines().all(|line| line.len() < 1000), "no line as long as a uid");
}

#[tokio::test]
async fn a18_a_controller_whose_pods_are_refused_again_and_again_is_told_to_wait() {
    let host = Host::new();
    let mut orm = host.start(&[]).await;
    let mut said = Vec::new();
    for nth in 0..20 {
        let reply = orm.admit(&sandbox(&format!("d-{nth}"), "dedicated_cores", Some(4096))).await;
        said.push(refused(&reply).message.clone());
    }
    assert!(said[..9].iter().all(|said| !said.contains("again and again")), "{said:#?}");
    assert!(said[9].contains("2 on NUMA node 0") || said[9].contains("NUMA node 0 (0-1)"), "{}", said[9]);
    assert!(said[9].ends_with("wait 10 s before the next attempt, or use another node"), "{}", said[9]);
    assert!(said[19].contains("wait 20 s"), "it doubles: {}", said[19]);
    let facts = orm.status().await.unwrap().facts;
    assert!(facts["refusals"].contains("wait 20 s"), "{facts:?}");
    assert_eq!(
        refused(&orm.admit(&sandbox("e", "dedicated_cores", Some(4096))).await).reason,
        "insufficient"
    );
    placed(&orm.admit(&sandbox("fits", "dedicated_cores", Some(1024))).await);
}

#[tokio::test]
async fn p04_k14_whoever_lists_and_asks_while_pods_come_writes_nothing() {
    let host = Host::new();
    let mut orm = host.start(&[]).await;
    orm.admit(&sandbox("a", "shared_cores", Some(256))).await;
    let mut reader = orm.client.clone();
    let lists = tokio::spawn(async move {
        for nth in 0..1000u32 {
            match nth % 3 {
                0 => drop(reader.get_state(GetStateRequest::default()).await.unwrap()),
                1 => drop(reader.get_state(GetStateRequest { exclusive_only: true }).await.unwrap()),
                _ => drop(reader.get_topology(GetTopologyRequest {}).await.unwrap()),
            }
        }
    });
    let mut generation = orm.state().await.generation;
    for nth in 0..20 {
        // One commit each: a write by a list would be seen as another one.
        let uid = format!("d{nth}");
        placed(&orm.admit(&sandbox(&uid, "dedicated_cores", Some(1024))).await);
        assert_eq!(orm.state().await.generation, generation + 1, "{uid} comes");
        assert!(orm.release(&uid, &format!("{uid}-1")).await);
        generation += 2;
        assert_eq!(orm.state().await.generation, generation, "{uid} goes");
    }
    lists.await.unwrap();
    assert_eq!(orm.state().await.generation, generation);
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
    let cases: [(&str, &[&str], &str); 17] = [
        ("run", &[], "already in use"),
        ("other", &[], "locked by process"),
        ("other", &["--config", path(&missing)], "missing.yaml"),
        ("other", &["--config", path(&unknown)], "reserved_cpu"),
        ("other", &["--set", "reserved_cpus=x", "--set", "ledger_dir=/nowhere"], "reserved_cpus"),
        ("other", &["--set", "reserved_cpus=0-1", "--set", "ledger_dir=/nowhere"], "leaves none"),
        ("other", &["--set", "common.host_root=/proc"], "/proc/sys/devices/system/cpu"),
        ("other", &["--set", "watch_period_s=0"], "watch_period_s"),
        ("other", &["--set", "watch_period_s=1.5"], "watch_period_s is 1.5"),
        ("other", &["--set", "common.run_dir="], "common.run_dir is empty"),
        ("other", &["--set", "ledger_dir=/proc/x"], "/proc/x"),
        ("other", &["--set", "memory_reserved=99=1024"], "NUMA node 99, which is not there"),
        ("other", &["--set", "memory_reserved=0=1099511627776"], "which has 17179869184"),
        ("other", &["--set", "orm_resource_names_map=a/x=a/y,a/y=a/x"], "a/x stands for a/y stands for a/x"),
        ("other", &["--set", "enhancement_defaults=dedicated_cores:numa_number=2"], "the machine has 1"),
        ("other", &["--set", "enhancement_defaults=shared_cores:cpuset_pool=reclaim"], "cpuset_pool=reclaim"),
        (
            "other",
            &["--set", "enhancement_defaults=dedicated_cores:numa_exclusive=true"],
            "numa_binding=true",
        ),
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

/// Starts it as a child of a shell that lets writes past a file-size limit fail instead of ending the process.
async fn start_limitable(host: &Host) -> Orm {
    let command = host.command("run", &[]);
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""])
        .arg(command.get_program())
        .args(command.get_args());
    let mut orm = host.attach(shell.spawn().unwrap());
    until_ready(&mut orm).await;
    orm
}

/// Whether it is ready, and what it waits for.
async fn readiness(orm: &mut Orm) -> (bool, Vec<String>) {
    match orm.status().await {
        Ok(s) => (s.ready, s.pending.into_iter().map(|p| format!("{}: {}", p.name, p.detail)).collect()),
        Err(e) => (false, vec![e.to_string()]),
    }
}

async fn until_ready(orm: &mut Orm) {
    let end = Instant::now() + DEADLINE;
    loop {
        let (ready, waits) = readiness(orm).await;
        if ready {
            return;
        }
        assert!(Instant::now() < end, "orm did not become ready in time: {waits:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// How long a file that it writes may become: with "0" its disk fails.
fn limit_files(orm: &Orm, limit: &str) {
    let (pid, limit) = (orm.child.id().to_string(), format!("--fsize={limit}:"));
    assert!(Command::new("prlimit").args(["--pid", &pid, &limit]).status().unwrap().success());
}

#[tokio::test]
async fn a_disk_that_fails_is_seen_in_readiness_until_it_works_again() {
    let host = Host::new();
    let mut orm = start_limitable(&host).await;
    limit_files(&orm, "0");
    let reply = orm.admit(&sandbox("d", "dedicated_cores", Some(1024))).await;
    assert_eq!(refused(&reply).reason, "storage");
    assert!(!placed(&orm.admit(&sandbox("a", "shared_cores", Some(512))).await).exclusive);
    let (ready, waits) = readiness(&mut orm).await;
    assert!(!ready && waits.len() == 1 && waits[0].starts_with("ledger: "), "{waits:?}");
    limit_files(&orm, "unlimited");
    until_ready(&mut orm).await;
    assert_eq!(placed(&orm.admit(&sandbox("d", "dedicated_cores", Some(1024))).await).cpus, "0");
}

#[tokio::test]
async fn a_refusal_alone_finds_out_that_the_disk_works_again() {
    let host = Host::new();
    let mut orm = start_limitable(&host).await;
    limit_files(&orm, "0");
    assert_eq!(refused(&orm.admit(&sandbox("d", "dedicated_cores", Some(1024))).await).reason, "storage");
    assert!(!readiness(&mut orm).await.0);
    limit_files(&orm, "unlimited");
    until_ready(&mut orm).await;
}

#[tokio::test]
async fn reserved_cpus_that_the_machine_lacks_are_named_at_the_start() {
    let host = Host::new();
    host.write("sys/devices/system/cpu/present", "0-2\n");
    let mut orm = host.start(&["--set", "reserved_cpus=1-2,7,9"]).await;
    assert_eq!(orm.status().await.unwrap().facts["reserved.absent"], "7,9");
}

#[tokio::test]
async fn reserved_cpus_that_there_are_not_are_told_as_a_fact_and_not_as_reserved() {
    let host = Host::with_machine(4, 1);
    let mut orm = host.start(&["--set", "reserved_cpus=0-1,99-101"]).await;
    assert_eq!(orm.state().await.reserved, "0-1");
    assert_eq!(orm.status().await.unwrap().facts["reserved.absent"], "99-101");
}
