//! Sandboxes that come, go and come back, and requests that become known late.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
// `Node` applies the plans that it hands back.
#![allow(unused_must_use)]

mod pods_support;

use oxalyst_planner::plan::{DecidedBy, Flag, Reason, RequestSource, Stage};
use oxalyst_planner::pods::{RunningSandbox, SandboxRequest};
use oxalyst_units::MilliCpu;
use pods_support::*;

fn running(request: SandboxRequest, cpus: Option<&str>) -> RunningSandbox {
    RunningSandbox { request: SandboxRequest { stage: Stage::Container, ..request }, cpus: cpus.map(set) }
}

#[test]
fn only_the_current_sandbox_frees_its_pod() {
    let mut node = Node::new(two_cpus());
    node.admit(&dedicated("d", 1));
    node.admit(&in_sandbox(dedicated("d", 1), "d-2"));
    assert!(node.state.released.contains("d-1"));
    assert_eq!(node.cpus("d"), "0");
    assert!(!node.release("d", "d-1").removes("d"));
    assert_eq!((node.cpus("d").as_str(), node.placement("d").sandbox_id.as_str()), ("0", "d-2"));
    assert!(node.release("d", "d-2").removes("d"));
    assert_eq!(node.pool("share"), set("0-1"));
}

#[test]
fn an_older_sandbox_cannot_come_back() {
    let mut node = Node::new(two_cpus());
    node.admit(&dedicated("d", 1));
    node.admit(&in_sandbox(dedicated("d", 1), "d-2"));
    assert_eq!(node.refusal(&dedicated("d", 1)).reason, Reason::Expired);
}

#[test]
fn an_admission_that_comes_after_its_release_is_refused() {
    let mut node = Node::new(two_cpus());
    // The release came first: the pod is not known yet.
    let plan = node.release("d", "d-1");
    assert!(plan.is_empty() && !plan.removes("d"));
    assert_eq!(node.refusal(&dedicated("d", 1)).reason, Reason::Expired);
    assert!(node.state.pods.is_empty());
    node.admit(&in_sandbox(dedicated("d", 1), "d-2"));
}

#[test]
fn releasing_twice_frees_once() {
    let mut node = Node::new(two_cpus());
    node.admit(&shared("s"));
    assert!(node.release("s", "s-1").removes("s"));
    let before = node.state.clone();
    assert!(node.release("s", "s-1").is_empty());
    assert_eq!(node.state, before);
}

#[test]
fn what_names_no_pod_is_invalid() {
    let node = Node::new(two_cpus());
    assert_eq!(node.refusal(&shared("")).reason, Reason::Invalid);
    assert_eq!(node.refusal(&in_sandbox(shared("s"), "")).reason, Reason::Invalid);
}

#[test]
fn a_request_that_is_not_known_is_settled_by_a_container() {
    let mut node = Node::new(two_cpus());
    let sandbox = pod("d", "dedicated_cores", None);
    node.admit(&sandbox);
    let placement = node.placement("d");
    assert!(!placement.settled && !placement.exclusive);
    assert_eq!((placement.request, placement.request_source), (None, RequestSource::None));

    node.admit(&container(sandbox, Some(1000)));
    let placement = node.placement("d");
    assert!(placement.settled && placement.exclusive);
    assert_eq!(placement.request, Some(MilliCpu(1000)));
    assert_eq!(placement.request_source, RequestSource::ContainerResources);
}

#[test]
fn an_unsettled_pod_keeps_a_cpu_from_being_given_away() {
    let mut node = Node::new(two_cpus());
    node.admit(&pod("u", "dedicated_cores", None));
    assert_eq!(node.refusal(&dedicated("d", 2)).reason, Reason::Insufficient);
    node.admit(&dedicated("d", 1));
}

#[test]
fn a_container_without_a_request_waits_in_the_shared_pool_for_one_that_has() {
    let mut node = Node::new(two_cpus());
    let sandbox = pod("d", "dedicated_cores", None);
    node.admit(&sandbox);
    node.admit(&container(sandbox.clone(), None));
    let placement = node.placement("d");
    assert_eq!((placement.pool, placement.settled), (Some("share".to_owned()), false));
    assert!(placement.flags.contains(&Flag::NoRequest));

    node.admit(&container(sandbox.clone(), Some(500)));
    let placement = node.placement("d");
    assert!(placement.exclusive && placement.settled && placement.flags.is_empty());
    assert!(node.admit(&container(sandbox, Some(2000))).is_empty(), "the pod has its one set");
}

