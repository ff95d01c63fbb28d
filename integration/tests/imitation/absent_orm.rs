//! The orm hangs or comes late: the runtime never waits for it.

use std::time::{Duration, Instant};

use integration::imitation::{Call, Imitation, MachineLayout, Setup};
use integration::lateness::Lateness;
use integration::pages::{page, total};
use integration::process::send;
use integration::runtime::{Runtime, poll_until};
use integration::scenarios::{Running, World, set};
use oxalyst_nri::api::{ContainerUpdate, Event};
use rustix::process::Signal;

use super::on_imitation;

/// Longer than it takes for questions that are given up twice a second to be too many for one connection of HTTP/2.
const FROZEN: Duration = Duration::from_secs(13);

/// The orm is frozen: every hook is answered long before the runtime's patience ends, the connection lives, the container that
/// was answered by policy is marked, and put right when the orm is back.
#[tokio::test]
async fn n01_a_frozen_orm_costs_neither_the_connection_nor_the_pin() {
    on_imitation(Setup::default(), async |mut world| {
        usual_deadline(&mut world).await;
        let earlier = world.run("web", "shared_cores", 100).await;
        let orm = world.mesh.pid("orm").unwrap();
        send(orm, Signal::STOP);
        world.runtime.forget_observed();

        let late = world.run("late", "shared_cores", 100).await;

        world.runtime.observed(|o| {
            assert!(o.ended.is_empty(), "the connection lives: {:?}", o.ended);
            for Call { event, took, error } in &o.calls {
                assert!(*took < Duration::from_millis(1500), "{event:?} took {took:?}");
                assert_eq!(error, &None, "{event:?}");
            }
            assert!(o.calls_of(Event::CreateContainer).next().is_some(), "the gateway was asked");
        });
        let applied = world.mesh.applied().await.unwrap();
        let marked = applied.containers.iter().find(|c| c.container_id == late.container.0).unwrap();
        assert!(
            marked.marks.iter().any(|m| m == "answered-by-policy" || m == "unpinned"),
            "marked: {marked:?}"
        );

        send(orm, Signal::CONT);
        // The gateway hears of it by its next probe, and has the late one taken in.
        let taken_in = poll_until(Duration::from_secs(20), async || {
            let applied = world.mesh.applied().await.map_err(|e| e.to_string())?;
            let late = applied.containers.into_iter().find(|c| c.container_id == late.container.0);
            let late = late.ok_or("not listed")?;
            if late.marks.is_empty() { Ok(()) } else { Err(format!("{late:?}")) }
        });
        taken_in.await.unwrap();
        let dedicated = world.run("db", "dedicated_cores", 1000).await;
        let own = world.allowed(&dedicated.container).await;
        let mut rest = world.online();
        rest -= &own;
        for shared in [&earlier, &late] {
            world.converges(&shared.container, &rest).await;
        }
        assert!(world.placement(&late.pod).await.is_some(), "the orm has taken it in");
        world
    })
    .await;
}

/// After a few missed deadlines hooks no longer wait for each: twenty pods start while the orm is frozen, and none costs the
/// connection.
#[tokio::test]
async fn a_frozen_orm_is_not_waited_for_again_and_again() {
    on_imitation(Setup::default(), async |mut world| {
        usual_deadline(&mut world).await;
        let orm = world.mesh.pid("orm").unwrap();
        send(orm, Signal::STOP);
        world.runtime.forget_observed();
        for n in 0..20 {
            world.run(&format!("p{n}"), "shared_cores", 10).await;
        }
        let at_policy = world.runtime.observed(|o| {
            assert!(o.ended.is_empty(), "{:?}", o.ended);
            o.calls.iter().filter(|c| c.took < Duration::from_millis(100)).count()
        });
        let all = world.runtime.observed(|o| o.calls.len());
        assert!(at_policy * 2 > all, "{at_policy} of {all} calls were answered at once");
        send(orm, Signal::CONT);
        world
    })
    .await;
}

