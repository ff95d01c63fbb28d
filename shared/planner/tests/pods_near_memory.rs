//! Memory of dedicated pods that are bound to no NUMA node: nobody else counts on it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use oxalyst_planner::{
    plan::{Flag, Reason, Refusal, Rule},
    pods::{
        self, Asked, Class, Plan, Plugins, PodRequest, Request, Resize, Role, Rules, State, Told,
        placement_of, plan, record,
    },
    policy::memory::Resource,
};
use oxalyst_qos::QosLevel;
use oxalyst_topology::{Cpu, CpuSet, Machine, NumaNode};
use oxalyst_units::{Bytes, MilliCpu};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const GIB: u64 = 1 << 30;
const PAGE: u64 = 2 << 20;
const NODES: u32 = 4;

/// Four nodes of four CPUs, of which 0 and 2, and 1 and 3, are close; of so many GiB and huge pages.
fn machine(gib: [u64; 4], pages: [u64; 4]) -> Machine {
    let cpu = |id: u32| Cpu { id, core: id, socket: id / 8, numa: id / 4, l3: Some(id / 4) };
    let distance = |from: u32, to: u32| match from.abs_diff(to) {
        0 => 10,
        2 => 12,
        _ => 20,
    };
    let node = |id: u32| NumaNode {
        memory: Some(Bytes(gib[id as usize] * GIB + pages[id as usize] * PAGE)),
        huge_pages: [(Bytes(PAGE), Bytes(pages[id as usize] * PAGE))].into(),
        distances: (0..NODES).map(|to| distance(id, to)).collect(),
        ..NumaNode::new(id)
    };
    Machine::new((0..16).map(cpu).collect(), (0..NODES).map(node).collect()).unwrap()
}

fn asked(name: &str, cpus: u64, gib: u64, pages: u64) -> Asked {
    Asked {
        name: name.into(),
        role: Role::App,
        cpu: Some(MilliCpu::cpus(cpus)),
        limit: None,
        memory: Some(Bytes(gib * GIB)).filter(|bytes| bytes.0 > 0),
        huge_pages: [(Bytes(PAGE), Bytes(pages * PAGE))].into_iter().filter(|_| pages > 0).collect(),
    }
}

fn pod(uid: &str, wishes: &[(&str, &str)], containers: Vec<Asked>) -> PodRequest {
    PodRequest {
        plugins: Plugins::default(),
        uid: uid.into(),
        sandbox_id: format!("{uid}-1"),
        namespace: "ns".into(),
        name: uid.into(),
        qos: QosLevel::Dedicated,
        class: Class::Guaranteed,
        kept_labels: [].into(),
        wishes: wishes.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        node_agent: false,
        told: Told::default(),
        flags: BTreeSet::new(),
        containers,
        now_unix_ms: 0,
    }
}

const BOUND: &[(&str, &str)] = &[("numa_binding", "true")];
const ALONE: &[(&str, &str)] = &[("numa_binding", "true"), ("numa_exclusive", "true")];

struct Node {
    machine: Machine,
    rules: Rules,
    state: State,
    records: BTreeMap<String, Vec<u8>>,
}

impl Node {
    fn new(machine: Machine) -> Self {
        let rules = Rules::default();
        let (state, _) = record::load(std::iter::empty(), &machine, &rules, CpuSet::new());
        Self { machine, rules, state, records: BTreeMap::new() }
    }

    fn plan(&self, request: &Request) -> Result<Plan, Refusal> {
        plan(&self.state, &self.machine, &self.rules, request)
    }

    fn hold(&mut self, plan: Plan) {
        for record::Change { key, value } in record::changes(&plan, &self.rules) {
            match value {
                Some(bytes) => drop(self.records.insert(key, bytes)),
                None => drop(self.records.remove(&key)),
            }
        }
        self.state = plan.after;
    }

    fn want(&mut self, request: Request) {
        let plan = self.plan(&request).unwrap();
        self.hold(plan);
    }

    fn admit(&mut self, pod: PodRequest) {
        self.want(Request::Admit(pod));
    }

    fn remove(&mut self, uid: &str) {
        self.want(Request::Remove { uid: uid.into() });
    }

    fn becomes(&mut self, machine: Machine) {
        self.machine = machine;
        self.want(Request::TakeUp { reserved: None });
    }

    fn resize(
        &self,
        uid: &str,
        container: &str,
        cpus: Option<u64>,
        gib: Option<u64>,
    ) -> Result<Plan, Refusal> {
        self.plan(&Request::Resize(Resize {
            uid: uid.into(),
            container: container.into(),
            cpu: cpus.map(MilliCpu::cpus),
            limit: None,
            memory: gib.map(|gib| Bytes(gib * GIB)),
        }))
    }

