//! What holds of whole pods, whatever happens to them in whatever order.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use oxalyst_planner::policy::memory::Resource;
use oxalyst_planner::{
    plan::{Flag, NativeOption, Refusal},
    pods::{
        Asked, Class, CpuPolicy, Native, Plan, PodRequest, Request, Resize, Role, Rules, State, Told,
        free_per_node, placements, plan, pools, record, shown_pools,
    },
    policy::{Options, Preference},
    topology_manager::{Policy, Scope},
};
use oxalyst_qos::QosLevel;
use oxalyst_topology::{Cpu, CpuSet, Machine, NumaNode};
use oxalyst_units::{Bytes, MilliCpu};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug)]
enum Event {
    Admit { pod: u8, qos: usize, wishes: Vec<usize>, containers: Vec<(usize, u64, u64)> },
    Remove { pod: u8 },
    Resize { pod: u8, container: usize, cpu: u64, memory: Option<u64> },
    RestartContainer { pod: u8 },
    Elapse { seconds: i64 },
    Online { offline: Vec<u32> },
    Memory { bytes: u64 },
}

const WISHES: [(&str, &str); 8] = [
    ("numa_binding", "true"),
    ("numa_binding", "true"),
    ("numa_exclusive", "true"),
    ("numa_number", "2"),
    ("distribute_evenly_across_numa", "true"),
    ("full_pcpus_pairing", "true"),
    ("numa_share", "false"),
    ("cpuset_pool", "batch"),
];
const ROLES: [Role; 6] =
    [Role::App, Role::App, Role::App, Role::Init, Role::RestartableInit, Role::Ephemeral];
const MEMORY: u64 = 16 << 30;

fn event() -> impl Strategy<Value = Event> {
    let container = (0..ROLES.len(), prop_oneof![Just(0u64), 1u64..12], 0u64..12);
    let containers = prop::collection::vec(container, 1..4);
    let wishes = prop::collection::vec(0..WISHES.len(), 0..4);
    let admit = (0u8..8, 0usize..4, wishes, containers)
        .prop_map(|(pod, qos, wishes, containers)| Event::Admit { pod, qos, wishes, containers });
    let resize = (0u8..8, 0usize..3, 1u64..14, prop::option::of(0u64..12))
        .prop_map(|(pod, container, cpu, memory)| Event::Resize { pod, container, cpu, memory });
    prop_oneof![
        6 => admit,
        2 => (0u8..8).prop_map(|pod| Event::Remove { pod }),
        2 => resize,
        1 => (0u8..8).prop_map(|pod| Event::RestartContainer { pod }),
        1 => (1i64..60).prop_map(|seconds| Event::Elapse { seconds }),
        1 => prop::collection::vec(0u32..16, 0..4).prop_map(|offline| Event::Online { offline }),
        1 => (1u64..20).prop_map(|gib| Event::Memory { bytes: gib << 30 }),
    ]
}

fn rules() -> impl Strategy<Value = Rules> {
    let topology = prop_oneof![
        Just(Policy::None),
        Just(Policy::BestEffort),
        Just(Policy::Restricted),
        Just(Policy::SingleNumaNode),
        Just(Policy::Numeric { align: vec!["cpu".into(), "memory".into()] }),
    ];
    let dynamic = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(enable_reclaim, overlap, reclaim_numa_binding, packing)| {
            CpuPolicy::Dynamic(Options {
                enable_reclaim,
                overlap,
                reclaim_numa_binding,
                preference: if packing { Preference::Packing } else { Preference::Spreading },
                numa_headroom: (0..4).map(|node| (node, MilliCpu::cpus(2))).collect(),
                serve_all: true,
                ..Options::default()
            })
        },
    );
    let native = (any::<bool>(), any::<bool>()).prop_map(|(spread, full_cores)| {
        let option = if spread { NativeOption::Distributed { group: 1 } } else { NativeOption::Packed };
        CpuPolicy::Native(Native { option, full_cores })
    });
    let policy = prop_oneof![3 => dynamic, 2 => native];
    let root = prop_oneof![3 => Just(None), 1 => Just(Some("0-13".parse().unwrap()))];
    (policy, topology, any::<bool>(), root).prop_map(|(cpu_policy, topology, of_pod, root)| Rules {
        cpu_policy,
        topology,
        scope: if of_pod { Scope::Pod } else { Scope::Container },
        root,
        ..Rules::default()
    })
}

