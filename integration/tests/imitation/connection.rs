//! The connection is lost, late, dropped, flooded: the gateway's process stays, comes back and looks at everything anew.

use std::time::Duration;

use integration::imitation::{Imitation, Setup};
use integration::runtime::{ContainerSpec, PodSpec, Runtime, poll_until};
use integration::scenarios::set;

use super::{folder, on_imitation, on_runtime};

const PATIENCE: Duration = Duration::from_secs(30);

/// The runtime restarts with twenty containers, whose cpusets somebody else has meanwhile spoilt: the same gateway process
/// registers, is configured and synchronised anew, and every one of the twenty is put right.
#[tokio::test]
async fn n04_a_restarted_runtime_has_every_container_checked() {
    on_imitation(Setup::default(), async |mut world| {
        let dedicated = world.run("db", "dedicated_cores", 1000).await;
        let own = world.allowed(&dedicated.container).await;
        let mut rest = world.online();
        rest -= &own;
        let mut shared = Vec::new();
        for n in 0..19 {
            shared.push(world.run(&format!("web-{n}"), "shared_cores", 10).await);
        }
        let gateway = world.mesh.pid("nri-gateway");
        world.runtime.stop().await.unwrap();
        world.connected(false).await;
        for pod in &shared {
            let cgroup = world.runtime.cgroup_of(&pod.container).unwrap();
            let dir = world.runtime.kernel().cpuset_dir(cgroup.trim_start_matches('/'));
            std::fs::write(dir.join("cpuset.cpus"), format!("{own}\n")).unwrap();
            std::fs::write(dir.join("cpuset.effective_cpus"), format!("{own}\n")).unwrap();
        }
        world.runtime.forget_observed();

        world.runtime.start().await.unwrap();

        world.connected(true).await;
        for pod in &shared {
            world.converges(&pod.container, &rest).await;
        }
        assert_eq!(set(&world.runtime.cpus_allowed(&dedicated.container).await.unwrap()), own);
        world.runtime.observed(|o| {
            assert_eq!(o.registrations.len(), 1);
            assert_eq!(o.synchronizations.len(), 1);
            assert_eq!(o.synchronizations[0].containers, 20);
        });
        assert_eq!(world.mesh.pid("nri-gateway"), gateway);
        world
    })
    .await;
}

/// A runtime that begins to serve 7 s after its socket is there: past the 5 s of RegisterPlugin the gateway says so, and tries
/// again until it is taken in.
#[tokio::test]
async fn n05_a_runtime_that_serves_late_is_waited_for() {
    let folder = folder();
    let mut runtime = Imitation::start(folder.path(), Setup::default()).await.unwrap();
    runtime.stop().await.unwrap();
    runtime.faults(|f| f.serve_after = Duration::from_secs(7));
    runtime.start().await.unwrap();
    on_runtime(folder.path(), runtime, async |mut world| {
        let gateway = world.mesh.pid("nri-gateway");
        world.connected(true).await;
        let log = world.mesh.log("nri-gateway");
        let said = log.lines().any(|l| l.contains("RegisterPlugin") && l.contains("5000 ms"));
        assert!(said, "says what it waited for:\n{log}");
        world.run("web", "shared_cores", 100).await;
        assert_eq!(world.mesh.pid("nri-gateway"), gateway);
        world
    })
    .await;
}

/// The runtime drops the connection, as past its timeout: the same process is back, and the next pod is pinned.
#[tokio::test]
async fn n03_a_dropped_connection_is_made_anew() {
    on_imitation(Setup::default(), async |mut world| {
        let gateway = world.mesh.pid("nri-gateway");
        let dedicated = world.run("db", "dedicated_cores", 1000).await;
        let own = world.allowed(&dedicated.container).await;
        for round in 0..5 {
            world.runtime.forget_observed();
            world.runtime.drop_connections();
            let back = poll_until(PATIENCE, async || {
                if world.runtime.observed(|o| !o.synchronizations.is_empty()) { Ok(()) } else { Err(round) }
            });
            back.await.expect("is synchronised anew");
            let late = world.run(&format!("late-{round}"), "shared_cores", 10).await;
            assert!(world.first(&late.container).await.is_disjoint(&own));
        }
        assert_eq!(world.mesh.pid("nri-gateway"), gateway);
        world
    })
    .await;
}

