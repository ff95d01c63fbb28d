//! What plugins answer that cannot be: the pod is refused by the plugin's name, and nothing of it is handed on.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod host;
mod plugin;

use host::{Host, placed, refused, sandbox};
use oxalyst_proto::resourceplugin::v1alpha1::ResourceAllocationInfo;
use plugin::{Plugin, Specs, fact, spec};

const GPU: &str = "vendor.io/gpu";
const SHARED: &str = "shared_cores";
const PATIENT: [&str; 2] = ["--set", "plugin_deadline_ms=1500"];

#[tokio::test]
async fn an_answer_that_cannot_be_is_a_refusal_with_the_plugin_and_the_value() {
    let gpu = Plugin::new(GPU, &[(&[1], true)]);
    let (host, pod) = (Host::with_machine(8, 2), [spec("g", SHARED, 500, &[(GPU, 1)])]);
    let (specs, _serving) = (Specs::serve(&host), gpu.found(&host));
    let mut orm = host.start(&PATIENT).await;
    fact(&mut orm, "plugins", |known| known == GPU).await;
    specs.tell(&mut orm, &pod).await;
    let sound = gpu.now(|gpu| gpu.info.clone());
    let wrong: [(ResourceAllocationInfo, &str); 4] = [
        (ResourceAllocationInfo { allocated_quantity: 0.0, ..sound.clone() }, "an amount of 0"),
        (ResourceAllocationInfo { allocated_quantity: f64::NEG_INFINITY, ..sound.clone() }, "-inf"),
        (
            ResourceAllocationInfo { oci_property_name: "Unified/../../x".into(), ..sound.clone() },
            "Unified/../..",
        ),
        (ResourceAllocationInfo { allocation_result: "1\n2".into(), ..sound.clone() }, r"1\n2"),
    ];
    for (info, told) in wrong {
        gpu.now(|gpu| gpu.info = info);
        let reply = orm.admit(&sandbox("g", SHARED, Some(512))).await;
        let refusal = refused(&reply);
        assert_eq!((refusal.reason.as_str(), refusal.rule.as_str()), ("invalid", "plugin"), "{told}");
        assert!(refusal.message.contains(GPU) && refusal.message.contains(told), "{}", refusal.message);
    }
    gpu.now(|gpu| (gpu.info, gpu.hints) = (sound, vec![(vec![7], true), (vec![u64::MAX], true)]));
    let reply = orm.admit(&sandbox("g", SHARED, Some(512))).await;
    let refusal = refused(&reply);
    assert_eq!((refusal.reason.as_str(), refusal.rule.as_str()), ("invalid", "plugin"));
    assert!(refusal.message.contains(GPU) && refusal.message.contains("[7]"), "{}", refusal.message);
    assert!(orm.state().await.pods.is_empty(), "nothing is held");
    gpu.now(|gpu| gpu.hints = vec![(vec![u64::MAX], true), (vec![1], true)]);
    assert_eq!(placed(&orm.admit(&sandbox("g", SHARED, Some(512))).await).plugins[0].nodes, [1]);
}

#[tokio::test]
async fn of_two_sockets_for_one_resource_status_tells_which_is_used() {
    let gpu = Plugin::new(GPU, &[(&[1], true)]);
    let host = Host::with_machine(8, 2);
    let dir = host.dir.path().join("var/lib/katalyst/plugin-socks");
    let _first = gpu.serve(&dir.join("first.sock"));
    let mut orm = host.start(&PATIENT).await;
    fact(&mut orm, "plugins", |known| known == GPU).await;
    fact(&mut orm, "plugins.twice", |twice| twice == "none").await;
    let _second = gpu.serve(&dir.join("second.sock"));
    fact(&mut orm, "plugins.twice", |twice| {
        twice.contains("second.sock is used") && twice.contains("first.sock is not")
    })
    .await;
    std::fs::remove_file(dir.join("first.sock")).unwrap();
    fact(&mut orm, "plugins.twice", |twice| twice == "none").await;
}
