//! Histories of a node: what happens to sandboxes and to whole pods, under any rules.
#![allow(unreachable_pub)]

use oxalyst_planner::{
    decision::Step,
    plan::{NativeOption, RequestSource, Stage},
    pods::{
        Asked, Class, CpuPolicy, Native, PodRequest, Request, Resize, Role, Rules, RunningSandbox,
        SandboxRequest, State, Told,
    },
    policy::{Options, Preference},
    topology_manager::{Policy, Scope},
};
use oxalyst_qos::QosLevel;
use oxalyst_topology::{Cpu, Machine, NumaNode};
use oxalyst_units::{Bytes, MilliCpu};
use proptest::prelude::*;
use std::collections::BTreeSet;

#[derive(Clone, Debug)]
pub enum Happening {
    Sandbox { pod: u8, level: usize, wishes: usize, milli: Option<u64>, container: bool },
    Release { pod: u8 },
    Adopt { pod: u8, level: usize, cpus: Option<u32> },
    Join { pod: u8, level: usize, wishes: usize, cpus: u64, gib: u64 },
    Spec { pod: u8, level: usize, wishes: usize, cpus: u64, gib: u64, starts: bool },
    Resize { pod: u8, cpus: u64 },
    Restart { pod: u8 },
    Remove { pod: u8 },
    Elapse { seconds: i64 },
    Online(Vec<u32>),
    Promote,
}

const LEVELS: [&str; 5] =
    ["dedicated_cores", "dedicated_cores", "shared_cores", "reclaimed_cores", "system_cores"];
const WISHES: [&str; 5] = [
    "{}",
    r#"{"numa_binding": "true"}"#,
    r#"{"numa_binding": "true", "numa_exclusive": "true"}"#,
    r#"{"numa_binding": "true", "numa_number": "2"}"#,
    r#"{"numa_binding": "no json"#,
];

pub fn happening() -> impl Strategy<Value = Happening> {
    let milli = prop::option::of(prop_oneof![Just(500u64), (1u64..6).prop_map(|cpus| cpus * 1000)]);
    let sandbox = (0u8..6, 0..LEVELS.len(), 0..WISHES.len(), milli, any::<bool>()).prop_map(
        |(pod, level, wishes, milli, container)| Happening::Sandbox { pod, level, wishes, milli, container },
    );
    let join = (6u8..10, 0..LEVELS.len(), 0..4usize, 0u64..6, 0u64..12)
        .prop_map(|(pod, level, wishes, cpus, gib)| Happening::Join { pod, level, wishes, cpus, gib });
    let spec = (0u8..10, 0..LEVELS.len(), 0..4usize, 0u64..6, 0u64..12, any::<bool>()).prop_map(
        |(pod, level, wishes, cpus, gib, starts)| Happening::Spec { pod, level, wishes, cpus, gib, starts },
    );
    prop_oneof![
        4 => spec,
        6 => sandbox,
        4 => join,
        2 => (0u8..6).prop_map(|pod| Happening::Release { pod }),
        1 => (0u8..6, 0..LEVELS.len(), prop::option::of(0u32..16))
            .prop_map(|(pod, level, cpus)| Happening::Adopt { pod, level, cpus }),
        1 => (6u8..10, 1u64..8).prop_map(|(pod, cpus)| Happening::Resize { pod, cpus }),
        1 => (6u8..10).prop_map(|pod| Happening::Restart { pod }),
        1 => (6u8..10).prop_map(|pod| Happening::Remove { pod }),
        1 => (0i64..90).prop_map(|seconds| Happening::Elapse { seconds }),
        1 => prop::collection::vec(0u32..16, 0..4).prop_map(Happening::Online),
        1 => Just(Happening::Promote),
    ]
}

pub fn step(happening: &Happening, state: &State) -> Step {
    match happening {
        Happening::Sandbox { pod, level, wishes, milli, container } => {
            let mut request = sandbox(*pod, *level, *wishes, *milli);
            request.stage = if *container { Stage::Container } else { Stage::Sandbox };
            Step::Admit(request)
        }
        Happening::Release { pod } => {
            let uid = pod.to_string();
            let sandbox_id = state.pods.get(&uid).map_or(format!("s{pod}"), |pod| pod.sandbox_id.clone());
            Step::Release { uid, sandbox_id }
        }
        Happening::Adopt { pod, level, cpus } => Step::Adopt(vec![RunningSandbox {
            request: sandbox(*pod, *level, 0, Some(2000)),
            cpus: cpus.map(|cpu| [cpu, (cpu + 8) % 16].into_iter().collect()),
        }]),
        Happening::Join { pod, level, wishes, cpus, gib } => {
            Step::Whole(Request::Admit(whole(*pod, *level, *wishes, *cpus, *gib)))
        }
        Happening::Spec { pod, level, wishes, cpus, gib, starts } => {
            let pod = whole(*pod, *level, *wishes, *cpus, *gib);
            if *starts { Step::AdmitSpec(pod) } else { Step::Refine(pod) }
        }
        Happening::Resize { pod, cpus } => Step::Whole(Request::Resize(Resize {
            uid: pod.to_string(),
            container: "app".into(),
            cpu: Some(MilliCpu::cpus(*cpus)),
            limit: None,
            memory: None,
        })),
        Happening::Restart { pod } => {
            Step::Whole(Request::RestartContainer { uid: pod.to_string(), container: "app".into() })
        }
        Happening::Remove { pod } => Step::Whole(Request::Remove { uid: pod.to_string() }),
        Happening::Elapse { seconds } => Step::Whole(Request::Elapse { now_unix_ms: seconds * 1000 }),
        Happening::Online(_) => Step::Replan,
        Happening::Promote => Step::Promote,
    }
}

