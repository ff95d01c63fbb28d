use oxalyst_proto::meta::v1::PodContainer;
use oxalyst_proto::orm::v1::{ContainerPlacement, PodPlacement};
use proptest::prelude::*;

use super::*;

fn node() -> Node {
    Node { name: "n1".into(), memory_bytes: 32 << 30, ..Node::default() }
}

/// Two sockets with two NUMA nodes of four CPUs each.
fn topology() -> Topology {
    let numa = |id: u32, socket, cpus: &str, distances: [u32; 4]| NumaNode {
        id,
        socket: Some(socket),
        cpus: cpus.into(),
        memory_bytes: 8 << 30,
        distances: distances.into(),
        huge_pages: Default::default(),
    };
    Topology {
        cpus: Vec::new(),
        nodes: vec![
            numa(0, 0, "0-3", [10, 12, 21, 21]),
            numa(1, 0, "4-7", [12, 10, 21, 21]),
            numa(2, 1, "8-11", [21, 21, 10, 12]),
            numa(3, 1, "12-15", [21, 21, 12, 10]),
        ],
        offline: "15".into(),
        online: "0-14".into(),
        isolated: String::new(),
    }
}

fn exclusive(uid: &str, cpus: &str, mems: &str) -> PodPlacement {
    PodPlacement {
        pod_uid: uid.into(),
        namespace: "ns".into(),
        name: format!("pod-{uid}"),
        qos_level: "dedicated_cores".into(),
        cpus: cpus.into(),
        mems: mems.into(),
        exclusive: true,
        settled: true,
        ..PodPlacement::default()
    }
}

fn state(pods: Vec<PodPlacement>) -> State {
    State { generation: 7, reserved: "0,4".into(), online: "0-14".into(), pods, ..State::default() }
}

#[test]
fn the_whole_object_is_as_agreed() {
    let shared = PodPlacement { pool: "share".into(), exclusive: false, ..exclusive("s", "1-3", "0-3") };
    let unsettled = PodPlacement { settled: false, ..exclusive("x", "", "") };
    let pods = vec![exclusive("b", "2-3,5", "0-3"), exclusive("a", "8-9", "2"), shared, unsettled];
    let memory = BTreeMap::from([("a".to_owned(), 3 << 30), ("b".to_owned(), 1 << 30)]);
    let object = build(&node(), &topology(), &state(pods), &memory).unwrap();
    let text = serde_yaml_ng::to_string(&object).unwrap();
    assert_eq!(text, include_str!("../tests/golden/kcnr.yaml"), "got:\n{text}");
}

#[test]
fn containers_with_sets_of_their_own_count_for_their_pod() {
    let own = |name: &str, cpus: &str, exclusive| ContainerPlacement {
        name: name.into(),
        cpus: cpus.into(),
        exclusive,
        ..ContainerPlacement::default()
    };
    let containers = vec![own("side", "9", true), own("rest", "1-3", false)];
    let pod = PodPlacement { containers, ..exclusive("a", "8", "2") };
    let part = PodPlacement { exclusive: false, ..PodPlacement { pod_uid: "b".into(), ..pod.clone() } };
    let object = build(&node(), &topology(), &state(vec![pod, part]), &MemoryRequests::new()).unwrap();
    let text = serde_yaml_ng::to_string(&object).unwrap();
    let given: Vec<_> = text.lines().filter(|line| line.contains("consumer: ")).map(str::trim).collect();
    assert_eq!(given, ["- consumer: ns/pod-a/a", "- consumer: ns/pod-a/b"]);
    let amounts: Vec<_> =
        text.split("requests:").skip(1).map(|rest| rest.lines().nth(1).unwrap().trim()).collect();
    assert_eq!(amounts, ["cpu: '2'", "cpu: '1'"]);
}

#[test]
fn zones_are_sorted_as_text_and_a_node_without_socket_stands_at_the_root() {
    let mut topology = topology();
    topology.nodes[3].id = 10;
    topology.nodes[2].socket = None;
    topology.nodes[3].socket = Some(0);
    let object = build(&node(), &topology, &state(vec![]), &MemoryRequests::new()).unwrap();
    let zones = object.status.unwrap().topology_zone;
    let names = |zones: &[TopologyZone]| -> Vec<String> {
        zones.iter().map(|z| format!("{}{}", String::from(z.zone_type.clone()), z.name)).collect()
    };
    assert_eq!(names(&zones), ["Numa2", "Socket0"]);
    assert_eq!(names(&zones[1].children), ["Numa0", "Numa1", "Numa10"]);
}

#[test]
fn without_the_meta_servers_figure_memory_is_that_of_the_numa_nodes() {
    let node = Node { memory_bytes: 0, ..node() };
    let object = build(&node, &topology(), &state(vec![]), &MemoryRequests::new()).unwrap();
    assert_eq!(object.spec.node_resource_properties[1].property_quantity, Some(Quantity::bytes(32 << 30)));
}

