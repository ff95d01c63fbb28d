//! Every scenario on a real CRI-O, with real containers and the kernel's word for where they run.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    missing_docs
)]

use integration::crio::Crio;
use integration::runtime::Runtime;
use integration::scenarios::World;
use tokio::sync::Mutex;

/// One at a time: each removes the cgroup folders that it made, which the next would still be using.
static ONE: Mutex<()> = Mutex::const_new(());

async fn on_crio(scenario: impl AsyncFnOnce(World<Crio>) -> World<Crio>) {
    let _one = ONE.lock().await;
    let folder = tempfile::Builder::new().prefix("oxalyst-").tempdir().unwrap();
    let runtime = match Crio::try_start(folder.path()).await {
        Ok(runtime) => runtime,
        Err(reason) => return println!("skipped: no CRI-O here: {reason}"),
    };
    if runtime.online_cpus() == "0" {
        runtime.remove().await.unwrap();
        return println!("skipped: one CPU can be given to nobody exclusively");
    }
    let world = World::start(folder.path(), runtime).await;

    let mut world = scenario(world).await;

    world.mesh.stop().await.unwrap();
    world.runtime.remove().await.unwrap();
}

integration::every_scenario!(on_crio);

#[tokio::test]
async fn c14_a_shrunk_cpuset_bounds_the_quota() {
    on_crio(integration::scenarios::c14_a_shrunk_cpuset_bounds_the_quota).await;
}

#[tokio::test]
async fn a_resized_container_keeps_its_first_cpu() {
    on_crio(integration::scenarios::a_resized_container_keeps_its_first_cpu).await;
}

#[tokio::test]
async fn n01_k4_a_frozen_orm_costs_a_deadline_and_no_pin() {
    on_crio(async |world| {
        let frozen = std::time::Duration::from_secs(3);
        integration::scenarios::n01_k4_a_frozen_orm_costs_a_deadline_and_no_pin(world, frozen).await
    })
    .await;
}
