//! The same on a real containerd: what a plugin gave is looked for in the running container and in the kernel's files.

use std::path::Path;

use integration::containerd::Containerd;
use integration::plugin::FakePlugin;
use integration::runtime::{ContainerId, ContainerSpec, PodSpec, Runtime as _, poll_until};
use integration::scenarios::World;
use serde_json::Value;

use super::kubelet::{Kubelet, container};
use super::{GPU, PATIENCE, fact, gives};

const ANNOTATION: &str = "vendor.io/device";

/// A device's name in the environment and an annotation, CPU shares, and a bound of processes, which containerd drops and the
/// gateway writes itself.
fn all_kinds(plugin: &FakePlugin) {
    let mut main = gives("7", Some(1234));
    main.annotations = [(ANNOTATION.to_owned(), "7".to_owned())].into();
    let mut side = gives("8", None);
    (side.oci_property_name, side.allocation_result) = ("PidsLimit".to_owned(), "99".to_owned());
    plugin.conduct().gives = [("main".to_owned(), main), ("side".to_owned(), side)].into();
}

async fn variable(world: &mut World<Containerd>, id: &ContainerId) -> String {
    let command = ["/bin/sh", "-c", "echo $VISIBLE"];
    let (code, said) = world.runtime.cri().exec(id, &command).await.unwrap();
    assert_eq!(code, 0, "{said}");
    said.trim().to_owned()
}

/// What the runtime's own configuration of the container says.
fn annotation(folder: &Path, id: &ContainerId) -> Option<String> {
    let bundle = folder.join("state/io.containerd.runtime.v2.task/k8s.io").join(&id.0).join("config.json");
    let text = std::fs::read_to_string(&bundle).unwrap_or_else(|e| panic!("{}: {e}", bundle.display()));
    let config: Value = serde_json::from_str(&text).unwrap();
    config["annotations"][ANNOTATION].as_str().map(str::to_owned)
}

async fn has(world: &mut World<Containerd>, id: &ContainerId, v1: (&str, &str), v2: &str, wanted: &[&str]) {
    let file = world.runtime.cgroup_file(id, v1, v2).await.unwrap();
    let so = poll_until(PATIENCE, async || {
        let now = std::fs::read_to_string(&file).unwrap_or_else(|e| e.to_string()).trim().to_owned();
        if wanted.contains(&now.as_str()) { Ok(()) } else { Err(now) }
    });
    let log = |now| panic!("{} has {now}:\n{}", file.display(), world.mesh.log("nri-gateway"));
    so.await.unwrap_or_else(log);
}

/// Two containers that ask have what the plugin gave each of them, a third one has nothing, and the plugin hears of the pod's end.
#[tokio::test]
async fn o10_containers_on_a_real_runtime_have_what_the_plugin_gave_them() {
    let folder = tempfile::Builder::new().prefix("oxalyst-").tempdir().unwrap();
    let runtime = match Containerd::try_start(folder.path()).await {
        Ok(runtime) => runtime,
        Err(reason) => return println!("skipped: no containerd here: {reason}"),
    };
    let (plugin, kubelet) = (FakePlugin::new(GPU), Kubelet::default());
    all_kinds(&plugin);
    let plugins = folder.path().join("plugins");
    let _served = plugin.serve_in(&plugins).unwrap();
    let pod = PodSpec::new("db", "shared_cores", 300);
    let asks = [(GPU, 1)];
    let apps = [container("main", 100, &asks), container("side", 100, &asks), container("plain", 100, &[])];
    kubelet.tells(&pod, &[], &apps);
    let settings = [
        ("meta-server", format!("kubelet.endpoint={}", kubelet.serve().await)),
        ("meta-server", "kubelet.period_ms=1000".to_owned()),
        ("orm", format!("plugin_registration_dir={}", plugins.display())),
        ("orm", format!("orm_plugin_registration_dir={}", folder.path().join("registry").display())),
        ("orm", "plugin_deadline_ms=1000".to_owned()),
        ("orm", "watch_period_s=1".to_owned()),
    ];
    let settings: Vec<_> = settings.iter().map(|(service, setting)| (*service, setting.as_str())).collect();
    let mut world = World::start_with(folder.path(), runtime, &settings).await;
    fact(&world, "plugins", |known| !known.contains('(') && known != "none").await;
    fact(&world, "specs", |known| known == "1").await;

    let sandbox = world.runtime.run_pod(&pod).await.unwrap();
    let mut ids = Vec::new();
    for name in ["main", "side", "plain"] {
        let spec = ContainerSpec::new(name, 100);
        let id = world.runtime.create_container(&sandbox, &spec).await.unwrap();
        world.runtime.start_container(&id).await.unwrap();
        ids.push(id);
    }

    for (id, device, noted) in
        [(&ids[0], "7", Some("7".to_owned())), (&ids[1], "8", None), (&ids[2], "", None)]
    {
        assert_eq!(variable(&mut world, id).await, device);
        assert_eq!(annotation(folder.path(), id), noted);
    }
    // Runtimes have converted shares to a weight in two ways.
    has(&mut world, &ids[0], ("cpu", "cpu.shares"), "cpu.weight", &["1234", "47", "48", "115", "116"]).await;
    has(&mut world, &ids[1], ("cpu", "cpu.shares"), "cpu.weight", &["102", "4", "17"]).await;
    has(&mut world, &ids[1], ("pids", "pids.max"), "pids.max", &["99"]).await;
    has(&mut world, &ids[2], ("pids", "pids.max"), "pids.max", &["max"]).await;
    for id in &ids {
        let applied = world.mesh.applied().await.unwrap().containers;
        let own = applied.into_iter().find(|own| own.container_id == id.0).unwrap();
        assert_eq!(own.marks, [""; 0], "{}", own.name);
    }

    world.runtime.stop_pod(&sandbox).await.unwrap();
    let told = poll_until(PATIENCE, async || {
        let removed = plugin.conduct().removed.clone();
        if removed.first() == Some(&pod.uid) { Ok(()) } else { Err(removed) }
    });
    told.await.unwrap();
    assert_eq!(plugin.conduct().allocated.len(), 2, "once each");
    world.mesh.stop().await.unwrap();
    world.runtime.remove().await.unwrap();
}
