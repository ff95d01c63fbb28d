//! A runtime that refuses to update containers, or does not answer: what it leaves is written directly.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod support;

use support::node::{Node, pod};

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
