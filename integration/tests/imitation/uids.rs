//! Pods whose uid can be none, as a static pod's manifest may have it.

use std::time::Duration;

use integration::imitation::Setup;
use integration::runtime::{ContainerSpec, PodSpec, Runtime as _, poll_until};

use super::on_imitation;

/// It is let in by policy, unmanaged, and its end holds back nobody else's.
#[tokio::test]
async fn a_pod_that_can_have_no_uid_runs_by_policy_and_its_end_holds_back_no_other() {
    on_imitation(Setup::default(), async |mut world| {
        let odd = PodSpec { uid: "of a manifest".to_owned(), ..PodSpec::new("odd", "shared_cores", 100) };
        let sandbox = world.runtime.run_pod(&odd).await.unwrap();
        let container = ContainerSpec::new("main", 100);
        let container = world.runtime.create_container(&sandbox, &container).await.unwrap();
        world.runtime.start_container(&container).await.unwrap();
        let other = world.run("other", "dedicated_cores", 1000).await;
        assert!(world.placement(&odd).await.is_none());
        assert!(world.placement(&other.pod).await.unwrap().exclusive);

        world.runtime.remove_pod(&sandbox).await.unwrap();
        world.runtime.remove_pod(&other.sandbox).await.unwrap();

        let freed = poll_until(Duration::from_secs(10), async || {
            let pods = world.state().await.pods;
            if pods.is_empty() { Ok(()) } else { Err(pods) }
        });
        freed.await.unwrap_or_else(|pods| panic!("{pods:?}:\n{}", world.mesh.log("nri-gateway")));
        world
    })
    .await;
}
