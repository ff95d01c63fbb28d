//! Every scenario with the reference NRI library as the runtime's end, on an old and a new line of it: it drives the real
//! gateway through every event, and looks at the bytes of every answer.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    missing_docs
)]

use std::collections::BTreeSet;

use integration::imitation::{CgroupLayout, Imitation, MachineLayout, Seen, Setup};
use integration::runtime::{ContainerSpec, Resizes, Runtime};
use integration::scenarios::{World, refusal, requiring};
use oxalyst_nri::api::Event;

/// NRI 0.9: events without an answer are StateChange. A small machine with cgroup v1.
mod nri_0_9 {
    use super::*;

    async fn run(scenario: impl AsyncFnOnce(World<Imitation>) -> World<Imitation>) {
        on_reference("0.9", Setup::default(), scenario).await;
    }

    integration::every_scenario!(run);

    #[tokio::test]
    async fn a_resized_container_keeps_its_first_cpu() {
        run(integration::scenarios::a_resized_container_keeps_its_first_cpu).await;
    }

    #[tokio::test]
    async fn every_event_is_answered_in_the_librarys_own_bytes() {
        run(async |world| every_event(world, false).await).await;
    }
}

/// NRI 0.12: each event is a call of its own. A large machine with cgroup v2.
mod nri_0_12 {
    use super::*;

    async fn run(scenario: impl AsyncFnOnce(World<Imitation>) -> World<Imitation>) {
        let machine = MachineLayout::two_sockets(4);
        let setup = Setup { machine, cgroups: CgroupLayout::V2, ..Setup::default() };
        on_reference("0.12", setup, scenario).await;
    }

    integration::every_scenario!(run);

    #[tokio::test]
    async fn a_resized_container_keeps_its_first_cpu() {
        run(integration::scenarios::a_resized_container_keeps_its_first_cpu).await;
    }

    #[tokio::test]
    async fn every_event_is_answered_in_the_librarys_own_bytes() {
        run(async |world| every_event(world, true).await).await;
    }
}

/// The library's own validator refuses a container whose pod requires the plugin while that is away; with it, and with the orm
/// hanging, it does not (the scenario of the same id).
#[tokio::test]
async fn n02_a_required_plugin_that_is_away_is_missed_by_the_library() {
    on_reference("0.12", Setup::default(), async |mut world| {
        let pod = requiring("db");
        let sandbox = world.runtime.run_pod(&pod).await.unwrap();
        let mut spec = ContainerSpec::new("main", 1000);
        world.mesh.kill("nri-gateway").await.unwrap();

        let missed = world.runtime.create_container(&sandbox, &spec).await;

        let said = refusal(missed);
        assert!(said.contains("oxalyst") && said.contains("not present"), "{said}");
        world.mesh.start("nri-gateway").unwrap();
        world.mesh.ready("nri-gateway").await.unwrap();
        spec = spec.next_attempt();
        let container = world.runtime.create_container(&sandbox, &spec).await.unwrap();
        world.runtime.start_container(&container).await.unwrap();
        assert_eq!(world.first(&container).await.len(), 1);
        world
    })
    .await;
}

async fn on_reference(
    line: &str,
    setup: Setup,
    scenario: impl AsyncFnOnce(World<Imitation>) -> World<Imitation>,
) {
    let program = match integration::lab::script("reference-runtime.sh", &[line]) {
        Ok(program) => program,
        Err(reason) => return println!("skipped: no reference runtime here: {reason}"),
    };
    let folder = tempfile::Builder::new().prefix("oxalyst-").tempdir().unwrap();
    let runtime = Imitation::start_reference(folder.path(), setup, &program).await.unwrap();
    let world = World::start(folder.path(), runtime).await;

    let mut world = scenario(world).await;

    world.runtime.observed(|o| {
        let differing: Vec<_> = o.seen.iter().filter(|s| s.differs.is_some() && !tells_version(s)).collect();
        assert!(differing.is_empty(), "the reference library would have written otherwise: {differing:#?}");
        assert!(o.seen.iter().any(|seen| seen.method == "Synchronize"), "{:?}", o.seen);
        assert!(o.empty_cpus.is_empty(), "an empty cpuset was sent for {:?}", o.empty_cpus);
        assert!(o.refused.is_empty(), "the kernel refused {:?}", o.refused);
    });
    world.mesh.stop().await.unwrap();
    world.runtime.remove().await.unwrap();
}

/// The version of NRI in a registration, field 3: newer than NRI 0.9, which passes over it.
fn tells_version(seen: &Seen) -> bool {
    seen.differs.as_ref().is_some_and(|text| text.contains("RegisterPluginRequest has unknown fields: 1a"))
}

/// A pod's whole life and a resize: the library has called everything that the gateway asked for, and nothing was refused.
async fn every_event(mut world: World<Imitation>, own_calls: bool) -> World<Imitation> {
    let shared = world.run("web", "shared_cores", 200).await;
    let dedicated = world.run("db", "dedicated_cores", 1000).await;
    let own = world.allowed(&dedicated.container).await;
    let theirs = world.allowed(&shared.container).await;
    assert!(own.is_disjoint(&theirs), "{own} and {theirs}");

    // The kubelet's in-place resize, as the runtime sees it; it needs as many whole CPUs as before.
    world.runtime.update_shares(&dedicated.container, 900).await.unwrap();
    world.runtime.tell(Event::PostUpdateContainer, &dedicated.container).await.unwrap();
    assert_eq!(world.allowed(&shared.container).await, theirs);
    assert_eq!(world.allowed(&dedicated.container).await, own);

    if own_calls {
        world.runtime.resize_pod(&shared.sandbox, 400).await.unwrap();
        assert_eq!(world.allowed(&shared.container).await, theirs);
    }

    world.runtime.remove_pod(&dedicated.sandbox).await.unwrap();
    let online = world.online();
    world.converges(&shared.container, &online).await;
    world.runtime.remove_pod(&shared.sandbox).await.unwrap();

    world.runtime.observed(|o| {
        let failed: Vec<_> = o.calls.iter().filter(|call| call.error.is_some()).collect();
        assert!(failed.is_empty(), "{failed:?}");
        let seen: BTreeSet<&str> = o.seen.iter().map(|seen| seen.method.as_str()).collect();
        let runtime = "/nri.pkg.api.v1alpha1.Runtime/";
        let mut wanted: BTreeSet<String> =
            ["Configure", "Synchronize", "CreateContainer", "UpdateContainer", "StopContainer"]
                .into_iter()
                .map(str::to_owned)
                .chain(["RegisterPlugin", "UpdateContainers"].map(|call| format!("{runtime}{call}")))
                .collect();
        let events = [
            "RunPodSandbox",
            "PostCreateContainer",
            "StartContainer",
            "PostStartContainer",
            "PostUpdateContainer",
            "RemoveContainer",
            "StopPodSandbox",
            "RemovePodSandbox",
        ];
        if own_calls {
            let newer = ["UpdatePodSandbox", "PostUpdatePodSandbox", "ValidateContainerAdjustment"];
            wanted.extend(events.into_iter().chain(newer).map(str::to_owned));
        } else {
            wanted.insert("StateChange".to_owned());
        }
        let missing: Vec<_> = wanted.iter().filter(|method| !seen.contains(method.as_str())).collect();
        assert!(missing.is_empty(), "not called: {missing:?}; called: {seen:?}");
    });
    world
}
