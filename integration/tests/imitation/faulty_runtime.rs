//! The runtime does what runtimes do: loses updates, fails a container after the plugins have answered, holds its lock.

use std::time::Duration;

use integration::imitation::{Imitation, Setup};
use integration::runtime::{ContainerSpec, PodSpec, Runtime, poll_until};
use integration::scenarios::World;

use super::on_imitation;

const PATIENCE: Duration = Duration::from_secs(60);

/// Pods come and go, so that pools shrink and grow with each: no call of the gateway waits for one of the runtime and the other
/// way round, so no hook is late and the connection lives.
#[tokio::test]
async fn n07_updates_never_wait_for_a_hook_that_waits_for_them() {
    on_imitation(Setup::default(), async |mut world| {
        let shared = world.run("web", "shared_cores", 100).await;
        world.runtime.forget_observed();
        for n in 0..20 {
            let dedicated = world.run(&format!("db-{n}"), "dedicated_cores", 1000).await;
            let own = world.allowed(&dedicated.container).await;
            assert!(world.allowed(&shared.container).await.is_disjoint(&own), "round {n}");
            world.runtime.remove_pod(&dedicated.sandbox).await.unwrap();
        }
        let online = world.online();
        world.converges(&shared.container, &online).await;
        world.runtime.observed(|o| {
            assert!(o.ended.is_empty(), "{:?}", o.ended);
            for call in &o.calls {
                assert_eq!(call.error, None, "{:?}", call.event);
            }
            println!(
                "{} of {} updates came while a hook was on its way",
                o.overlapping_updates,
                o.updates.len()
            );
        });
        world
    })
    .await;
}

/// The runtime does not answer updates for a while: hooks are answered meanwhile, and the pool grows in the end.
#[tokio::test]
async fn stalled_updates_stall_nothing_else() {
    on_imitation(Setup::default(), async |mut world| {
        let shared = world.run("web", "shared_cores", 100).await;
        let dedicated = world.run("db", "dedicated_cores", 1000).await;
        world.runtime.faults(|f| f.stall = Duration::from_secs(4));
        world.runtime.forget_observed();
        world.runtime.remove_pod(&dedicated.sandbox).await.unwrap();
        let asked = poll_until(PATIENCE, async || {
            if world.runtime.observed(|o| !o.updates.is_empty()) { Ok(()) } else { Err("no update") }
        });
        asked.await.unwrap();

        world.run("late", "shared_cores", 10).await;

        world.runtime.observed(|o| {
            assert!(o.ended.is_empty(), "{:?}", o.ended);
            assert!(o.calls.iter().all(|c| c.error.is_none()), "{:?}", o.calls);
        });
        world.runtime.faults(|f| f.stall = Duration::ZERO);
        let online = world.online();
        world.converges(&shared.container, &online).await;
        world
    })
    .await;
}

/// The runtime answers success to updates that it drops: the gateway reads the kernel's files, writes what is missing before the
/// exclusive CPU's owner runs, and lets the pool grow back the same way.
#[tokio::test]
async fn updates_that_were_dropped_without_a_word_are_made_good() {
    on_imitation(Setup::default(), async |mut world| {
        let shared = world.run("web", "shared_cores", 100).await;
        world.runtime.faults(|f| f.ignore_updates = true);

        let dedicated = world.run("db", "dedicated_cores", 1000).await;

        let own = world.allowed(&dedicated.container).await;
        assert!(world.allowed(&shared.container).await.is_disjoint(&own), "no waiting: it runs already");
        world.runtime.remove_pod(&dedicated.sandbox).await.unwrap();
        let online = world.online();
        world.converges(&shared.container, &online).await;
        world
    })
    .await;
}

/// A container fails after the gateway has answered for it, as where another plugin objects. The set that was carved out for it
/// is free again when the pod is gone, whether the runtime tells the failure or not.
#[tokio::test]
async fn n15_a_container_that_failed_elsewhere_leaks_nothing() {
    for told in [true, false] {
        on_imitation(Setup::default(), async |mut world| {
            let shared = world.run("web", "shared_cores", 100).await;
            world.runtime.faults(|f| {
                f.fail_create = told;
                f.fail_create_silently = !told;
            });
            let pod = PodSpec::new("db", "dedicated_cores", 1000).bare();
            let sandbox = world.runtime.run_pod(&pod).await.unwrap();
            let failed = world.runtime.create_container(&sandbox, &ContainerSpec::new("main", 1000)).await;
            assert!(failed.is_err());
            world.runtime.remove_pod(&sandbox).await.unwrap();
            freed(&mut world, &pod).await;
            let online = world.online();
            world.converges(&shared.container, &online).await;
            let left = world.mesh.applied().await.unwrap().containers;
            assert_eq!(left.len(), 1, "the failed container is forgotten: {left:?}");
            world
        })
        .await;
    }
}

/// A pod goes while the gateway is away: its set is freed without its events.
#[tokio::test]
async fn a_pod_that_went_unseen_is_freed() {
    on_imitation(Setup::default(), async |mut world| {
        let shared = world.run("web", "shared_cores", 100).await;
        let dedicated = world.run("db", "dedicated_cores", 1000).await;
        world.mesh.kill("nri-gateway").await.unwrap();
        world.runtime.remove_pod(&dedicated.sandbox).await.unwrap();
        world.mesh.start("nri-gateway").unwrap();
        freed(&mut world, &dedicated.pod).await;
        let online = world.online();
        world.converges(&shared.container, &online).await;
        world
    })
    .await;
}

async fn freed(world: &mut World<Imitation>, pod: &PodSpec) {
    let freed = poll_until(PATIENCE, async || match world.placement(pod).await {
        None => Ok(()),
        Some(held) => Err(held),
    });
    if let Err(held) = freed.await {
        panic!("still held: {held:?}");
    }
}
