//! Huge pages that containers ask for: each size a resource of its own, accounted by NUMA node.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use oxalyst_planner::decision::{self, Given, Step};
use oxalyst_planner::plan::{DecidedBy, Flag, NativeOption, Reason, Refusal, RequestSource, Rule};
use oxalyst_planner::pods::{
    self, Asked, Class, CpuPolicy, Native, Plan, Plugins, PodRequest, Request, Role, Rules, State, Told,
    placement_of, record,
};
use oxalyst_planner::policy::memory::Resource;
use oxalyst_planner::topology_manager::Policy;
use oxalyst_qos::QosLevel;
use oxalyst_topology::{Cpu, CpuSet, Machine, NumaNode};
use oxalyst_units::{Bytes, MilliCpu};
use std::collections::{BTreeMap, BTreeSet};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const SMALL: u64 = 2 * MIB;

/// Two nodes of eight CPUs and 8 GiB; node 0 has 4 MiB of small pages and 2 GiB of large ones, node 1 has 64 MiB of small ones.
fn machine() -> Machine {
    let cpu = |id: u32| Cpu { id, core: id, socket: id / 8, numa: id / 8, l3: Some(id / 8) };
    let node = |id, pages: &[(u64, u64)]| NumaNode {
        memory: Some(Bytes(8 * GIB)),
        huge_pages: pages.iter().map(|(size, bytes)| (Bytes(*size), Bytes(*bytes))).collect(),
        ..NumaNode::new(id)
    };
    let nodes = vec![node(0, &[(SMALL, 4 * MIB), (GIB, 2 * GIB)]), node(1, &[(SMALL, 64 * MIB)])];
    Machine::new((0..16).map(cpu).collect(), nodes).unwrap()
}

fn asked(name: &str, role: Role, cpus: u64, pages: &[(u64, u64)]) -> Asked {
    let cpu = Some(MilliCpu(cpus * 1000));
    let huge_pages = pages.iter().map(|(size, bytes)| (Bytes(*size), Bytes(*bytes))).collect();
    Asked { name: name.into(), role, cpu, limit: cpu, memory: Some(Bytes(GIB)), huge_pages }
}

fn pod(uid: &str, wishes: &[(&str, &str)], containers: Vec<Asked>) -> PodRequest {
    PodRequest {
        kept_labels: [].into(),
        uid: uid.into(),
        sandbox_id: format!("s-{uid}"),
        namespace: "ns".into(),
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
        containers,
        plugins: Plugins::default(),
        now_unix_ms: 0,
    }
}

const BOUND: &[(&str, &str)] = &[("numa_binding", "true")];

fn native() -> Rules {
    let native = Native { option: NativeOption::Packed, full_cores: false };
    Rules { cpu_policy: CpuPolicy::Native(native), ..Rules::default() }
}

struct Node {
    machine: Machine,
    rules: Rules,
    state: State,
}

impl Node {
    fn new(rules: Rules) -> Self {
        let machine = machine();
        let state = State::new(&machine, CpuSet::new());
        Self { machine, rules, state }
    }

    fn plan(&self, request: &Request) -> Result<Plan, Refusal> {
        pods::plan(&self.state, &self.machine, &self.rules, request)
    }

    fn admit(&mut self, pod: PodRequest) {
        self.state = self.plan(&Request::Admit(pod)).unwrap().after;
    }

    fn refusal(&self, pod: PodRequest) -> Refusal {
        self.plan(&Request::Admit(pod)).unwrap_err()
    }

    fn mems(&self, uid: &str) -> String {
        placement_of(&self.state, &self.machine, uid).unwrap().containers[0].mems.to_string()
    }

    fn taken(&self, size: u64) -> [u64; 2] {
        [0, 1].map(|node| self.state.memory.taken(node, Resource::HugePages(Bytes(size))).0)
    }
}

#[test]
fn a_bound_pod_goes_where_its_huge_pages_are_and_its_refusal_names_their_size_and_what_each_node_has() {
    let mut node = Node::new(Rules::default());
    node.admit(pod("a", BOUND, vec![asked("main", Role::App, 2, &[(SMALL, 32 * MIB)])]));
    assert_eq!((node.mems("a"), node.taken(SMALL)), ("1".to_owned(), [0, 32 * MIB]));
    let refusal = node.refusal(pod("b", BOUND, vec![asked("main", Role::App, 2, &[(SMALL, 40 * MIB)])]));
    assert_eq!((refusal.reason, refusal.rule), (Reason::Insufficient, Rule::MemoryRoom));
    let told = "40Mi of hugepages-2Mi as asked; free by NUMA node: 4Mi on 0, 32Mi on 1";
    assert!(refusal.message.contains(told), "{}", refusal.message);
    let refusal = node.refusal(pod("c", BOUND, vec![asked("main", Role::App, 2, &[(SMALL, 80 * MIB)])]));
    assert!(refusal.message.contains("free by NUMA node: 4Mi on 0, 32Mi on 1"), "{}", refusal.message);
    let after = node.plan(&Request::Remove { uid: "a".into() }).unwrap().after;
    assert_eq!(after.memory.taken(1, Resource::HugePages(Bytes(SMALL))), Bytes(0));
}

