//! What holds of one pod that is resized again and again beside others.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use oxalyst_planner::{
    plan::NativeOption,
    pods::{
        Asked, Class, CpuPolicy, Native, PodRequest, Request, Resize, Role, Rules, State, Told,
        free_per_node, placement_of, plan, record,
    },
    policy::Options,
};
use oxalyst_qos::QosLevel;
use oxalyst_topology::{Cpu, CpuSet, Machine, NumaNode};
use oxalyst_units::{Bytes, MilliCpu};
use proptest::prelude::*;
use std::collections::BTreeSet;

/// 32 CPUs, 16 cores, 4 NUMA nodes, 2 sockets.
fn machine() -> Machine {
    let cpu =
        |id: u32| Cpu { id, core: id % 16, socket: id % 16 / 8, numa: id % 16 / 4, l3: Some(id % 16 / 4) };
    let node = |id: u32| NumaNode { memory: Some(Bytes(16 << 30)), ..NumaNode::new(id) };
    Machine::new((0..32).map(cpu).collect(), (0..4).map(node).collect()).unwrap()
}

fn pod(uid: &str, cpus: u64, bound: bool) -> PodRequest {
    let wishes: &[(&str, &str)] = if bound { &[("numa_binding", "true")] } else { &[] };
    let cpu = Some(MilliCpu::cpus(cpus));
    PodRequest {
        kept_labels: [].into(),
        plugins: oxalyst_planner::pods::Plugins::default(),
        uid: uid.into(),
        sandbox_id: format!("{uid}-1"),
        namespace: "ns".into(),
        name: uid.into(),
        qos: QosLevel::Dedicated,
        class: Class::Guaranteed,
        wishes: wishes.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        node_agent: false,
        told: Told::default(),
        flags: BTreeSet::new(),
        containers: vec![Asked {
            name: "app".into(),
            role: Role::App,
            cpu,
            limit: cpu,
            memory: None,
            huge_pages: [].into(),
        }],
        now_unix_ms: 0,
    }
}

fn rules() -> impl Strategy<Value = Rules> {
    let options = Options { serve_all: true, ..Options::default() };
    let native = |option| CpuPolicy::Native(Native { option, full_cores: false });
    let policies = vec![
        CpuPolicy::Dynamic(options),
        native(NativeOption::Packed),
        native(NativeOption::Distributed { group: 1 }),
    ];
    prop::sample::select(policies).prop_map(|cpu_policy| Rules { cpu_policy, ..Rules::default() })
}

fn cpus(state: &State, machine: &Machine, uid: &str) -> CpuSet {
    placement_of(state, machine, uid).unwrap().containers.remove(0).cpus
}

fn free(state: &State, machine: &Machine) -> usize {
    free_per_node(state, machine).iter().map(|node| node.cpus.len()).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Growing keeps every CPU that there is, and shrinking those of the first admission for as long as it can; what is free
    /// changes by exactly the difference, and nobody else's set moves. A refusal changes nothing, and is one of room.
    #[test]
    fn a25_whatever_it_is_resized_to_it_keeps_what_it_must(
        rules in rules(),
        bound in any::<bool>(),
        first in 1u64..6,
        beside in 1u64..6,
        gone in 0u64..6,
        sizes in prop::collection::vec(1u64..12, 1..12),
    ) {
        let machine = machine();
        let (mut state, _) = record::load(std::iter::empty(), &machine, &rules, "0".parse().unwrap());
        // What a pod before it had comes free, so that what it grows by may have lower ids than what it began with.
        let before = (gone > 0).then(|| pod("gone", gone, bound));
        for request in before.into_iter().chain([pod("a", first, bound), pod("b", beside, false)]) {
            state = plan(&state, &machine, &rules, &Request::Admit(request)).unwrap().after;
        }
        state = plan(&state, &machine, &rules, &Request::Remove { uid: "gone".into() }).unwrap().after;
        let (baseline, other) = (cpus(&state, &machine, "a"), cpus(&state, &machine, "b"));
        prop_assert_eq!(baseline.len() as u64, first);
        for size in sizes {
            let (was, free_before) = (cpus(&state, &machine, "a"), free(&state, &machine));
            let cpu = Some(MilliCpu::cpus(size));
            let resize = Resize { uid: "a".into(), container: "app".into(), cpu, limit: None, memory: None };
            let after = match plan(&state, &machine, &rules, &Request::Resize(resize)) {
                Ok(plan) => plan.after,
                Err(refusal) => {
                    let stays = bound && matches!(rules.cpu_policy, CpuPolicy::Dynamic(_));
                    let nodes = machine.nodes_of(&was);
                    let near = free_per_node(&state, &machine).into_iter();
                    let near = near.filter(|node| !stays || nodes.contains(node.node));
                    let room = near.map(|node| node.cpus.len()).sum::<usize>() + was.len();
                    prop_assert!(size > room as u64, "there is room for {}: {}", room, refusal);
                    continue;
                }
            };
            let is = cpus(&after, &machine, "a");
            prop_assert_eq!(is.len() as u64, size);
            prop_assert!(was.is_subset(&is) || is.is_subset(&was), "{} became {}", was, is);
            let kept = &was & &baseline;
            prop_assert!(kept.is_subset(&is) || is.is_subset(&kept), "{} of {} had to stay, not {}", kept, was, is);
            prop_assert_eq!(free_before + was.len(), free(&after, &machine) + is.len());
            prop_assert_eq!(&cpus(&after, &machine, "b"), &other);
            if bound && matches!(rules.cpu_policy, CpuPolicy::Dynamic(_)) {
                prop_assert_eq!(machine.nodes_of(&is), machine.nodes_of(&baseline));
            }
            state = after;
        }
    }
}
