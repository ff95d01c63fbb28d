//! What a probe and an alert see when there is no gateway, or one that does not serve.

use std::time::Duration;

use integration::imitation::{Imitation, Setup};
use integration::pages::{page, total};
use integration::runtime::{Runtime, poll_until};
use integration::scenarios::World;

use super::on_imitation;

const PATIENCE: Duration = Duration::from_secs(30);

/// Killed, the gateway answers no probe, which makes its pod not ready; `oxctl status` and `oxctl doctor` name it and fail; the
/// meta-server, which it tells what runs, is not ready either. Back again, all is well.
#[tokio::test]
async fn n13_a_gateway_that_is_gone_is_noticed_by_probe_operator_and_peer() {
    on_imitation(Setup::default(), async |mut world| {
        world.run("web", "shared_cores", 10).await;
        assert!(ready(&world, "nri-gateway").await.unwrap().starts_with("HTTP/1.1 200"));

        world.mesh.kill("nri-gateway").await.unwrap();

        assert!(ready(&world, "nri-gateway").await.is_err(), "a probe is not answered");
        for command in ["status", "doctor"] {
            let said = world.mesh.oxctl(&[command]).expect_err("the exit code says so").to_string();
            assert!(said.contains("nri-gateway"), "oxctl {command}: {said}");
        }
        let noticed = poll_until(PATIENCE, async || match ready(&world, "meta-server").await {
            Ok(text) if text.starts_with("HTTP/1.1 503") && text.contains("runtime") => Ok(()),
            other => Err(format!("{other:?}")),
        });
        noticed.await.unwrap();

        world.mesh.start("nri-gateway").unwrap();
        world.mesh.ready("nri-gateway").await.unwrap();
        assert!(ready(&world, "nri-gateway").await.unwrap().starts_with("HTTP/1.1 200"));
        let well = poll_until(PATIENCE, async || world.mesh.oxctl(&["status"]).map_err(|e| e.to_string()));
        well.await.unwrap();
        world
    })
    .await;
}

/// A gateway that lives and has no session is not ready, says for what it waits, and its metric is 0; with the runtime back it
/// is 1 again.
#[tokio::test]
async fn n13_a_gateway_without_a_session_is_not_ready_and_its_metric_says_so() {
    on_imitation(Setup::default(), async |mut world| {
        world.connected(true).await;
        assert_eq!(session(&world).await, Some(1.0));

        world.runtime.stop().await.unwrap();
        world.connected(false).await;

        let said = poll_until(PATIENCE, async || match ready(&world, "nri-gateway").await {
            Ok(text) if text.starts_with("HTTP/1.1 503") && text.contains("nri-session") => Ok(()),
            other => Err(format!("{other:?}")),
        });
        said.await.unwrap();
        assert_eq!(session(&world).await, Some(0.0));

        world.runtime.start().await.unwrap();
        world.connected(true).await;
        world.mesh.ready("nri-gateway").await.unwrap();
        assert_eq!(session(&world).await, Some(1.0));
        world
    })
    .await;
}

async fn ready(world: &World<Imitation>, service: &str) -> std::io::Result<String> {
    page(&world.mesh.run_dir(), service, "/readyz?verbose").await
}

async fn session(world: &World<Imitation>) -> Option<f64> {
    total(&world.gateway_page().await, "oxalyst_nri_connected", "")
}
