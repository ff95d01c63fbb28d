//! Memory by NUMA node, by example.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod pods_support;

use oxalyst_planner::{
    policy::{
        ContainerId, ContainerKind, Kind, Refusal, Wishes,
        memory::{NodeSupply, Options, Request, Resource, State, Supply, hints, place, remove},
    },
    topology_manager::{Hint, Hints},
};
use oxalyst_qos::QosLevel;
use oxalyst_topology::NumaMask;
use oxalyst_units::Bytes;
use pods_support::sixteen_cpus;
use std::collections::BTreeMap;

const GIB: u64 = 1 << 30;
const HUGE: Resource = Resource::HugePages(Bytes(2 << 20));

/// Four nodes of so many GiB.
fn supply(gib: [u64; 4]) -> Supply {
    let node = |gib: u64| NodeSupply { total: Bytes(gib * GIB), ..NodeSupply::default() };
    Supply((0..).zip(gib.map(node)).collect())
}

fn request(pod: &str, qos: QosLevel, wishes: &[(&str, &str)], gib: u64) -> Request {
    Request {
        id: ContainerId::new(pod, "main"),
        kind: ContainerKind::Main,
        qos,
        wishes: wishes
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect::<Wishes>(),
        bytes: BTreeMap::from([(Resource::Memory, Bytes(gib * GIB))]),
        resize: false,
        debug: false,
    }
}

const BOUND: &[(&str, &str)] = &[("numa_binding", "true")];
const EXCLUSIVE: &[(&str, &str)] = &[("numa_binding", "true"), ("numa_exclusive", "true")];
const TWO_NODES: &[(&str, &str)] = &[("numa_binding", "true"), ("numa_number", "2")];

fn look(state: &State, supply: &Supply, request: &Request) -> Result<String, Refusal> {
    look_with(&Options::default(), state, supply, request)
}

fn look_with(
    options: &Options,
    state: &State,
    supply: &Supply,
    request: &Request,
) -> Result<String, Refusal> {
    hints(state, options, supply, &sixteen_cpus(), request, Resource::Memory).map(in_words)
}

/// As the tables write it: `{01}T`.
fn in_words(hints: Hints) -> String {
    let Some(hints) = hints else { return "nil".to_owned() };
    let word = |hint: &Hint| {
        let nodes: String = hint.mask.as_ref().unwrap().iter().map(|node| node.to_string()).collect();
        format!("{{{nodes}}}{}", if hint.preferred { "T" } else { "F" })
    };
    hints.iter().map(word).collect::<Vec<_>>().join(" ")
}

fn on(nodes: &str) -> Hint {
    Hint::on(nodes.parse().unwrap(), true)
}

fn mask(nodes: &str) -> Option<NumaMask> {
    Some(nodes.parse().unwrap())
}

/// The state with this container placed.
fn with(state: &State, supply: &Supply, request: &Request, hint: Option<&Hint>) -> State {
    let mut after = state.clone();
    after.apply(&place(state, supply, &sixteen_cpus(), request, hint).unwrap().changes);
    after
}

#[test]
fn m1_an_exclusive_pod_is_offered_pairs_where_no_node_holds_it() {
    let got =
        look(&State::default(), &supply([7, 7, 7, 6]), &request("new", QosLevel::Dedicated, EXCLUSIVE, 10));
    assert_eq!(got.unwrap(), "{01}T {23}T {012}F {013}F {023}F {123}F {0123}F");
}

#[test]
fn m2_a_bound_pod_is_offered_single_nodes() {
    for qos in [QosLevel::Dedicated, QosLevel::Shared] {
        let got = look(&State::default(), &supply([8; 4]), &request("new", qos, BOUND, 1));
        assert_eq!(got.unwrap(), "{0}T {1}T {2}T {3}T");
    }
}

#[test]
fn m3_a_bound_reclaimed_pod_is_offered_the_most_headroom_first() {
    let numa_headroom = (0..4).map(|node| (node, Bytes((u64::from(node) + 2) * GIB))).collect();
    let options = Options { reclaim_numa_binding: true, numa_headroom, ..Options::default() };
    let request = request("new", QosLevel::Reclaimed, BOUND, 1);
    let got = look_with(&options, &State::default(), &supply([8; 4]), &request);
    assert_eq!(got.unwrap(), "{3}T {2}T {1}T {0}T");
}

