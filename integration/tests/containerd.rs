//! Every scenario on a real containerd, with real containers and the kernel's word for where they run.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    missing_docs
)]

use std::path::{Path, PathBuf};
use std::time::Duration;

use integration::containerd::Containerd;
use integration::imitation::ListingKubelet;
use integration::runtime::{ContainerSpec, PodSpec, Runtime, poll_until};
use integration::scenarios::{World, refusal};
use tokio::sync::Mutex;

/// One at a time: each removes the cgroup folders that it made, which the next would still be using.
static ONE: Mutex<()> = Mutex::const_new(());

async fn on_containerd(scenario: impl AsyncFnOnce(World<Containerd>) -> World<Containerd>) {
    on_containerd_with(&[], scenario).await;
}

/// With settings beyond the usual ones: (service, "key=value").
async fn on_containerd_with(
    settings: &[(&str, &str)],
    scenario: impl AsyncFnOnce(World<Containerd>) -> World<Containerd>,
) {
    let _one = ONE.lock().await;
    let folder = tempfile::Builder::new().prefix("oxalyst-").tempdir().unwrap();
    let runtime = match Containerd::try_start(folder.path()).await {
        Ok(runtime) => runtime,
        Err(reason) => return println!("skipped: no containerd here: {reason}"),
    };
    if runtime.online_cpus() == "0" {
        runtime.remove().await.unwrap();
        return println!("skipped: one CPU can be given to nobody exclusively");
    }
    let world = World::start_with(folder.path(), runtime, settings).await;

    let mut world = scenario(world).await;

    world.mesh.stop().await.unwrap();
    world.runtime.remove().await.unwrap();
}

integration::every_scenario!(on_containerd);

#[tokio::test]
async fn c14_a_shrunk_cpuset_bounds_the_quota() {
    on_containerd(integration::scenarios::c14_a_shrunk_cpuset_bounds_the_quota).await;
}

#[tokio::test]
async fn a_resized_container_keeps_its_first_cpu() {
    on_containerd(integration::scenarios::a_resized_container_keeps_its_first_cpu).await;
}

/// As long as an operator's patience where `OXALYST_FROZEN_SECONDS` says so, else a few seconds.
#[tokio::test]
async fn n01_k4_a_frozen_orm_costs_a_deadline_and_no_pin() {
    let seconds =
        std::env::var("OXALYST_FROZEN_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3);
    on_containerd(async |world| {
        integration::scenarios::n01_k4_a_frozen_orm_costs_a_deadline_and_no_pin(
            world,
            Duration::from_secs(seconds),
        )
        .await
    })
    .await;
}

/// As fast as it goes, beside a kubelet that is asked about each.
#[tokio::test]
async fn k5_a_burst_of_pods_costs_one_list_a_second() {
    let kubelet = ListingKubelet::start().await.unwrap();
    // It is never without a pod: an empty list is taken for a fault.
    kubelet.list(&PodSpec::new("resident", "shared_cores", 10), 10, None);
    let endpoint = format!("kubelet.endpoint={}", kubelet.endpoint());
    let settings = [("meta-server", endpoint.as_str()), ("meta-server", "kubelet.period_ms=3600000")];
    on_containerd_with(&settings, async |world| {
        integration::scenarios::k5_a_burst_of_pods_costs_one_list_a_second(
            world,
            &kubelet,
            20,
            Duration::ZERO,
        )
        .await
    })
    .await;
}

/// containerd 2.0 to 2.2.5 does not start any more once the same pod's sandbox was refused twice. There, a refused pod's sandbox
/// runs and its containers are refused: it starts, and nothing is left of the pod.
#[tokio::test]
async fn a_runtime_that_cannot_bear_refusals_starts_again() {
    on_containerd(async |mut world| {
        let shared = world.run("web", "shared_cores", 200).await;
        let too_many = u64::try_from(world.online().len()).unwrap() + 7;
        let mut pod = PodSpec::new("huge", "dedicated_cores", too_many * 1000);
        let Ok(mut sandbox) = world.runtime.run_pod(&pod).await else {
            println!("skipped: {} bears refusals of sandboxes", world.runtime.describe());
            return world;
        };
        for round in 0..2 {
            for _ in 0..2 {
                let spec = ContainerSpec::new("main", too_many * 1000);
                let said = refusal(world.runtime.create_container(&sandbox, &spec).await);
                assert!(said.contains(&too_many.to_string()), "says what was asked ({too_many}): {said}");
                assert!(said.to_lowercase().contains("node 0"), "says what is free: {said}");
            }
            let listed = world.mesh.applied().await.unwrap().refused;
            assert_eq!(listed.iter().map(|r| &r.pod_uid).collect::<Vec<_>>(), [&pod.uid]);

            world.runtime.restart().await.unwrap();
            world.connected(true).await;
            assert_eq!(world.placement(&pod).await, None, "round {round}");
            assert_eq!(world.allowed(&shared.container).await, world.online());

            world.runtime.remove_pod(&sandbox).await.unwrap();
            assert_eq!(processes_of(&pod), 0, "round {round}");
            remove_cgroup(&pod);
            // It was there before the restart: the runtime tells nobody of its end.
            let forgotten = poll_until(Duration::from_secs(20), async || {
                let refused = world.mesh.applied().await.map_err(|e| e.to_string())?.refused;
                if refused.is_empty() { Ok(()) } else { Err(format!("{refused:?}")) }
            });
            forgotten.await.unwrap();
            pod = pod.next_attempt();
            sandbox = world.runtime.run_pod(&pod).await.unwrap();
        }
        world.runtime.remove_pod(&sandbox).await.unwrap();
        assert_eq!(processes_of(&pod), 0);
        assert!(world.mesh.applied().await.unwrap().refused.is_empty());
        assert_eq!(world.state().await.pods.len(), 1, "the shared pod alone");
        world
    })
    .await;
}

/// Processes in the pod's cgroup.
fn processes_of(pod: &PodSpec) -> usize {
    let parent = pod.cgroup_parent();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let cgroups = processes.map(|p| std::fs::read_to_string(p.path().join("cgroup")).unwrap_or_default());
    cgroups.filter(|text| text.contains(&parent)).count()
}

/// As a kubelet does when a pod has ended.
fn remove_cgroup(pod: &PodSpec) {
    let root = Path::new("/sys/fs/cgroup");
    let controllers = std::fs::read_dir(root).unwrap().flatten().map(|entry| entry.path());
    for hierarchy in controllers.chain([PathBuf::from(root)]) {
        let folder = hierarchy.join(pod.cgroup_parent().trim_start_matches('/'));
        if folder.exists() {
            std::fs::remove_dir(&folder).unwrap();
        }
    }
}
