//! The allocator of a node: decides which CPUs and NUMA memory each pod gets, and remembers it.

use std::pin::pin;
use std::process::ExitCode;

use actix::{Actor as _, Arbiter};
use orm::allocations::Allocations;
use orm::allocator::Face;
use orm::decisions::{self, Decisions};
use orm::plugins::Plugins;
use orm::reservation::Reservation;
use orm::settings::Settings;
use orm::specs::{Reader, ReadingRules, follow};
use orm::start;
use oxalyst_planner::rules::rules;
use oxalyst_proto::orm::v1::allocator_server::AllocatorServer;
use oxalyst_proto::orm::v1::decisions_server::DecisionsServer;
use tonic::service::Routes;

fn main() -> ExitCode {
    oxalyst_mesh::run("orm", env!("CARGO_PKG_VERSION"), |settings: Settings, mesh| async move {
        settings.check()?;
        let bound = mesh.bind()?;
        let reader = Reader::new(ReadingRules::new(&settings)?);
        let plugins = Plugins::new(settings.plugin_deadline(), settings.kept_labels(), mesh.facts.clone());
        let face = Face::new(reader.clone(), plugins.clone(), rules(&settings.rules())?.scope);
        let decisions = Decisions::default();
        let server =
            AllocatorServer::new(face.clone()).max_decoding_message_size(oxalyst_mesh::MESSAGE_LIMIT);
        let reasons = DecisionsServer::new(decisions::Face::new(face.clone(), decisions.clone()));
        let meta = oxalyst_mesh::connect(&mesh.run_dir, "meta-server");
        let reservation = settings.reserves_as_kubelet().then(Reservation::default);
        let asking = reservation.clone().map(|reservation| {
            actix::spawn(reservation.follow(meta.clone(), settings.watch_period(), mesh.facts.clone()))
        });
        // What keeps it from starting for good ends it before it has served anybody.
        let opened = match start::open(&settings, &mesh, &decisions, reservation.as_ref()).await {
            Err(e) if !e.can_pass() => return Err(e.into()),
            opened => opened,
        };
        let mut serving = pin!(bound.serve(Routes::new(server).add_service(reasons)));
        let allocations = match opened {
            Ok(allocations) => allocations,
            Err(e) => tokio::select! {
                stopped = &mut serving => return Ok(stopped?),
                opened = start::keep_opening(e, &settings, &mesh, &decisions, reservation.as_ref()) => opened?,
            },
        };
        let thread = Arbiter::new();
        face.show(Allocations::start_in_arbiter(&thread.handle(), |_| allocations));
        let specs = reader.specs().clone();
        let attending = orm::plugins::attend(&settings, &mesh, &face, &plugins).await;
        let reserving = reservation.map(|reservation| {
            let (face, retry) = (face.clone(), settings.watch_period());
            actix::spawn(async move { reservation.give(retry, async |told| face.reserve(told).await).await })
        });
        let follower = actix::spawn(follow(meta, specs, mesh.facts.clone(), async move |changes| {
            face.told(changes).await
        }));
        serving.await?;
        asking.into_iter().chain(reserving).for_each(|task| task.abort());
        follower.abort();
        attending.abort();
        thread.stop();
        // Waits for the commit under way, then closes the ledger.
        thread.join().map_err(|_| "the allocator's thread panicked")?;
        Ok(())
    })
}
