//! What holds of pods of which only their sandboxes are known, after any sequence of admissions and releases.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
// `Node` holds the plans that it hands back.
#![allow(unused_must_use)]

mod pods_support;

use oxalyst_planner::plan::{Flag, L3, Reason, Stage, take_by_topology};
use oxalyst_planner::pods::{self, RunningSandbox, SandboxRequest, State, placements};
use oxalyst_topology::{CpuSet, Machine};
use pods_support::*;
use proptest::{collection::vec, option, prelude::*, sample::select};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug)]
enum Step {
    Admit(SandboxRequest),
    Release {
        uid: String,
        sandbox_id: String,
    },
    /// The end of ramp-up.
    Elapse,
}

fn machines() -> impl Strategy<Value = (Machine, &'static str)> {
    let plain = sixteen_cpus();
    select(vec![
        (two_cpus(), ""),
        (two_cpus(), "0"),
        (plain.clone(), ""),
        (plain.clone(), "0,8"),
        (plain.clone().with_isolated(&set("3,11")), "0-1"),
        (plain.with_offline(&set("5,6,14")), "0-3"),
        (sixteen_cpus_without_memory(&[1, 2]), ""),
        (sixteen_cpus_without_memory(&[0, 1, 2, 3]), ""),
    ])
}

fn requests() -> impl Strategy<Value = SandboxRequest> {
    let levels =
        select(vec!["shared_cores", "dedicated_cores", "reclaimed_cores", "system_cores", "gold_cores"]);
    let uids = select(vec!["a", "b", "c", "d", "e", "f", "g", "h"]);
    let stages = select(vec![Stage::Sandbox, Stage::Container]);
    (uids, 1..3u32, levels, option::of(0..6000u64), any::<bool>(), prop::bool::weighted(0.2), stages)
        .prop_map(|(uid, sandbox, level, milli_cpu, is_bound, is_daemon, stage)| {
            let request = in_sandbox(pod(uid, level, milli_cpu), &format!("{uid}-{sandbox}"));
            let request = if is_bound { bound(request) } else { request };
            let request = if is_daemon { daemon(request) } else { request };
            SandboxRequest { stage, ..request }
        })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let release =
        requests().prop_map(|request| Step::Release { uid: request.pod_uid, sandbox_id: request.sandbox_id });
    vec(prop_oneof![6 => requests().prop_map(Step::Admit), 2 => release, 1 => Just(Step::Elapse)], 1..40)
}

fn running() -> impl Strategy<Value = Vec<RunningSandbox>> {
    let cpus = option::of(select(vec!["0", "1", "2-3", "4-6", "0-15"]));
    vec((requests(), cpus).prop_map(|(request, cpus)| RunningSandbox { request, cpus: cpus.map(set) }), 0..12)
}

fn exclusive(state: &State) -> BTreeMap<String, CpuSet> {
    let mut sets: BTreeMap<String, CpuSet> = BTreeMap::new();
    for (id, own) in state.cpus.containers.iter().filter(|(_, own)| own.owner.as_deref() == Some("dedicated"))
    {
        let set = sets.entry(id.pod.to_string()).or_default();
        *set = &*set | &own.cpus;
    }
    sets
}

fn are_disjoint(sets: &BTreeMap<String, CpuSet>) -> bool {
    let union = sets.values().fold(CpuSet::new(), |union, set| union | set);
    union.len() == sets.values().map(CpuSet::len).sum::<usize>()
}

/// Pods whose placement is another one than before.
fn moved(before: &State, after: &State, machine: &Machine) -> BTreeSet<String> {
    let old = placements(before, machine);
    let new = placements(after, machine).into_iter();
    new.filter(|(uid, placement)| old.get(uid) != Some(placement)).map(|(uid, _)| uid).collect()
}

/// The plan's word on whom it moves, with what was said before and what is so afterwards.
fn run(node: &mut Node, step: &Step) -> Option<pods::Plan> {
    let plan = match step {
        Step::Admit(request) => node.plan(request).ok()?,
        Step::Release { uid, sandbox_id } => {
            pods::release(&node.state, &node.machine, &node.rules, uid, sandbox_id)
        }
        Step::Elapse => {
            let elapsed = pods::Request::Elapse { now_unix_ms: 1_000_000 };
            pods::plan(&node.state, &node.machine, &node.rules, &elapsed).unwrap()
        }
    };
    Some(node.hold(plan))
}