    fn mems(&self, uid: &str) -> BTreeSet<String> {
        let placed = placement_of(&self.state, &self.machine, uid).unwrap();
        placed.containers.iter().map(|own| own.mems.to_string()).collect()
    }

    fn taken(&self) -> [u64; 4] {
        [0, 1, 2, 3].map(|node| self.state.memory.taken(node, Resource::Memory).0 / GIB)
    }

    fn is_short(&self, uid: &str) -> bool {
        self.state.pods.get(uid).unwrap().flags.contains(&Flag::MemoryShort)
    }
}

fn one(nodes: &str) -> BTreeSet<String> {
    [nodes.to_owned()].into()
}

#[test]
fn it_is_accounted_beside_its_cpus_and_what_does_not_fit_there_on_the_nearest_nodes() {
    let mut node = Node::new(machine([8; 4], [4; 4]));
    node.admit(pod("a", &[], vec![asked("main", 2, 5, 0), asked("side", 0, 2, 0)]));
    assert_eq!((node.taken(), node.mems("a")), ([7, 0, 0, 0], one("0")));
    // Node 2 is nearer to node 0 than node 1 is.
    node.admit(pod("b", &[], vec![asked("main", 2, 3, 6), asked("side", 0, 0, 0)]));
    assert_eq!((node.taken(), node.mems("b")), ([8, 0, 2, 0], one("0,2")));
    assert_eq!(node.mems("a"), one("0"));
    assert_eq!(node.state.memory.taken(2, Resource::HugePages(Bytes(PAGE))), Bytes(2 * PAGE));
    assert!(!node.is_short("b"));
    // A bound pod finds what is left.
    let refusal = node.plan(&Request::Admit(pod("c", BOUND, vec![asked("main", 1, 9, 0)]))).unwrap_err();
    assert_eq!(refusal.rule, Rule::MemoryRoom);
    node.remove("b");
    assert_eq!(node.taken(), [7, 0, 0, 0]);
    node.remove("a");
    assert_eq!(node.taken(), [0; 4]);
}

#[test]
fn what_all_nodes_together_do_not_have_free_is_refused_with_what_each_has() {
    let mut node = Node::new(machine([8; 4], [4; 4]));
    node.admit(pod("a", &[], vec![asked("main", 2, 20, 0)]));
    let refusal = node.plan(&Request::Admit(pod("b", &[], vec![asked("main", 1, 13, 0)]))).unwrap_err();
    assert_eq!((refusal.reason, refusal.rule), (Reason::Insufficient, Rule::MemoryRoom));
    let told =
        "13Gi of memory is asked for, and 12Gi is free on the whole machine; free by NUMA node: 0 on 0";
    assert!(refusal.message.contains(told), "{}", refusal.message);
    let refusal = node.plan(&Request::Admit(pod("b", &[], vec![asked("main", 1, 1, 17)]))).unwrap_err();
    assert!(refusal.message.contains("hugepages-2Mi"), "{}", refusal.message);
    node.admit(pod("b", &[], vec![asked("main", 1, 12, 0)]));
    assert_eq!(node.taken(), [8; 4]);
}

#[test]
fn nodes_that_a_pod_has_for_itself_are_never_used() {
    let mut node = Node::new(machine([8; 4], [4; 4]));
    // It asks for no memory, and has its node all the same.
    node.admit(pod("x", ALONE, vec![asked("main", 1, 0, 0)]));
    assert_eq!(node.mems("x"), one("0"));
    node.admit(pod("a", &[], vec![asked("main", 1, 20, 0)]));
    assert_eq!(node.taken()[0], 0);
    assert!(node.plan(&Request::Admit(pod("b", &[], vec![asked("main", 1, 5, 0)]))).is_err());
    // Nor by one that is resized, whose spec comes late, or whose memory has gone from where it was.
    assert!(node.resize("a", "main", None, Some(25)).is_err());
    let mut late = pod("c", &[], vec![asked(pods::ALL, 1, 0, 0)]);
    late.told.request = Some(MilliCpu::cpus(1));
    node.admit(late);
    let spec = pod("c", &[], vec![asked("main", 1, 6, 0)]);
    let refined = pods::refine(&node.state, &node.machine, &node.rules, &spec);
    node.hold(refined);
    node.becomes(machine([8, 2, 8, 8], [4; 4]));
    assert!(node.is_short("c") && node.taken()[0] == 0, "{:?}", node.taken());
    for uid in ["a", "c"] {
        assert!(node.mems(uid).iter().all(|mems| !mems.contains('0')), "{uid}: {:?}", node.mems(uid));
    }
}