#[test]
fn every_size_is_a_resource_of_its_own_and_all_of_them_lie_on_the_same_nodes() {
    for topology in ["best-effort", "restricted", "single-numa-node", "numeric"] {
        let topology = Policy::named(topology, &["cpu".into(), "memory".into()]).unwrap();
        let mut node = Node::new(Rules { topology: topology.clone(), ..Rules::default() });
        let both = [(SMALL, 4 * MIB), (GIB, GIB)];
        node.admit(pod("a", BOUND, vec![asked("main", Role::App, 2, &both)]));
        assert_eq!(node.mems("a"), "0", "{topology:?}");
        assert_eq!((node.taken(SMALL), node.taken(GIB)), ([4 * MIB, 0], [GIB, 0]), "{topology:?}");
        // One node has the small ones, the other the large ones.
        let refusal = node.refusal(pod("b", BOUND, vec![asked("main", Role::App, 2, &both)]));
        assert_eq!(refusal.rule, Rule::MemoryRoom, "{topology:?}: {refusal}");
        let told = ["4Mi of hugepages-2Mi (free by NUMA node: 0 on 0, 64Mi on 1)", "1Gi on 0, 0 on 1"];
        assert!(told.iter().all(|told| refusal.message.contains(told)), "{topology:?}: {refusal}");
    }
}

#[test]
fn a_size_that_the_node_does_not_have_is_refused_whatever_the_policy() {
    for rules in [Rules::default(), native()] {
        let node = Node::new(rules);
        let refusal =
            node.refusal(pod("a", BOUND, vec![asked("main", Role::App, 1, &[(16 * MIB, 16 * MIB)])]));
        assert_eq!(refusal.rule, Rule::MemoryRoom);
        let told = ["hugepages-16Mi", "free by NUMA node: 0 on 0, 0 on 1"];
        assert!(told.iter().all(|told| refusal.message.contains(told)), "{}", refusal.message);
    }
}

#[test]
fn shared_pods_ask_for_no_more_huge_pages_together_than_there_are() {
    let mut node = Node::new(Rules::default());
    let shared = |uid: &str| {
        let pod = pod(uid, &[], vec![asked("main", Role::App, 1, &[(SMALL, 40 * MIB)])]);
        PodRequest { qos: QosLevel::Shared, ..pod }
    };
    node.admit(shared("a"));
    let refusal = node.refusal(shared("b"));
    assert!(refusal.message.contains("hugepages-2Mi"), "{}", refusal.message);
}

#[test]
fn under_native_all_memory_of_a_container_lies_on_nodes_that_have_all_of_it() {
    let mut node = Node::new(native());
    node.admit(pod("a", &[], vec![asked("main", Role::App, 2, &[(SMALL, 32 * MIB)])]));
    assert_eq!((node.mems("a"), node.taken(SMALL)), ("1".to_owned(), [0, 32 * MIB]));
    // Large pages are on node 0 alone, and of small ones it has too few: only both nodes together do.
    let both = [(SMALL, 8 * MIB), (GIB, GIB)];
    node.admit(pod("b", &[], vec![asked("main", Role::App, 2, &both)]));
    assert_eq!((node.mems("b"), node.taken(GIB)), ("0-1".to_owned(), [GIB, 0]));
    assert_eq!(node.taken(SMALL), [4 * MIB, 36 * MIB]);
    let refusal = node.refusal(pod("c", &[], vec![asked("main", Role::App, 2, &[(SMALL, 60 * MIB)])]));
    assert_eq!((refusal.reason, refusal.rule), (Reason::Insufficient, Rule::MemoryRoom));
    let told = "60Mi of hugepages-2Mi is asked for; free by NUMA node: 0 on 0, 28Mi on 1";
    assert!(refusal.message.contains(told), "{}", refusal.message);
    let burstable = pod("d", &[], vec![asked("main", Role::App, 2, &[(SMALL, 60 * MIB)])]);
    node.admit(PodRequest { class: Class::Burstable, ..burstable });
}