fn sandbox(pod: u8, level: usize, wishes: usize, milli: Option<u64>) -> SandboxRequest {
    SandboxRequest {
        kept_labels: [("team".to_owned(), "blue".to_owned())].into(),
        plugins_unasked: false,
        sandbox_id: format!("s{pod}"),
        pod_uid: pod.to_string(),
        namespace: "ns".into(),
        name: format!("pod-{pod}"),
        labels: [("app".to_owned(), "decides nothing".to_owned())].into(),
        annotations: [
            ("katalyst.kubewharf.io/qos_level".to_owned(), LEVELS[level].to_owned()),
            ("katalyst.kubewharf.io/memory_enhancement".to_owned(), WISHES[wishes].to_owned()),
            ("example.org/large".to_owned(), "decides nothing".to_owned()),
        ]
        .into(),
        priority: (pod == 5).then_some(2_000_000_000),
        class: Class::Guaranteed,
        request: milli.map(MilliCpu),
        request_source: RequestSource::SandboxResources,
        stage: Stage::Sandbox,
        now_unix_ms: 1000,
    }
}

fn whole(pod: u8, level: usize, wishes: usize, cpus: u64, gib: u64) -> PodRequest {
    let levels =
        [QosLevel::Dedicated, QosLevel::Dedicated, QosLevel::Shared, QosLevel::Reclaimed, QosLevel::System];
    let named: &[(&str, &str)] = match wishes {
        0 => &[],
        1 => &[("numa_binding", "true")],
        2 => &[("numa_binding", "true"), ("numa_exclusive", "true")],
        _ => &[("cpuset_pool", "batch")],
    };
    let app = Asked {
        name: "app".into(),
        role: Role::App,
        cpu: Some(MilliCpu::cpus(cpus)).filter(|cpu| cpu.0 > 0),
        limit: None,
        memory: Some(Bytes(gib << 30)).filter(|bytes| bytes.0 > 0),
        huge_pages: [(Bytes(2 << 20), Bytes(gib << 20))].into_iter().filter(|_| gib % 2 == 1).collect(),
    };
    let init = Asked { name: "init".into(), role: Role::Init, ..app.clone() };
    PodRequest {
        kept_labels: [("team".to_owned(), "blue".to_owned())].into(),
        plugins: oxalyst_planner::pods::Plugins::default(),
        uid: pod.to_string(),
        sandbox_id: format!("s{pod}"),
        namespace: "ns".into(),
        name: format!("pod-{pod}"),
        qos: levels[level],
        class: Class::Guaranteed,
        wishes: named.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        node_agent: false,
        told: Told::default(),
        flags: BTreeSet::new(),
        containers: vec![init, app],
        now_unix_ms: 2000,
    }
}

pub fn rules() -> impl Strategy<Value = Rules> {
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
                preference: if packing {
                    Preference::DynamicPacking { threshold: 0.3 }
                } else {
                    Preference::Spreading
                },
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
    (policy, topology, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(cpu_policy, topology, of_pod, closest, confined)| Rules {
            cpu_policy,
            topology,
            scope: if of_pod { Scope::Pod } else { Scope::Container },
            prefer_closest: closest,
            root: confined.then(|| "0-13".parse().unwrap()),
            memory_reserved: [(1, Bytes(1 << 30))].into(),
            ..Rules::default()
        },
    )
}

/// 16 CPUs, 8 cores, 4 NUMA nodes, 2 sockets.
pub fn machine(offline: &[u32]) -> Machine {
    let cpu = |id: u32| Cpu { id, core: id % 8, socket: id % 8 / 4, numa: id % 8 / 2, l3: Some(id % 8 / 2) };
    let rows = [[10, 12, 21, 21], [12, 10, 21, 21], [21, 21, 10, 12], [21, 21, 12, 10]];
    let node = |id: u32| NumaNode {
        memory: Some(Bytes(16 << 30)),
        huge_pages: [(Bytes(2 << 20), Bytes(4 << 20))].into(),
        distances: rows[id as usize].to_vec(),
        ..NumaNode::new(id)
    };
    let machine = Machine::new((0..16).map(cpu).collect(), (0..4).map(node).collect()).unwrap();
    machine.with_offline(&offline.iter().copied().collect())
}
