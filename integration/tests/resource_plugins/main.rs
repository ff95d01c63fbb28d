//! What resource plugins give, from the plugin's socket to what the runtime is told: the real services, an imitated runtime, and one
//! scenario on a real one.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    missing_docs
)]

mod containerd;
mod kubelet;

use std::time::Duration;

use integration::imitation::{Imitation, MachineLayout, Setup};
use integration::plugin::{FakePlugin, ServedPlugin};
use integration::runtime::{
    ContainerId, ContainerSpec, PodSpec, Resizes as _, Runtime as _, RuntimeError, SandboxId, poll_until,
};
use integration::scenarios::{World, set};
use kubelet::{Kubelet, container};
use oxalyst_proto::resourceplugin::v1alpha1::ResourceAllocationInfo;
use tonic::Status;

const PATIENCE: Duration = Duration::from_secs(60);
const GPU: &str = "vendor.io/gpu";

/// What a plugin gives: a device's name, and where told shares of the container.
fn gives(device: &str, shares: Option<u64>) -> ResourceAllocationInfo {
    ResourceAllocationInfo {
        is_scalar_resource: true,
        allocated_quantity: 1.0,
        oci_property_name: shares.map_or_else(String::new, |_| "CpuShares".to_owned()),
        allocation_result: shares.map_or_else(String::new, |shares| shares.to_string()),
        envs: [("VISIBLE".to_owned(), device.to_owned())].into(),
        ..ResourceAllocationInfo::default()
    }
}

/// A world on a large machine whose meta-server asks `kubelet` every second, and whose allocator has found `plugin`.
async fn with_plugin(
    plugin: &FakePlugin,
    kubelet: &Kubelet,
    scenario: impl AsyncFnOnce(&mut World<Imitation>, ServedPlugin, &std::path::Path),
) {
    let folder = tempfile::Builder::new().prefix("oxalyst-").tempdir().unwrap();
    let setup = Setup { machine: MachineLayout::two_sockets(4), ..Setup::default() };
    let runtime = Imitation::start(folder.path(), setup).await.unwrap();
    let served = plugin.serve(&runtime.host_root()).unwrap();
    let endpoint = format!("kubelet.endpoint={}", kubelet.serve().await);
    let settings = [
        ("meta-server", endpoint.as_str()),
        ("meta-server", "kubelet.period_ms=1000"),
        ("orm", "plugin_deadline_ms=1000"),
        ("orm", "watch_period_s=1"),
    ];
    let mut world = World::start_with(folder.path(), runtime, &settings).await;
    fact(&world, "plugins", |known| !known.contains('(') && known != "none").await;
    scenario(&mut world, served, folder.path()).await;
    world.mesh.stop().await.unwrap();
    world.runtime.remove().await.unwrap();
}

async fn fact<R>(world: &World<R>, name: &str, is: impl Fn(&str) -> bool) {
    let so = poll_until(PATIENCE, async || {
        let now = world.mesh.status("orm").await.unwrap().facts.get(name).cloned();
        if now.as_deref().is_some_and(&is) { Ok(()) } else { Err(now) }
    });
    so.await.unwrap();
}

/// Environment and shares in the answer to the container's creation.
fn adjusted(world: &World<Imitation>, id: &ContainerId) -> (Vec<(String, String)>, Option<u64>) {
    world.runtime.observed(|observed| {
        let (_, answer) = observed.creations.iter().find(|(told, _)| told.id == id.0).unwrap();
        let adjust = answer.adjust.clone().unwrap();
        let env = adjust.env.into_iter().map(|entry| (entry.key, entry.value)).collect();
        let cpu = adjust.linux.and_then(|linux| linux.resources?.cpu);
        (env, cpu.and_then(|cpu| cpu.shares).map(|shares| shares.value))
    })
}

fn visible(device: &str) -> Vec<(String, String)> {
    vec![("VISIBLE".to_owned(), device.to_owned())]
}

/// What the kernel's file says.
fn shares(world: &World<Imitation>, id: &ContainerId) -> String {
    let cgroup = world.runtime.cgroup_of(id).unwrap();
    let file = world.runtime.host_root().join("sys/fs/cgroup/cpu,cpuacct");
    let file = if file.exists() { file } else { world.runtime.host_root().join("sys/fs/cgroup/cpu") };
    let file = file.join(cgroup.trim_start_matches('/')).join("cpu.shares");
    std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display())).trim().to_owned()
}

async fn has_shares(world: &World<Imitation>, id: &ContainerId, wanted: &str) {
    let so = poll_until(PATIENCE, async || {
        let now = shares(world, id);
        if now == wanted { Ok(()) } else { Err(now) }
    });
    so.await.unwrap_or_else(|now| panic!("shares are {now}:\n{}", world.mesh.log("nri-gateway")));
}

