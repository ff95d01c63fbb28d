//! Where containers run.

use std::time::Duration;

use super::{World, without};
use crate::runtime::{ContainerSpec, PodSpec, Resizes, Runtime, State, Workload, poll_until};

/// A dedicated pod of one CPU has exactly that CPU from its first instruction; both shared pods have lost it by the time it
/// runs, and have it back after its removal.
pub async fn a_dedicated_pod_has_its_cpu_alone<R: Runtime>(mut world: World<R>) -> World<R> {
    let online = world.online();
    let first = world.run("web", "shared_cores", 200).await;
    let second = world.run("api", "shared_cores", 200).await;
    assert_eq!(world.allowed(&first.container).await, online);

    let dedicated = world.run("db", "dedicated_cores", 1000).await;

    // No waiting: it already runs.
    let own = world.exclusive(&dedicated, &[&first, &second]).await;
    assert_eq!(own.len(), 1, "{own}");
    assert_eq!(world.first(&dedicated.container).await, own);
    let rest = without(online.clone(), &own);
    assert_eq!(world.allowed(&first.container).await, rest);
    assert_eq!(world.allowed(&second.container).await, rest);
    let placement = world.placement(&dedicated.pod).await.unwrap();
    assert!(placement.exclusive && placement.settled, "{placement:?}");
    assert_eq!(placement.cpus, own.to_string());

    world.runtime.remove_pod(&dedicated.sandbox).await.unwrap();

    world.converges(&first.container, &online).await;
    world.converges(&second.container, &online).await;
    assert_eq!(world.placement(&dedicated.pod).await, None);
    world
}

/// A reclaimed pod, too, keeps off an exclusive set, and a shared pod that starts later never sees it.
pub async fn everybody_else_keeps_off_an_exclusive_set<R: Runtime>(mut world: World<R>) -> World<R> {
    let batch = world.run("batch", "reclaimed_cores", 100).await;
    let dedicated = world.run("db", "dedicated_cores", 1000).await;
    let late = world.run("late", "shared_cores", 100).await;

    let own = world.exclusive(&dedicated, &[&batch, &late]).await;

    assert_eq!(world.first(&late.container).await, without(world.online(), &own));
    world
}

/// A shared container is created, a dedicated pod is admitted and runs, then the shared one is started: it never runs on the
/// exclusive CPU. (A runtime changes only the stored specification of a container that is created and not started.)
pub async fn a_created_container_starts_off_an_exclusive_set<R: Runtime>(mut world: World<R>) -> World<R> {
    let held = PodSpec::new("held", "shared_cores", 100);
    let sandbox = world.runtime.run_pod(&held).await.unwrap();
    let container = world.runtime.create_container(&sandbox, &ContainerSpec::new("main", 100)).await.unwrap();
    let dedicated = world.run("db", "dedicated_cores", 1000).await;
    let own = world.allowed(&dedicated.container).await;

    world.runtime.start_container(&container).await.unwrap();

    let rest = without(world.online(), &own);
    assert_eq!(world.first(&container).await, rest);
    assert_eq!(world.allowed(&container).await, rest);
    world
}

/// A dedicated container that ends at once and is made anew again and again keeps its set, and nobody else ever gets it.
pub async fn a_crash_loop_keeps_its_set<R: Runtime>(mut world: World<R>) -> World<R> {
    let shared = world.run("web", "shared_cores", 200).await;
    let pod = PodSpec::new("crashing", "dedicated_cores", 1000);
    let sandbox = world.runtime.run_pod(&pod).await.unwrap();
    let own = super::set(&world.placement(&pod).await.unwrap().cpus);
    let rest = without(world.online(), &own);

    let mut spec = ContainerSpec::new("main", 1000).running(Workload::Exit(1));
    for _ in 0..3 {
        let container = world.runtime.create_container(&sandbox, &spec).await.unwrap();
        world.runtime.start_container(&container).await.unwrap();
        assert_eq!(world.first(&container).await, own);
        ends(&mut world, &container).await;
        assert_eq!(world.allowed(&shared.container).await, rest);
        world.runtime.remove_container(&container).await.unwrap();
        assert_eq!(world.allowed(&shared.container).await, rest);
        spec = spec.next_attempt();
    }

    let placement = world.placement(&pod).await.unwrap();
    assert!(placement.exclusive);
    assert_eq!(placement.cpus, own.to_string());
    world
}