/// A thousand events one after another: all are answered, and nothing is lost of what comes after.
#[tokio::test]
async fn a_flood_of_events_is_answered() {
    on_imitation(Setup::default(), async |mut world| {
        let shared = world.run("web", "shared_cores", 100).await;
        world.runtime.forget_observed();
        let took = world.runtime.flood(1000).await;
        println!("1,000 events answered in {} ms", took.as_millis());
        world.runtime.observed(|o| {
            assert_eq!(o.calls.iter().filter(|c| c.error.is_none()).count(), 1000);
            assert!(o.ended.is_empty(), "{:?}", o.ended);
        });
        let dedicated = world.run("db", "dedicated_cores", 1000).await;
        let own = world.allowed(&dedicated.container).await;
        assert!(world.allowed(&shared.container).await.is_disjoint(&own));
        world
    })
    .await;
}

/// 3,000 containers with 2 KiB of labels each do not fit one message: they come in parts, all are known, and the connection
/// lives.
#[tokio::test]
async fn n08_three_thousand_containers_are_synchronised_in_parts() {
    let folder = folder();
    let mut runtime = Imitation::start(folder.path(), Setup::default()).await.unwrap();
    crowd(&mut runtime, 300, 10, 2048).await;
    on_runtime(folder.path(), runtime, async |mut world| {
        world.connected(true).await;
        let known = poll_until(PATIENCE, async || match world.mesh.applied().await {
            Ok(reply) if reply.containers.len() == 3000 => Ok(()),
            Ok(reply) => Err(format!("{} containers", reply.containers.len())),
            Err(e) => Err(e.to_string()),
        });
        known.await.unwrap();
        // Where the machine is busy, the allocator hears of them after the answer.
        let taken_in = poll_until(PATIENCE, async || match world.state().await.pods.len() {
            300 => Ok(()),
            pods => Err(format!("{pods} pods")),
        });
        taken_in.await.unwrap();
        world.runtime.observed(|o| {
            assert!(o.ended.is_empty(), "{:?}", o.ended);
            assert_eq!(o.synchronizations[0].containers, 3000);
        });
        world
    })
    .await;
}

/// 500 containers and a dedicated pod among them: the answer to Synchronize is in time, and the events that come after it are
/// heard.
#[tokio::test]
async fn n09_five_hundred_containers_are_synchronised_in_time() {
    let folder = folder();
    let mut runtime = Imitation::start(folder.path(), Setup::default()).await.unwrap();
    crowd(&mut runtime, 50, 10, 16).await;
    on_runtime(folder.path(), runtime, async |mut world| {
        world.connected(true).await;
        let gateway = world.mesh.pid("nri-gateway");
        let dedicated = world.run("db", "dedicated_cores", 1000).await;
        let own = world.allowed(&dedicated.container).await;
        world.runtime.forget_observed();
        world.runtime.restart().await.unwrap();
        world.connected(true).await;
        world.runtime.observed(|o| {
            let took = o.synchronizations[0].took;
            println!("501 containers synchronised in {} ms", took.as_millis());
            assert!(o.ended.iter().all(|why| !why.contains("did not answer")), "{:?}", o.ended);
        });
        let late = world.run("late", "shared_cores", 10).await;
        assert!(world.first(&late.container).await.is_disjoint(&own));
        assert_eq!(world.mesh.pid("nri-gateway"), gateway);
        world
    })
    .await;
}

/// Pods that run before any plugin is there.
async fn crowd(runtime: &mut Imitation, pods: usize, containers: usize, label: usize) {
    for n in 0..pods {
        let mut pod = PodSpec::new(&format!("crowd-{n}"), "shared_cores", 1);
        pod.labels.insert("filler".to_owned(), "x".repeat(label));
        let sandbox = runtime.run_pod(&pod).await.unwrap();
        for c in 0..containers {
            let container = ContainerSpec::new(&format!("c{c}"), 1);
            let container = runtime.create_container(&sandbox, &container).await.unwrap();
            runtime.start_container(&container).await.unwrap();
        }
    }
}