/// Every pod has CPUs and memory.
fn nobody_is_without(node: &Node) -> Result<(), TestCaseError> {
    for placed in placements(&node.state, &node.machine).values().flat_map(|placed| &placed.containers) {
        prop_assert!(!placed.cpus.is_empty() && !placed.mems.is_empty(), "{placed:?}");
        prop_assert!(placed.cpus.is_subset(node.machine.online()), "{placed:?}");
    }
    prop_assert!(are_disjoint(&exclusive(&node.state)));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_plan_names_all_whom_it_moves_and_nobody_else((machine, reserved) in machines(), steps in steps()) {
        let mut node = Node::reserving(machine, reserved);
        for step in steps {
            let before = node.state.clone();
            let Some(plan) = run(&mut node, &step) else { continue };
            let moved = moved(&before, &node.state, &node.machine);
            let recorded = plan.pods.iter().filter(|(_, pod)| pod.is_some()).map(|(uid, _)| uid.clone());
            let named: BTreeSet<String> = moved.into_iter().chain(recorded).collect();
            prop_assert_eq!(plan.affected, named, "{:?}", step);
            nobody_is_without(&node)?;
        }
    }

    #[test]
    fn admitting_again_changes_nothing((machine, reserved) in machines(), steps in steps(), request in requests()) {
        let mut node = Node::reserving(machine, reserved);
        steps.iter().for_each(|step| drop(run(&mut node, step)));
        let first = node.plan(&request);
        prop_assert_eq!(&first, &node.plan(&request));
        if let Ok(plan) = first {
            node.hold(plan);
            let again = node.plan(&request).unwrap();
            prop_assert!(again.is_empty(), "{again:?}");
            prop_assert_eq!(&again.after, &node.state);
        }
    }

    #[test]
    fn a_refusal_for_want_of_cpus_tells_the_truth(
        (machine, reserved) in machines(), steps in steps(), request in requests(),
    ) {
        let mut node = Node::reserving(machine, reserved);
        steps.iter().for_each(|step| drop(run(&mut node, step)));
        if let Err(refusal) = node.plan(&request) && refusal.reason == Reason::Insufficient {
            if let Some(asked) = refusal.asked {
                let told = format!("request {} CPU", asked.0 as f64 / 1000.0);
                prop_assert!(refusal.message.contains(&told), "{refusal:?}");
            }
            let free: usize = refusal.free.iter().map(|node| node.cpus.len()).sum();
            let told = if free == 0 { "no CPU is free".to_owned() } else { format!("{free} CPU") };
            prop_assert!(refusal.message.contains(&told), "{refusal:?}");
            prop_assert!(refusal.message.contains("refused because"), "{refusal:?}");
        }
    }

    #[test]
    fn what_runs_is_taken_in_whatever_there_is(
        (machine, reserved) in machines(), steps in steps(), running in running(),
    ) {
        let mut node = Node::reserving(machine, reserved);
        steps.iter().for_each(|step| drop(run(&mut node, step)));
        let before = node.state.clone();
        let plan = node.take_in(&running);
        prop_assert!(moved(&before, &node.state, &node.machine).is_subset(&plan.affected));
        // A silent sandbox may still tell its request; whatever else runs is taken in.
        let silent: BTreeSet<&str> = running
            .iter()
            .filter(|running| running.request.stage == Stage::Sandbox)
            .map(|running| running.request.pod_uid.as_str())
            .collect();
        for uid in running.iter().map(|running| &running.request.pod_uid) {
            prop_assert!(silent.contains(uid.as_str()) || node.state.pods.contains_key(uid), "{uid}");
        }
        let after = exclusive(&node.state);
        for (uid, set) in exclusive(&before) {
            prop_assert_eq!(after.get(&uid), Some(&set), "what was decided stays");
        }
        nobody_is_without(&node)?;
        prop_assert!(node.take_in(&running).is_empty(), "taking in again changes nothing");
    }

    #[test]
    fn who_waits_for_room_gets_it_as_it_wished_and_nobody_loses(
        (machine, reserved) in machines(), steps in steps(), running in running(), leaving in select(vec!["a", "b", "c"]),
    ) {
        let mut node = Node::reserving(machine, reserved);
        steps.iter().for_each(|step| drop(run(&mut node, step)));
        node.take_in(&running);
        for sandbox in 1..3 {
            node.release(leaving, &format!("{leaving}-{sandbox}"));
        }
        let before = node.state.clone();
        let plan = pods::promote(&node.state, &node.machine, &node.rules);
        let plan = node.hold(plan);
        prop_assert!(moved(&before, &node.state, &node.machine).is_subset(&plan.affected));
        let after = exclusive(&node.state);
        for (uid, set) in exclusive(&before) {
            prop_assert_eq!(after.get(&uid), Some(&set));
        }
        for uid in after.keys().filter(|uid| !exclusive(&before).contains_key(*uid)) {
            let pod = node.state.pods.get(uid).unwrap();
            prop_assert!(!pod.flags.contains(&Flag::AdoptedWithoutRoom) && !pod.flags.contains(&Flag::CpuOffline));
        }
        nobody_is_without(&node)?;
        prop_assert!(pods::promote(&node.state, &node.machine, &node.rules).is_empty());
    }

    #[test]
    fn cpus_that_go_offline_leave_nobody_without(
        (machine, reserved) in machines(), steps in steps(), offline in vec(0..16u32, 0..14), newly in vec(0..16u32, 0..4),
    ) {
        let mut node = Node::reserving(machine, reserved);
        steps.iter().for_each(|step| drop(run(&mut node, step)));
        let before = exclusive(&node.state);
        node.machine = node.machine.with_offline(&offline.into_iter().collect());
        prop_assume!(!node.machine.online().is_empty());
        node.state.cpus.reserved = newly.into_iter().collect();
        node.replan();
        let after = exclusive(&node.state);
        for (uid, set) in before.iter().filter(|(_, set)| !set.is_disjoint(node.machine.online())) {
            prop_assert_eq!(after.get(uid), Some(set), "what is online of a set is kept");
        }
        nobody_is_without(&node)?;
        let again = pods::replan(&node.state, &node.machine, &node.rules);
        prop_assert_eq!(&again.after, &node.state, "planning again changes nothing");
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