#[test]
fn a_container_that_does_not_fit_changes_nothing() {
    let mut node = Node::new(two_cpus());
    node.admit(&shared("s"));
    let sandbox = pod("d", "dedicated_cores", None);
    node.admit(&sandbox);
    assert_eq!(node.refusal(&container(sandbox, Some(2000))).reason, Reason::Insufficient);
    assert!(!node.placement("d").settled);
}

#[test]
fn zero_is_no_request() {
    let mut node = Node::new(two_cpus());
    node.admit(&pod("d", "dedicated_cores", Some(0)));
    assert!(!node.placement("d").settled);
    assert_eq!(node.placement("d").request, None);
}

#[test]
fn a_pod_that_runs_is_taken_in_where_it_runs() {
    let mut node = Node::new(sixteen_cpus());
    let plan = node.take_in(&[
        running(dedicated("a", 2), None),
        running(dedicated("b", 2), Some("0,8")),
        running(shared("s"), Some("0-15")),
    ]);
    assert_eq!(plan.pods.len(), 3);
    assert_eq!((node.cpus("b").as_str(), node.cpus("a").as_str()), ("0,8", "1,9"));
    assert_eq!(node.placement("a").decided_by, DecidedBy::Reconcile);
}

#[test]
fn without_room_a_dedicated_pod_that_runs_is_shared_and_flagged() {
    let mut node = Node::new(two_cpus());
    node.take_in(&[running(dedicated("d", 2), Some("0-1")), running(shared("s"), None)]);
    let placement = node.placement("d");
    assert_eq!((placement.pool, placement.cpus), (Some("share".to_owned()), set("0-1")));
    assert_eq!(placement.flags.into_iter().collect::<Vec<_>>(), [Flag::AdoptedWithoutRoom]);
}

#[test]
fn a_shared_pod_that_runs_where_nothing_is_left_is_flagged() {
    let mut node = Node::new(two_cpus());
    node.admit(&dedicated("d", 2));
    node.take_in(&[running(shared("s"), None)]);
    let placement = node.placement("s");
    assert_eq!(placement.cpus, set("0-1"));
    assert!(placement.flags.contains(&Flag::PoolEmpty));
    node.release("d", "d-1");
    assert!(node.placement("s").flags.is_empty());
}

#[test]
fn what_is_known_is_not_taken_in_again() {
    let mut node = Node::new(two_cpus());
    node.admit(&dedicated("d", 1));
    assert!(node.take_in(&[running(dedicated("d", 2), Some("1"))]).is_empty());
    assert_eq!(node.placement("d").decided_by, DecidedBy::Admit);
}

#[test]
fn a_sandbox_recreated_while_nobody_looked_becomes_the_current_one() {
    let mut node = Node::new(two_cpus());
    node.admit(&dedicated("d", 1));
    node.take_in(&[running(in_sandbox(dedicated("d", 1), "d-2"), None)]);
    assert!(node.state.released.contains("d-1"));
    assert_eq!((node.cpus("d").as_str(), node.placement("d").sandbox_id.as_str()), ("0", "d-2"));
}

#[test]
fn of_two_sandboxes_the_current_one_counts() {
    for order in [["d-1", "d-2"], ["d-2", "d-1"]] {
        let mut node = Node::new(two_cpus());
        node.admit(&dedicated("d", 1));
        let both = order.map(|sandbox| running(in_sandbox(dedicated("d", 1), sandbox), None));
        assert!(node.take_in(&both).is_empty());
        assert_eq!(node.placement("d").sandbox_id, "d-1");
    }
}

#[test]
fn a_replaced_sandbox_is_not_taken_in() {
    let mut node = Node::new(two_cpus());
    node.admit(&shared("s"));
    node.admit(&in_sandbox(shared("s"), "s-2"));
    assert!(node.take_in(&[running(shared("s"), None)]).is_empty());
    assert_eq!(node.placement("s").sandbox_id, "s-2");
}

#[test]
fn a_sandbox_that_runs_after_all_may_be_admitted_again() {
    let mut node = Node::new(two_cpus());
    node.admit(&shared("s"));
    node.release("s", "s-1");
    node.take_in(&[running(shared("s"), None)]);
    assert!(node.admit(&shared("s")).is_empty());
}

