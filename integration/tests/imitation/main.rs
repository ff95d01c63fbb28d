//! Every scenario on imitated runtimes, with the real services; and what only an imitation can do to them.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    missing_docs
)]

mod absent_orm;
mod alarms;
mod bursts;
mod connection;
mod faulty_runtime;
mod no_request;
mod pod_resize;
mod resize;
mod two_gateways;
mod uids;
mod wire;

use integration::imitation::{CgroupLayout, EventStyle, Imitation, MachineLayout, RuntimeOptions, Setup};
use integration::scenarios::World;

/// A small machine with cgroup v1 and a runtime of today.
mod two_cpus {
    use super::*;

    async fn run(scenario: impl AsyncFnOnce(World<Imitation>) -> World<Imitation>) {
        on_imitation(Setup::default(), scenario).await;
    }

    integration::every_scenario!(run);
}

/// A large machine with cgroup v2 and a runtime that tells each event by a call of its own.
mod two_sockets {
    use super::*;

    async fn run(scenario: impl AsyncFnOnce(World<Imitation>) -> World<Imitation>) {
        let setup = Setup {
            machine: MachineLayout::two_sockets(4),
            cgroups: CgroupLayout::V2,
            options: RuntimeOptions {
                style: EventStyle::OwnCalls,
                last_event: oxalyst_nri::api::Event::ValidateContainerAdjustment,
                ..RuntimeOptions::default()
            },
        };
        on_imitation(setup, scenario).await;
    }

    integration::every_scenario!(run);
}

/// A world before and after a scenario.
async fn on_imitation(setup: Setup, scenario: impl AsyncFnOnce(World<Imitation>) -> World<Imitation>) {
    let folder = folder();
    let runtime = Imitation::start(folder.path(), setup).await.unwrap();
    on_runtime(folder.path(), runtime, scenario).await;
}

/// A world on a runtime that may hold pods already.
async fn on_runtime(
    folder: &std::path::Path,
    runtime: Imitation,
    scenario: impl AsyncFnOnce(World<Imitation>) -> World<Imitation>,
) {
    let world = World::start(folder, runtime).await;

    let mut world = scenario(world).await;

    // What no scenario may bring about.
    world.runtime.observed(|o| {
        assert!(o.empty_cpus.is_empty(), "an empty cpuset was sent for {:?}", o.empty_cpus);
        assert!(o.refused.is_empty(), "the kernel refused {:?}", o.refused);
    });
    world.mesh.stop().await.unwrap();
    world.runtime.remove().await.unwrap();
}

/// In memory where the machine has such a place: a machine of 3,000 containers is made of 40,000 files.
fn folder() -> tempfile::TempDir {
    let in_memory = tempfile::Builder::new().prefix("oxalyst-").tempdir_in("/dev/shm");
    in_memory.or_else(|_| tempfile::Builder::new().prefix("oxalyst-").tempdir()).unwrap()
}
