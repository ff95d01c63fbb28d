//! Containers get other resources while they run: told by the runtime, or by the pod's spec.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use integration::imitation::{Imitation, MachineLayout, Setup};
use integration::runtime::{
    ContainerId, ContainerSpec, PodSpec, Resizes as _, Runtime, RuntimeError, poll_until,
};
use integration::scenarios::{Running, World, set};
use oxalyst_topology::CpuSet;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{folder, on_imitation};

const PATIENCE: Duration = Duration::from_secs(60);

/// Reads the kernel's files of two containers again and again, and remembers whether both ever had one CPU.
struct Watch {
    done: Arc<AtomicBool>,
    reader: JoinHandle<(u64, Option<String>)>,
}

impl Watch {
    /// Whoever is to lose CPUs is read last where the other one gains them, and first where it gains them itself: then no moment
    /// between two reads is taken for one.
    fn on(world: &World<Imitation>, first: &ContainerId, second: &ContainerId) -> Self {
        let file = |container: &ContainerId| -> PathBuf {
            let cgroup = world.runtime.cgroup_of(container).unwrap();
            world.runtime.kernel().cpuset_dir(&cgroup).join("cpuset.cpus")
        };
        let (first, second) = (file(first), file(second));
        let done = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&done);
        let reader = std::thread::spawn(move || {
            let mut looks = 0;
            while !stop.load(Ordering::Acquire) {
                let read = |file: &PathBuf| std::fs::read_to_string(file).unwrap_or_default();
                let (one, other) = (read(&first), read(&second));
                // A file that is being written is empty for a moment here; a kernel's never is.
                let (Ok(one), Ok(other)) = (one.trim().parse::<CpuSet>(), other.trim().parse::<CpuSet>())
                else {
                    continue;
                };
                looks += 1;
                if !one.is_disjoint(&other) {
                    return (looks, Some(format!("{one} and {other}")));
                }
            }
            (looks, None)
        });
        Self { done, reader }
    }

    fn end(self) {
        self.done.store(true, Ordering::Release);
        let (looks, overlap) = self.reader.join().unwrap();
        assert!(looks > 0);
        assert_eq!(overlap, None, "after {looks} looks");
    }
}

fn large() -> Setup {
    Setup { machine: MachineLayout::two_sockets(4), ..Setup::default() }
}

/// A container grows by what its runtime is told: it keeps what it has, others have left its new CPUs before it gets them, and
/// both hold when the call returns. It shrinks: the CPUs of its first admission stay, and the pool has the rest again.
#[tokio::test]
async fn a_container_grows_and_shrinks_in_place() {
    on_imitation(large(), async |mut world| {
        let shared = world.run("web", "shared_cores", 100).await;
        let dedicated = world.run("db", "dedicated_cores", 2000).await;
        let first = world.allowed(&dedicated.container).await;
        assert_eq!(first.len(), 2);

        let watch = Watch::on(&world, &dedicated.container, &shared.container);
        world.runtime.update_shares(&dedicated.container, 5000).await.unwrap();
        watch.end();

        let grown = world.allowed(&dedicated.container).await;
        assert!(first.is_subset(&grown) && grown.len() == 5, "{first} became {grown}");
        assert!(world.allowed(&shared.container).await.is_disjoint(&grown), "no waiting");
        let placement = world.placement(&dedicated.pod).await.unwrap();
        assert_eq!((placement.cpus, placement.requested_milli_cpu), (grown.to_string(), 5000));

        let watch = Watch::on(&world, &shared.container, &dedicated.container);
        world.runtime.update_shares(&dedicated.container, 1000).await.unwrap();
        let shrunk = world.allowed(&dedicated.container).await;
        assert!(shrunk.is_subset(&first) && shrunk.len() == 1, "{first} became {shrunk}");
        let rest = world.online() - &shrunk;
        world.converges(&shared.container, &rest).await;
        watch.end();
        world
    })
    .await;
}

#[tokio::test]
async fn a_resized_container_keeps_its_first_cpu() {
    on_imitation(Setup::default(), integration::scenarios::a_resized_container_keeps_its_first_cpu).await;
}