#[test]
fn a_resize_takes_more_and_gives_back_what_lies_far_away_first() {
    let mut node = Node::new(machine([8; 4], [4; 4]));
    node.admit(pod("a", &[], vec![asked("main", 2, 6, 0), asked("side", 0, 1, 0)]));
    let grown = node.resize("a", "side", None, Some(6)).unwrap();
    node.hold(grown);
    assert_eq!((node.taken(), node.mems("a")), ([8, 0, 4, 0], one("0,2")));
    let refusal = node.resize("a", "main", None, Some(27)).unwrap_err();
    assert_eq!(refusal.rule, Rule::MemoryRoom);
    assert!(refusal.message.contains("it has 12Gi, and 20Gi is free"), "{}", refusal.message);
    // More CPUs than its node has: memory stays where it is, and may be used beside the new ones.
    let grown = node.resize("a", "main", Some(6), None).unwrap();
    node.hold(grown);
    let nodes =
        node.machine.nodes_of(&placement_of(&node.state, &node.machine, "a").unwrap().containers[0].cpus);
    assert_eq!(node.taken(), [8, 0, 4, 0]);
    assert_eq!(node.mems("a"), one(&(&nodes | &"0,2".parse().unwrap()).to_string()));
    let shrunk = node.resize("a", "side", None, Some(1)).unwrap();
    node.hold(shrunk);
    assert_eq!(node.taken().iter().sum::<u64>(), 7);
    assert_eq!(node.taken()[0], 7);
}

#[test]
fn memory_that_goes_is_found_elsewhere_or_flagged_until_some_comes_free() {
    let mut node = Node::new(machine([8; 4], [4; 4]));
    node.admit(pod("a", &[], vec![asked("main", 2, 6, 0)]));
    node.admit(pod("b", &[], vec![asked("main", 2, 2, 0)]));
    node.admit(pod("c", BOUND, vec![asked("main", 1, 8, 0)]));
    let bound = node.taken().iter().skip(1).position(|taken| *taken == 8).unwrap() + 1;
    node.becomes(machine([3, 8, 8, 8], [4; 4]));
    assert!(["a", "b", "c"].iter().all(|uid| !node.is_short(uid)), "{:?}", node.taken());
    assert_eq!((node.taken()[0], node.taken().iter().sum::<u64>()), (3, 16));
    // There is too little anywhere: the younger one is short, since the other came first.
    let mut left = [3, 0, 0, 0];
    left[bound] = 8;
    node.becomes(machine(left, [4; 4]));
    assert!(node.is_short("a") && node.is_short("b") && !node.is_short("c"));
    assert_eq!(node.taken()[0], 3);
    // The same again moves nothing.
    let again = node.plan(&Request::TakeUp { reserved: None }).unwrap();
    assert_eq!(again.after, node.state);
    node.remove("a");
    assert!(!node.is_short("b"));
    assert_eq!(node.taken()[0], 2);
    // A resize gives back, too.
    node.becomes(machine([2, 8, 8, 8], [4; 4]));
    assert!(!node.is_short("b") && !node.is_short("c"));
}

#[test]
fn a_pod_whose_spec_comes_late_is_accounted_what_there_is() {
    let mut node = Node::new(machine([4; 4], [4; 4]));
    let mut early = pod("a", &[], vec![asked(pods::ALL, 2, 0, 0)]);
    early.told.request = Some(MilliCpu::cpus(2));
    node.admit(early);
    assert_eq!(node.taken(), [0; 4]);
    let spec = pod("a", &[], vec![asked("main", 2, 5, 0)]);
    let refined = pods::refine(&node.state, &node.machine, &node.rules, &spec);
    node.hold(refined);
    assert_eq!((node.taken(), node.mems("a")), ([4, 0, 1, 0], one("0,2")));
    let mut late = pod("b", &[], vec![asked(pods::ALL, 2, 0, 0)]);
    late.told.request = Some(MilliCpu::cpus(2));
    node.admit(late);
    let refined =
        pods::refine(&node.state, &node.machine, &node.rules, &pod("b", &[], vec![asked("main", 2, 12, 0)]));
    node.hold(refined);
    assert!(node.is_short("b") && !node.is_short("a"));
    assert_eq!(node.taken(), [4; 4]);
    node.remove("a");
    assert!(!node.is_short("b"));
}