/// What a machine is like.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// 16 CPUs, 8 cores, 4 NUMA nodes, 2 sockets.
    Even,
    /// Ids with gaps, cores and nodes of unequal size, a node without memory, one without CPUs, and two isolated CPUs.
    Odd,
    /// One node, no threads, no L3 known.
    Plain,
    /// 9 NUMA nodes of two CPUs, in 3 sockets.
    Wide,
}

/// Bytes of a huge page.
const PAGE: Bytes = Bytes(2 << 20);
const KINDS: [Kind; 4] = [Kind::Even, Kind::Odd, Kind::Plain, Kind::Wide];

fn machine(kind: Kind, memory: u64, offline: &[u32]) -> Machine {
    let row = |id, core, socket, numa, l3| Cpu { id, core, socket, numa, l3 };
    let cpus: Vec<Cpu> = match kind {
        Kind::Even => (0..16).map(|id| row(id, id % 8, id % 8 / 4, id % 8 / 2, Some(id % 8 / 2))).collect(),
        Kind::Odd => vec![
            row(0, 0, 1, 2, Some(7)),
            row(1, 0, 1, 2, Some(7)),
            row(4, 4, 1, 2, None),
            row(5, 5, 1, 5, None),
            row(8, 5, 1, 5, None),
            row(9, 9, 1, 5, None),
            row(10, 10, 1, 5, Some(1)),
            row(14, 14, 3, 9, Some(2)),
            row(15, 14, 3, 9, Some(2)),
            row(20, 14, 3, 9, Some(2)),
            row(21, 21, 3, 9, Some(2)),
            row(33, 33, 3, 9, Some(3)),
        ],
        Kind::Plain => (0..8).map(|id| row(id, id, 0, 0, None)).collect(),
        Kind::Wide => (0..18).map(|id| row(id, id / 2, id / 6, id / 2, Some(id / 6))).collect(),
    };
    let mut nodes: Vec<u32> = cpus.iter().map(|cpu| cpu.numa).collect();
    nodes.sort_unstable();
    nodes.dedup();
    if matches!(kind, Kind::Odd) {
        nodes.push(11);
    }
    let distances = |of: u32| nodes.iter().map(|to| 10 + 3 * of.abs_diff(*to)).collect();
    let node = |id: &u32| NumaNode {
        memory: Some(Bytes(memory)),
        huge_pages: [(PAGE, Bytes(6 * PAGE.0))].into_iter().filter(|_| id.is_multiple_of(2)).collect(),
        has_memory: !(matches!(kind, Kind::Odd) && *id == 5),
        distances: distances(*id),
        ..NumaNode::new(*id)
    };
    let machine = Machine::new(cpus, nodes.iter().map(node).collect()).unwrap();
    let machine = match kind {
        Kind::Odd => machine.with_isolated(&"4,33".parse().unwrap()),
        _ => machine,
    };
    machine.with_offline(&offline.iter().copied().collect())
}

struct World {
    kind: Kind,
    rules: Rules,
    memory: u64,
    offline: Vec<u32>,
    state: State,
    records: BTreeMap<String, Vec<u8>>,
    now: i64,
}

impl World {
    fn machine(&self) -> Machine {
        machine(self.kind, self.memory, &self.offline)
    }