#[test]
fn a_plain_init_container_lends_its_huge_pages_under_native() {
    let mut node = Node::new(native());
    let pages = [(SMALL, 48 * MIB)];
    let containers = vec![asked("once", Role::Init, 1, &pages), asked("main", Role::App, 1, &pages)];
    node.admit(pod("a", &[], containers));
    assert_eq!(node.taken(SMALL), [0, 48 * MIB]);
    let lasting = vec![asked("side", Role::RestartableInit, 1, &pages), asked("main", Role::App, 1, &pages)];
    let refusal = Node::new(native()).refusal(pod("b", &[], lasting));
    assert_eq!(refusal.rule, Rule::MemoryRoom);
}

#[test]
fn huge_pages_that_are_not_there_any_more_are_flagged_until_they_are_again() {
    for rules in [Rules::default(), native()] {
        let mut node = Node::new(rules);
        node.admit(pod("a", BOUND, vec![asked("main", Role::App, 2, &[(SMALL, 32 * MIB)])]));
        let flagged = |state: &State| state.pods.get("a").unwrap().flags.contains(&Flag::MemoryShort);
        let whole = node.machine.clone();
        let mut nodes = whole.nodes().to_vec();
        nodes[1].huge_pages = BTreeMap::from([(Bytes(SMALL), Bytes(16 * MIB))]);
        node.machine = Machine::new(whole.cpus().to_vec(), nodes).unwrap();
        let again = Request::TakeUp { reserved: None };
        node.state = node.plan(&again).unwrap().after;
        assert!(flagged(&node.state));
        node.machine = whole;
        assert!(!flagged(&node.plan(&again).unwrap().after));
    }
}

#[test]
fn a_record_holds_them_and_one_without_them_is_read() {
    let mut node = Node::new(native());
    node.admit(pod("a", BOUND, vec![asked("main", Role::App, 2, &[(SMALL, 32 * MIB), (GIB, 0)])]));
    let read = |records: &[record::Change]| {
        let records = records.iter().map(|r| (r.key.as_str(), r.value.as_deref().unwrap()));
        record::load(records, &node.machine, &node.rules, CpuSet::new())
    };
    let (state, faults) = read(&record::whole(&node.state));
    assert!(faults.is_empty());
    assert_eq!(state, node.state);
    // As the version before wrote it.
    let golden = include_bytes!("golden/allocation-without-huge-pages.bin").to_vec();
    let (state, faults) = read(&[record::Change { key: "allocation/a".into(), value: Some(golden) }]);
    assert!(faults.is_empty(), "{faults:?}");
    let container = &state.pods.get("a").unwrap().containers[0];
    assert_eq!((container.memory, container.huge_pages.len()), (Some(Bytes(GIB)), 0));
}

#[test]
fn what_is_decided_tells_them_and_is_decided_again_from_what_was_recorded() {
    let node = Node::new(Rules::default());
    let step = Step::AdmitSpec(pod("a", BOUND, vec![asked("main", Role::App, 2, &[(SMALL, 32 * MIB)])]));
    let given = Given {
        state: &node.state,
        machine: &node.machine,
        rules: &node.rules,
        generation: 1,
        overruled: None,
    };
    let decision = decision::decide(given, &step).decision;
    assert_eq!(decision.asked.as_ref().unwrap().containers[0].huge_pages, [(SMALL, 32 * MIB)].into());
    let free: Vec<_> = decision.free.iter().map(|free| free.huge_pages.clone()).collect();
    assert_eq!(free, [[(SMALL, 4 * MIB), (GIB, 2 * GIB)].into(), [(SMALL, 64 * MIB)].into()]);
    let merged: Vec<_> = decision.merges[0].resources.iter().map(|own| own.resource.as_str()).collect();
    assert_eq!(merged, ["cpu", "hugepages-2Mi", "memory"]);
    assert_eq!(Step::decode(&step.encode()).unwrap(), step);
}

#[test]
fn an_unbound_dedicated_pod_is_refused_what_the_whole_machine_does_not_have() {
    let mut node = Node::new(Rules::default());
    let with = |uid, pages: &[(u64, u64)]| pod(uid, &[], vec![asked("main", Role::App, 1, pages)]);
    let refusal = node.refusal(with("pages", &[(GIB, 3 * GIB)]));
    assert_eq!((refusal.reason, refusal.rule), (Reason::Insufficient, Rule::MemoryRoom));
    let told = "3Gi of hugepages-1Gi is asked for and the whole machine has 2Gi";
    assert!(refusal.message.contains(told), "{}", refusal.message);
    let mut beside = asked("beside", Role::App, 1, &[]);
    beside.memory = Some(Bytes(1 << 63));
    let refusal = node.refusal(pod("memory", &[], vec![asked("main", Role::App, 1, &[]), beside]));
    assert_eq!((refusal.reason, refusal.rule), (Reason::Insufficient, Rule::MemoryRoom));
    node.admit(with("fits", &[(GIB, 2 * GIB)]));
}
