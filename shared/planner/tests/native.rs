//! The native policy beyond the vectors: what holds of any choice, hints, lent CPUs, full cores.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use oxalyst_planner::plan::{
    NativeOption, NotEnoughCpus, exclusive_cpus, fills_cores, in_full_cores, native_hints, place_native,
    take_native,
};
use oxalyst_planner::topology_manager::Hint;
use oxalyst_topology::{Cpu, CpuSet, Machine, NumaMask};
use oxalyst_units::MilliCpu;
use proptest::prelude::*;

const OPTIONS: [NativeOption; 3] =
    [NativeOption::Packed, NativeOption::Distributed { group: 1 }, NativeOption::Distributed { group: 2 }];

fn set(text: &str) -> CpuSet {
    text.parse().unwrap()
}

/// `sockets` × `nodes` a socket × `cores` a node, two threads each; threads of a core are neighbours.
fn machine(sockets: u32, nodes: u32, cores: u32) -> Machine {
    let row = |id: u32| {
        let core = id / 2;
        let numa = core / cores;
        Cpu { id, core: core * 2, socket: numa / nodes, numa, l3: None }
    };
    Machine::from_rows((0..sockets * nodes * cores * 2).map(row).collect(), &[]).unwrap()
}

fn hints(list: &[(&str, bool)]) -> Vec<Hint> {
    list.iter().map(|(mask, preferred)| Hint::on(mask.parse().unwrap(), *preferred)).collect()
}

fn of_node(machine: &Machine, id: u32, cpus: &CpuSet) -> usize {
    (&machine.node(id).unwrap().cpus & cpus).len()
}