    fn request(&mut self, event: &Event) -> Request {
        match event {
            Event::Admit { pod, qos, wishes, containers } => {
                Request::Admit(self.pod(*pod, *qos, wishes, containers))
            }
            Event::Remove { pod } => Request::Remove { uid: pod.to_string() },
            Event::Resize { pod, container, cpu, memory } => Request::Resize(Resize {
                uid: pod.to_string(),
                container: format!("c{container}"),
                cpu: Some(MilliCpu(cpu * 500)),
                limit: None,
                memory: memory.map(|gib| Bytes(gib << 30)),
            }),
            Event::RestartContainer { pod } => {
                Request::RestartContainer { uid: pod.to_string(), container: "c0".into() }
            }
            Event::Elapse { seconds } => {
                self.now += seconds * 1000;
                Request::Elapse { now_unix_ms: self.now }
            }
            Event::Online { offline } => {
                self.offline.clone_from(offline);
                Request::TakeUp { reserved: None }
            }
            Event::Memory { bytes } => {
                self.memory = *bytes;
                Request::TakeUp { reserved: None }
            }
        }
    }

    fn pod(&self, pod: u8, qos: usize, wishes: &[usize], containers: &[(usize, u64, u64)]) -> PodRequest {
        let levels = [QosLevel::Dedicated, QosLevel::Shared, QosLevel::Reclaimed, QosLevel::System];
        let classes = [Class::Guaranteed, Class::Guaranteed, Class::Burstable, Class::BestEffort];
        let asked = |(index, (role, halves, gib)): (usize, &(usize, u64, u64))| Asked {
            name: format!("c{index}"),
            role: ROLES[*role],
            cpu: Some(MilliCpu(halves * 500)).filter(|cpu| cpu.0 > 0),
            limit: None,
            memory: Some(Bytes(gib << 30)).filter(|bytes| bytes.0 > 0),
            huge_pages: [(PAGE, Bytes(gib * PAGE.0))].into_iter().filter(|_| gib % 2 == 1).collect(),
        };
        PodRequest {
            kept_labels: [].into(),
            plugins: oxalyst_planner::pods::Plugins::default(),
            uid: pod.to_string(),
            sandbox_id: format!("s{pod}"),
            namespace: "ns".into(),
            name: pod.to_string(),
            qos: levels[qos],
            class: classes[qos],
            wishes: wishes.iter().map(|w| (WISHES[*w].0.to_owned(), WISHES[*w].1.to_owned())).collect(),
            node_agent: pod == 7,
            told: Told::default(),
            flags: BTreeSet::new(),
            containers: containers.iter().enumerate().map(asked).collect(),
            now_unix_ms: self.now,
        }
    }

    fn hold(&mut self, plan: Plan) {
        for change in record::changes(&plan, &self.rules) {
            match change {
                record::Change { key, value: Some(bytes) } => drop(self.records.insert(key, bytes)),
                record::Change { key, value: None } => drop(self.records.remove(&key)),
            }
        }
        self.state = plan.after;
    }
}

/// What is made durable, and what is told, as bytes.
fn bytes(outcome: &Result<Plan, Refusal>, rules: &Rules) -> (Vec<record::Change>, String) {
    let changes = outcome.iter().flat_map(|plan| record::changes(plan, rules));
    (changes.collect(), format!("{outcome:?}"))
}

/// Every container's CPUs by pod and name, and whether they are its pod's own.
fn sets(state: &State, machine: &Machine) -> BTreeMap<(String, String), (CpuSet, bool)> {
    let mut sets = BTreeMap::new();
    for (uid, pod) in placements(state, machine) {
        for container in pod.containers {
            sets.insert((uid.clone(), container.name), (container.cpus, container.exclusive));
        }
    }
    sets
}

fn exclusive(state: &State, machine: &Machine) -> BTreeMap<(String, String), CpuSet> {
    let own = sets(state, machine).into_iter().filter(|(_, (_, own))| *own);
    own.map(|(name, (cpus, _))| (name, cpus)).collect()
}