#[test]
fn an_exclusive_set_keeps_what_is_online_and_gets_the_rest_back() {
    let mut node = Node::new(sixteen_cpus());
    node.admit(&bound(dedicated("d", 4)));
    node.admit(&shared("s"));
    let whole = node.machine.clone();
    node.machine = whole.clone().with_offline(&set("9,15"));
    node.replan();
    assert_eq!((node.cpus("d").as_str(), node.cpus("s").as_str()), ("0-1,8", "2-7,10-14"));
    assert!(node.placement("d").flags.contains(&Flag::CpuOffline));
    node.machine = whole;
    assert_eq!(node.cpus("d"), "0-1,8-9");
    assert!(node.placement("d").flags.is_empty());
}

#[test]
fn a_set_that_is_all_offline_becomes_another() {
    let mut node = Node::new(sixteen_cpus());
    node.admit(&dedicated("d", 2));
    node.admit(&shared("s"));
    node.machine = node.machine.with_offline(&set("0,8"));
    let plan = node.replan();
    assert_eq!(plan.affected.len(), 2);
    let placement = node.placement("d");
    assert!(placement.exclusive && placement.cpus.len() == 2 && placement.flags.is_empty(), "{placement:?}");
}

#[test]
fn without_room_such_a_pod_is_shared() {
    let mut node = Node::new(two_cpus());
    node.admit(&dedicated("d", 1));
    node.admit(&shared("s"));
    node.machine = node.machine.with_offline(&set("0"));
    node.replan();
    assert_eq!((node.cpus("d").as_str(), node.cpus("s").as_str()), ("1", "1"));
    assert_eq!(node.placement("d").pool, Some("share".to_owned()));
    assert!(node.placement("d").flags.contains(&Flag::CpuOffline));
}

#[test]
fn where_only_exclusive_cpus_are_online_shared_pods_borrow_them() {
    let mut node = Node::new(two_cpus());
    node.admit(&dedicated("d", 1));
    node.admit(&shared("s"));
    node.machine = node.machine.with_offline(&set("1"));
    node.replan();
    assert_eq!((node.cpus("d").as_str(), node.cpus("s").as_str()), ("0", "0"));
    assert!(node.placement("s").flags.contains(&Flag::PoolEmpty));
    assert_eq!(node.refusal(&shared("t")).reason, Reason::Insufficient);
}

#[test]
fn cpus_reserved_later_stay_with_the_pod_that_has_them() {
    let mut node = Node::new(sixteen_cpus());
    node.admit(&dedicated("d", 2));
    node.state.cpus.reserved = set("0-1");
    node.replan();
    assert_eq!(node.cpus("d"), "0,8");
    assert!(node.placement("d").flags.contains(&Flag::OnReserved));
    assert_eq!(node.pool("reserve"), set("1"));
    node.release("d", "d-1");
    assert_eq!(node.pool("reserve"), set("0-1"));
}

#[test]
fn a_pod_that_was_taken_in_without_room_gets_its_set_once_there_is_room() {
    let mut node = Node::new(two_cpus());
    node.admit(&shared("s"));
    node.admit(&dedicated("d", 1));
    node.take_in(&[running(container(dedicated("w", 1), Some(1000)), None)]);
    assert!(node.placement("w").flags.contains(&Flag::AdoptedWithoutRoom));
    assert!(node.promote().is_empty());
    node.release("d", "d-1");
    assert_eq!(node.promote().affected, std::collections::BTreeSet::from(["s", "w"].map(str::to_owned)));
    let placed = node.placement("w");
    assert!(placed.exclusive && placed.flags.is_empty(), "{placed:?}");
    assert_eq!((node.cpus("w").as_str(), node.cpus("s").as_str()), ("0", "1"));
}

#[test]
fn a_bound_pod_whose_cpus_all_went_offline_gets_a_set_of_one_node_again_when_they_return() {
    let mut node = Node::new(sixteen_cpus());
    node.admit(&bound(dedicated("d", 3)));
    node.admit(&shared("s"));
    let whole = node.machine.clone();
    node.machine = whole.clone().with_offline(&set("0-1,3-15"));
    node.replan();
    assert!(node.placement("d").flags.contains(&Flag::CpuOffline) && !node.placement("d").exclusive);
    node.machine = whole;
    node.replan();
    node.promote();
    let placed = node.placement("d");
    assert!(placed.exclusive && placed.flags.is_empty() && node.machine.nodes_of(&placed.cpus).len() == 1);
}

