//! Machines with more NUMA nodes than sets of them can be tried: what is looked at is bounded, and what comes out is enough.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use oxalyst_planner::plan::{DecidedBy, NativeOption, Reason, Refusal, RequestSource};
use oxalyst_planner::pods::{
    self, Asked, Class, CpuPolicy, Native, Plugins, PodRequest, Request, Resize, Role, Rules, State, Told,
    Trace, placement_of,
};
use oxalyst_planner::topology_manager::{Hint, Nodes, OFFERED_SETS, Policy, merge};
use oxalyst_qos::QosLevel;
use oxalyst_topology::{Cpu, CpuSet, Machine, NumaNode};
use oxalyst_units::{Bytes, MilliCpu};
use std::collections::BTreeSet;

const GIB: u64 = 1 << 30;
const NODES: [u32; 4] = [20, 24, 32, 64];
const EXCLUSIVE: &[(&str, &str)] = &[("numa_binding", "true"), ("numa_exclusive", "true")];

/// Two sockets; each node has 10 GiB and four CPUs, as long as it is one of the first `with_cpus`.
fn machine(nodes: u32, with_cpus: u32) -> Machine {
    let cpu = |id: u32| Cpu { id, core: id, socket: id / 4 * 2 / with_cpus, numa: id / 4, l3: None };
    let node = |id| NumaNode { memory: Some(Bytes(10 * GIB)), ..NumaNode::new(id) };
    Machine::new((0..with_cpus * 4).map(cpu).collect(), (0..nodes).map(node).collect()).unwrap()
}

fn pod(uid: &str, wishes: &[(&str, &str)], cpus: u64, gib: u64) -> Request {
    let cpu = Some(MilliCpu(cpus * 1000));
    let main = Asked {
        name: "main".into(),
        role: Role::App,
        cpu,
        limit: cpu,
        memory: Some(Bytes(gib * GIB)),
        huge_pages: [].into(),
    };
    Request::Admit(PodRequest {
        uid: uid.into(),
        sandbox_id: format!("s-{uid}"),
        namespace: "ns".into(),
        kept_labels: [].into(),
        name: uid.into(),
        qos: QosLevel::Dedicated,
        class: Class::Guaranteed,
        wishes: wishes.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        node_agent: false,
        told: Told {
            request: None,
            source: RequestSource::PodSpec,
            decided_by: DecidedBy::Admit,
            open: false,
        },
        flags: BTreeSet::new(),
        containers: vec![main],
        plugins: Plugins::default(),
        now_unix_ms: 0,
    })
}

/// The state with the pod, its CPUs and its memory's nodes, and how many sets the longest list had.
fn admit(
    state: &State,
    machine: &Machine,
    rules: &Rules,
    request: &Request,
) -> Result<(State, usize, usize, usize), Refusal> {
    let Request::Admit(pod) = request else { panic!("admits pods") };
    let mut trace = Trace::on();
    let after = pods::plan_traced(state, machine, rules, request, &mut trace)?.after;
    let lists = trace.merges.iter().flat_map(|merge| &merge.providers).flatten();
    let longest = lists.map(|(_, hints)| hints.as_ref().map_or(0, Vec::len)).max().unwrap_or(0);
    let placement = placement_of(&after, machine, &pod.uid).unwrap();
    let (cpus, mems) = (placement.containers[0].cpus.len(), placement.containers[0].mems.len());
    Ok((after, cpus, mems, longest))
}

fn rules(topology: &str, native: Option<NativeOption>) -> Rules {
    let topology = Policy::named(topology, &["cpu".to_owned(), "memory".to_owned()]).unwrap();
    let rules = Rules { topology, ..Rules::default() };
    match native {
        Some(option) => {
            Rules { cpu_policy: CpuPolicy::Native(Native { option, full_cores: false }), ..rules }
        }
        None => rules,
    }
}

#[test]
fn half_the_nodes_are_found_where_the_first_ones_are_taken() {
    for nodes in NODES {
        let machine = machine(nodes, nodes);
        let (half, quarter) = (u64::from(nodes / 2), u64::from(nodes / 4));
        for topology in ["best-effort", "restricted", "numeric"] {
            let packed = NativeOption::Packed;
            for native in [None, Some(packed), Some(NativeOption::Distributed { group: 1 })] {
                let rules = rules(topology, native);
                let empty = State::new(&machine, CpuSet::new());
                let first = pod("a", EXCLUSIVE, quarter * 4, quarter * 10);
                let (state, ..) = admit(&empty, &machine, &rules, &first).unwrap();
                let (_, cpus, mems, longest) =
                    admit(&state, &machine, &rules, &pod("b", EXCLUSIVE, half * 4, half * 10)).unwrap();
                assert!(longest > 0 && longest <= OFFERED_SETS + 1, "{nodes} {topology}: {longest}");
                assert_eq!((cpus as u64, mems as u64), (half * 4, half), "{nodes} {topology} {native:?}");
            }
        }
    }
}