#[test]
fn records_of_before_are_accounted_when_the_node_is_taken_up() {
    let mut node = Node::new(machine([8; 4], [4; 4]));
    node.admit(pod("a", &[], vec![asked("main", 2, 6, 0), asked("side", 0, 1, 0)]));
    let whole = node.state.clone();
    // As the version before wrote it: nothing accounted, and what the main container alone asks for.
    let id = oxalyst_planner::policy::ContainerId::new("a", "main");
    let mut own = (**node.state.memory.containers.get(&id).unwrap()).clone();
    (own.taken, own.request) = ([].into(), [(Resource::Memory, Bytes(6 * GIB))].into());
    node.state.memory.containers.insert(id, std::sync::Arc::new(own));
    let taken_up = node.plan(&Request::TakeUp { reserved: None }).unwrap();
    assert!(taken_up.pods.contains_key("a"), "its record is written anew");
    assert_eq!(taken_up.after, whole);
}

#[derive(Clone, Debug)]
enum Event {
    /// A pod, bound or not or alone, and what its containers ask for.
    Admit(usize, Vec<(u64, u64, u64)>),
    Remove,
    Resize(usize, Option<u64>, Option<u64>),
    /// A spec that comes late.
    Refine(Vec<(u64, u64, u64)>),
    Machine([u64; 4], [u64; 4], Vec<u32>),
}

fn event() -> impl Strategy<Value = (usize, Event)> {
    let containers = || prop::collection::vec((0u64..4, 0u64..9, 0u64..4), 1..3);
    let what = prop_oneof![
        5 => (0usize..5, containers()).prop_map(|(kind, containers)| Event::Admit(kind, containers)),
        2 => Just(Event::Remove),
        2 => (0usize..2, prop::option::of(1u64..6), prop::option::of(0u64..12)).prop_map(|(c, cpus, gib)| Event::Resize(c, cpus, gib)),
        1 => containers().prop_map(Event::Refine),
        1 => (prop::array::uniform4(0u64..12), prop::array::uniform4(0u64..6), prop::collection::vec(0u32..16, 0..6))
            .prop_map(|(gib, pages, offline)| Event::Machine(gib, pages, offline)),
    ];
    (0usize..6, what)
}

fn resources() -> [Resource; 2] {
    [Resource::Memory, Resource::HugePages(Bytes(PAGE))]
}

fn accounted(state: &State) -> BTreeMap<(u32, Resource), Bytes> {
    let pairs = (0..NODES).flat_map(|node| resources().map(|resource| (node, resource)));
    pairs.map(|(node, resource)| ((node, resource), state.memory.taken(node, resource))).collect()
}

/// No more is accounted of any node than it has, or who has it is flagged; who is not flagged has all that it asks for, and where
/// somebody is flagged there is nothing left that it could have.
fn sound(node: &Node) -> Result<(), TestCaseError> {
    let supply = |on: u32, resource| match resource {
        Resource::Memory => node.machine.node(on).unwrap().memory.unwrap().0 - pages(node, on),
        Resource::HugePages(_) => pages(node, on),
    };
    let alone = node.state.memory.exclusive();
    for (uid, pod) in &node.state.pods {
        let flagged = pod.flags.contains(&Flag::MemoryShort);
        let own: Vec<_> = node.state.memory.of_pod(uid).map(|(_, own)| own).collect();
        for resource in resources() {
            for on in 0..NODES {
                let takes = own
                    .iter()
                    .any(|own| own.taken.get(&resource).is_some_and(|taken| taken.contains_key(&on)));
                let all = node.state.memory.taken(on, resource).0;
                prop_assert!(
                    flagged || !takes || all <= supply(on, resource),
                    "{} of {} on {}",
                    all,
                    resource,
                    on
                );
            }
            let of = |asked: &Asked| match resource {
                Resource::Memory => asked.memory.unwrap_or_default().0,
                Resource::HugePages(size) => asked.huge_pages.get(&size).copied().unwrap_or_default().0,
            };
            let asks: u64 = pod.containers.iter().map(of).sum();
            let has: u64 = own
                .iter()
                .filter_map(|own| own.taken.get(&resource))
                .flat_map(BTreeMap::values)
                .map(|b| b.0)
                .sum();
            let near = pod.served == QosLevel::Dedicated && !pod.wishes.numa_binding();
            if !near {
                continue;
            }
            prop_assert!(has <= asks);
            prop_assert!(flagged || has == asks, "{} has {} of {} {}", uid, has, asks, resource);
            let left = (0..NODES).filter(|on| !alone.contains(*on));
            let left =
                left.map(|on| supply(on, resource).saturating_sub(node.state.memory.taken(on, resource).0));
            prop_assert!(
                has == asks || left.sum::<u64>() == 0,
                "{} lacks {} and some is left",
                uid,
                resource
            );
        }
    }
    let records = node.records.iter().map(|(key, bytes)| (key.as_str(), bytes.as_slice()));
    let (read, faults) = record::load(records, &node.machine, &node.rules, CpuSet::new());
    prop_assert!(faults.is_empty());
    prop_assert_eq!(&read, &node.state);
    Ok(())
}

