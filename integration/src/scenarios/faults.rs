//! Services and runtimes that die and come back.

use std::time::Instant;

use oxalyst_mesh::NODE_SERVICES;
use oxalyst_topology::CpuSet;

use super::{CONVERGE, Running, World, without};
use crate::runtime::{Runtime, poll_until};

/// Each service in turn is killed and started again while containers run: no cpuset changes, no allocation is lost or
/// doubled, and oxctl shows the same.
pub async fn any_service_may_be_killed<R: Runtime>(mut world: World<R>) -> World<R> {
    let pods = [
        world.run("web", "shared_cores", 200).await,
        world.run("db", "dedicated_cores", 1000).await,
        world.run("batch", "reclaimed_cores", 100).await,
    ];
    let kernel = lists(&mut world, &pods).await;
    let ledger = world.state().await;
    let shown = stable_oxctl(&world).await;

    for service in NODE_SERVICES {
        world.mesh.kill(service).await.unwrap();
        assert_eq!(lists(&mut world, &pods).await, kernel, "{service} is away");

        world.mesh.start(service).unwrap();
        world.mesh.ready(service).await.unwrap();

        assert_eq!(lists(&mut world, &pods).await, kernel, "{service} is back");
        let now = world.state().await;
        assert_eq!((&now.pods, &now.pools), (&ledger.pods, &ledger.pools), "{service} is back");
        let again = poll_until(CONVERGE, async || match oxctl(&world) {
            Ok(text) if text == shown => Ok(()),
            other => Err(other),
        });
        again.await.unwrap_or_else(|now| panic!("{service} is back; oxctl shows {now:#?}, not {shown}"));
    }
    world
}

async fn lists<R: Runtime>(world: &mut World<R>, pods: &[Running]) -> Vec<CpuSet> {
    let mut lists = Vec::new();
    for pod in pods {
        lists.push(world.allowed(&pod.container).await);
    }
    lists
}

fn oxctl<R: Runtime>(world: &World<R>) -> Result<String, String> {
    let pods = world.mesh.oxctl(&["pods", "-o", "json"]).map_err(|e| e.to_string())?;
    let pools = world.mesh.oxctl(&["pools", "-o", "json"]).map_err(|e| e.to_string())?;
    Ok(format!("{pods}\n{pools}"))
}

/// What oxctl shows once it says the same twice (kernel read-backs of just started containers are in).
async fn stable_oxctl<R: Runtime>(world: &World<R>) -> String {
    let mut last = oxctl(world);
    poll_until(CONVERGE, async || {
        let now = oxctl(world);
        let same = now.is_ok() && now == last;
        last = now.clone();
        now.and_then(|text| if same && !text.contains("being-created") { Ok(text) } else { Err(text) })
    })
    .await
    .unwrap()
}

/// The gateway is down while three pods start, on whatever the runtime gives them. Back again it pins exactly those three, and
/// touches nobody else.
pub async fn k2_a_returning_gateway_pins_what_it_missed<R: Runtime>(mut world: World<R>) -> World<R> {
    let online = world.online();
    let dedicated = world.run("db", "dedicated_cores", 1000).await;
    let earlier = world.run("web", "shared_cores", 100).await;
    let own = world.allowed(&dedicated.container).await;
    let rest = without(online.clone(), &own);
    world.mesh.terminate("nri-gateway").await.unwrap();
    let mut missed = Vec::new();
    for n in 0..3 {
        missed.push(world.run(&format!("missed-{n}"), "shared_cores", 50).await);
    }
    for pod in &missed {
        assert_eq!(world.allowed(&pod.container).await, online, "nobody pins it");
    }

    let start = Instant::now();
    world.mesh.start("nri-gateway").unwrap();
    for pod in &missed {
        world.converges(&pod.container, &rest).await;
    }
    println!("three missed pods pinned {} ms after the gateway's start", start.elapsed().as_millis());

    let facts = world.mesh.ready("nri-gateway").await.unwrap().facts;
    let resync = facts.get("resync_ms").map_or("?", String::as_str);
    println!("of which {resync} ms from the connection to the last check");
    assert_eq!(
        facts.get("sync_pinned").map(String::as_str),
        Some("3"),
        "those three and nobody else: {facts:?}"
    );
    assert_eq!(world.allowed(&dedicated.container).await, own);
    assert_eq!(world.allowed(&earlier.container).await, rest);
    world
}

/// The runtime is restarted ten times: the gateway's process stays, and is synchronised each time, which the next pod shows
/// from its first instruction on.
pub async fn the_runtime_may_restart<R: Runtime>(mut world: World<R>) -> World<R> {
    let dedicated = world.run("db", "dedicated_cores", 1000).await;
    let shared = world.run("web", "shared_cores", 100).await;
    let own = world.allowed(&dedicated.container).await;
    let rest = without(world.online(), &own);
    let gateway = world.mesh.pid("nri-gateway");
    assert!(gateway.is_some());

    for round in 0..10 {
        world.runtime.stop().await.unwrap();
        world.connected(false).await;
        world.runtime.start().await.unwrap();
        world.connected(true).await;

        let late = world.run(&format!("late-{round}"), "shared_cores", 50).await;
        assert_eq!(world.first(&late.container).await, rest, "restart {round}");
        assert_eq!(world.allowed(&dedicated.container).await, own, "restart {round}");
        assert_eq!(world.allowed(&shared.container).await, rest, "restart {round}");
        world.runtime.remove_pod(&late.sandbox).await.unwrap();
    }

    assert_eq!(world.mesh.pid("nri-gateway"), gateway);
    world
}
