//! Much at once: pods, events, restarts.

use std::path::PathBuf;
use std::time::Duration;

use integration::imitation::{Imitation, ListingKubelet, RuntimeOptions, Setup};
use integration::pages::total;
use integration::process::send;
use integration::runtime::{Runtime, poll_until, status_value};
use integration::scenarios::{
    World, k5_a_burst_of_pods_costs_one_list_a_second, n01_k4_a_frozen_orm_costs_a_deadline_and_no_pin,
};
use rustix::process::Signal;

use super::{folder, on_imitation};

const PATIENCE: Duration = Duration::from_secs(60);

/// 50 pods in 5 s, with a kubelet that is asked about each.
#[tokio::test]
async fn k5_fifty_pods_in_five_seconds_cost_one_list_a_second() {
    let folder = folder();
    let runtime = Imitation::start(folder.path(), Setup::default()).await.unwrap();
    let kubelet = ListingKubelet::start().await.unwrap();
    let endpoint = format!("kubelet.endpoint={}", kubelet.endpoint());
    // It has nothing to tell before the first pod; this long it is asked only for pods that it has not told.
    let settings = [("meta-server", endpoint.as_str()), ("meta-server", "kubelet.period_ms=3600000")];
    let resident = integration::runtime::PodSpec::new("resident", "shared_cores", 10);
    kubelet.list(&resident, 10, None);
    let world = World::start_with(folder.path(), runtime, &settings).await;

    let mut world =
        k5_a_burst_of_pods_costs_one_list_a_second(world, &kubelet, 50, Duration::from_millis(100)).await;

    world.mesh.stop().await.unwrap();
    world.runtime.remove().await.unwrap();
}

/// The orm is stopped for some seconds; a real containerd has it for longer.
#[tokio::test]
async fn n01_k4_a_frozen_orm_costs_a_deadline_and_no_pin_here_too() {
    on_imitation(Setup::default(), async |world| {
        n01_k4_a_frozen_orm_costs_a_deadline_and_no_pin(world, Duration::from_secs(3)).await
    })
    .await;
}

/// A thousand events on their way at once while the orm does not answer: each is acknowledged, the session lives, and the gateway
/// has not grown by more than a few bytes for each; what it owes the orm is told once that is back.
#[tokio::test]
async fn a_thousand_state_changes_at_once_with_a_slow_orm_cost_neither_session_nor_memory() {
    // The runtime waits for the last of a thousand as long as for the first: what is measured is not the machine.
    let options = RuntimeOptions { request_timeout: PATIENCE, ..RuntimeOptions::default() };
    on_imitation(Setup { options, ..Setup::default() }, async |mut world| {
        let shared = world.run("web", "shared_cores", 100).await;
        // What it needs to be asked at all is not counted.
        assert_eq!(world.runtime.flood_at_once(50).await, 50);
        let before = resident_kib(&mut world);
        let orm = world.mesh.pid("orm").unwrap();
        send(orm, Signal::STOP);

        let answered = world.runtime.flood_at_once(1000).await;

        let grown = resident_kib(&mut world).saturating_sub(before);
        println!("1,000 events at once: the gateway has grown by {grown} KiB");
        assert_eq!(answered, 1000);
        assert!(grown < 16 << 10, "{grown} KiB for 1,000 small events");
        world.runtime.observed(|o| assert!(o.ended.is_empty(), "{:?}", o.ended));
        send(orm, Signal::CONT);
        let told = poll_until(PATIENCE, async || {
            let waiting = total(&world.gateway_page().await, "oxalyst_releases_waiting", "");
            if waiting == Some(0.0) { Ok(()) } else { Err(waiting) }
        });
        told.await.unwrap();
        let dedicated = world.run("db", "dedicated_cores", 1000).await;
        world.knows_exclusive(&dedicated).await;
        let own = world.allowed(&dedicated.container).await;
        assert!(world.allowed(&shared.container).await.is_disjoint(&own));
        world
    })
    .await;
}

fn resident_kib(world: &mut World<Imitation>) -> u64 {
    let pid = world.mesh.pid("nri-gateway").unwrap();
    let value = status_value(&PathBuf::from(format!("/proc/{pid}/status")), "VmRSS").unwrap();
    value.split_whitespace().next().unwrap().parse().unwrap()
}

/// The runtime is restarted twenty times, one right after the other: one process, twenty sessions, each synchronised, and the last
/// one serves. `make bench` has the times.
#[tokio::test]
async fn k3_twenty_restarts_of_the_runtime_are_twenty_synchronisations_of_one_process() {
    on_imitation(Setup::default(), async |mut world| {
        let dedicated = world.run("db", "dedicated_cores", 1000).await;
        let own = world.allowed(&dedicated.container).await;
        let gateway = world.mesh.pid("nri-gateway");
        let mut slowest = 0;
        for round in 0..20 {
            world.runtime.forget_observed();
            world.runtime.restart().await.unwrap();
            let synchronised = poll_until(PATIENCE, async || {
                world
                    .runtime
                    .observed(|o| if o.synchronizations.is_empty() { Err(o.ended.clone()) } else { Ok(()) })
            });
            synchronised.await.unwrap_or_else(|ended| panic!("round {round}: {ended:?}"));
            world.connected(true).await;
            let facts = world.mesh.status("nri-gateway").await.unwrap().facts;
            slowest = slowest.max(facts["resync_ms"].parse::<u64>().unwrap());
        }
        println!("20 restarts: the slowest synchronisation took {slowest} ms");
        let facts = world.mesh.status("nri-gateway").await.unwrap().facts;
        assert_eq!(facts["reconnects"], "20");
        assert_eq!(world.mesh.pid("nri-gateway"), gateway);
        let late = world.run("late", "shared_cores", 10).await;
        assert!(world.first(&late.container).await.is_disjoint(&own));
        world
    })
    .await;
}