/// What cannot be had is refused with the reason, in the runtime's own call; the container keeps everything, and so do the others.
#[tokio::test]
async fn a_resize_without_room_is_refused_and_changes_nothing() {
    on_imitation(Setup::default(), async |mut world| {
        let shared = world.run("web", "shared_cores", 100).await;
        let dedicated = world.run("db", "dedicated_cores", 1000).await;
        let before = (world.allowed(&dedicated.container).await, world.allowed(&shared.container).await);

        let refused = world.runtime.update_shares(&dedicated.container, 2000).await.unwrap_err();

        assert!(matches!(refused, RuntimeError::Refused { .. }), "{refused}");
        assert!(refused.message().contains("oxalyst: insufficient"), "{refused}");
        let after = (world.allowed(&dedicated.container).await, world.allowed(&shared.container).await);
        assert_eq!(before, after);
        assert_eq!(world.placement(&dedicated.pod).await.unwrap().requested_milli_cpu, 1000);
        world
    })
    .await;
}

/// The allocator is away while the runtime is told: the call passes, and the container has its CPUs once the allocator is back.
#[tokio::test]
async fn a_resize_that_the_allocator_misses_is_made_good() {
    on_imitation(large(), async |mut world| {
        let shared = world.run("web", "shared_cores", 100).await;
        let dedicated = world.run("db", "dedicated_cores", 2000).await;
        let first = world.allowed(&dedicated.container).await;
        world.mesh.kill("orm").await.unwrap();

        world.runtime.update_shares(&dedicated.container, 3000).await.unwrap();

        assert_eq!(world.allowed(&dedicated.container).await, first);
        world.mesh.start("orm").unwrap();
        let grown = has_cpus(&mut world, &dedicated, 3).await;
        assert!(first.is_subset(&grown));
        let rest = world.online() - &grown;
        world.converges(&shared.container, &rest).await;
        world
    })
    .await;
}

/// A kubelet that tells one pod, as far as the mesh reads it.
#[derive(Clone, Default)]
struct Kubelet(Arc<Mutex<String>>);

impl Kubelet {
    async fn serve(self) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                let body = self.0.lock().unwrap().clone();
                let mut request = [0; 4096];
                // One question a connection; nothing of it matters.
                let _ = socket.read(&mut request).await;
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    body.len()
                );
                let _ = socket.write_all(format!("{head}{body}").as_bytes()).await;
            }
        });
        endpoint
    }

    /// `containers`: name and request, which is the limit too.
    fn tells(&self, pod: &PodSpec, containers: &[(&str, u64)]) {
        let container = |(name, milli): &(&str, u64)| {
            let amounts = format!(r#"{{"cpu":"{milli}m","memory":"64Mi"}}"#);
            format!(r#"{{"name":"{name}","resources":{{"requests":{amounts},"limits":{amounts}}}}}"#)
        };
        let annotations: Vec<_> = pod.annotations.iter().map(|(k, v)| format!(r#""{k}":"{v}""#)).collect();
        *self.0.lock().unwrap() = format!(
            r#"{{"items":[{{"metadata":{{"uid":"{}","namespace":"{}","name":"{}","annotations":{{{}}}}},
                "spec":{{"containers":[{}]}},"status":{{"phase":"Running","qosClass":"Guaranteed"}}}}]}}"#,
            pod.uid,
            pod.namespace,
            pod.name,
            annotations.join(","),
            containers.iter().map(container).collect::<Vec<_>>().join(",")
        );
    }
}

/// A world whose meta-server asks `kubelet` every second.
async fn with_kubelet(kubelet: &Kubelet, orm: &[&str], scenario: impl AsyncFnOnce(&mut World<Imitation>)) {
    let folder = folder();
    let runtime = Imitation::start(folder.path(), large()).await.unwrap();
    let endpoint = format!("kubelet.endpoint={}", kubelet.clone().serve().await);
    let mut settings = vec![("meta-server", endpoint.as_str()), ("meta-server", "kubelet.period_ms=1000")];
    settings.extend(orm.iter().map(|setting| ("orm", *setting)));
    let mut world = World::start_with(folder.path(), runtime, &settings).await;
    scenario(&mut world).await;
    world.mesh.stop().await.unwrap();
    world.runtime.remove().await.unwrap();
}

