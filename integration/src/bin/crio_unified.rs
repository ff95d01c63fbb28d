//! CRI-O on cgroup v2, for the machine of `lab/vm-run.sh`: what the orm decides holds from a container's first instruction on. Ends
//! with a panic where it does not.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, missing_docs)]

use std::path::Path;

use integration::crio::Crio;
use integration::runtime::Runtime;
use integration::scenarios::{Running, World};

#[tokio::main(flavor = "current_thread")]
async fn main() {
    assert!(Path::new("/sys/fs/cgroup/cgroup.controllers").exists(), "cgroup v2");
    let folder = tempfile::Builder::new().prefix("oxalyst-").tempdir().unwrap();
    let binaries = std::env::var_os("OXALYST_BIN_DIR").unwrap();
    let runtime = Crio::start(Path::new(&binaries), folder.path()).await.unwrap();
    println!("{}", runtime.describe());
    let mut world = World::start(folder.path(), runtime).await;
    let online = world.online();

    let shared = placed(&mut world, "web", "shared_cores").await;
    assert_eq!(world.first(&shared.container).await, online);
    let dedicated = placed(&mut world, "db", "dedicated_cores").await;
    let own = world.first(&dedicated.container).await;
    assert_eq!(own.len(), 1, "its first instruction saw {own}");
    assert_eq!(world.allowed(&dedicated.container).await, own);
    world.knows_exclusive(&dedicated).await;
    let mut rest = online.clone();
    rest -= &own;
    world.converges(&shared.container, &rest).await;
    println!("a dedicated pod has CPU {own} for itself from its first instruction on");

    let late = placed(&mut world, "late", "shared_cores").await;
    assert_eq!(world.first(&late.container).await, rest);
    world.runtime.remove_pod(&dedicated.sandbox).await.unwrap();
    for pod in [&shared, &late] {
        world.converges(&pod.container, &online).await;
    }
    println!("its CPU is everybody's again");

    world.mesh.stop().await.unwrap();
    world.runtime.remove().await.unwrap();
    println!("all holds");
}

/// A pod that the orm let in. In software emulation a hook is late now and then, for the gateway or for CRI-O: such a pod is made
/// anew.
async fn placed(world: &mut World<Crio>, name: &str, level: &str) -> Running {
    for _ in 0..3 {
        let slow = world.too_slow().await;
        let pod = world.run(name, level, 1000).await;
        if world.came_in_time(&pod, slow).await {
            return pod;
        }
        println!("{name} came when the machine was too slow: it is made anew");
        world.runtime.remove_pod(&pod.sandbox).await.unwrap();
    }
    panic!(
        "{name} came three times when the machine was too slow; the gateway:\n{}",
        world.mesh.log("nri-gateway")
    );
}
