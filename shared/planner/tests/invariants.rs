//! What holds after any sequence of admissions and releases.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
// `Node` applies the plans that it hands back.
#![allow(unused_must_use)]

mod support;

use oxalyst_planner::plan::{
    Flag, L3, Placement, PoolName, Reason, Request, Running, Stage, State, adopt, placements, replan,
    take_by_topology,
};
use oxalyst_topology::{CpuSet, Machine};
use oxalyst_units::MilliCpu;
use proptest::{collection::vec, option, prelude::*, sample::select};
use std::collections::{BTreeMap, BTreeSet};
use support::*;

#[derive(Clone, Debug)]
enum Step {
    Admit(Request),
    Release { uid: String, sandbox_id: String },
}

fn machines() -> impl Strategy<Value = (Machine, CpuSet)> {
    let plain = sixteen_cpus();
    select(vec![
        (two_cpus(), set("")),
        (two_cpus(), set("0")),
        (plain.clone(), set("")),
        (plain.clone(), set("0,8")),
        (plain.clone().with_isolated(&set("3,11")), set("0-1")),
        (plain.clone().with_isolated(&set("1-15")), set("1")),
        (plain.with_offline(&set("5,6,14")), set("0-3")),
        (sixteen_cpus_without_memory(&[1, 2]), set("")),
        (sixteen_cpus_without_memory(&[0, 1, 2, 3]), set("")),
    ])
}

fn requests() -> impl Strategy<Value = Request> {
    let levels =
        select(vec!["shared_cores", "dedicated_cores", "reclaimed_cores", "system_cores", "gold_cores"]);
    let uids = select(vec!["a", "b", "c", "d", "e", "f", "g", "h"]);
    let stages = select(vec![Stage::Sandbox, Stage::Container]);
    (uids, 1..3u32, levels, option::of(0..6000u64), any::<bool>(), prop::bool::weighted(0.2), stages)
        .prop_map(|(uid, sandbox, level, milli_cpu, is_bound, is_daemon, stage)| {
            let request = in_sandbox(pod(uid, level, milli_cpu), &format!("{uid}-{sandbox}"));
            let request = if is_bound { bound(request) } else { request };
            let request = if is_daemon { daemon(request) } else { request };
            Request { stage, ..request }
        })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let release =
        requests().prop_map(|request| Step::Release { uid: request.pod_uid, sandbox_id: request.sandbox_id });
    vec(prop_oneof![3 => requests().prop_map(Step::Admit), 1 => release], 1..40)
}

fn exclusive(state: &State) -> BTreeMap<&str, &CpuSet> {
    let sets = state.pods.iter().filter_map(|(uid, entry)| match &entry.placement {
        Placement::Exclusive { cpus, .. } => Some((uid.as_str(), cpus)),
        _ => None,
    });
    sets.collect()
}

/// The union, if no CPU is in two of them.
fn disjoint_union<'a>(sets: impl IntoIterator<Item = &'a CpuSet>) -> Option<CpuSet> {
    sets.into_iter().try_fold(CpuSet::new(), |union, set| union.is_disjoint(set).then(|| union | set))
}

fn check(node: &Node) -> Result<(), TestCaseError> {
    let sets = exclusive(&node.state);
    let exclusive = disjoint_union(sets.values().copied()).expect("exclusive sets are disjoint");
    let (share, reserve) = (node.pool(PoolName::Share), node.pool(PoolName::Reserve));
    prop_assert_eq!(&node.pool(PoolName::Reclaim), &share);
    let parts = disjoint_union([&exclusive, &share, &reserve, node.machine.isolated()]);
    prop_assert_eq!(parts.as_ref(), Some(node.machine.online()), "a partition of the online CPUs");
    for placement in placements(&node.state, &node.machine) {
        prop_assert!(!placement.cpus.is_empty() && !placement.mems.is_empty(), "{placement:?}");
        prop_assert!(placement.cpus.is_subset(node.machine.online()), "{placement:?}");
        if placement.exclusive {
            prop_assert_eq!(Some(&&placement.cpus), sets.get(placement.uid.as_str()));
            prop_assert_eq!(Some(placement.cpus.len() as u64), placement.request.map(MilliCpu::ceil_cpus));
        } else if placement.pool != Some(PoolName::System)
            && !placement.flags.contains(&Flag::NodeAgentOverlaps)
        {
            prop_assert!(placement.cpus.is_disjoint(&exclusive), "{placement:?}");
        }
        prop_assert!(
            !placement.flags.contains(&Flag::PoolEmpty) || placement.pool == Some(PoolName::Reserve)
        );
    }
    Ok(())
}

