//! Part of a decision is written and the rest refused, on an imitated tree: what is left, how it is marked, and that it is tried
//! until it is right.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod support;

use nri_gateway::settings::Mode;
use oxalyst_cgroups::fixture::{Fixture, Layout};
use oxalyst_cgroups::{CgroupPath, Controller};
use support::bypass::{Plain, listed};
use support::until;

const CONTAINER: &str = "kubepods/podd/d1";

/// What a cgroup above the pods allows: a list within a container that is not within it is refused before anything of it is
/// written.
fn machine_allows(fixture: &Fixture, file: &str, list: &str) {
    fixture.set(Controller::Cpuset, &CgroupPath::default(), file, &format!("{list}\n")).unwrap();
}

#[actix::test]
async fn o16_memory_nodes_that_are_refused_leave_the_cpus_as_decided_marked_and_tried_until_they_are_right() {
    let mut node = Plain::new(Mode::Bypass);
    let fixture = node.tree(Layout::V1, &["kubepods/poda/a1", CONTAINER]);
    let path = CgroupPath::new(CONTAINER).unwrap();
    for file in ["cpuset.mems", "cpuset.effective_mems"] {
        fixture.set(Controller::Cpuset, &path, file, "1\n").unwrap();
    }
    machine_allows(&fixture, "cpuset.mems", "1");
    node.meta.set(vec![listed("a", "shared_cores", "a1"), listed("d", "dedicated_cores", "d1")]);
    node.start();

    // CPUs were given to one pod and taken from another: to put them back would give them twice.
    node.runs_on(CONTAINER, "3").await;
    node.runs_on("kubepods/poda/a1", "0-2").await;
    let marked = until("marked", async || {
        node.applied("d1").await.filter(|d| d.marks.contains(&"not-adjusted".to_owned()))
    })
    .await;
    assert_eq!((marked.kernel_cpus.as_deref(), marked.kernel_mems.as_deref()), (Some("3"), Some("1")));
    node.lacks("bypass", "cpuset.mems").await;

    machine_allows(&fixture, "cpuset.mems", "0-1");
    until("swept until it is right", async || (node.reads(CONTAINER, "cpuset.mems") == "0").then_some(()))
        .await;
    until("the mark goes", async || node.applied("d1").await.filter(|d| d.marks.is_empty())).await;
    until("it is whole again", async || node.status().await.filter(|s| s.ready)).await;
}

#[actix::test]
async fn a08_o16_cpus_that_are_refused_leave_the_memory_nodes_to_the_next_comparison_and_the_rest_is_written()
{
    let mut node = Plain::new(Mode::Bypass);
    let fixture = node.tree(Layout::V1, &[CONTAINER]);
    machine_allows(&fixture, "cpuset.cpus", "0");
    node.orm.properties(&[("PidsLimit", "99")]);
    node.meta.set(vec![listed("d", "dedicated_cores", "d1")]);
    node.start();

    until("marked", async || {
        node.applied("d1").await.filter(|d| d.marks.contains(&"not-adjusted".to_owned()))
    })
    .await;
    until("what does not depend on it is written", async || {
        let file = fixture.dir(Controller::Pids, &CgroupPath::new(CONTAINER).unwrap()).join("pids.max");
        (std::fs::read_to_string(file).unwrap().trim() == "99").then_some(())
    })
    .await;

    machine_allows(&fixture, "cpuset.cpus", "0-3");
    node.runs_on(CONTAINER, "3").await;
    until("the mark goes", async || node.applied("d1").await.filter(|d| d.marks.is_empty())).await;
}