#[test]
fn m4_pods_that_are_not_bound_have_no_preference() {
    for qos in [QosLevel::Shared, QosLevel::Reclaimed, QosLevel::System] {
        let got = look(&State::default(), &supply([8; 4]), &request("new", qos, &[], 1));
        assert_eq!(got.unwrap(), "nil");
    }
    let debug = Request { debug: true, ..request("new", QosLevel::Dedicated, BOUND, 1) };
    assert_eq!(look(&State::default(), &supply([8; 4]), &debug).unwrap(), "nil");
}

#[test]
fn m5_a_bound_pod_is_placed_on_as_many_nodes_as_it_may_have() {
    let supply = supply([8; 4]);
    let cases = [
        (BOUND, None, Err(Kind::Invalid)),
        (BOUND, Some(Hint::anywhere(true)), Err(Kind::Invalid)),
        (BOUND, Some(on("0-1")), Err(Kind::Invalid)),
        (BOUND, Some(on("1")), Ok(mask("1"))),
        (TWO_NODES, Some(on("0-1")), Ok(mask("0-1"))),
        (EXCLUSIVE, Some(on("0-2")), Ok(mask("0-2"))),
    ];
    for (wishes, hint, expected) in cases {
        let request = request("new", QosLevel::Dedicated, wishes, 1);
        let got = place(&State::default(), &supply, &sixteen_cpus(), &request, hint.as_ref());
        assert_eq!(got.map(|placed| placed.mems).map_err(|refusal| refusal.kind), expected, "{hint:?}");
    }
}

#[test]
fn memory_is_offered_on_as_many_nodes_as_cpus_are() {
    let got = look(&State::default(), &supply([8; 4]), &request("new", QosLevel::Dedicated, TWO_NODES, 1));
    assert_eq!(got.unwrap(), "{01}T {23}T");
    let ids = [("numa_binding", "true"), ("numa_ids", "1,3")];
    let got = look(&State::default(), &supply([8; 4]), &request("new", QosLevel::Dedicated, &ids, 1));
    // A pair of nodes must be of one socket, and 1 and 3 are not.
    assert_eq!(got.unwrap_err().kind, Kind::Insufficient);
}

#[test]
fn what_does_not_fit_on_one_node_is_refused_to_a_pod_that_may_have_one() {
    let got = look(&State::default(), &supply([8; 4]), &request("new", QosLevel::Shared, BOUND, 9));
    assert_eq!(got.unwrap_err().kind, Kind::Insufficient);
}

#[test]
fn what_is_reserved_on_a_node_cannot_be_had_there() {
    let mut supply = supply([8; 4]);
    supply.0.get_mut(&2).unwrap().reserved = Bytes(2 * GIB);
    let got = look(&State::default(), &supply, &request("new", QosLevel::Dedicated, BOUND, 7));
    assert_eq!(got.unwrap(), "{0}T {1}T {3}T");
}

#[test]
fn huge_pages_are_no_memory_and_a_resource_of_their_own() {
    let mut supply = supply([8; 4]);
    supply.0.get_mut(&1).unwrap().huge_pages = BTreeMap::from([(Bytes(2 << 20), Bytes(4 * GIB))]);
    let mut request = request("new", QosLevel::Dedicated, BOUND, 5);
    request.bytes.insert(HUGE, Bytes(GIB));
    assert_eq!(look(&State::default(), &supply, &request).unwrap(), "{0}T {2}T {3}T");
    let machine = sixteen_cpus();
    let got = hints(&State::default(), &Options::default(), &supply, &machine, &request, HUGE);
    assert_eq!(in_words(got.unwrap()), "{1}T");
    assert_eq!(HUGE.to_string(), "hugepages-2Mi");

    request.bytes.insert(Resource::Memory, Bytes(GIB));
    let state = with(&State::default(), &supply, &request, Some(&on("1")));
    assert_eq!(state.free(&supply, 1, HUGE), Bytes(3 * GIB));
    assert_eq!(state.free(&supply, 1, Resource::Memory), Bytes(3 * GIB));
}

