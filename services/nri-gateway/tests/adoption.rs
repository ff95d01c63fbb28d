//! A pod in the tree of cgroups of which nobody tells more than its UID.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod support;

use std::time::{Duration, Instant};

use nri_gateway::settings::Mode;
use oxalyst_cgroups::fixture::Layout;
use support::bypass::Plain;

/// How long it is waited for somebody to tell, as the gateway's page says.
const PATIENCE: Duration = Duration::from_secs(10);

#[actix::test]
async fn k7_after_ten_seconds_an_unknown_pod_is_taken_in_as_it_is_and_not_before() {
    let mut node = Plain::new(Mode::Bypass);
    node.tree(Layout::V1, &["kubepods/podx/x1"]);
    // Somebody tells, and not of this pod.
    node.meta.set(vec![]);
    let start = Instant::now();
    node.start();
    let told = |node: &Plain| node.orm.log().iter().any(|call| call.contains("cgroup-x"));
    let marked = async |node: &Plain| node.applied("x1").await.is_some_and(|x1| !x1.marks.is_empty());
    support::until("it is seen and marked", async || marked(&node).await.then_some(())).await;

    while !told(&node) {
        assert!(node.orm.cpus("x").is_none(), "taken in before the orm was told");
        assert!(start.elapsed() < PATIENCE * 4, "never taken in: {:?}", node.orm.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    // From when it was first seen, which is after the start.
    assert!(start.elapsed() >= PATIENCE, "after {:?}", start.elapsed());
    support::until("the orm has it", async || node.orm.cpus("x").map(drop)).await;
    support::until("the mark goes", async || (!marked(&node).await).then_some(())).await;
    assert!(
        node.orm.log().iter().all(|call| !call.starts_with("admit")),
        "what runs is taken in, and not asked for: {:?}",
        node.orm.log()
    );
}
