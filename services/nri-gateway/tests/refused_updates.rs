//! A runtime that refuses to update containers, or does not answer: what it leaves is written directly.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod support;

use support::node::{Node, pod};
use support::until;

#[actix::test]
async fn drift_is_mended_where_the_runtime_refuses_every_update() {
    let (node, session) = Node::up().await;
    node.run(&session, &pod("d", "dedicated_cores"), "d1").await.unwrap();
    node.kernel_says("d1", "3").await;
    node.cgroups.refuses();
    node.cgroups.write("d1", "0");
    node.kernel_says("d1", "3").await;
    assert!(node.fact("runtime_updates").await.contains("boom"));
}

#[actix::test]
async fn one_container_for_which_the_runtime_hangs_holds_up_no_other() {
    let (node, session) = Node::up().await;
    node.run(&session, &pod("d", "dedicated_cores"), "d1").await.unwrap();
    node.run(&session, &pod("e", "dedicated_cores"), "e1").await.unwrap();
    node.kernel_says("e1", "2").await;
    node.cgroups.hangs_for("e1");
    node.cgroups.write("e1", "0");
    node.cgroups.write("d1", "0");
    node.kernel_says("e1", "2").await;
    node.kernel_says("d1", "3").await;
}

fn without_cpuset(dir: &std::path::Path) {
    for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        if entry.file_type().unwrap().is_dir() {
            without_cpuset(&entry.path());
        } else if name.starts_with("cpuset.") {
            std::fs::remove_file(entry.path()).unwrap();
        } else if name == "cgroup.controllers" || name == "cgroup.subtree_control" {
            std::fs::write(entry.path(), "cpu io memory pids\n").unwrap();
        }
    }
}

#[actix::test]
async fn c07_cpuset_files_that_vanish_under_a_session_are_told() {
    let (node, session) = Node::up().await;
    node.run(&session, &pod("d", "dedicated_cores"), "d1").await.unwrap();
    node.kernel_says("d1", "3").await;
    without_cpuset(&node.dir.path().join("host/sys/fs/cgroup"));
    until("told", async || node.fact("kernel_files").await.contains("cpuset").then_some(())).await;
}
