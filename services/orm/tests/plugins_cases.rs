//! What a plugin that is away or hangs may cost, and whom.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod host;
mod plugin;

use host::{Host, Orm, placed, refused, sandbox};
use oxalyst_proto::meta::v1::Pod;
use plugin::{Plugin, Serving, Specs, fact, spec, until};

const GPU: &str = "vendor.io/gpu";
const NIC: &str = "vendor.io/nic";
const SHARED: &str = "shared_cores";

/// A node with these plugins under the strictest of topology policies, and specs of these pods.
async fn node(plugins: &[&Plugin], pods: &[Pod]) -> (Host, Specs, Orm, Vec<Serving>) {
    let host = Host::with_machine(8, 2);
    let specs = Specs::serve(&host);
    let serving = plugins.iter().map(|plugin| plugin.found(&host)).collect();
    let settings = ["--set", "plugin_deadline_ms=1500", "--set", "topology_policy=single-numa-node"];
    let mut orm = host.start(&settings).await;
    for plugin in plugins {
        fact(&mut orm, "plugins", |known| known.contains(&plugin.name)).await;
    }
    specs.tell(&mut orm, pods).await;
    (host, specs, orm, serving)
}

#[tokio::test]
async fn k9_a_plugin_that_hangs_while_it_is_told_of_ended_pods_costs_no_admission_of_other_resources() {
    let (gpu, nic) = (Plugin::new(GPU, &[(&[1], true)]), Plugin::new(NIC, &[(&[0], true)]));
    let pods = [
        spec("g", SHARED, 500, &[(GPU, 1)]),
        spec("n", SHARED, 500, &[(NIC, 1)]),
        spec("s", SHARED, 500, &[]),
    ];
    let (_host, _specs, mut orm, _serving) = node(&[&gpu, &nic], &pods).await;
    placed(&orm.admit(&sandbox("g", SHARED, Some(512))).await);
    gpu.now(|gpu| gpu.hangs = true);
    assert!(orm.release("g", "g-1").await);
    until("it is told and hangs", async || gpu.now(|gpu| !gpu.removed.is_empty()).then_some(())).await;
    let reply = orm.admit(&sandbox("n", SHARED, Some(512))).await;
    assert_eq!(placed(&reply).plugins[0].resource, NIC);
    placed(&orm.admit(&sandbox("s", SHARED, Some(512))).await);
    assert!(orm.release("n", "n-1").await);
    until("the other one hears of its pod", async || {
        nic.now(|nic| nic.removed.contains(&"n".into())).then_some(())
    })
    .await;
    let before = gpu.now(|gpu| {
        gpu.hangs = false;
        gpu.removed.len()
    });
    until("it is told again", async || gpu.now(|gpu| gpu.removed.len() > before).then_some(())).await;
}

#[tokio::test]
async fn k11_a_plugin_that_is_unavailable_once_is_asked_again_within_the_budget() {
    let gpu = Plugin::new(GPU, &[(&[1], true)]);
    gpu.now(|gpu| gpu.unavailable = 1);
    let (_host, _specs, mut orm, _serving) = node(&[&gpu], &[spec("g", SHARED, 500, &[(GPU, 1)])]).await;
    let reply = orm.admit(&sandbox("g", SHARED, Some(512))).await;
    assert_eq!(placed(&reply).plugins[0].nodes, [1]);
    assert_eq!(gpu.now(|gpu| gpu.asked_hints.len()), 2);
}

#[tokio::test]
async fn k11_a_plugin_that_stays_unavailable_is_a_refusal_of_that_name_and_none_of_topology() {
    let gpu = Plugin::new(GPU, &[(&[1], true)]);
    gpu.now(|gpu| gpu.unavailable = usize::MAX);
    let (_host, _specs, mut orm, _serving) = node(&[&gpu], &[spec("g", SHARED, 500, &[(GPU, 1)])]).await;
    let reply = orm.admit(&sandbox("g", SHARED, Some(512))).await;
    assert_eq!((refused(&reply).reason.as_str(), refused(&reply).rule.as_str()), ("unavailable", "plugin"));
    assert!(refused(&reply).message.contains(GPU), "{}", refused(&reply).message);
    assert_eq!(gpu.now(|gpu| gpu.asked_hints.len()), 2, "once, and once again");
    assert!(orm.state().await.pods.is_empty(), "nothing is held");
}
