//! What must hold on a machine of several NUMA nodes with cgroup v2 and containerd 1.7. It is meant for the machine of
//! `lab/vm-run.sh`: its containerd has to be in /usr/bin. Ends with a panic where something does not hold.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    missing_docs
)]

#[path = "numa/measured_load.rs"]
mod measured_load;

use std::path::Path;
use std::time::{Duration, Instant};

use integration::containerd::Containerd;
use integration::runtime::{
    ContainerId, ContainerSpec, PodSpec, Runtime, RuntimeError, Workload, poll_until,
};
use integration::scenarios::{Running, World, set};
use oxalyst_mesh::NODE_SERVICES;
use oxalyst_proto::metrics::v1::{Quality, Sample};
use oxalyst_topology::{CpuSet, Machine, discover};

/// Software emulation on a machine that is busy compiling.
const LIMIT: Duration = Duration::from_secs(120);
/// What a container writes into memory.
const TOUCHED: u64 = 16 << 20;
const ENHANCEMENT: &str = "katalyst.kubewharf.io/memory_enhancement";

#[tokio::main(flavor = "current_thread")]
async fn main() {
    if std::env::args().nth(1).as_deref() == Some("load") {
        return measured_load::burn().await;
    }
    let start = Instant::now();
    let said = |what: &str| println!("{:4} s  {what}", start.elapsed().as_secs());
    let machine = discover(Path::new("/")).unwrap();
    assert!(machine.nodes().len() >= 2, "a machine of several NUMA nodes");
    assert!(Path::new("/sys/fs/cgroup/cgroup.controllers").exists(), "cgroup v2");
    let folder = tempfile::Builder::new().prefix("oxalyst-").tempdir().unwrap();
    let runtime = Containerd::start(Path::new("/usr/bin"), folder.path()).await.unwrap();
    said(&runtime.describe());
    let settings = [("orm", "topology_policy=single-numa-node"), ("metrics-fetcher", "period_ms=2000")];
    let mut world = World::start_with(folder.path(), runtime, &settings).await;
    said("the mesh is ready");

    let shared = world.run("web", "shared_cores", 200).await;
    let online = world.online();
    becomes(&mut world, &shared, &online).await;

    let first = bound(&mut world, "first", 2000).await.unwrap();
    let own = on_one_node(&mut world, &machine, &first).await;
    let rest = without(world.online(), &own);
    assert_eq!(world.allowed(&shared.container).await, rest, "the shared pool has shrunk");
    let second = bound(&mut world, "second", 1000).await.unwrap();
    let other = on_one_node(&mut world, &machine, &second).await;
    assert!(own.is_disjoint(&other), "{own} and {other}");
    let rest = without(rest, &other);
    assert_eq!(world.allowed(&shared.container).await, rest, "the shared pool has shrunk again");
    said("bound pods are on one node each, with CPUs and memory");

    let before = exclusive(&world).await;
    let widest = machine.nodes().iter().map(|node| node.cpus.len()).max().unwrap();
    let spanning = bound(&mut world, "spanning", (u64::try_from(widest).unwrap() + 1) * 1000).await;
    assert!(matches!(spanning, Err(RuntimeError::Refused { .. })), "{spanning:?}");
    assert_eq!(exclusive(&world).await, before);
    assert_eq!(world.state().await.pods.len(), 3, "nothing is held for it");
    assert_eq!(world.allowed(&shared.container).await, rest);
    said("what does not fit on one node is refused");

    restarts(&mut world, &[(&shared, &rest), (&first, &own), (&second, &other)]).await;
    said("each side was restarted");

    measured(&mut world, &first.container).await;
    said("what is measured is what the kernel's files say");
    measured_load::is_told(&mut world, &machine).await;
    said("what is measured of a load is what its own clock says, and its memory is on its node");

    ends(&mut world, &second).await;
    let online = world.online();
    becomes(&mut world, &shared, &without(online.clone(), &own)).await;
    ends(&mut world, &first).await;
    becomes(&mut world, &shared, &online).await;
    assert_eq!(world.state().await.pods.len(), 1);
    said("the shared pool has grown back");

    world.mesh.stop().await.unwrap();
    world.runtime.remove().await.unwrap();
    said("all holds");
}