async fn marks(world: &World<Imitation>, id: &ContainerId) -> Vec<String> {
    let applied = world.mesh.applied().await.unwrap();
    applied.containers.into_iter().find(|own| own.container_id == id.0).unwrap().marks
}

async fn started(world: &mut World<Imitation>, sandbox: &SandboxId, spec: &ContainerSpec) -> ContainerId {
    let id = world.runtime.create_container(sandbox, spec).await.unwrap();
    world.runtime.start_container(&id).await.unwrap();
    id
}

/// Init container, sidecar and two of the application: each is created with its own, and one that asks for nothing with nothing.
/// A gateway that begins anew does not take for missing what they were created with, and an allocator that begins anew answers
/// before any plugin is back (O10). The plugin hears of the pod's end.
#[tokio::test]
async fn o10_each_container_is_created_with_what_plugins_gave_it_and_restarts_lose_nothing() {
    let (plugin, kubelet) = (FakePlugin::new(GPU), Kubelet::default());
    plugin.conduct().gives = [
        ("once".to_owned(), gives("0", None)),
        ("side".to_owned(), gives("1", None)),
        ("a".to_owned(), gives("2", Some(1111))),
        ("b".to_owned(), gives("3", Some(2222))),
    ]
    .into();
    let pod = PodSpec::new("db", "dedicated_cores", 3000);
    let asks = [(GPU, 1)];
    let mut side = container("side", 500, &asks);
    side["restartPolicy"] = "Always".into();
    let apps = [container("a", 2000, &asks), container("b", 500, &asks), container("plain", 500, &[])];
    kubelet.tells(&pod, &[container("once", 500, &asks), side], &apps);
    with_plugin(&plugin, &kubelet, async |world, served, _| {
        fact(world, "specs", |known| known == "1").await;
        let sandbox = world.runtime.run_pod(&pod).await.unwrap();
        let mut ids = Vec::new();
        for (name, device, told) in [
            ("once", Some("0"), None),
            ("side", Some("1"), None),
            ("a", Some("2"), Some(1111)),
            ("plain", None, None),
        ] {
            let id = started(world, &sandbox, &ContainerSpec::new(name, 500)).await;
            let expected = device.map(visible).unwrap_or_default();
            assert_eq!(adjusted(world, &id), (expected, told), "{name}");
            ids.push(id);
        }
        assert_eq!((shares(world, &ids[1]).as_str(), shares(world, &ids[2]).as_str()), ("512", "1111"));

        // The plugin ends, and both services begin anew.
        drop(served);
        world.mesh.kill("orm").await.unwrap();
        world.mesh.start("orm").unwrap();
        world.mesh.ready("orm").await.unwrap();
        world.mesh.kill("nri-gateway").await.unwrap();
        world.mesh.start("nri-gateway").unwrap();
        world.mesh.ready("nri-gateway").await.unwrap();
        world.connected(true).await;
        let id = started(world, &sandbox, &ContainerSpec::new("b", 500)).await;
        assert_eq!(adjusted(world, &id), (visible("3"), Some(2222)), "without the plugin");
        for id in ids.iter().chain([&id]) {
            assert_eq!(marks(world, id).await, [""; 0], "{}", id.0);
        }

        let _served = plugin.serve(&world.runtime.host_root()).unwrap();
        assert_eq!(plugin.conduct().allocated.len(), 4, "once each");
        world.runtime.stop_pod(&sandbox).await.unwrap();
        let told = poll_until(PATIENCE, async || {
            let removed = plugin.conduct().removed.clone();
            if removed.first() == Some(&pod.uid) { Ok(()) } else { Err(removed) }
        });
        told.await.unwrap();
    })
    .await;
}

