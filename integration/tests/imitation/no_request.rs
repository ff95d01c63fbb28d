//! Pods that ask for nothing.

use integration::imitation::Setup;
use integration::runtime::{ContainerSpec, PodSpec, Runtime};

use super::on_imitation;

/// A dedicated pod of which neither its sandbox nor its container tells a request runs in the share pool and says why. That is the
/// orm's answer, not one without it: closed for those, the gateway lets it start.
#[tokio::test]
async fn a11_a_dedicated_pod_without_a_request_starts_in_the_share_pool_where_policy_is_closed() {
    on_imitation(Setup::default(), async |mut world| {
        world.mesh.terminate("nri-gateway").await.unwrap();
        world.mesh.set("nri-gateway", "on_deadline=closed");
        world.mesh.start("nri-gateway").unwrap();
        world.mesh.ready("nri-gateway").await.unwrap();
        let owner = world.run("db", "dedicated_cores", 1000).await;
        let own = world.allowed(&owner.container).await;

        let pod = PodSpec::new("none", "dedicated_cores", 0).bare();
        let sandbox = world.runtime.run_pod(&pod).await.unwrap();
        let spec = ContainerSpec { request_milli_cpu: None, ..ContainerSpec::new("main", 0) };
        let container = world.runtime.create_container(&sandbox, &spec).await.unwrap();
        world.runtime.start_container(&container).await.unwrap();
        let mut rest = world.online();
        rest -= &own;
        assert_eq!(world.first(&container).await, rest);
        let placed = world.placement(&pod).await.unwrap();
        assert!(placed.flags.iter().any(|flag| flag == "no-request"), "{placed:?}");
        let applied = world.mesh.applied().await.unwrap();
        let marks = applied.containers.into_iter().find(|c| c.container_id == container.0).unwrap().marks;
        assert!(!marks.iter().any(|mark| mark == "answered-by-policy"), "{marks:?}");

        // It follows the pool as the others there do.
        world.runtime.remove_pod(&owner.sandbox).await.unwrap();
        let online = world.online();
        world.converges(&container, &online).await;
        world
    })
    .await;
}
