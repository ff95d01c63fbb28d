//! Every scenario on the imitated runtime: fast, without privileges, the same guarantees.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    missing_docs
)]

use integration::imitation::{Imitation, Setup};
use integration::scenarios::World;

async fn on_the_imitation(scenario: impl AsyncFnOnce(World<Imitation>) -> World<Imitation>) {
    let folder = tempfile::Builder::new().prefix("oxalyst-").tempdir().unwrap();
    let runtime = Imitation::start(folder.path(), Setup::default()).await.unwrap();
    let world = World::start(folder.path(), runtime).await;

    let mut world = scenario(world).await;

    world.mesh.stop().await.unwrap();
}

integration::every_scenario!(on_the_imitation);
