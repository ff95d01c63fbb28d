//! Two gateways as two processes, as while a DaemonSet is updated: one serves at a time, and what starts between their turns is
//! swept.

use std::path::Path;
use std::time::Duration;

use integration::imitation::{Imitation, ListingKubelet, Setup};
use integration::process::{Process, send};
use integration::runtime::{ContainerSpec, PodSpec, Runtime, poll_until};
use integration::scenarios::{Running, World};
use oxalyst_topology::CpuSet;
use rustix::process::Signal;

use super::{folder, on_imitation, on_runtime};

const PATIENCE: Duration = Duration::from_secs(30);

/// The other gateway, started with the first one's command line.
fn beside(world: &World<Imitation>, log: &Path) -> Process {
    Process::spawn(world.mesh.command("nri-gateway"), log).unwrap()
}

/// Waits until the process `pid` is the one that answers, is ready and applies decisions by `mode`.
async fn serves(world: &World<Imitation>, pid: u32, mode: &str) {
    let served = poll_until(PATIENCE, async || {
        let status = world.mesh.status("nri-gateway").await.map_err(|e| e.to_string())?;
        let by = status.facts.get("mode").map(String::as_str);
        let right = status.pid == pid && status.ready && by == Some(mode);
        if right { Ok(()) } else { Err(format!("{} {by:?} {:?}", status.pid, status.pending)) }
    });
    served.await.unwrap_or_else(|now| panic!("{pid} does not serve: {now}"));
}

/// How often the process has gone to sleep of itself: each time, it had a turn.
fn switches(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.unwrap().trim().parse().unwrap()
}

/// A rolling update: the new process takes over while pods start, and all of them are swept; killed, it leaves the node to the
/// old one, which sweeps what started meanwhile. The runtime never had two plugins, and the exclusive set was never touched.
#[tokio::test]
async fn n11_two_processes_hand_over_and_take_back_without_a_gap_that_is_not_swept() {
    on_imitation(Setup::default(), async |mut world| {
        let logs = tempfile::tempdir().unwrap();
        let (own, rest, dedicated) = exclusive(&mut world).await;
        let old = world.mesh.pid("nri-gateway").unwrap();

        let mut new = beside(&world, &logs.path().join("new.log"));
        let mut pods = Vec::new();
        for n in 0..8 {
            pods.push(world.run(&format!("meanwhile-{n}"), "shared_cores", 10).await);
        }
        serves(&world, new.pid(), "nri").await;
        for pod in &pods {
            world.converges(&pod.container, &rest).await;
        }
        assert_eq!(world.mesh.pid("nri-gateway"), Some(old), "the old process waits, and does not end");
        let pod = world.run("after", "shared_cores", 10).await;
        assert_eq!(world.first(&pod.container).await, rest);

        // kill -9 of the owner: between its end and the other's turn nobody adjusts anything.
        new.kill().await.unwrap();
        let gap = world.run("gap", "shared_cores", 10).await;
        serves(&world, old, "nri").await;
        for pod in pods.iter().chain([&pod, &gap]) {
            world.converges(&pod.container, &rest).await;
        }
        let last = world.run("last", "shared_cores", 10).await;
        assert_eq!(world.first(&last.container).await, rest);
        assert_eq!(world.allowed(&dedicated.container).await, own);
        world.runtime.observed(|o| assert_eq!(o.most_at_once, 1, "never both serve"));
        world
    })
    .await;
}

/// The owner hangs (SIGSTOP): the other is not let past it, for it may hold a call of the runtime; killed, it is followed, and
/// what started meanwhile is swept.
#[tokio::test]
async fn n11_an_owner_that_hangs_is_followed_once_it_is_killed() {
    on_imitation(Setup::default(), async |mut world| {
        let logs = tempfile::tempdir().unwrap();
        let (own, rest, dedicated) = exclusive(&mut world).await;
        send(world.mesh.pid("nri-gateway").unwrap(), Signal::STOP);
        let log = logs.path().join("new.log");
        let new = beside(&world, &log);
        let waits = poll_until(PATIENCE, async || {
            let text = new.output();
            if text.contains("does not answer") { Ok(()) } else { Err(text) }
        });
        waits.await.unwrap();
        world.runtime.observed(|o| assert_eq!(o.registrations.len(), 1, "the other has not registered"));

        world.mesh.kill("nri-gateway").await.unwrap();
        let gap = world.run("gap", "shared_cores", 10).await;
        serves(&world, new.pid(), "nri").await;

        world.converges(&gap.container, &rest).await;
        assert_eq!(world.allowed(&dedicated.container).await, own);
        world.runtime.observed(|o| assert_eq!(o.most_at_once, 1, "never both serve"));
        world
    })
    .await;
}