/// Fifty pods start while the orm is frozen, every tenth of them dedicated: with the orm back all are where they belong within a
/// second, as they are taken in by one question, made durable by a commit or two, and told to the runtime together.
#[tokio::test]
async fn n01_fifty_pods_of_a_frozen_orm_are_pinned_together_within_a_second_of_its_return() {
    let setup = Setup { machine: MachineLayout::two_sockets(8), ..Setup::default() };
    on_imitation(setup, async |mut world| {
        usual_deadline(&mut world).await;
        let earlier = world.run("web", "shared_cores", 100).await;
        let orm = world.mesh.pid("orm").unwrap();
        let lateness = Lateness::watch();
        let (commits, losses) = (commits(&world).await, losses(&world));
        let stopped = Instant::now();
        send(orm, Signal::STOP);
        let mut late = Vec::new();
        for n in 0..50 {
            let (level, milli_cpu) = if n % 10 == 0 { ("dedicated_cores", 1000) } else { ("shared_cores", 20) };
            late.push(world.run(&format!("late-{n}"), level, milli_cpu).await);
        }
        tokio::time::sleep(FROZEN.saturating_sub(stopped.elapsed())).await;
        world.runtime.forget_observed();

        let back = Instant::now();
        send(orm, Signal::CONT);
        let pinned = poll_until(Duration::from_secs(20), async || are_apart(&mut world, &late, &earlier).await);
        pinned.await.unwrap();
        let took = back.elapsed();

        let unmarked = poll_until(Duration::from_secs(20), async || {
            let applied = world.mesh.applied().await.map_err(|e| e.to_string())?;
            let marked = applied.containers.iter().filter(|c| !c.marks.is_empty()).count();
            if marked == 0 { Ok(()) } else { Err(format!("{marked} are marked")) }
        });
        unmarked.await.unwrap();
        let calls = world.runtime.observed(|o| o.updates.iter().filter(|(_, all)| all.iter().any(has_cpus)).count());
        let commits = self::commits(&world).await - commits;
        let late_by = lateness.most();
        println!("50 pods are pinned {took:?} after the orm's return: {calls} calls, {commits} commits; the machine was late by {late_by:?}");
        assert!(calls <= 2, "{calls} calls of the runtime pin 50 pods");
        assert!(commits <= 3.0, "{commits} commits take in 50 pods");
        assert_eq!(self::losses(&world), losses, "{}", world.mesh.log("nri-gateway"));
        assert!(took <= Duration::from_secs(1) || late_by > Duration::from_millis(50), "{took:?}");
        world
    })
    .await;
}

fn has_cpus(update: &ContainerUpdate) -> bool {
    let cpu = update.linux.as_ref().and_then(|linux| linux.resources.as_ref()?.cpu.as_ref());
    cpu.is_some_and(|cpu| !cpu.cpus.is_empty())
}

/// How often the gateway has lost the stream of placements.
fn losses(world: &World<Imitation>) -> usize {
    world.mesh.log("nri-gateway").matches("no stream of placements").count()
}

/// Whether each tenth pod has one CPU for itself, and all others have exactly the rest.
async fn are_apart(world: &mut World<Imitation>, pods: &[Running], earlier: &Running) -> Result<(), String> {
    let mut rest = world.online();
    for dedicated in pods.iter().step_by(10) {
        let own = world.allowed(&dedicated.container).await;
        if own.len() != 1 || !own.is_subset(&rest) {
            return Err(format!("{} is on {own}, of {rest}", dedicated.pod.name));
        }
        rest -= &own;
    }
    let others = pods.chunks(10).flat_map(|ten| &ten[1..]);
    for shared in others.chain([earlier]) {
        let now = world.allowed(&shared.container).await;
        if now != rest {
            return Err(format!("{} is on {now}, not on {rest}", shared.pod.name));
        }
    }
    Ok(())
}

async fn commits(world: &World<Imitation>) -> f64 {
    let page = page(&world.mesh.run_dir(), "orm", "/metrics").await.unwrap();
    total(&page, "oxalyst_orm_commit_seconds_count", "").unwrap()
}

/// An orm that comes only after the pods have started: they run, and are pinned once it is there.
#[tokio::test]
async fn an_orm_that_comes_last_pins_what_runs() {
    on_imitation(Setup::default(), async |mut world| {
        let dedicated = world.run("db", "dedicated_cores", 1000).await;
        let own = world.allowed(&dedicated.container).await;
        let mut rest = world.online();
        rest -= &own;
        world.mesh.kill("orm").await.unwrap();
        world.mesh.kill("nri-gateway").await.unwrap();
        world.mesh.start("nri-gateway").unwrap();
        let connected = poll_until(Duration::from_secs(20), async || {
            if world.runtime.connected() == 1 { Ok(()) } else { Err("no session") }
        });
        connected.await.unwrap();

        let late = world.run("late", "shared_cores", 100).await;
        assert_eq!(
            world.first(&late.container).await,
            world.online(),
            "nobody has told the gateway anything"
        );
        world.mesh.start("orm").unwrap();

        world.converges(&late.container, &rest).await;
        assert_eq!(set(&world.runtime.cpus_allowed(&dedicated.container).await.unwrap()), own);
        world.mesh.ready("nri-gateway").await.unwrap();
        world
    })
    .await;
}

/// The worlds of the other tests wait longer for the orm, as they share the machine with compilers.
async fn usual_deadline(world: &mut World<Imitation>) {
    world.mesh.terminate("nri-gateway").await.unwrap();
    world.mesh.set("nri-gateway", "hook_deadline_ms=300");
    world.mesh.start("nri-gateway").unwrap();
    world.mesh.ready("nri-gateway").await.unwrap();
}
