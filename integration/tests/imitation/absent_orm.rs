//! The orm hangs or comes late: the runtime never waits for it.

use std::time::Duration;

use integration::imitation::{Call, Imitation, Setup};
use integration::process::send;
use integration::runtime::{Runtime, poll_until};
use integration::scenarios::{World, set};
use oxalyst_nri::api::Event;
use rustix::process::Signal;

use super::on_imitation;

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