/// Pods whose placement is another one than before.
fn moved(before: &State, after: &State, machine: &Machine) -> BTreeSet<String> {
    let old = placements(before, machine);
    let new = placements(after, machine).into_iter().filter(|placement| !old.contains(placement));
    new.map(|placement| placement.uid).collect()
}

fn run(node: &mut Node, step: &Step) {
    match step {
        Step::Admit(request) => {
            if let Ok(plan) = node.plan(request) {
                node.state.apply(&plan);
            }
        }
        Step::Release { uid, sandbox_id } => drop(node.release(uid, sandbox_id)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_cpus_stay_divided_and_nobody_is_without((machine, reserved) in machines(), steps in steps()) {
        let mut node = Node { machine, state: State::new(reserved) };
        for step in steps {
            run(&mut node, &step);
            check(&node)?;
        }
    }

    #[test]
    fn a_plan_names_exactly_the_pods_that_it_moves((machine, reserved) in machines(), steps in steps()) {
        let mut node = Node { machine, state: State::new(reserved) };
        for step in steps {
            let before = node.state.clone();
            let affected = match &step {
                Step::Admit(request) => match node.plan(request) {
                    Ok(plan) => { node.state.apply(&plan); plan.affected }
                    Err(_) => BTreeSet::new(),
                },
                Step::Release { uid, sandbox_id } => node.release(uid, sandbox_id).affected,
            };
            prop_assert_eq!(affected, moved(&before, &node.state, &node.machine), "{:?}", step);
        }
    }

    #[test]
    fn admitting_again_changes_nothing((machine, reserved) in machines(), steps in steps(), request in requests()) {
        let mut node = Node { machine, state: State::new(reserved) };
        steps.iter().for_each(|step| run(&mut node, step));
        let first = node.plan(&request);
        prop_assert_eq!(&first, &node.plan(&request));
        if let Ok(plan) = first {
            node.state.apply(&plan);
            let again = node.plan(&request).unwrap();
            prop_assert!(again.is_empty() && again.affected.is_empty() && again.retired.is_empty(), "{again:?}");
        }
    }

    #[test]
    fn releasing_what_was_admitted_gives_everything_back(
        (machine, reserved) in machines(), steps in steps(), request in requests(),
    ) {
        let mut node = Node { machine, state: State::new(reserved) };
        steps.iter().for_each(|step| run(&mut node, step));
        let before = node.state.clone();
        prop_assume!(!before.pods.contains_key(&request.pod_uid));
        if let Ok(plan) = node.plan(&request) {
            node.state.apply(&plan);
            let released = node.release(&request.pod_uid, &request.sandbox_id);
            prop_assert!(released.removes(&request.pod_uid));
            prop_assert_eq!(&node.state.pods, &before.pods);
            prop_assert_eq!(placements(&node.state, &node.machine), placements(&before, &node.machine));
            prop_assert_eq!(node.refusal(&request).reason, Reason::Expired);
        }
    }

    #[test]
    fn a_refusal_for_want_of_cpus_tells_the_truth(
        (machine, reserved) in machines(), steps in steps(), request in requests(),
    ) {
        let mut node = Node { machine, state: State::new(reserved) };
        steps.iter().for_each(|step| run(&mut node, step));
        if let Err(refusal) = node.plan(&request) && refusal.reason == Reason::Insufficient {
            let free: usize = refusal.free.iter().map(|node| node.cpus.len()).sum();
            let need = refusal.asked.map_or(0, |asked| asked.ceil_cpus() as usize);
            // All that is free is too little, or is all that is left for the others.
            prop_assert!(free == 0 || need >= free, "{refusal:?}");
            if let Some(asked) = refusal.asked {
                let told = format!("request {} CPU", asked.0 as f64 / 1000.0);
                prop_assert!(refusal.message.contains(&told), "{refusal:?}");
            }
        }
    }

    #[test]
    fn what_runs_is_taken_in_whatever_there_is(
        (machine, reserved) in machines(), steps in steps(),
        running in vec((requests(), option::of(select(vec!["0", "1", "2-3", "4-6", "0-15"]))), 0..12),
    ) {
        let mut node = Node { machine, state: State::new(reserved) };
        steps.iter().for_each(|step| run(&mut node, step));
        let before = node.state.clone();
        let running: Vec<_> = running
            .into_iter()
            .map(|(request, cpus)| Running { request, cpus: cpus.map(set) })
            .collect();
        let plan = adopt(&node.state, &node.machine, &running);
        node.state.apply(&plan);
        prop_assert_eq!(&plan.affected, &moved(&before, &node.state, &node.machine));
        for running in &running {
            prop_assert!(node.state.pods.contains_key(&running.request.pod_uid));
        }
        for (uid, entry) in &before.pods {
            // What was decided stays, and what was open may be decided.
            let after = &node.state.pods[uid];
            prop_assert!(entry.is_open() || entry.placement == after.placement);
        }
        prop_assert!(disjoint_union(exclusive(&node.state).into_values()).is_some());
        for placement in placements(&node.state, &node.machine) {
            prop_assert!(!placement.cpus.is_empty() && !placement.mems.is_empty(), "{placement:?}");
        }
        prop_assert!(adopt(&node.state, &node.machine, &running).is_empty(), "taking in again changes nothing");
    }

    #[test]
    fn cpus_that_go_offline_leave_nobody_without(
        (machine, reserved) in machines(), steps in steps(), offline in vec(0..16u32, 0..14), newly in vec(0..16u32, 0..4),
    ) {
        let mut node = Node { machine, state: State::new(reserved) };
        steps.iter().for_each(|step| run(&mut node, step));
        let before = node.state.clone();
        node.machine = node.machine.with_offline(&offline.into_iter().collect());
        prop_assume!(!node.machine.online().is_empty());
        node.state.reserved = newly.into_iter().collect();
        let plan = replan(&node.state, &node.machine);
        node.state.apply(&plan);
        let sets = exclusive(&node.state);
        prop_assert!(disjoint_union(sets.values().copied()).is_some());
        for (uid, set) in exclusive(&before) {
            if !set.is_disjoint(node.machine.online()) {
                prop_assert_eq!(sets.get(uid), Some(&set), "what is online of a set is kept");
            }
        }
        for placement in placements(&node.state, &node.machine) {
            prop_assert!(!placement.cpus.is_empty() && !placement.mems.is_empty(), "{placement:?}");
            prop_assert!(placement.cpus.is_subset(node.machine.online()), "{placement:?}");
        }
        prop_assert!(replan(&node.state, &node.machine).is_empty(), "planning again changes nothing");
    }

    #[test]
    fn what_is_taken_is_of_the_right_size_and_was_available(cpus in vec(0..20u32, 0..20), need in 0..20usize, align in any::<bool>()) {
        let (machine, available) = (sixteen_cpus(), cpus.into_iter().collect::<CpuSet>());
        let l3 = if align { L3::Aligned } else { L3::Ignored };
        let usable = &available & machine.online();
        match take_by_topology(&machine, &available, need, l3) {
            Ok(taken) => prop_assert!(taken.len() == need && taken.is_subset(&usable), "{taken}"),
            Err(error) => prop_assert!(need > usable.len(), "{error}"),
        }
    }
}
