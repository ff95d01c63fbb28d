//! What the gateway tells of the CPUs that a container can have at most, on imitated trees.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod support;

use nri_gateway::settings::Mode;
use oxalyst_cgroups::fixture::{Fixture, Layout};
use oxalyst_cgroups::{CgroupPath, Controller};
use support::bypass::{Plain, listed};
use support::until;

const CGROUP: &str = "kubepods/besteffort/podr/r1";

/// A reclaimed container with a quota of 8 CPUs, where the orm wants it.
async fn reclaimed(layout: Layout) -> (Plain, Fixture, String) {
    let mut node = Plain::new(Mode::Bypass);
    let fixture = node.tree(layout, &[CGROUP]);
    match layout {
        Layout::V1 => {
            set(&fixture, Controller::Cpu, CGROUP, "cpu.cfs_quota_us", "800000");
            set(&fixture, Controller::Cpuset, CGROUP, "cpuset.effective_cpus", "0-15");
        }
        Layout::V2 => {
            set(&fixture, Controller::Cpu, CGROUP, "cpu.max", "800000 100000");
            set(&fixture, Controller::Cpuset, CGROUP, "cpuset.cpus.effective", "0-15");
        }
    }
    node.meta.set(vec![listed("r", "reclaimed_cores", "r1")]);
    node.start();
    let wanted = until("settled", async || {
        node.applied("r1")
            .await
            .filter(|r| !r.wanted_cpus.is_empty())
            .filter(|r| r.kernel_cpus.as_ref() == Some(&r.wanted_cpus))
    });
    let wanted = wanted.await.wanted_cpus;
    (node, fixture, wanted)
}

fn set(fixture: &Fixture, controller: Controller, path: &str, file: &str, text: &str) {
    fixture.set(controller, &CgroupPath::new(path).unwrap(), file, &format!("{text}\n")).unwrap();
}

async fn told(node: &Plain) -> (Option<String>, Option<u64>) {
    let applied = node.applied("r1").await.unwrap();
    (applied.effective_cpus, applied.max_milli_cpu)
}

#[actix::test]
async fn c14_a_cpuset_that_somebody_else_shrinks_to_two_cpus_bounds_a_quota_of_eight() {
    for layout in [Layout::V1, Layout::V2] {
        let (mut node, fixture, _) = reclaimed(layout).await;
        assert_eq!(told(&node).await, (Some("0-15".into()), Some(8_000)), "{layout:?}");
        let effective = match layout {
            Layout::V1 => "cpuset.effective_cpus",
            Layout::V2 => "cpuset.cpus.effective",
        };
        set(&fixture, Controller::Cpuset, CGROUP, "cpuset.cpus", "2-3");
        set(&fixture, Controller::Cpuset, CGROUP, effective, "2-3");

        assert_eq!(told(&node).await, (Some("2-3".into()), Some(2_000)), "at once: {layout:?}");
        node.stop_first().await;
    }
}

#[actix::test]
async fn c14_a_cgroup_above_the_pods_that_is_narrower_is_told_beside_what_was_asked_for() {
    let (mut node, fixture, wanted) = reclaimed(Layout::V2).await;
    set(&fixture, Controller::Cpuset, "", "cpuset.cpus", "1");
    for path in ["", "kubepods", "kubepods/besteffort", "kubepods/besteffort/podr", CGROUP] {
        set(&fixture, Controller::Cpuset, path, "cpuset.cpus.effective", "1");
    }

    let applied =
        until("told", async || node.applied("r1").await.filter(|r| r.kernel_cpus.as_deref() == Some("1")));
    let applied = applied.await;

    assert_ne!(wanted, "1");
    assert_eq!(node.reads(CGROUP, "cpuset.cpus"), wanted, "its own file names more");
    assert_eq!((applied.effective_cpus.as_deref(), applied.max_milli_cpu), (Some("1"), Some(1_000)));
    node.stop_first().await;
}

#[actix::test]
async fn c14_what_cannot_be_read_is_absent() {
    let (mut node, fixture, _) = reclaimed(Layout::V2).await;
    set(&fixture, Controller::Cpu, CGROUP, "cpu.max", "nonsense");
    assert_eq!(told(&node).await, (Some("0-15".into()), None));
    std::fs::remove_file(
        fixture.dir(Controller::Cpuset, &CgroupPath::new(CGROUP).unwrap()).join("cpuset.cpus.effective"),
    )
    .unwrap();
    assert_eq!(told(&node).await, (None, None));
    node.stop_first().await;
}