#[test]
fn answers_that_cannot_be_understood_build_nothing_and_name_the_culprit() {
    let torn = build(&node(), &topology(), &state(vec![exclusive("u", "1-", "0")]), &MemoryRequests::new());
    let text = torn.unwrap_err().to_string();
    assert!(text.contains("ns/pod-u/u") && text.contains("1-"), "{text}");
    let nothing = build(&node(), &Topology::default(), &state(vec![]), &MemoryRequests::new());
    assert!(matches!(nothing, Err(BuildError::NoNodes)));
    let nameless = build(&Node::default(), &topology(), &state(vec![]), &MemoryRequests::new());
    assert!(matches!(nameless, Err(BuildError::NoName)));
}

#[test]
fn memory_is_summed_only_where_every_container_tells() {
    let container = |kind: &str, bytes| PodContainer {
        r#type: kind.into(),
        request_memory_bytes: bytes,
        ..PodContainer::default()
    };
    let pod = |uid: &str, containers| Pod { uid: uid.into(), containers, ..Pod::default() };
    let pods = [
        pod(
            "sum",
            vec![
                container("app", Some(1)),
                container("restartable-init", Some(2)),
                container("init", Some(2)),
            ],
        ),
        pod("init", vec![container("app", Some(1)), container("init", Some(9)), container("init", None)]),
        pod("part", vec![container("app", Some(1)), container("app", None)]),
        pod("runtime", vec![container("unknown", None)]),
        pod("none", vec![]),
    ];
    let expected = BTreeMap::from([("sum".to_owned(), 3), ("init".to_owned(), 9)]);
    assert_eq!(memory_requests(&pods), expected);
}

#[test]
fn memory_follows_a_list_of_what_differs() {
    let app = |uid: &str, bytes: Option<u64>| Pod {
        uid: uid.into(),
        containers: vec![PodContainer {
            r#type: "app".into(),
            request_memory_bytes: bytes,
            ..PodContainer::default()
        }],
        ..Pod::default()
    };
    let whole =
        PodList { pods: vec![app("a", Some(1)), app("b", Some(2)), app("c", Some(3))], ..PodList::default() };
    let mut memory = MemoryRequests::new();
    assert!(take_up_memory(&mut memory, &whole));
    assert!(!take_up_memory(&mut memory, &whole));
    let differs = PodList {
        pods: vec![app("b", Some(7)), app("c", None)],
        changes_only: true,
        removed_pod_uids: vec!["a".into()],
        ..PodList::default()
    };
    assert!(take_up_memory(&mut memory, &differs));
    assert_eq!(memory, BTreeMap::from([("b".to_owned(), 7)]));
    assert!(!take_up_memory(&mut memory, &differs), "heard again, it says nothing new");
}

#[test]
fn an_object_holds_while_ours_is_in_it_whatever_others_add() {
    let desired = build(&node(), &topology(), &state(vec![]), &MemoryRequests::new()).unwrap();
    let mut seen = desired.clone();
    seen.spec
        .node_resource_properties
        .insert(0, NodeResourceProperty { property_name: "cis".into(), ..NodeResourceProperty::default() });
    seen.status.as_mut().unwrap().conditions.push(oxalyst_kube_types::Condition {
        condition_type: "AgentReady".into(),
        status: "True".into(),
        last_heartbeat_time: None,
        reason: None,
        message: None,
    });
    assert!(holds(&seen, &desired));
    seen.status.as_mut().unwrap().topology_zone.pop();
    assert!(!holds(&seen, &desired));
    let bare = CustomNodeResource::new("n1", desired.spec.clone(), None);
    assert!(!holds(&bare, &desired));
}

proptest! {
    #[test]
    fn allocated_cpus_per_zone_add_up_to_each_pods_set(sets in prop::collection::vec(prop::collection::btree_set(0u32..15, 1..6), 0..6)) {
        let pods = sets
            .iter()
            .enumerate()
            .map(|(n, cpus)| exclusive(&n.to_string(), &cpus.iter().copied().collect::<CpuSet>().to_string(), "0-3"))
            .collect();
        let object = build(&node(), &topology(), &state(pods), &MemoryRequests::new()).unwrap();
        let mut counted: BTreeMap<String, u64> = BTreeMap::new();
        for zone in object.status.unwrap().topology_zone.iter().flat_map(|socket| &socket.children) {
            prop_assert!(zone.allocations.is_sorted_by_key(|a| a.consumer.clone()));
            for allocation in &zone.allocations {
                let cpus = allocation.requests.as_ref().unwrap()["cpu"].to_units().unwrap();
                *counted.entry(allocation.consumer.clone()).or_default() += cpus;
            }
        }
        let expected: BTreeMap<String, u64> =
            sets.iter().enumerate().map(|(n, cpus)| (format!("ns/pod-{n}/{n}"), cpus.len() as u64)).collect();
        prop_assert_eq!(counted, expected);
    }

    #[test]
    fn the_order_of_the_answers_does_not_matter(rotate in 0usize..4, swap: bool) {
        let mut pods = vec![exclusive("a", "1", "0"), exclusive("b", "2", "0"), exclusive("c", "9", "2")];
        let expected = build(&node(), &topology(), &state(pods.clone()), &MemoryRequests::new()).unwrap();
        let mut turned = topology();
        turned.nodes.rotate_left(rotate);
        pods.rotate_left(rotate % 3);
        if swap {
            pods.swap(0, 2);
        }
        prop_assert_eq!(build(&node(), &turned, &state(pods), &MemoryRequests::new()).unwrap(), expected);
    }
}
