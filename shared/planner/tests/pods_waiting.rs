//! What holds of pods that have lost their CPUs: they are placed anew where there is room, else they wait, and waiting costs nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use oxalyst_planner::{
    plan::Flag,
    pods::{
        Asked, Class, CpuPolicy, Native, Plan, PodRequest, Request, Role, Rules, State, Told, placements,
        plan, promote, record,
    },
    policy::{ContainerId, Options},
    topology_manager::Policy,
};
use oxalyst_qos::QosLevel;
use oxalyst_topology::{Cpu, CpuSet, Machine, NumaNode};
use oxalyst_units::{Bytes, MilliCpu};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// What is said of a pod that has lost its CPUs or its NUMA node.
const LOST: [Flag; 2] = [Flag::CpuOffline, Flag::NumaBindingLost];

/// 16 CPUs, 8 cores, 4 NUMA nodes of 8 GiB, 2 sockets.
fn machine(offline: &[u32]) -> Machine {
    let cpu = |id: u32| Cpu { id, core: id % 8, socket: id % 8 / 4, numa: id % 8 / 2, l3: Some(id % 8 / 2) };
    let node = |id| NumaNode { memory: Some(Bytes(8 << 30)), ..NumaNode::new(id) };
    let machine = Machine::new((0..16).map(cpu).collect(), (0..4).map(node).collect()).unwrap();
    machine.with_offline(&offline.iter().copied().collect())
}

/// A pod by its level, whether it is to be bound, and the CPUs and memory of each container.
type Drawn = (bool, bool, Vec<(u64, u64)>);

fn pod(uid: usize, (dedicated, bound, containers): &Drawn) -> PodRequest {
    let asked = |(index, (cpus, gib)): (usize, &(u64, u64))| Asked {
        name: format!("c{index}"),
        role: Role::App,
        cpu: Some(MilliCpu::cpus(*cpus)),
        limit: None,
        memory: Some(Bytes(gib << 30)).filter(|bytes| bytes.0 > 0),
        huge_pages: [].into(),
    };
    let wishes: &[(&str, &str)] = if *bound { &[("numa_binding", "true")] } else { &[] };
    PodRequest {
        plugins: oxalyst_planner::pods::Plugins::default(),
        uid: uid.to_string(),
        sandbox_id: format!("s{uid}"),
        namespace: "ns".into(),
        name: uid.to_string(),
        qos: if *dedicated { QosLevel::Dedicated } else { QosLevel::Shared },
        class: if *dedicated { Class::Guaranteed } else { Class::Burstable },
        kept_labels: [].into(),
        wishes: wishes.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        node_agent: false,
        told: Told::default(),
        flags: BTreeSet::new(),
        containers: containers.iter().enumerate().map(asked).collect(),
        now_unix_ms: uid as i64,
    }
}

fn rules() -> impl Strategy<Value = Rules> {
    let dynamic = CpuPolicy::Dynamic(Options { serve_all: true, ..Options::default() });
    let policies = vec![dynamic, CpuPolicy::Native(Native::default())];
    let topologies = vec![Policy::BestEffort, Policy::Restricted, Policy::SingleNumaNode];
    (prop::sample::select(policies), prop::sample::select(topologies))
        .prop_map(|(cpu_policy, topology)| Rules { cpu_policy, topology, ..Rules::default() })
}

/// Whole NUMA nodes, and some CPUs more.
fn offline() -> impl Strategy<Value = Vec<u32>> {
    let nodes = prop::sample::subsequence(vec![0u32, 1, 2, 3], 0..4);
    (nodes, prop::collection::vec(0u32..16, 0..3)).prop_map(|(nodes, mut more)| {
        more.extend((0..16).filter(|cpu| nodes.contains(&(cpu % 8 / 2))));
        more.truncate(15);
        more
    })
}

fn flagged(state: &State, flags: &[Flag]) -> BTreeSet<String> {
    let which = state.pods.iter().filter(|(_, pod)| flags.iter().any(|flag| pod.flags.contains(flag)));
    which.map(|(uid, _)| uid.clone()).collect()
}

/// Containers that run on CPUs of others because their own are gone.
fn starved(state: &State, machine: &Machine) -> BTreeSet<(String, String)> {
    let containers = placements(state, machine)
        .into_iter()
        .flat_map(|(uid, pod)| pod.containers.into_iter().map(move |container| (uid.clone(), container)));
    let starved = containers.filter(|(_, container)| container.flags.contains(&Flag::PoolEmpty));
    starved.map(|(uid, container)| (uid, container.name)).collect()
}

/// What a ledger has of it, read anew.
fn read_anew(
    records: &mut BTreeMap<String, Vec<u8>>,
    plan: &Plan,
    machine: &Machine,
    rules: &Rules,
) -> State {
    for record::Change { key, value } in record::changes(plan, rules) {
        match value {
            Some(bytes) => drop(records.insert(key, bytes)),
            None => drop(records.remove(&key)),
        }
    }
    let records = records.iter().map(|(key, bytes)| (key.as_str(), bytes.as_slice()));
    let (state, faults) = record::load(records, machine, rules, CpuSet::new());
    assert!(faults.is_empty());
    state
}