/// The pod ends. Of a sandbox that was there before its restart containerd tells no end, so that the kubelet's part counts: the
/// pod's cgroup goes.
async fn ends(world: &mut World<Containerd>, pod: &Running) {
    world.runtime.remove_pod(&pod.sandbox).await.unwrap();
    let cgroup = Path::new("/sys/fs/cgroup").join(pod.pod.cgroup_parent().trim_start_matches('/'));
    std::fs::remove_dir(&cgroup).unwrap_or_else(|e| panic!("remove {}: {e}", cgroup.display()));
}

/// Waits until the pod runs on exactly these CPUs.
async fn becomes(world: &mut World<Containerd>, pod: &Running, cpus: &CpuSet) {
    let agreed = poll_until(LIMIT, async || {
        let now = world.allowed(&pod.container).await;
        if now == *cpus { Ok(()) } else { Err(now) }
    });
    if let Err(now) = agreed.await {
        let (state, log) = (world.mesh.state().await, world.mesh.log("nri-gateway"));
        panic!("{} is on {now}, not on {cpus}; the orm holds {state:#?}; the gateway:\n{log}", pod.pod.name);
    }
}

/// A dedicated pod that wants to be on one NUMA node. In software emulation a hook is late now and then, for the gateway or for
/// containerd: such a pod is made anew.
async fn bound(world: &mut World<Containerd>, name: &str, milli_cpu: u64) -> Result<Running, RuntimeError> {
    for _ in 0..3 {
        let slow = world.too_slow().await;
        let pod = bound_once(world, name, milli_cpu).await?;
        if world.came_in_time(&pod, slow).await {
            return Ok(pod);
        }
        println!("{name} came when the machine was too slow: it is made anew");
        ends(world, &pod).await;
    }
    panic!(
        "{name} came three times when the machine was too slow; the gateway:\n{}",
        world.mesh.log("nri-gateway")
    );
}