/// Pods that run on CPUs that are none of their own nor of a pool of theirs, because those are gone.
fn starved(state: &State, machine: &Machine) -> BTreeSet<String> {
    let lacks = |flags: &BTreeSet<Flag>| {
        [Flag::PoolEmpty, Flag::NodeAgentOverlaps].iter().any(|flag| flags.contains(flag))
    };
    let pods = placements(state, machine).into_iter();
    pods.filter(|(_, pod)| pod.containers.iter().any(|own| lacks(&own.flags))).map(|(uid, _)| uid).collect()
}

fn sound(world: &World) -> Result<(), TestCaseError> {
    let whole = world.machine();
    let machine = world.rules.confine(&whole);
    let sets = sets(&world.state, &machine);
    let pools = pools(&world.state, &machine);
    shown(&world.state, &machine)?;
    let mut owned = CpuSet::new();
    for ((uid, name), (cpus, own)) in &sets {
        prop_assert!(!cpus.is_empty(), "{uid}/{name} has no CPU");
        prop_assert!(cpus.is_subset(machine.online()), "{uid}/{name} runs on {cpus}");
        if !own {
            continue;
        }
        owned |= cpus;
        for (pool, others) in &pools {
            prop_assert!(cpus.is_disjoint(others), "{uid}/{name} {cpus} and pool {pool} {others}");
        }
        for ((other, _), (others, own)) in &sets {
            prop_assert!(
                other == uid || !own || cpus.is_disjoint(others),
                "{uid} {cpus} and {other} {others}"
            );
        }
    }
    let free =
        free_per_node(&world.state, &machine).iter().fold(CpuSet::new(), |union, free| union | &free.cpus);
    prop_assert!(free.is_disjoint(&owned));
    let reserved = &world.state.cpus.reserved & machine.online();
    prop_assert!(free.is_disjoint(&reserved));
    let held = world.state.cpus.exclusive() & machine.online();
    let unheld = machine.isolated() - &held;
    prop_assert_eq!(&(&(&(free.clone() | &held) | &reserved) | &unheld), machine.online());
    if let CpuPolicy::Dynamic(_) = &world.rules.cpu_policy {
        // No CPU is lost between the pools, but for what comes free on a node that a pod has for itself.
        let for_itself = world.state.cpus.containers.kinds().filter(|container| container.is_exclusive());
        let for_itself = for_itself.fold(CpuSet::new(), |union, container| union | &container.cpus);
        let kept = machine.nodes().iter().filter(|node| !node.cpus.is_disjoint(&for_itself));
        let free = kept.fold(free, |rest, node| rest - &node.cpus);
        let pooled = pools.values().fold(CpuSet::new(), |union, cpus| union | cpus);
        prop_assert!(free.is_subset(&pooled), "{} is in no pool", free - &pooled);
    }
    for node in machine.nodes() {
        let taken = world.state.memory.taken(node.id, Resource::HugePages(PAGE));
        let there = node.huge_pages.get(&PAGE).copied().unwrap_or_default();
        prop_assert!(taken <= there, "{taken} of {there} huge pages of node {} are taken", node.id);
    }
    for pod in placements(&world.state, &machine).values() {
        for container in &pod.containers {
            prop_assert!(!container.mems.is_empty());
            prop_assert!(container.mems.is_subset(&machine.memory_nodes()));
        }
    }
    let records = world.records.iter().map(|(key, bytes)| (key.as_str(), bytes.as_slice()));
    let (read, faults) = record::load(records, &whole, &world.rules, world.state.cpus.reserved.clone());
    prop_assert!(faults.is_empty());
    prop_assert_eq!(&read, &world.state);
    let again = plan(&world.state, &whole, &world.rules, &Request::TakeUp { reserved: None }).unwrap();
    prop_assert_eq!(&again.after, &world.state, "the same machine again changes something");
    Ok(())
}

