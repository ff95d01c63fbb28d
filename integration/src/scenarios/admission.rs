//! What is refused, and that a refusal leaves no trace.

use super::World;
use crate::runtime::{ContainerSpec, PodSpec, Runtime, RuntimeError};

/// Everything but one CPU can be had exclusively while a shared pod runs; the last one is refused with a reason, and the
/// shared pod keeps it.
pub async fn the_last_cpu_is_refused<R: Runtime>(mut world: World<R>) -> World<R> {
    world.refuses_at_sandboxes().await;
    let shared = world.run("web", "shared_cores", 200).await;
    let all = u64::try_from(world.online().len()).unwrap() * 1000;
    let most = world.run("most", "dedicated_cores", all - 1000).await;
    world.exclusive(&most, &[&shared]).await;
    let last = world.allowed(&shared.container).await;
    let before = world.state().await;

    let refused = world.runtime.run_pod(&PodSpec::new("last", "dedicated_cores", 1000)).await;

    let message = refusal(refused);
    assert!(message.contains("shared") || message.contains("share"), "says why: {message}");
    assert_eq!(world.allowed(&shared.container).await, last);
    assert_eq!(last.len(), 1);
    assert_eq!(world.state().await, before);
    world
}

/// A pod that no machine of this size could hold is refused at its sandbox, with what it asked for and what is free on each
/// NUMA node; the ledger has not moved.
pub async fn an_unplaceable_pod_is_refused_at_its_sandbox<R: Runtime>(mut world: World<R>) -> World<R> {
    world.refuses_at_sandboxes().await;
    let shared = world.run("web", "shared_cores", 200).await;
    let online = world.online();
    let too_many = online.len() + 7;
    let before = world.state().await;

    let pod = PodSpec::new("huge", "dedicated_cores", u64::try_from(too_many).unwrap() * 1000);
    let refused = world.runtime.run_pod(&pod).await;

    let message = refusal(refused);
    assert!(message.contains(&too_many.to_string()), "says what was asked ({too_many}): {message}");
    assert!(message.to_lowercase().contains("node 0"), "says what is free on each NUMA node: {message}");
    assert_eq!(world.state().await, before, "generation, pods and pools are as they were");
    assert_eq!(world.allowed(&shared.container).await, online);
    world
}

/// The same pod from a client that leaves the sandbox's resources out: its sandbox runs, its container is refused.
pub async fn a_bare_sandbox_is_refused_at_its_container<R: Runtime>(mut world: World<R>) -> World<R> {
    let shared = world.run("web", "shared_cores", 200).await;
    let online = world.online();
    let too_many = u64::try_from(online.len()).unwrap() + 7;
    let pod = PodSpec::new("huge", "dedicated_cores", too_many * 1000).bare();
    let sandbox = world.runtime.run_pod(&pod).await.unwrap();

    let refused =
        world.runtime.create_container(&sandbox, &ContainerSpec::new("main", too_many * 1000)).await;

    let message = refusal(refused);
    assert!(message.contains(&too_many.to_string()), "says what was asked ({too_many}): {message}");
    assert!(world.state().await.pods.iter().all(|p| !p.exclusive), "nothing was given");
    assert_eq!(world.allowed(&shared.container).await, online);

    world.runtime.remove_pod(&sandbox).await.unwrap();

    assert_eq!(world.placement(&pod).await, None);
    world
}

/// A bare sandbox whose container can be placed: decided at the container, exclusive from the first instruction on.
pub async fn a_bare_sandbox_is_placed_at_its_container<R: Runtime>(mut world: World<R>) -> World<R> {
    let shared = world.run("web", "shared_cores", 200).await;
    let pod = PodSpec::new("db", "dedicated_cores", 1000).bare();
    let sandbox = world.runtime.run_pod(&pod).await.unwrap();

    let container =
        world.runtime.create_container(&sandbox, &ContainerSpec::new("main", 1000)).await.unwrap();
    world.runtime.start_container(&container).await.unwrap();

    let own = world.first(&container).await;
    assert_eq!(own.len(), 1, "{own}");
    assert_eq!(world.allowed(&shared.container).await, super::without(world.online(), &own));
    let placement = world.placement(&pod).await.unwrap();
    assert_eq!(placement.request_source, "container-resources");
    world
}

/// The runtime's own words of a refusal.
pub fn refusal<T: std::fmt::Debug>(outcome: Result<T, RuntimeError>) -> String {
    match outcome {
        Err(RuntimeError::Refused { message, .. }) => message,
        other => panic!("not refused: {other:?}"),
    }
}