/// The spec comes when the container runs already, and the plugin is away at that moment. What a running container can have it
/// gets once the plugin is back; what it cannot have is told, and comes with its next creation. It runs where it ran.
#[tokio::test]
async fn a_late_spec_gives_a_running_container_what_it_can_still_have_and_says_what_it_cannot() {
    let (plugin, kubelet) = (FakePlugin::new(GPU), Kubelet::default());
    plugin.conduct().gives = [("main".to_owned(), gives("7", Some(1234)))].into();
    let other = PodSpec::new("other", "shared_cores", 100);
    kubelet.tells(&other, &[], &[container("main", 100, &[])]);
    with_plugin(&plugin, &kubelet, async |world, served, _| {
        let running = world.run("db", "dedicated_cores", 2000).await;
        let before = world.allowed(&running.container).await;
        assert_eq!(adjusted(world, &running.container).0, []);
        let flags = world.placement(&running.pod).await.unwrap().flags;
        assert_eq!(flags, ["plugins-unasked"]);

        drop(served);
        fact(world, "plugins", |known| known.contains("away")).await;
        kubelet.tells(&running.pod, &[], &[container("main", 2000, &[(GPU, 1)])]);
        fact(world, "specs", |known| known == "2").await;
        assert_eq!(world.placement(&running.pod).await.unwrap().flags, ["plugins-unasked"]);
        let _served = plugin.serve(&world.runtime.host_root()).unwrap();

        has_shares(world, &running.container, "1234").await;
        assert_eq!(world.placement(&running.pod).await.unwrap().flags, [""; 0]);
        assert_eq!(world.allowed(&running.container).await, before);
        let told = poll_until(PATIENCE, async || {
            let now = marks(world, &running.container).await;
            if now == ["not-adjusted"] { Ok(()) } else { Err(now) }
        });
        told.await.unwrap();
        assert!(
            world.mesh.log("nri-gateway").contains("Env VISIBLE can be set only when a container is created")
        );

        world.runtime.stop_container(&running.container).await.unwrap();
        let next = ContainerSpec::new("main", 2000).next_attempt();
        let next = started(world, &running.sandbox, &next).await;
        assert_eq!(adjusted(world, &next), (visible("7"), Some(1234)));
        assert_eq!(marks(world, &next).await, [""; 0]);
        assert_eq!(plugin.conduct().allocated.len(), 1);
    })
    .await;
}

/// A plugin of CPUs that says no to a resize has it refused in the runtime's own call, and nothing changes; its yes lets it pass.
#[tokio::test]
async fn a_plugin_has_its_say_in_a_resize_and_its_no_changes_nothing() {
    let (plugin, kubelet) = (FakePlugin::new("cpu"), Kubelet::default());
    plugin.conduct().gives = [("main".to_owned(), gives("x", None))].into();
    let pod = PodSpec::new("db", "dedicated_cores", 2000);
    kubelet.tells(&pod, &[], &[container("main", 2000, &[])]);
    with_plugin(&plugin, &kubelet, async |world, _served, _| {
        fact(world, "specs", |known| known == "1").await;
        let sandbox = world.runtime.run_pod(&pod).await.unwrap();
        let id = started(world, &sandbox, &ContainerSpec::new("main", 2000)).await;
        let before = world.allowed(&id).await;

        plugin.conduct().refuses = Some(Status::resource_exhausted("none left"));
        let refused = world.runtime.update_shares(&id, 3000).await.unwrap_err();
        assert!(matches!(refused, RuntimeError::Refused { .. }), "{refused}");
        assert!(refused.message().contains("oxalyst: insufficient"), "{refused}");
        assert_eq!(world.allowed(&id).await, before);
        assert_eq!(world.placement(&pod).await.unwrap().requested_milli_cpu, 2000);

        plugin.conduct().refuses = None;
        world.runtime.update_shares(&id, 3000).await.unwrap();
        let grown = world.allowed(&id).await;
        assert!(before.is_subset(&grown) && grown.len() == 3, "{before} became {grown}");
        assert_eq!(set(&world.placement(&pod).await.unwrap().cpus), grown);
        let told = plugin.conduct().allocated.last().cloned().unwrap();
        assert_eq!(told.annotations["pod.kubernetes.io/inplace-update-resizing"], "true");
        assert_eq!(told.resource_requests["cpu"], 3.0);
    })
    .await;
}

/// O11 has a container of a pod that nobody knows start unpinned. Here none does: the allocator has lost its ledger, and the
/// container is created on CPUs that it decides on then, as one of a pod that it takes in.
#[tokio::test]
async fn o11_a_container_of_a_pod_that_the_allocator_does_not_know_is_created_on_decided_cpus() {
    let (plugin, kubelet) = (FakePlugin::new(GPU), Kubelet::default());
    let known = PodSpec::new("known", "shared_cores", 100);
    kubelet.tells(&known, &[], &[container("main", 100, &[])]);
    with_plugin(&plugin, &kubelet, async |world, _served, folder| {
        let pod = PodSpec { annotations: Default::default(), ..PodSpec::new("unknown", "shared_cores", 100) };
        let sandbox = world.runtime.run_pod(&pod.clone().bare()).await.unwrap();
        world.mesh.kill("orm").await.unwrap();
        std::fs::remove_dir_all(folder.join("ledger")).unwrap();
        world.mesh.start("orm").unwrap();
        world.mesh.ready("orm").await.unwrap();

        let id = started(world, &sandbox, &ContainerSpec::new("main", 100)).await;

        let first = world.first(&id).await;
        let placement = poll_until(PATIENCE, async || world.placement(&pod).await.ok_or(())).await.unwrap();
        assert!(!first.is_empty() && first.is_subset(&world.online()));
        assert_eq!((placement.pool.as_str(), set(&placement.cpus)), ("share", first));
    })
    .await;
}