#[test]
fn a_bound_shared_pod_that_found_another_node_is_bound_and_not_flagged() {
    let mut node = Node::new(sixteen_cpus());
    node.admit(&bound(shared("b")));
    let before = node.mems("b");
    let home = node.machine.nodes().iter().find(|known| known.id.to_string() == before).unwrap().cpus.clone();
    let whole = node.machine.clone();
    node.machine = whole.clone().with_offline(&home);
    node.replan();
    let placed = node.placement("b");
    assert!(
        placed.mems.to_string() != before && placed.mems.len() == 1 && placed.flags.is_empty(),
        "{placed:?}"
    );
    node.machine = whole;
    node.replan();
    assert_eq!((node.placement("b").flags.len(), node.placement("b").mems), (0, placed.mems));
}

#[test]
fn a_bound_shared_pod_that_found_no_node_is_bound_again_once_there_is_one() {
    let mut node = Node::new(sixteen_cpus());
    node.admit(&bound(shared("b")));
    node.admit(&shared("s"));
    let home = node.placement("b").pool.unwrap();
    let whole = node.machine.clone();
    let all = whole.online().clone();
    let own = node.placement("b").cpus;
    let nodes = whole.nodes_of(&own);
    let at_home = whole.nodes().iter().filter(|known| nodes.contains(known.id));
    let at_home = at_home.fold(set(""), |union, known| &union | &known.cpus);
    // What is left has room for the shared pod alone.
    let left: oxalyst_topology::CpuSet = (&all - &at_home).iter().take(1).collect();
    node.machine = whole.clone().with_offline(&(&all - &left));
    node.replan();
    let lost = node.placement("b");
    assert!(lost.flags.contains(&Flag::NumaBindingLost) && lost.pool.as_deref() == Some("share"), "{lost:?}");
    assert!(node.promote().is_empty());
    // A restart remembers what it wished.
    let records = oxalyst_planner::pods::record::whole(&node.state);
    let records = records.iter().map(|change| (change.key.as_str(), change.value.as_deref().unwrap()));
    let (state, faults) = oxalyst_planner::pods::record::load(records, &node.machine, &node.rules, set(""));
    assert!(faults.is_empty(), "{faults:?}");
    node.state = state;
    node.machine = whole;
    node.replan();
    node.promote();
    let again = node.placement("b");
    assert!(again.flags.is_empty() && again.pool.unwrap().starts_with("share-NUMA"), "was in {home}");
    assert_eq!(again.mems.len(), 1);
    assert!(node.promote().is_empty());
}

#[test]
fn a_flag_of_former_records_goes_from_a_set_that_is_whole() {
    let mut node = Node::new(sixteen_cpus());
    node.admit(&dedicated("d", 2));
    std::sync::Arc::make_mut(node.state.pods.get_mut("d").unwrap()).flags.insert(Flag::CpuOffline);
    node.replan();
    assert!(node.placement("d").flags.is_empty());
}

#[test]
fn a_pod_without_a_sandbox_so_far_is_placed_anew_and_gets_its_set_when_there_is_room() {
    let mut node = Node::new(sixteen_cpus());
    node.admit(&dedicated("d", 2));
    node.admit(&dedicated("w", 2));
    for uid in ["d", "w"] {
        std::sync::Arc::make_mut(node.state.pods.get_mut(uid).unwrap()).sandbox_id = String::new();
    }
    let own = node.placement("d").cpus;
    let whole = node.machine.clone();
    node.machine = whole.clone().with_offline(&own);
    node.replan();
    let placed = node.placement("d");
    assert!(placed.exclusive && placed.cpus.len() == 2 && placed.flags.is_empty(), "{placed:?}");
    node.machine = whole.clone().with_offline(&(whole.online() - &set("15")));
    node.replan();
    assert!(!node.placement("d").exclusive && !node.placement("w").exclusive);
    node.machine = whole;
    node.replan();
    node.promote();
    assert!(
        ["d", "w"].iter().all(|uid| node.placement(uid).exclusive && node.placement(uid).flags.is_empty())
    );
}