/// A dedicated container alone on the machine grows to one CPU more and keeps its first; it shrinks to that one again. Once a
/// shared pod runs, the last CPU is refused in the runtime's own call, and nothing has changed.
pub async fn a_resized_container_keeps_its_first_cpu<R: Resizes>(mut world: World<R>) -> World<R> {
    let dedicated = world.run("db", "dedicated_cores", 1000).await;
    let first = world.allowed(&dedicated.container).await;
    assert_eq!(first.len(), 1, "{first}");

    world.runtime.update_shares(&dedicated.container, 2000).await.unwrap();

    // No waiting: the call has returned.
    let grown = world.allowed(&dedicated.container).await;
    assert!(first.is_subset(&grown) && grown.len() == 2, "{first} became {grown}");
    assert_eq!(world.placement(&dedicated.pod).await.unwrap().cpus, grown.to_string());

    world.runtime.update_shares(&dedicated.container, 1000).await.unwrap();

    assert_eq!(world.allowed(&dedicated.container).await, first);
    let shared = world.run("web", "shared_cores", 100).await;
    let rest = without(world.online(), &first);
    assert_eq!(world.allowed(&shared.container).await, rest);
    let before = world.state().await;
    let all = u64::try_from(world.online().len()).unwrap() * 1000;

    let refused = world.runtime.update_shares(&dedicated.container, all).await;

    let message = super::refusal(refused);
    assert!(message.contains("insufficient") && message.contains("free"), "says why: {message}");
    assert_eq!(world.state().await, before);
    assert_eq!(world.allowed(&dedicated.container).await, first);
    assert_eq!(world.allowed(&shared.container).await, rest);
    world
}

async fn ends<R: Runtime>(world: &mut World<R>, container: &crate::runtime::ContainerId) {
    let ended = poll_until(Duration::from_secs(20), async || match world.runtime.state(container).await {
        Ok(State::Exited(code)) => Ok(code),
        other => Err(format!("{other:?}")),
    });
    assert_eq!(ended.await, Ok(1));
}

/// The pod's second sandbox is there before the first is removed: removing the first frees nothing, the second everything.
pub async fn an_old_sandbox_frees_nothing<R: Runtime>(mut world: World<R>) -> World<R> {
    let shared = world.run("web", "shared_cores", 200).await;
    let old = world.run("db", "dedicated_cores", 1000).await;
    let own = world.allowed(&old.container).await;
    let rest = without(world.online(), &own);
    let renewed = world.runtime.run_pod(&old.pod.next_attempt()).await.unwrap();
    // A disk that stalls for longer than the hook's deadline makes the allocator know of the sandbox after the runtime does.
    world.knows(&old.pod, &renewed).await;

    world.runtime.remove_pod(&old.sandbox).await.unwrap();

    let placement = world.placement(&old.pod).await.unwrap();
    assert!(placement.exclusive, "{placement:?}");
    assert_eq!((placement.cpus, placement.sandbox_id), (own.to_string(), renewed.0.clone()));
    world.converges(&shared.container, &rest).await;
    let spec = ContainerSpec::new("main", 1000).next_attempt();
    let container = world.runtime.create_container(&renewed, &spec).await.unwrap();
    world.runtime.start_container(&container).await.unwrap();
    assert_eq!(world.first(&container).await, own);

    world.runtime.remove_pod(&renewed).await.unwrap();

    let online = world.online();
    world.converges(&shared.container, &online).await;
    assert_eq!(world.placement(&old.pod).await, None);
    world
}