async fn has_cpus(world: &mut World<Imitation>, running: &Running, count: usize) -> CpuSet {
    let has = poll_until(PATIENCE, async || {
        let now = world.allowed(&running.container).await;
        if now.len() == count { Ok(now) } else { Err(now) }
    });
    has.await.unwrap_or_else(|now| panic!("{} has {now}, not {count} CPUs", running.pod.name))
}

/// A pod is let in by its sandbox; its spec comes later, refines it and moves nobody. The spec then changes: the container
/// follows without the runtime, in both directions, and what the runtime is told afterwards changes nothing more.
#[tokio::test]
async fn a_spec_refines_and_resizes_a_running_pod() {
    let kubelet = Kubelet::default();
    let other = PodSpec::new("other", "shared_cores", 100);
    kubelet.tells(&other, &[("main", 100)]);
    with_kubelet(&kubelet, &[], async |world| {
        let shared = world.run("web", "shared_cores", 100).await;
        let dedicated = world.run("db", "dedicated_cores", 2000).await;
        let first = world.allowed(&dedicated.container).await;
        assert_eq!(world.placement(&dedicated.pod).await.unwrap().request_source, "sandbox-resources");

        kubelet.tells(&dedicated.pod, &[("main", 2000)]);
        let refined = poll_until(PATIENCE, async || {
            let source = world.placement(&dedicated.pod).await.unwrap().request_source;
            if source == "pod-spec" { Ok(()) } else { Err(source) }
        });
        refined.await.unwrap();
        assert_eq!(world.allowed(&dedicated.container).await, first);

        let watch = Watch::on(world, &dedicated.container, &shared.container);
        kubelet.tells(&dedicated.pod, &[("main", 4000)]);
        let grown = has_cpus(world, &dedicated, 4).await;
        watch.end();
        assert!(first.is_subset(&grown));

        world.runtime.update_shares(&dedicated.container, 4000).await.unwrap();
        assert_eq!(world.allowed(&dedicated.container).await, grown);

        kubelet.tells(&dedicated.pod, &[("main", 2000)]);
        assert_eq!(has_cpus(world, &dedicated, 2).await, first);
        let rest = world.online() - &first;
        world.converges(&shared.container, &rest).await;
    })
    .await;
}

/// Under the native policy each container of a Guaranteed pod runs on CPUs of its own, which nobody else has.
#[tokio::test]
async fn containers_of_one_pod_have_sets_of_their_own() {
    let kubelet = Kubelet::default();
    let pod = PodSpec { request_milli_cpu: Some(3000), ..PodSpec::new("db", "dedicated_cores", 3000) };
    kubelet.tells(&pod, &[("a", 2000), ("b", 1000)]);
    with_kubelet(&kubelet, &["cpu_policy=native"], async |world| {
        let known = poll_until(PATIENCE, async || {
            let specs = world.mesh.status("orm").await.unwrap().facts.get("specs").cloned();
            if specs.as_deref() == Some("1") { Ok(()) } else { Err(specs) }
        });
        known.await.unwrap();
        let shared = world.run("web", "shared_cores", 100).await;
        let sandbox = world.runtime.run_pod(&pod).await.unwrap();
        let mut sets = Vec::new();
        for (name, milli) in [("a", 2000), ("b", 1000)] {
            let spec = ContainerSpec::new(name, milli);
            let container = world.runtime.create_container(&sandbox, &spec).await.unwrap();
            world.runtime.start_container(&container).await.unwrap();
            sets.push(world.first(&container).await);
        }
        assert_eq!(sets.iter().map(CpuSet::len).collect::<Vec<_>>(), [2, 1]);
        assert!(sets[0].is_disjoint(&sets[1]));
        let both = &sets[0] | &sets[1];
        let rest = world.online() - &both;
        assert_eq!(world.allowed(&shared.container).await, rest);
        let placement = world.placement(&pod).await.unwrap();
        assert_eq!(set(&placement.cpus), sets[0]);
        assert_eq!(placement.containers[0].name, "b");
    })
    .await;
}
