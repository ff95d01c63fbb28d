//! Among equal candidates the lowest ids are taken.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use oxalyst_planner::{
    pods::{
        Asked, Class, CpuPolicy, Native, PodRequest, Request, Role, Rules, State, Told, free_per_node,
        placement_of, plan, record,
    },
    policy::Options,
    topology_manager::Policy,
};
use oxalyst_qos::QosLevel;
use oxalyst_topology::{Cpu, CpuSet, Machine};
use oxalyst_units::MilliCpu;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// So many NUMA nodes of so many CPUs in one socket, all as far from each other, without threads: nothing but the ids differs.
fn alike(nodes: u32, cpus: u32) -> Machine {
    let cpu = |id| Cpu { id, core: id, socket: 0, numa: id / cpus, l3: Some(id / cpus) };
    Machine::from_rows((0..nodes * cpus).map(cpu).collect(), &[]).unwrap()
}

fn pod(uid: u8, cpus: u64, bound: bool) -> PodRequest {
    let wishes: &[(&str, &str)] = if bound { &[("numa_binding", "true")] } else { &[] };
    let cpu = Some(MilliCpu::cpus(cpus));
    let asked =
        Asked { name: "app".into(), role: Role::App, cpu, limit: cpu, memory: None, huge_pages: [].into() };
    PodRequest {
        plugins: oxalyst_planner::pods::Plugins::default(),
        uid: uid.to_string(),
        sandbox_id: format!("{uid}-1"),
        namespace: "ns".into(),
        name: uid.to_string(),
        qos: QosLevel::Dedicated,
        class: Class::Guaranteed,
        kept_labels: [].into(),
        wishes: wishes.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        node_agent: false,
        told: Told::default(),
        flags: BTreeSet::new(),
        containers: vec![asked],
        now_unix_ms: 0,
    }
}

fn rules() -> impl Strategy<Value = Rules> {
    let dynamic = CpuPolicy::Dynamic(Options { serve_all: true, ..Options::default() });
    let policies = vec![dynamic, CpuPolicy::Native(Native::default())];
    let topologies = vec![Policy::BestEffort, Policy::Restricted];
    (prop::sample::select(policies), prop::sample::select(topologies))
        .prop_map(|(cpu_policy, topology)| Rules { cpu_policy, topology, ..Rules::default() })
}

fn free(state: &State, machine: &Machine) -> BTreeMap<u32, CpuSet> {
    free_per_node(state, machine).into_iter().map(|node| (node.node, node.cpus)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Of the free CPUs of a NUMA node the lowest, and of nodes of which nothing has been taken the lowest.
    #[test]
    fn of_cpus_and_numa_nodes_that_are_alike_those_of_the_lowest_ids_are_taken(
        rules in rules(),
        (nodes, cpus) in (2u32..6, 2u32..5),
        steps in prop::collection::vec((0u8..6, prop::option::weighted(0.8, (1u64..9, any::<bool>()))), 1..12),
    ) {
        let machine = alike(nodes, cpus);
        let (mut state, _) = record::load(std::iter::empty(), &machine, &rules, CpuSet::new());
        for (uid, size) in steps {
            let known = state.pods.contains_key(&uid.to_string());
            let (Some((size, bound)), false) = (size, known) else {
                let gone = Request::Remove { uid: uid.to_string() };
                state = plan(&state, &machine, &rules, &gone).unwrap().after;
                continue;
            };
            let before = free(&state, &machine);
            let Ok(plan) = plan(&state, &machine, &rules, &Request::Admit(pod(uid, size, bound))) else { continue };
            state = plan.after;
            let own = placement_of(&state, &machine, &uid.to_string()).unwrap().containers.remove(0).cpus;
            let mut untouched = None;
            for (node, free) in before {
                let taken = &own & &free;
                let lowest: CpuSet = free.iter().take(taken.len()).collect();
                prop_assert_eq!(&taken, &lowest, "of {} on node {}", free, node);
                if taken.is_empty() && free.len() == cpus as usize {
                    untouched = untouched.or(Some(node));
                }
                let passed = untouched.filter(|_| !taken.is_empty() && free.len() == cpus as usize);
                prop_assert_eq!(passed, None, "it begins node {} and node {:?} is as free", node, untouched);
            }
        }
    }
}
