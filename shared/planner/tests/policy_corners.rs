//! Corners of the dynamic policy: nodes that are in somebody's way, pools that overlap, amounts beyond all measure.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

#[path = "pods_support/mod.rs"]
mod support;

use oxalyst_planner::{
    policy::{
        Container, ContainerId, ContainerKind, Kind, Options, RECLAIM, Request, State, Wishes, hints, memory,
        place,
    },
    topology_manager::{Hint, Hints},
};
use oxalyst_qos::QosLevel;
use oxalyst_topology::{Cpu, Machine};
use oxalyst_units::{Bytes, MilliCpu};
use std::collections::BTreeMap;
use support::{set, sixteen_cpus};

const BOUND: (&str, &str) = ("numa_binding", "true");

fn wishes(wishes: &[(&str, &str)]) -> Wishes {
    wishes.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn request(pod: &str, qos: QosLevel, wished: &[(&str, &str)], milli: u64) -> Request {
    Request {
        id: ContainerId::new(pod, "main"),
        pod_name: pod.to_owned(),
        kind: ContainerKind::Main,
        qos,
        wishes: wishes(wished),
        cpu: MilliCpu(milli),
        pod_cpu: None,
        resize: false,
        debug: false,
        running: false,
    }
}

/// The state with a bound shared pod that runs on these CPUs of this node.
fn bound_shared(state: &mut State, pod: &str, wished: &[(&str, &str)], milli: u64, node: u32, cpus: &str) {
    let container = Container {
        pod_name: pod.to_owned(),
        kind: ContainerKind::Main,
        qos: QosLevel::Shared,
        wishes: wishes(wished),
        owner: Some(format!("share-NUMA{node}")),
        ramp_up: false,
        cpus: set(cpus),
        baseline: set(""),
        request: MilliCpu(milli),
        pod_request: None,
        numa_hint: Some(node),
    };
    state.containers.insert(ContainerId::new(pod, "main"), container.into());
    state.pools.insert(format!("share-NUMA{node}"), set(cpus));
}

fn masks(hints: Hints) -> Vec<String> {
    hints.unwrap().iter().map(|hint| hint.mask.as_ref().unwrap().to_string()).collect()
}

#[test]
fn equal_shares_are_not_asked_of_a_node_that_takes_no_neighbours_5_6_2() {
    let machine = sixteen_cpus();
    let mut state = State::new(&machine, set(""));
    bound_shared(&mut state, "alone", &[BOUND, ("numa_share", "false")], 1000, 1, "2-3,10-11");
    let evenly = [BOUND, ("numa_number", "2"), ("distribute_evenly_across_numa", "true")];
    let request = request("new", QosLevel::Dedicated, &evenly, 2000);
    let got = hints(&state, &Options::default(), &machine, &request).unwrap();
    assert_eq!(masks(got), ["2-3"], "node 1 has free CPUs, and none for this pod");
}

#[test]
fn who_is_about_to_join_does_not_hide_what_its_pool_leaves_idle_5_8() {
    let machine = sixteen_cpus();
    let mut state = State::new(&machine, set("0,2"));
    bound_shared(&mut state, "known", &[BOUND], 1000, 0, "1,8-9");
    state.pools.insert(RECLAIM.to_owned(), set("3-7,10-15"));
    let options = Options { overlap: true, ..Options::default() };
    let request = request("new", QosLevel::Shared, &[BOUND], 500);
    let hint = Hint::on("0".parse().unwrap(), true);
    let placed = place(&state, &options, &machine, &request, Some(&hint)).unwrap();
    assert_eq!(placed.cpus, Some(set("1,8-9")));
    // Two thirds of three CPUs are idle: the highest core.
    assert_eq!(placed.changes.pools[RECLAIM], Some(set("1,3-7,9-15")));
}

#[test]
fn a_request_beyond_all_measure_is_refused_as_any_that_does_not_fit() {
    let machine = sixteen_cpus();
    let mut state = State::new(&machine, set(""));
    bound_shared(&mut state, "known", &[BOUND], 1000, 0, "0-1,8-9");
    let huge = |qos, wished: &[(&str, &str)]| {
        let request = request("new", qos, wished, u64::MAX);
        hints(&state, &Options::default(), &machine, &request).unwrap_err().kind
    };
    for qos in [QosLevel::Shared, QosLevel::Dedicated] {
        assert_eq!(huge(qos, &[]), Kind::Insufficient);
        assert_eq!(huge(qos, &[BOUND]), Kind::Insufficient);
    }
    let resize = Request { resize: true, ..request("known", QosLevel::Shared, &[BOUND], u64::MAX) };
    let refusal = hints(&state, &Options::default(), &machine, &resize).unwrap_err();
    assert_eq!(refusal.kind, Kind::Insufficient);
}

#[test]
fn nodes_whose_memory_together_is_beyond_all_measure_have_room() {
    let cpu = |id| Cpu { id, core: id, socket: 0, numa: id, l3: None };
    let machine = Machine::from_rows((0..16).map(cpu).collect(), &[]).unwrap();
    let node = memory::NodeSupply { total: Bytes(1 << 60), ..memory::NodeSupply::default() };
    let supply = memory::Supply((0..16).map(|id| (id, node.clone())).collect());
    let asks = |qos, wished: &[(&str, &str)]| {
        let request = memory::Request {
            id: ContainerId::new("new", "main"),
            kind: ContainerKind::Main,
            qos,
            wishes: wishes(wished),
            bytes: BTreeMap::from([(memory::Resource::Memory, Bytes(1 << 30))]),
            resize: false,
            debug: false,
        };
        let (state, options) = (memory::State::default(), memory::Options::default());
        memory::hints(&state, &options, &supply, &machine, &request, memory::Resource::Memory).unwrap()
    };
    assert_eq!(asks(QosLevel::Shared, &[]), None);
    let all = asks(QosLevel::Dedicated, &[BOUND, ("numa_exclusive", "true"), ("numa_number", "16")]);
    assert_eq!(masks(all), ["0-15"]);
    assert_eq!(masks(asks(QosLevel::Dedicated, &[BOUND])).len(), 16);
}