/// Nobody moves or is left without CPUs; who waits on is as before, to the last field but the CPUs of its pool.
fn check_promoted(before: &State, after: &State, machine: &Machine) -> Result<(), TestCaseError> {
    let ids = |state: &State| state.cpus.containers.iter().map(|(id, _)| id.clone()).collect::<Vec<_>>();
    prop_assert_eq!(ids(before), ids(after));
    let with_memory = |state: &State| -> Vec<ContainerId> {
        state.memory.containers.iter().map(|(id, _)| id.clone()).collect()
    };
    prop_assert_eq!(with_memory(before), with_memory(after));
    for (uid, was) in &before.pods {
        let is = after.pods.get(uid).expect("no pod is lost");
        prop_assert_eq!(&was.containers, &is.containers, "of {}", uid);
        for container in &was.containers {
            let id = ContainerId::new(uid.as_str(), container.name.as_str());
            let (old, new) =
                (before.cpus.containers.get(&id).unwrap(), after.cpus.containers.get(&id).unwrap());
            if old.qos == QosLevel::Dedicated {
                prop_assert_eq!(old, new, "{:?} has been moved", id);
            }
            if was.flags == is.flags && new.qos != QosLevel::Dedicated {
                let mut waiting = (**new).clone();
                waiting.cpus.clone_from(&old.cpus);
                prop_assert_eq!(&**old, &waiting, "{:?}", id);
                let of = |state: &State| {
                    let own = state.memory.containers.get(&id).unwrap();
                    (own.qos, own.request.clone(), own.taken.clone(), own.bound_to.clone())
                };
                prop_assert_eq!(of(before), of(after), "{:?}", id);
            }
        }
        if was.flags == is.flags {
            prop_assert_eq!(was.served, is.served);
        }
    }
    let (left, known) = (starved(after, machine), starved(before, machine));
    prop_assert!(left.is_subset(&known), "{:?} are left without CPUs", &left - &known);
    Ok(())
}

/// Whoever waits for CPUs of its own, or for its NUMA node, would be refused if it came now.
fn nobody_waits_where_there_is_room(
    state: &State,
    machine: &Machine,
    rules: &Rules,
) -> Result<(), TestCaseError> {
    for uid in flagged(state, &LOST) {
        let pod = state.pods.get(&uid).unwrap();
        let has_own = |name: &str| {
            let own = state.cpus.containers.get(&ContainerId::new(uid.as_str(), name)).unwrap();
            own.qos == QosLevel::Dedicated
        };
        if pod.containers.iter().any(|own| has_own(&own.name)) {
            // Containers that have their CPUs would give them away for the others if all came anew.
            continue;
        }
        let gone = plan(state, machine, rules, &Request::Remove { uid: uid.clone() }).unwrap().after;
        let again = PodRequest {
            plugins: oxalyst_planner::pods::Plugins::default(),
            uid: pod.uid.clone(),
            sandbox_id: pod.sandbox_id.clone(),
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            qos: pod.qos,
            class: pod.class,
            kept_labels: [].into(),
            wishes: pod.wishes.clone(),
            node_agent: false,
            told: pod.told.clone(),
            flags: BTreeSet::new(),
            containers: pod.containers.clone(),
            now_unix_ms: pod.since_unix_ms,
        };
        let Ok(served) = plan(&gone, machine, rules, &Request::Admit(again)) else { continue };
        // A shared pod that is not bound always has room: it is its node that it waits for.
        let is_served = served.after.pods.get(&uid).unwrap().served == pod.qos;
        prop_assert!(!is_served, "{} waits, and would be served if it came now", uid);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    #[test]
    fn who_lost_its_cpus_is_placed_anew_where_there_is_room_and_else_waits_as_it_is(
        rules in rules(),
        pods in prop::collection::vec((prop::bool::weighted(0.7), any::<bool>(), prop::collection::vec((1u64..5, 0u64..4), 1..3)), 1..7),
        worlds in prop::collection::vec((offline(), prop::option::of(0usize..7)), 1..5),
    ) {
        let (mut state, _) = record::load(std::iter::empty(), &machine(&[]), &rules, CpuSet::new());
        let mut records = BTreeMap::new();
        for (uid, drawn) in pods.iter().enumerate() {
            if let Ok(plan) = plan(&state, &machine(&[]), &rules, &Request::Admit(pod(uid, drawn))) {
                state = read_anew(&mut records, &plan, &machine(&[]), &rules);
            }
        }
        for (offline, gone) in worlds {
            let machine = machine(&offline);
            let taken_up = plan(&state, &machine, &rules, &Request::TakeUp { reserved: None }).unwrap();
            state = read_anew(&mut records, &taken_up, &machine, &rules);
            prop_assert_eq!(&state, &taken_up.after);
            let nowhere = state.cpus.containers.of_kind(|own| own.qos == QosLevel::Dedicated && own.cpus.is_disjoint(machine.online()));
            let nowhere: Vec<_> = nowhere.map(|(id, _)| id).collect();
            prop_assert!(nowhere.is_empty(), "{:?} have nothing left and are nowhere else", nowhere);
            let resting = promote(&state, &machine, &rules).after;
            let left = flagged(&resting, &LOST);
            prop_assert_eq!(&resting, &promote(&resting, &machine, &rules).after, "who waited could have been served at once");
            nobody_waits_where_there_is_room(&resting, &machine, &rules)?;
            prop_assert!(left.is_subset(&flagged(&state, &LOST)), "{:?} have lost their CPUs by a promotion", left);
            if let Some(uid) = gone {
                let removed = plan(&state, &machine, &rules, &Request::Remove { uid: uid.to_string() }).unwrap();
                state = read_anew(&mut records, &removed, &machine, &rules);
            }
            let promoted = promote(&state, &machine, &rules);
            prop_assert_eq!(&promoted, &promote(&state, &machine, &rules));
            check_promoted(&state, &promoted.after, &machine)?;
            state = read_anew(&mut records, &promoted, &machine, &rules);
            prop_assert_eq!(&state, &promoted.after);
        }
    }
}