/// What is told of the pools.
fn shown(state: &State, machine: &Machine) -> Result<(), TestCaseError> {
    let held = state.cpus.exclusive();
    let shown = shown_pools(state, machine);
    for name in ["share", "reclaim", "reserve", "system"] {
        prop_assert!(shown.iter().any(|pool| pool.name == name), "{name} is not told");
    }
    for pool in shown {
        prop_assert!(pool.cpus.is_subset(machine.online()), "{}: {}", pool.name, pool.cpus);
        let is_own = pool.name == "system";
        prop_assert!(
            is_own || pool.cpus.is_disjoint(&held),
            "{}: {} and {held} is held",
            pool.name,
            pool.cpus
        );
        let is_isolated = !pool.cpus.is_disjoint(&machine.isolated().clone());
        prop_assert!(
            is_own || pool.name == "reserve" || !is_isolated,
            "{}: {} is isolated",
            pool.name,
            pool.cpus
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn every_history_of_pods_is_sound(
        kind in prop::sample::select(&KINDS[..]),
        rules in rules(),
        reserve in prop_oneof![Just(""), Just("0,8"), Just("1")],
        events in prop::collection::vec(event(), 1..24),
    ) {
        let reserved: CpuSet = reserve.parse().unwrap();
        let reserved = &reserved & machine(kind, MEMORY, &[]).online();
        let (state, _) = record::load(std::iter::empty(), &machine(kind, MEMORY, &[]), &rules, reserved);
        let mut world =
            World { kind, rules, memory: MEMORY, offline: Vec::new(), state, records: BTreeMap::new(), now: 0 };
        sound(&world)?;
        for event in &events {
            let request = world.request(event);
            let machine = world.machine();
            let outcome = plan(&world.state, &machine, &world.rules, &request);
            let again = plan(&world.state, &machine, &world.rules, &request);
            prop_assert_eq!(&outcome, &again);
            prop_assert_eq!(bytes(&outcome, &world.rules), bytes(&again, &world.rules));
            let seen = world.rules.confine(&machine).into_owned();
            let before = exclusive(&world.state, &seen);
            match outcome {
                Err(refusal) => {
                    let happened =
                        matches!(request, Request::Remove { .. } | Request::Elapse { .. } | Request::TakeUp { .. });
                    prop_assert!(!happened, "what has happened was refused");
                    prop_assert!(!refusal.message.is_empty());
                }
                Ok(plan) => {
                    check_step(&world, &request, &plan, &seen, &before)?;
                    world.hold(plan);
                }
            }
            sound(&world)?;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn pods_that_come_and_go_in_whatever_order_leave_the_node_as_it_was(
        kind in prop::sample::select(&KINDS[..]),
        rules in rules(),
        pods in prop::collection::vec((0u8..4, 0usize..4, prop::collection::vec(0..WISHES.len(), 0..4), 1u64..8), 1..7),
        order in Just((0u8..7).collect::<Vec<u8>>()).prop_shuffle(),
    ) {
        let machine = machine(kind, MEMORY, &[]);
        let (state, _) = record::load(std::iter::empty(), &machine, &rules, CpuSet::new());
        let mut world =
            World { kind, rules, memory: MEMORY, offline: Vec::new(), state, records: BTreeMap::new(), now: 0 };
        let before = world.state.clone();
        for (uid, (_, qos, wishes, halves)) in (0..).zip(&pods) {
            let request = Request::Admit(world.pod(uid, *qos, wishes, &[(0, *halves, 0)]));
            if let Ok(plan) = plan(&world.state, &machine, &world.rules, &request) {
                world.hold(plan);
            }
        }
        for uid in order {
            let gone = Request::Remove { uid: uid.to_string() };
            let plan = plan(&world.state, &machine, &world.rules, &gone).unwrap();
            world.hold(plan);
            sound(&world)?;
        }
        let machine = world.rules.confine(&machine).into_owned();
        prop_assert_eq!(free_per_node(&world.state, &machine), free_per_node(&before, &machine));
        prop_assert_eq!(&world.state.cpus.containers, &before.cpus.containers);
        prop_assert_eq!(&world.state.memory, &before.memory);
        prop_assert_eq!(pools(&world.state, &machine), pools(&before, &machine));
        prop_assert!(world.records.keys().all(|key| !key.starts_with("allocation/")));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn on_one_node_a_single_node_is_all_nodes(
        rules in rules(),
        events in prop::collection::vec(event(), 1..16),
    ) {
        let kind = Kind::Plain;
        let (state, _) = record::load(std::iter::empty(), &machine(kind, MEMORY, &[]), &rules, CpuSet::new());
        let of = |topology| World {
            kind,
            rules: Rules { topology, ..rules.clone() },
            memory: MEMORY,
            offline: Vec::new(),
            state: state.clone(),
            records: BTreeMap::new(),
            now: 0,
        };
        let mut worlds = [of(Policy::SingleNumaNode), of(Policy::Restricted)];
        for event in &events {
            for world in &mut worlds {
                let request = world.request(event);
                if let Ok(plan) = plan(&world.state, &world.machine(), &world.rules, &request) {
                    world.hold(plan);
                }
            }
            let placed = worlds.each_ref().map(|world| placements(&world.state, &world.rules.confine(&world.machine())));
            let bound = |uid: &String| worlds[0].state.pods.get(uid).is_some_and(|pod| pod.qos != QosLevel::Reclaimed);
            let [one, all] = placed.map(|mut placed| { placed.retain(|uid, _| bound(uid)); placed });
            prop_assert_eq!(one, all);
        }
    }
}

fn check_step(
    world: &World,
    request: &Request,
    planned: &Plan,
    machine: &Machine,
    before: &BTreeMap<(String, String), CpuSet>,
) -> Result<(), TestCaseError> {
    let after = exclusive(&planned.after, machine);
    let concerned = match request {
        Request::Admit(pod) => &pod.uid,
        Request::Remove { uid } | Request::RestartContainer { uid, .. } => uid,
        Request::Resize(resize) => &resize.uid,
        Request::Elapse { .. } | Request::TakeUp { .. } => "",
    };
    if !matches!(request, Request::TakeUp { .. }) {
        for (name, cpus) in before.iter().filter(|((uid, _), _)| uid != concerned) {
            prop_assert_eq!(Some(cpus), after.get(name), "{:?} moved", name);
        }
    }
    if matches!(request, Request::Admit(_) | Request::Resize(_)) {
        let (mut starved, known) = (starved(&planned.after, machine), starved(&world.state, machine));
        // A node agent starts in any case.
        starved.retain(|uid| uid != concerned || !planned.after.pods.get(uid).unwrap().node_agent);
        prop_assert!(starved.is_subset(&known), "{:?} are left without CPUs", &starved - &known);
    }
    match request {
        Request::Resize(_) => {
            for (name, cpus) in before.iter().filter(|((uid, _), _)| uid == concerned) {
                let now = after.get(name).expect("a resize keeps a set");
                prop_assert!(cpus.is_subset(now) || now.is_subset(cpus), "{:?}: {} to {}", name, cpus, now);
            }
        }
        Request::Admit(pod) if !world.state.pods.contains_key(&pod.uid) => {
            let gone = Request::Remove { uid: pod.uid.clone() };
            let again = plan(&planned.after, &world.machine(), &world.rules, &gone).unwrap().after;
            prop_assert_eq!(before, &exclusive(&again, machine));
            prop_assert_eq!(free_per_node(&world.state, machine), free_per_node(&again, machine));
            // Pools that overlap follow from the pools before, and a binding that was lost is lost.
            let unbound = |state: &State| {
                state.pods.values().filter(|pod| pod.flags.contains(&Flag::NumaBindingLost)).count()
            };
            if unbound(&again) == unbound(&world.state)
                && !matches!(&world.rules.cpu_policy, CpuPolicy::Dynamic(options) if options.overlap)
            {
                prop_assert_eq!(pools(&world.state, machine), pools(&again, machine));
                prop_assert_eq!(sets(&world.state, machine), sets(&again, machine));
            }
        }
        _ => {}
    }
    Ok(())
}
