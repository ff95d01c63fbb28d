//! What holds of every choice of CPUs, on machines of whatever shape.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use oxalyst_planner::plan::{End, L3, Spread, take_by_numa_balance, take_by_topology};
use oxalyst_topology::{Cpu, CpuSet, Machine};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Cores of one to four threads, sockets and NUMA nodes of unequal size, ids with gaps, L3 groups known or not.
fn machine() -> impl Strategy<Value = Machine> {
    let core = (1usize..5, 0u32..3, 0u32..4, prop::option::of(0u32..3), 1u32..4);
    prop::collection::vec(core, 1..12).prop_map(|cores| {
        let (mut cpus, mut next) = (Vec::new(), 0);
        for (threads, socket, node, l3, gap) in cores {
            next += gap;
            // A NUMA node lies in one socket.
            let (core, numa) = (next, socket * 4 + node);
            for _ in 0..threads {
                cpus.push(Cpu { id: next, core, socket, numa, l3: l3.map(|l3| numa * 3 + l3) });
                next += 1;
            }
        }
        Machine::from_rows(cpus, &[]).unwrap()
    })
}

/// The machine's groups by some key.
fn groups(machine: &Machine, key: impl Fn(&Cpu) -> u32) -> BTreeMap<u32, CpuSet> {
    let mut groups: BTreeMap<u32, CpuSet> = BTreeMap::new();
    for cpu in machine.cpus() {
        groups.entry(key(cpu)).or_default().insert(cpu.id);
    }
    groups
}

fn whole(groups: &BTreeMap<u32, CpuSet>, of: &CpuSet) -> usize {
    groups.values().filter(|group| group.is_subset(of)).count()
}

fn some_of(machine: &Machine, taken: &[bool]) -> CpuSet {
    let cpus = machine.cpus().iter().zip(taken.iter().cycle());
    cpus.filter(|(_, taken)| !**taken).map(|(cpu, _)| cpu.id).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn take_by_topology_is_exact_repeatable_and_takes_a_whole_socket_or_core_where_one_fits(
        machine in machine(),
        taken in prop::collection::vec(prop::bool::weighted(0.3), 1..40),
        need in 0usize..40,
        aligned in any::<bool>(),
    ) {
        let available = some_of(&machine, &taken);
        let l3 = if aligned { L3::Aligned } else { L3::Ignored };
        let got = take_by_topology(&machine, &available, need, l3);
        prop_assert_eq!(&got, &take_by_topology(&machine, &available, need, l3));
        let Ok(cpus) = got else {
            prop_assert!(need > available.len());
            return Ok(());
        };
        prop_assert!(cpus.len() == need && cpus.is_subset(&available), "{cpus}");
        let fits = |groups: &BTreeMap<u32, CpuSet>| {
            groups.values().any(|group| group.is_subset(&available) && group.len() <= need)
        };
        let sockets = groups(&machine, |cpu| cpu.socket);
        prop_assert!(!fits(&sockets) || whole(&sockets, &cpus) > 0, "no socket in {cpus}");
        let cores = groups(&machine, |cpu| cpu.core);
        prop_assert!(aligned || !fits(&cores) || whole(&cores, &cpus) > 0, "no core in {cpus}");
    }

    #[test]
    fn what_is_taken_by_numa_balance_differs_by_a_core_at_the_most_where_nodes_have_room(
        machine in machine(),
        taken in prop::collection::vec(prop::bool::weighted(0.3), 1..40),
        need in 0usize..40,
        cores in any::<bool>(),
        highest in any::<bool>(),
    ) {
        let available = some_of(&machine, &taken);
        let (spread, end) = (
            if cores { Spread::Cores } else { Spread::Threads },
            if highest { End::Highest } else { End::Lowest },
        );
        let got = take_by_numa_balance(&machine, &available, need, spread, end);
        prop_assert_eq!(&got, &take_by_numa_balance(&machine, &available, need, spread, end));
        let Ok(cpus) = got else {
            prop_assert!(need > available.len());
            return Ok(());
        };
        prop_assert!(cpus.len() == need && cpus.is_subset(&available), "{cpus}");
        if cores {
            return Ok(());
        }
        let of = |set: &CpuSet| machine.nodes().iter().map(|node| (&node.cpus & set).len()).collect::<Vec<_>>();
        let (given, have) = (of(&cpus), of(&available));
        let most = given.iter().copied().max().unwrap_or(0);
        for (given, have) in given.iter().zip(have) {
            prop_assert!(*given == have || given + 1 >= most, "{cpus} of {available}");
        }
        for node in machine.nodes() {
            let (mine, left) = (&node.cpus & &cpus, &(&node.cpus & &available) - &cpus);
            let in_order = match end {
                End::Lowest => mine.last() < left.first() || left.is_empty(),
                End::Highest => left.last() < mine.first() || mine.is_empty(),
            };
            prop_assert!(in_order, "{mine} was taken and {left} left");
        }
    }
}