#[test]
fn an_exclusive_pod_takes_all_that_is_free_and_the_others_leave_its_nodes() {
    let supply = supply([8; 4]);
    let shared = request("s", QosLevel::Shared, &[], 1);
    let state = with(&State::default(), &supply, &shared, None);
    assert_eq!(state.containers.get(&shared.id).unwrap().mems, mask("0-3").unwrap());

    let exclusive = request("x", QosLevel::Dedicated, EXCLUSIVE, 10);
    let state = with(&state, &supply, &exclusive, Some(&on("2-3")));
    assert_eq!(state.containers.get(&exclusive.id).unwrap().mems, mask("2-3").unwrap());
    assert_eq!(state.containers.get(&shared.id).unwrap().mems, mask("0-1").unwrap());
    assert_eq!(state.free(&supply, 3, Resource::Memory), Bytes(0));

    let mut after = state.clone();
    after.apply(&remove(&state, &sixteen_cpus(), "x"));
    assert_eq!(after.containers.get(&shared.id).unwrap().mems, mask("0-3").unwrap());
    assert_eq!(after.free(&supply, 3, Resource::Memory), Bytes(8 * GIB));
}

#[test]
fn a_bound_pod_is_accounted_greedily_from_the_lowest_node_on() {
    let supply = supply([8; 4]);
    let state =
        with(&State::default(), &supply, &request("a", QosLevel::Dedicated, TWO_NODES, 10), Some(&on("0-1")));
    let free = |node| state.free(&supply, node, Resource::Memory).0 / GIB;
    assert_eq!([free(0), free(1), free(2)], [0, 6, 8]);
}

#[test]
fn a_sidecar_follows_its_main_container_and_is_accounted_nothing() {
    let supply = supply([8; 4]);
    let main = request("a", QosLevel::Dedicated, BOUND, 2);
    let mut side = request("a", QosLevel::Dedicated, BOUND, 1);
    (side.id, side.kind) = (ContainerId::new("a", "side"), ContainerKind::Sidecar);
    let machine = sixteen_cpus();
    assert_eq!(place(&State::default(), &supply, &machine, &side, None).unwrap().mems, None);
    let state = with(&State::default(), &supply, &main, Some(&on("1")));
    let state = with(&state, &supply, &side, None);
    assert_eq!(state.containers.get(&side.id).unwrap().mems, mask("1").unwrap());
    assert_eq!(state.free(&supply, 1, Resource::Memory), Bytes(6 * GIB));
}

#[test]
fn a_running_bound_container_is_hinted_where_it_is_and_grows_only_as_far_as_there_is_room() {
    let supply = supply([8; 4]);
    let state =
        with(&State::default(), &supply, &request("a", QosLevel::Dedicated, TWO_NODES, 10), Some(&on("2-3")));
    let again = request("a", QosLevel::Dedicated, TWO_NODES, 10);
    assert_eq!(look(&state, &supply, &again).unwrap(), "{23}T");
    let resized = |gib| Request { resize: true, ..request("a", QosLevel::Dedicated, TWO_NODES, gib) };
    assert_eq!(look(&state, &supply, &resized(16)).unwrap(), "{23}T");
    assert_eq!(look(&state, &supply, &resized(17)).unwrap_err().kind, Kind::Insufficient);
    let smaller = with(&state, &supply, &resized(4), Some(&on("2-3")));
    assert_eq!(smaller.free(&supply, 3, Resource::Memory), Bytes(8 * GIB));
}

#[test]
fn shared_pods_are_refused_what_is_not_there_for_them() {
    let supply = supply([8; 4]);
    let state = with(&State::default(), &supply, &request("s", QosLevel::Shared, &[], 20), None);
    let state = with(&state, &supply, &request("b", QosLevel::Shared, BOUND, 1), Some(&on("3")));
    assert_eq!(look(&state, &supply, &request("new", QosLevel::Shared, &[], 4)).unwrap(), "nil");
    let got = look(&state, &supply, &request("new", QosLevel::Shared, &[], 5));
    assert_eq!(got.unwrap_err().kind, Kind::Insufficient);
    let unchecked = Options { check_shared: false, ..Options::default() };
    let got = look_with(&unchecked, &state, &supply, &request("new", QosLevel::Shared, &[], 5));
    assert_eq!(got.unwrap(), "nil");
}