#[test]
fn memory_of_nodes_without_cpus_is_bounded_too() {
    for nodes in NODES {
        let machine = machine(nodes, 2);
        let rules = rules("best-effort", Some(NativeOption::Packed));
        let state = State::new(&machine, CpuSet::new());
        let half = u64::from(nodes / 2);
        let (_, cpus, mems, longest) = admit(&state, &machine, &rules, &pod("a", &[], 4, half * 10)).unwrap();
        assert!(longest <= OFFERED_SETS + 1, "{nodes}: {longest}");
        assert_eq!((cpus, mems as u64), (4, half), "{nodes}");
    }
}

#[test]
fn more_nodes_than_can_be_merged_are_refused_whatever_is_asked_for() {
    let machine = machine(70, 70);
    for native in [None, Some(NativeOption::Packed)] {
        let state = State::new(&machine, CpuSet::new());
        let asked = pod("a", EXCLUSIVE, 140, 350);
        let refusal = admit(&state, &machine, &rules("restricted", native), &asked).unwrap_err();
        assert!(refusal.message.contains("70 NUMA nodes, at most 64"), "{}", refusal.message);
    }
}

const BOUND: &[(&str, &str)] = &[("numa_binding", "true")];

#[test]
fn under_none_bound_pods_are_placed_on_more_nodes_than_can_be_merged() {
    let machine = machine(70, 70);
    let rules = rules("none", None);
    let empty = State::new(&machine, CpuSet::new());
    let (state, cpus, mems, _) = admit(&empty, &machine, &rules, &pod("a", BOUND, 1, 9)).unwrap();
    assert_eq!((cpus, mems), (1, 1));
    // There are CPUs on the first node as well, and not the memory.
    let (state, cpus, mems, longest) = admit(&state, &machine, &rules, &pod("b", BOUND, 3, 5)).unwrap();
    assert_eq!((cpus, mems, longest), (3, 1, 70));
    let own = placement_of(&state, &machine, "b").unwrap().containers.remove(0);
    assert_eq!((machine.nodes_of(&own.cpus), own.mems.to_string().as_str()), (own.mems.clone(), "1"));
    let (state, cpus, mems, longest) =
        admit(&state, &machine, &rules, &pod("c", EXCLUSIVE, 4 * 34, 10 * 34)).unwrap();
    assert!(longest <= OFFERED_SETS + 1, "{longest}");
    assert_eq!((cpus, mems), (4 * 34, 34));
    let mut shared = pod("s", BOUND, 2, 2);
    let Request::Admit(asked) = &mut shared else { panic!("admits pods") };
    asked.qos = QosLevel::Shared;
    let (state, _, mems, _) = admit(&state, &machine, &rules, &shared).unwrap();
    assert_eq!(mems, 1);
    let grow = |cpu, gib: u64| {
        let resize = Resize {
            uid: "b".into(),
            container: "main".into(),
            cpu: Some(MilliCpu(cpu)),
            limit: None,
            memory: Some(Bytes(gib * GIB)),
        };
        pods::plan(&state, &machine, &rules, &Request::Resize(resize))
    };
    let grown = placement_of(&grow(4000, 9).unwrap().after, &machine, "b").unwrap().containers.remove(0);
    assert_eq!((grown.cpus.len(), grown.mems.to_string().as_str()), (4, "1"));
    for refusal in [
        grow(5000, 9).unwrap_err(),
        grow(4000, 12).unwrap_err(),
        admit(&state, &machine, &rules, &pod("d", BOUND, 5, 1)).unwrap_err(),
        admit(&state, &machine, &rules, &pod("d", BOUND, 1, 11)).unwrap_err(),
    ] {
        assert_eq!(refusal.reason, Reason::Insufficient, "{refusal}");
    }
}

#[test]
fn without_merging_the_set_that_the_fewest_cannot_have_wins() {
    let on = |node: u32, preferred| Hint::on([node].into_iter().collect(), preferred);
    let best = |lists: &[(&str, Vec<Hint>)]| {
        let provider = lists.iter().map(|(name, hints)| ((*name).to_owned(), Some(hints.clone()))).collect();
        merge(&Policy::InCommon, &Nodes::of(&machine(70, 70)), &[provider]).unwrap().hint("memory")
    };
    let cpu = || ("cpu", vec![on(3, false), on(66, true), on(68, true), on(69, true)]);
    assert_eq!(best(&[cpu()]), on(66, true));
    assert_eq!(best(&[cpu(), ("memory", vec![on(69, true), on(68, false)])]), on(69, true));
    assert_eq!(best(&[cpu(), ("memory", vec![on(3, true), on(68, false)])]), on(3, false));
    assert_eq!(best(&[cpu(), ("memory", vec![Hint::anywhere(true)])]), on(66, true));
    assert_eq!(best(&[cpu(), ("memory", vec![on(1, true)])]), on(66, false), "they have none in common");
    assert_eq!(best(&[("cpu", vec![Hint::anywhere(true)])]), Hint::anywhere(true));
}