/// The same in bypass mode, where the kubelet tells of pods and both would write the same files.
#[tokio::test]
async fn n11_two_processes_in_bypass_mode_hand_over_and_take_back() {
    let folder = folder();
    let mut runtime = Imitation::start(folder.path(), Setup::default()).await.unwrap();
    let kubelet = ListingKubelet::start().await.unwrap();
    let dedicated = run_listed(&mut runtime, &kubelet, "db", "dedicated_cores", 1000).await;
    let mut world = in_bypass(folder.path(), runtime, &kubelet).await;
    let logs = tempfile::tempdir().unwrap();
    let old = world.mesh.pid("nri-gateway").unwrap();
    serves(&world, old, "bypass").await;
    world.knows_exclusive(&dedicated).await;
    let own = world.allowed(&dedicated.container).await;
    let mut rest = world.online();
    rest -= &own;

    let mut new = beside(&world, &logs.path().join("new.log"));
    let first = run_listed(&mut world.runtime, &kubelet, "first", "shared_cores", 50).await;
    serves(&world, new.pid(), "bypass").await;
    world.converges(&first.container, &rest).await;

    // Only the owner writes: with it stopped, nobody mends.
    send(new.pid(), Signal::STOP);
    let second = run_listed(&mut world.runtime, &kubelet, "second", "shared_cores", 50).await;
    // The one that waits wakes to try the lock, again and again, and in none of these turns does it write.
    let (turns, asleep) = (20, switches(old));
    let awake = poll_until(PATIENCE, async || match switches(old) - asleep {
        had if had >= turns => Ok(()),
        had => Err(had),
    });
    awake.await.unwrap_or_else(|had| panic!("the one that waits had {had} turns"));
    assert_eq!(world.allowed(&second.container).await, world.online(), "the one that waits writes nothing");
    new.kill().await.unwrap();
    serves(&world, old, "bypass").await;
    for pod in [&first, &second] {
        world.converges(&pod.container, &rest).await;
    }
    assert_eq!(world.allowed(&dedicated.container).await, own);
    world.runtime.observed(|o| assert!(o.registrations.is_empty(), "nobody has spoken with the runtime"));
    world.mesh.stop().await.unwrap();
    world.runtime.remove().await.unwrap();
}

/// The gateway in bypass mode is killed and comes back as another process: pods that came and went meanwhile are found.
#[tokio::test]
async fn a_killed_gateway_in_bypass_mode_finds_what_came_and_went() {
    let folder = folder();
    let mut runtime = Imitation::start(folder.path(), Setup::default()).await.unwrap();
    let kubelet = ListingKubelet::start().await.unwrap();
    let resident = run_listed(&mut runtime, &kubelet, "web", "shared_cores", 50).await;
    let mut world = in_bypass(folder.path(), runtime, &kubelet).await;
    world.mesh.kill("nri-gateway").await.unwrap();
    let dedicated = run_listed(&mut world.runtime, &kubelet, "db", "dedicated_cores", 1000).await;
    world.mesh.start("nri-gateway").unwrap();
    world.knows_exclusive(&dedicated).await;
    let own = world.allowed(&dedicated.container).await;
    let mut rest = world.online();
    rest -= &own;
    world.converges(&resident.container, &rest).await;

    world.mesh.kill("nri-gateway").await.unwrap();
    kubelet.forget(&dedicated.pod);
    world.runtime.remove_pod(&dedicated.sandbox).await.unwrap();
    world.mesh.start("nri-gateway").unwrap();
    // A pod that nobody saw go is kept for 30 s, as one of which the list came too early would be.
    let freed = poll_until(PATIENCE * 2, async || match world.placement(&dedicated.pod).await {
        None => Ok(()),
        Some(held) => Err(held),
    });
    freed.await.unwrap_or_else(|held| panic!("still held: {held:?}"));
    let online = world.online();
    world.converges(&resident.container, &online).await;
    world.mesh.stop().await.unwrap();
    world.runtime.remove().await.unwrap();
}

/// A gateway of another folder at the same runtime waits as long as the first is there, even through a kill -9.
#[tokio::test]
async fn n11_gateways_of_two_folders_never_serve_one_runtime_together() {
    let folder = folder();
    let runtime = Imitation::start(folder.path(), Setup::default()).await.unwrap();
    on_runtime(folder.path(), runtime, async |mut world| {
        let other = tempfile::tempdir().unwrap();
        let mut command = world.mesh.command("nri-gateway");
        command.arg("--set").arg(format!("common.run_dir={}", other.path().display()));
        let mut stranger = Process::spawn(command, &other.path().join("log")).unwrap();
        let waits = poll_until(PATIENCE, async || {
            let text = stranger.output();
            if text.contains("another gateway holds") { Ok(()) } else { Err(text) }
        });
        waits.await.unwrap();
        let web = world.run("web", "shared_cores", 10).await;
        assert_eq!(world.first(&web.container).await, world.online());
        stranger.kill().await.unwrap();
        world.runtime.observed(|o| assert_eq!((o.registrations.len(), o.most_at_once), (1, 1)));
        world
    })
    .await;
}

/// A dedicated pod: its CPUs, everybody else's, and itself.
async fn exclusive(world: &mut World<Imitation>) -> (CpuSet, CpuSet, Running) {
    let dedicated = world.run("db", "dedicated_cores", 1000).await;
    let own = world.allowed(&dedicated.container).await;
    assert_eq!(own.len(), 1, "{own}");
    let mut rest = world.online();
    rest -= &own;
    (own, rest, dedicated)
}

/// A pod with one container, told by the kubelet as soon as it runs.
async fn run_listed(
    runtime: &mut Imitation,
    kubelet: &ListingKubelet,
    name: &str,
    level: &str,
    milli_cpu: u64,
) -> Running {
    let pod = PodSpec::new(name, level, milli_cpu);
    let sandbox = runtime.run_pod(&pod).await.unwrap();
    let container = runtime.create_container(&sandbox, &ContainerSpec::new("main", milli_cpu)).await.unwrap();
    runtime.start_container(&container).await.unwrap();
    kubelet.list(&pod, milli_cpu, Some(&container));
    Running { pod, sandbox, container }
}

/// The services on a runtime that nobody speaks NRI with: pods are known from the kubelet's list.
async fn in_bypass(folder: &Path, runtime: Imitation, kubelet: &ListingKubelet) -> World<Imitation> {
    let endpoint = format!("kubelet.endpoint={}", kubelet.endpoint());
    let settings = [
        ("nri-gateway", "mode=bypass"),
        ("nri-gateway", "bypass_scan_ms=100"),
        ("meta-server", endpoint.as_str()),
        ("meta-server", "kubelet.period_ms=1000"),
    ];
    World::start_with(folder, runtime, &settings).await
}