prop_compose! {
    fn case()(sockets in 1..=2u32, nodes in 1..=4u32, cores in 1..=4u32)(
        available in prop::collection::vec(prop::bool::weighted(0.7), (sockets * nodes * cores * 2) as usize),
        lent in prop::collection::vec(prop::bool::weighted(0.2), (sockets * nodes * cores * 2) as usize),
        need in 0..=(sockets * nodes * cores * 2) as usize,
        machine in Just(machine(sockets, nodes, cores)),
    ) -> (Machine, CpuSet, CpuSet, usize) {
        let chosen = |bits: &[bool]| (0u32..).zip(bits).filter(|(_, bit)| **bit).map(|(id, _)| id).collect::<CpuSet>();
        let lent = chosen(&lent);
        (machine, &chosen(&available) - &lent, lent, need)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn exactly_what_is_needed_out_of_what_is_available((machine, available, _, need) in case()) {
        for option in OPTIONS {
            match take_native(&machine, &available, need, option) {
                Ok(cpus) => {
                    prop_assert_eq!(cpus.len(), need);
                    prop_assert!(cpus.is_subset(&available));
                    prop_assert_eq!(take_native(&machine, &available, need, option), Ok(cpus));
                }
                Err(NotEnoughCpus { .. }) => prop_assert!(need > available.len()),
            }
        }
    }

    #[test]
    fn of_a_free_machine_full_cores_are_taken((machine, _, _, need) in case()) {
        let cores = need / 2 * 2;
        let cpus = take_native(&machine, machine.online(), cores, NativeOption::Packed).unwrap();
        prop_assert_eq!(in_full_cores(&machine, &cpus), cpus);
    }

    #[test]
    fn full_cores_of_what_is_free_can_be_taken_without_splitting_one((machine, available, _, need) in case()) {
        let free = in_full_cores(&machine, &available);
        let need = (need / 2 * 2).min(free.len());
        for option in [NativeOption::Packed, NativeOption::Distributed { group: 2 }] {
            let cpus = take_native(&machine, &free, need, option).unwrap();
            prop_assert_eq!(in_full_cores(&machine, &cpus), cpus);
        }
    }

    #[test]
    fn distributed_shares_of_free_nodes_differ_by_a_group_at_most((machine, _, _, need) in case()) {
        for group in [1, 2] {
            let need = need / group * group;
            let cpus = take_native(&machine, machine.online(), need, NativeOption::Distributed { group }).unwrap();
            let shares = machine.nodes().iter().map(|node| of_node(&machine, node.id, &cpus)).filter(|share| *share > 0);
            let (least, most) = shares.fold((usize::MAX, 0), |(least, most), share| (least.min(share), most.max(share)));
            prop_assert!(need == 0 || most - least <= group, "{}", cpus);
        }
    }

    #[test]
    fn the_nodes_hinted_give_as_much_as_they_can((machine, available, _, need) in case(), mask in 1u64..16) {
        let mask: NumaMask = (0..4).filter(|bit| mask >> bit & 1 == 1).collect();
        let there: usize = mask.iter().filter_map(|id| machine.node(id)).map(|node| (&node.cpus & &available).len()).sum();
        for option in OPTIONS {
            if let Ok(cpus) = place_native(&machine, &available, need, option, Some(&mask)) {
                prop_assert_eq!(cpus.len(), need);
                prop_assert!(cpus.is_subset(&available));
                let hinted: usize = mask.iter().filter(|id| machine.node(*id).is_some()).map(|id| of_node(&machine, id, &cpus)).sum();
                prop_assert_eq!(hinted, need.min(there));
            } else {
                prop_assert!(need > available.len());
            }
        }
    }

    #[test]
    fn hints_hold_what_is_needed_and_there_are_some_if_anything_does((machine, available, lent, need) in case()) {
        let usable = &available | &lent;
        let hints = native_hints(&machine, &available, &lent, need);
        prop_assert_eq!(hints.is_empty(), need > usable.len());
        for hint in &hints {
            let held: usize = hint.mask.iter().flat_map(NumaMask::iter).map(|id| of_node(&machine, id, &usable)).sum();
            prop_assert!(held >= need);
        }
        let sizes: Vec<usize> = hints.iter().filter(|hint| hint.preferred).flat_map(|hint| &hint.mask).map(NumaMask::len).collect();
        prop_assert!(sizes.windows(2).all(|pair| pair[0] == pair[1]));
    }
}

#[test]
fn hints_prefer_the_smallest_size_by_capacity_not_by_what_is_free_5_14() {
    let machine = machine(1, 2, 2);
    // Node 0 has CPUs 0-3, node 1 has 4-7: three CPUs would fit on one node, but no longer do.
    assert_eq!(native_hints(&machine, &set("0-1,4-5"), &set(""), 3), hints(&[("0-1", false)]));
    assert_eq!(native_hints(&machine, &set("0-5"), &set(""), 3), hints(&[("0", true), ("0-1", false)]));
    assert_eq!(native_hints(&machine, &set("0-7"), &set(""), 6), hints(&[("0-1", true)]));
    assert_eq!(native_hints(&machine, &set("0-7"), &set(""), 9), []);
}

#[test]
fn lent_cpus_draw_the_application_to_their_node_5_14() {
    let machine = machine(1, 2, 2);
    let drawn = native_hints(&machine, &set("0-5"), &set("6-7"), 2);
    assert_eq!(drawn, hints(&[("1", true), ("0-1", false)]));
    // Lent on both nodes, and more than either has: no reason to refuse what fits on one.
    let free = native_hints(&machine, &set("0-1,4-5"), &set("2-3,6-7"), 3);
    assert_eq!(free, hints(&[("0", true), ("1", true), ("0-1", false)]));
}

#[test]
fn only_whole_cpus_are_exclusive_5_14() {
    let rows = [(0, None), (500, None), (1000, Some(1)), (1500, None), (4000, Some(4))];
    for (milli, cpus) in rows {
        assert_eq!(exclusive_cpus(MilliCpu(milli)), cpus, "{milli}");
    }
}

#[test]
fn full_physical_cpus_only_refuses_what_splits_a_core_5_14() {
    let machine = machine(1, 1, 2);
    assert_eq!(fills_cores(&machine, 2), Ok(()));
    let refusal = fills_cores(&machine, 3).unwrap_err();
    assert_eq!((refusal.need, refusal.threads), (3, 2));
    assert_eq!(in_full_cores(&machine, &set("0-2")), set("0-1"));
}

#[test]
fn sixteen_nodes_are_hinted_and_shared_out() {
    let machine = machine(2, 8, 2);
    assert_eq!(native_hints(&machine, machine.online(), &set(""), 4).len(), 65_535);
    let cpus = take_native(&machine, machine.online(), 44, NativeOption::Distributed { group: 2 }).unwrap();
    assert_eq!(cpus.len(), 44);
}