/// What pods that are bound to no node have been accounted on nodes that another pod has for itself, by pod, node and resource.
fn on_others(node: &Node) -> BTreeMap<(String, u32, Resource), Bytes> {
    let alone = node.state.memory.exclusive();
    let near = node.state.memory.containers.iter().filter(|(_, own)| !own.wishes.numa_binding());
    let mut lies = BTreeMap::new();
    for (id, own) in near {
        for (resource, taken) in &own.taken {
            for (on, bytes) in taken.iter().filter(|(on, _)| alone.contains(**on)) {
                lies.insert((id.pod.to_string(), *on, *resource), *bytes);
            }
        }
    }
    lies
}

fn pages(node: &Node, on: u32) -> u64 {
    node.machine.node(on).unwrap().huge_pages.get(&Bytes(PAGE)).copied().unwrap_or_default().0
}

fn drawn(kind: usize, uid: &str, containers: &[(u64, u64, u64)]) -> PodRequest {
    let wishes = [&[], &[], &[], BOUND, ALONE][kind];
    let containers = containers.iter().enumerate();
    let asked =
        containers.map(|(index, (cpus, gib, pages))| asked(&format!("c{index}"), *cpus, *gib, *pages));
    let mut pod = pod(uid, wishes, asked.collect());
    pod.now_unix_ms = uid.parse().unwrap();
    pod
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]
    #[test]
    fn no_two_pods_count_on_the_same_memory_whatever_happens(events in prop::collection::vec(event(), 1..20)) {
        let mut node = Node::new(machine([8; 4], [4; 4]));
        for (uid, event) in events {
            let uid = uid.to_string();
            let before_alone = node.state.memory.exclusive();
            let (before, lay) = (accounted(&node.state), on_others(&node));
            let outcome = match event {
                Event::Admit(_, _) if node.state.pods.contains_key(&uid) => continue,
                Event::Admit(kind, containers) => {
                    let plan = node.plan(&Request::Admit(drawn(kind, &uid, &containers)));
                    if let Ok(plan) = &plan {
                        let gone = Request::Remove { uid: uid.clone() };
                        let again = pods::plan(&plan.after, &node.machine, &node.rules, &gone).unwrap().after;
                        prop_assert_eq!(&before, &accounted(&again), "what has come and gone has left something");
                        prop_assert_eq!(&node.state.memory, &again.memory);
                    }
                    plan
                }
                Event::Remove => node.plan(&Request::Remove { uid }),
                Event::Resize(container, cpus, gib) => node.resize(&uid, &format!("c{container}"), cpus, gib),
                Event::Refine(containers) => {
                    if node.state.pods.contains_key(&uid) {
                        continue;
                    }
                    let total = containers.iter().map(|(cpus, ..)| *cpus).sum::<u64>().max(1);
                    let mut early = pod(&uid, &[], vec![asked(pods::ALL, total, 0, 0)]);
                    early.told.request = Some(MilliCpu::cpus(total));
                    let Ok(plan) = node.plan(&Request::Admit(early)) else { continue };
                    node.hold(plan);
                    Ok(pods::refine(&node.state, &node.machine, &node.rules, &drawn(0, &uid, &containers)))
                }
                Event::Machine(gib, pages, offline) => {
                    node.machine = machine(gib, pages).with_offline(&offline.into_iter().collect());
                    node.plan(&Request::TakeUp { reserved: None })
                }
            };
            if let Ok(plan) = outcome {
                node.hold(plan);
            }
            sound(&node)?;
            // What lay there before a pod came that has the node for itself stays; nothing comes to it.
            for (at, bytes) in on_others(&node) {
                let had = before_alone.contains(at.1).then(|| lay.get(&at).copied().unwrap_or_default());
                prop_assert!(had.is_none_or(|had| bytes <= had), "{} of {:?} on {}, which is another pod's", bytes, at.0, at.1);
            }
        }
    }
}
