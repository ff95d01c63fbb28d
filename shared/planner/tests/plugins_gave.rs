//! What plugins give to a pod that has its place already.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
// `Node` applies the plans that it hands back.
#![allow(unused_must_use)]

mod pods_support;

use oxalyst_planner::decision::{Given, Step, decide};
use oxalyst_planner::plan::{Flag, Reason};
use oxalyst_planner::pods::{ALL, PluginAllocation, Plugins, PluginsGave, Resize, take_gave};
use oxalyst_planner::topology_manager::Hint;
use oxalyst_topology::NumaMask;
use oxalyst_units::MilliCpu;
use pods_support::{Node, dedicated, set, sixteen_cpus};

fn given(resource: &str, plugin: &str, info: &[u8]) -> PluginAllocation {
    PluginAllocation {
        resource: resource.into(),
        plugin: plugin.into(),
        nodes: NumaMask::only(1),
        info: info.to_vec(),
    }
}

fn gave(all: &[PluginAllocation], whole: bool, cpus: Option<u64>) -> PluginsGave {
    let hints = [("gpu".to_owned(), Some(vec![Hint::on(NumaMask::only(1), true)]))].into();
    let resize = cpus.map(|cpus| Resize {
        uid: "u".into(),
        container: ALL.into(),
        cpu: Some(MilliCpu(cpus * 1000)),
        limit: None,
        memory: None,
    });
    PluginsGave {
        uid: "u".into(),
        plugins: Plugins {
            hints: [(ALL.to_owned(), hints)].into(),
            given: [(ALL.to_owned(), all.to_vec())].into(),
        },
        whole,
        resize,
    }
}

fn node() -> Node {
    let mut node = Node::new(sixteen_cpus());
    let mut request = dedicated("u", 2);
    request.plugins_unasked = true;
    node.admit(&request);
    assert!(node.state.pods.get("u").unwrap().flags.contains(&Flag::PluginsUnasked));
    node
}

#[test]
fn what_is_given_later_is_kept_beside_what_others_gave_and_moves_nobody() {
    let mut node = node();
    let cpus = node.cpus("u");
    let first = gave(&[given("gpu", "gpu", b"1"), given("mem", "gpu", b"2")], false, None);
    let plan = take_gave(&node.state, &node.machine, &node.rules, &first).unwrap();
    assert_eq!(plan.affected.iter().collect::<Vec<_>>(), ["u"]);
    node.hold(plan);
    assert!(node.state.pods.get("u").unwrap().flags.contains(&Flag::PluginsUnasked), "there is more to come");

    let anew = gave(&[given("nic", "nic", b"3"), given("gpu", "gpu", b"4")], true, None);
    let plan = take_gave(&node.state, &node.machine, &node.rules, &anew).unwrap();
    node.hold(plan);
    let pod = node.state.pods.get("u").unwrap();
    let expected = [given("gpu", "gpu", b"4"), given("nic", "nic", b"3")];
    assert_eq!(pod.given[ALL], expected, "in the place of all that the same plugin gave before");
    assert!(!pod.flags.contains(&Flag::PluginsUnasked));
    assert_eq!(node.cpus("u"), cpus);
    let again = take_gave(&node.state, &node.machine, &node.rules, &anew).unwrap();
    assert!(again.is_empty(), "nothing is written where nothing changes");
}

#[test]
fn with_a_resize_both_hold_or_neither() {
    let mut node = node();
    let first = set(&node.cpus("u"));
    let more = gave(&[given("cpu", "cpu", b"3")], false, Some(3));
    let plan = take_gave(&node.state, &node.machine, &node.rules, &more).unwrap();
    assert_eq!(plan.after.pods.get("u").unwrap().given[ALL].len(), 1);
    node.hold(plan);
    let held = set(&node.cpus("u"));
    assert!(first.is_subset(&held) && held.len() == 3, "{first} became {held}");
    let before = node.state.clone();
    let too_much = gave(&[given("cpu", "cpu", b"99")], false, Some(99));
    let refusal = take_gave(&node.state, &node.machine, &node.rules, &too_much).unwrap_err();
    assert_eq!(refusal.reason, Reason::Insufficient);
    assert_eq!(node.state, before);
}

#[test]
fn a_pod_that_has_ended_meanwhile_has_nothing() {
    let mut node = node();
    node.release("u", &dedicated("u", 2).sandbox_id);
    let late = gave(&[given("gpu", "gpu", b"1")], true, None);
    assert!(take_gave(&node.state, &node.machine, &node.rules, &late).is_err());
}

#[test]
fn the_step_is_read_as_it_was_written_and_decides_the_same() {
    let node = node();
    for (cpus, kind) in [(None, "plugins"), (Some(3), "resize")] {
        let step = Step::Gave(gave(&[given("gpu", "gpu", b"1")], true, cpus));
        assert_eq!(Step::decode(&step.encode()).unwrap(), step);
        let world = Given {
            state: &node.state,
            machine: &node.machine,
            rules: &node.rules,
            generation: 7,
            overruled: None,
        };
        let decided = decide(world, &step);
        assert_eq!((decided.decision.kind.as_str(), step.pod_uid()), (kind, Some("u")));
        assert!(decided.decision.merges.iter().any(|merge| merge.resources[0].resource == "gpu"));
        assert_eq!(decide(world, &Step::decode(&step.encode()).unwrap()), decided);
    }
}
