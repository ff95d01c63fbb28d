//! What a container can have of the CPUs at most, as the gateway tells it and as the kernel holds it.

use std::path::PathBuf;

use oxalyst_cgroups::{CgroupPath, Controller, Hierarchy, pod_roots, walk, write_text};
use oxalyst_topology::CpuSet;

use super::{CONVERGE, Running, World};
use crate::runtime::{Runtime, poll_until};

/// A reclaimed container has a quota of 8 CPUs, and somebody else shrinks its cpuset: the gateway tells the CPUs that are left
/// and their time, not the quota's.
pub async fn c14_a_shrunk_cpuset_bounds_the_quota<R: Runtime>(mut world: World<R>) -> World<R> {
    world.gateway_with(&["reconcile_period_ms=3600000"]).await;
    let pod = world.run("batch", "reclaimed_cores", 100).await;
    let hierarchy = Hierarchy::detect(&world.runtime.host_root()).unwrap();
    let (cpu, cpuset) = folders(&hierarchy, &pod);
    let before = world.allowed(&pod.container).await;
    if hierarchy.is_unified() {
        write_text(&cpu.join("cpu.max"), "800000 100000").unwrap();
    } else {
        write_text(&cpu.join("cpu.cfs_quota_us"), "800000").unwrap();
    }
    let all = u64::try_from(before.len()).unwrap() * 1000;
    tells(&world, &pod, || {}, &before, all.min(8_000)).await;

    let left: CpuSet = before.iter().take(2.min(before.len() - 1)).collect();
    assert!(!left.is_empty(), "{before} cannot be shrunk");
    let at = cpuset.join("cpuset.cpus");
    // The comparisons that follow a start mend it: somebody who is not us insists.
    let shrink = || write_text(&at, &left.to_string()).unwrap();

    tells(&world, &pod, shrink, &left, u64::try_from(left.len()).unwrap() * 1000).await;
    world
}

/// Its folders in the trees of CPU time and of cpusets.
fn folders(hierarchy: &Hierarchy, pod: &Running) -> (PathBuf, PathBuf) {
    let roots: Vec<CgroupPath> = pod_roots(hierarchy).unwrap();
    let found = walk(hierarchy, &roots).unwrap().found;
    let own = found.into_iter().find(|found| found.container_id == pod.container.0).unwrap().path;
    let dir = |controller| hierarchy.dir(controller, &own).unwrap();
    (dir(Controller::Cpu), dir(Controller::Cpuset))
}

async fn tells<R: Runtime>(
    world: &World<R>,
    pod: &Running,
    before_each: impl Fn(),
    cpus: &CpuSet,
    milli_cpu: u64,
) {
    let wanted = (Some(cpus.to_string()), Some(milli_cpu));
    let told = poll_until(CONVERGE, async || {
        before_each();
        let applied = world.mesh.applied().await.map_err(|e| e.to_string())?.containers;
        let own = applied.into_iter().find(|c| c.container_id == pod.container.0);
        let told = own.map(|c| (c.effective_cpus, c.max_milli_cpu));
        if told.as_ref() == Some(&wanted) { Ok(()) } else { Err(format!("{told:?}")) }
    });
    told.await.unwrap_or_else(|now| panic!("told {now}, not {wanted:?}"));
}