async fn bound_once(
    world: &mut World<Containerd>,
    name: &str,
    milli_cpu: u64,
) -> Result<Running, RuntimeError> {
    let mut pod = PodSpec::new(name, "dedicated_cores", milli_cpu);
    pod.annotations.insert(ENHANCEMENT.to_owned(), r#"{"numa_binding":"true"}"#.to_owned());
    let sandbox = world.runtime.run_pod(&pod).await?;
    let spec = ContainerSpec::new("main", milli_cpu).running(Workload::Sleep);
    let container = world.runtime.create_container(&sandbox, &spec).await?;
    world.runtime.start_container(&container).await?;
    Ok(Running { pod, sandbox, container })
}

/// The pod's CPUs and memory are one node's, by its own first words, by the kernel's list, and by where the memory is that it
/// touches.
async fn on_one_node(world: &mut World<Containerd>, machine: &Machine, pod: &Running) -> CpuSet {
    let cpus = world.allowed(&pod.container).await;
    assert_eq!(world.first(&pod.container).await, cpus);
    let node = machine.nodes().iter().find(|node| cpus.is_subset(&node.cpus));
    let node = node.unwrap_or_else(|| {
        let log = world.mesh.log("nri-gateway");
        panic!("{} is on {cpus}, which spans nodes; the gateway:\n{log}", pod.pod.name)
    });
    assert_eq!(world.runtime.mems_allowed(&pod.container).await.unwrap(), node.id.to_string());

    let count = (TOUCHED >> 20).to_string();
    let write = format!("/bin/busybox dd if=/dev/zero of=/dev/shm/touched bs=1M count={count}");
    let (code, said) = world.runtime.cri().exec(&pod.container, &["/bin/sh", "-c", &write]).await.unwrap();
    assert_eq!(code, 0, "{said}");
    let by_node = numa_stat(world, &pod.container, "shmem").await;
    for (id, bytes) in &by_node {
        if *id == node.id {
            assert!(*bytes >= TOUCHED, "{by_node:?}, node {id}");
        } else {
            assert_eq!(*bytes, 0, "{by_node:?}, node {id}");
        }
    }
    cpus
}

/// A line of the container's `memory.numa_stat`: bytes by node.
async fn numa_stat(world: &mut World<Containerd>, container: &ContainerId, key: &str) -> Vec<(u32, u64)> {
    let file = ("memory", "memory.numa_stat");
    let path = world.runtime.cgroup_file(container, file, "memory.numa_stat").await.unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
    let fields = line.unwrap_or_else(|| panic!("no {key} in {}: {text}", path.display())).split(' ');
    fields
        .map(|field| {
            let (node, bytes) = field.trim_start_matches('N').split_once('=').unwrap();
            (node.parse().unwrap(), bytes.parse().unwrap())
        })
        .collect()
}

/// Each service is killed, and the runtime stopped, and all come back: nobody's CPUs change.
async fn restarts(world: &mut World<Containerd>, pods: &[(&Running, &CpuSet)]) {
    let ledger = exclusive(world).await;
    for service in NODE_SERVICES {
        world.mesh.kill(service).await.unwrap();
        world.mesh.start(service).unwrap();
        world.mesh.ready(service).await.unwrap();
        stay(world, pods, service).await;
    }
    world.connected(true).await;
    world.runtime.stop().await.unwrap();
    world.connected(false).await;
    world.runtime.start().await.unwrap();
    world.connected(true).await;
    stay(world, pods, "the runtime").await;
    assert_eq!(exclusive(world).await, ledger);
}

/// Exclusive sets by pod. Shared pods' places change by themselves: they ramp up.
async fn exclusive(world: &World<Containerd>) -> Vec<(String, String, String)> {
    let pods = world.state().await.pods.into_iter().filter(|pod| pod.exclusive);
    pods.map(|pod| (pod.pod_uid, pod.cpus, pod.mems)).collect()
}

async fn stay(world: &mut World<Containerd>, pods: &[(&Running, &CpuSet)], who: &str) {
    for (pod, cpus) in pods {
        assert_eq!(world.allowed(&pod.container).await, **cpus, "{who} is back: {}", pod.pod.name);
    }
}

/// Values of the v2 tree beside the files that they come from, of a container that does nothing.
async fn measured(world: &mut World<Containerd>, container: &ContainerId) {
    let usage = fresh(world, container, "mem.usage.container", "").await;
    assert_eq!((usage.source.as_str(), usage.unit.as_str()), ("cgroup-v2", "bytes"));
    let charged: f64 = read(world, container, "memory.current").await.trim().parse().unwrap();
    close("memory.current", usage.value.unwrap(), charged);

    for (node, bytes) in numa_stat(world, container, "shmem").await {
        // Page cache includes shared memory, which is most of it here.
        let file = numa_stat(world, container, "file").await.iter().find(|(id, _)| *id == node).unwrap().1;
        assert!(file >= bytes);
        let sample = fresh(world, container, "mem.file.numa.container", &node.to_string()).await;
        close(&format!("memory.numa_stat, node {node}"), sample.value.unwrap(), file as f64);
    }
    // It sleeps: what it used is what it will have used.
    let cpu = fresh(world, container, "cpu.usage.container", "").await;
    assert!(cpu.value.unwrap() < 0.2, "{cpu:?}");
}

fn close(what: &str, measured: f64, counted: f64) {
    let allowed = (0.02 * counted).max(256.0 * 1024.0);
    assert!((measured - counted).abs() <= allowed, "{what}: {measured} measured, {counted} counted");
}

async fn read(world: &mut World<Containerd>, container: &ContainerId, name: &str) -> String {
    let path = world.runtime.cgroup_file(container, ("memory", name), name).await.unwrap();
    std::fs::read_to_string(path).unwrap()
}

async fn fresh(world: &World<Containerd>, container: &ContainerId, metric: &str, instance: &str) -> Sample {
    let found = poll_until(LIMIT, async || {
        let samples = world.mesh.samples(&container.0, None).await.map_err(|e| e.to_string())?;
        let one =
            samples.iter().find(|s| s.metric == metric && s.instance.trim_start_matches("node") == instance);
        match one {
            Some(s) if s.quality() == Quality::Fresh && s.value.is_some() => Ok(s.clone()),
            other => Err(format!("{metric} {instance}: {other:?}")),
        }
    });
    found.await.unwrap_or_else(|last| panic!("{last}\n{}", world.mesh.log("metrics-fetcher")))
}

fn without(mut all: CpuSet, some: &CpuSet) -> CpuSet {
    all -= some;
    assert_ne!(all, set(""), "somebody keeps a CPU");
    all
}
