//! Why it was decided so: that it is the truth, that it can be told again byte by byte, and that people can read it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod decision_history;
mod pods_support;

use decision_history::{Happening, happening, machine, rules, step};
use oxalyst_planner::{
    decision::{
        Decided, Decision, DecisionEntry, Given, Recording, RecordingError, Replay, Step, decide,
        encode_frame, opening, page, snapshot,
    },
    plan::{Reason, Refusal, Rule},
    pods::{Rules, State, admit, admit_spec, placement_of, plan, record},
    topology_manager::Policy,
};
use oxalyst_proto::orm::v1::{DecisionRefused, RecordedStep, RecordingHead, recording_frame::Frame};
use oxalyst_topology::{CpuSet, Machine, NumaMask};
use pods_support::{Node, alone, bound, dedicated, shared, sixteen_cpus};
use proptest::prelude::*;
use prost::Message as _;

fn given<'a>(state: &'a State, machine: &'a Machine, rules: &'a Rules) -> Given<'a> {
    Given { state, machine, rules, generation: 7, overruled: None }
}

fn explain(node: &Node, request: &oxalyst_planner::pods::SandboxRequest) -> Decision {
    decide(given(&node.state, &node.machine, &node.rules), &Step::Admit(request.clone())).decision
}

fn recorded(number: u64, step: &Step, decision: Decision) -> Frame {
    Frame::Step(RecordedStep {
        number,
        generation: 7,
        step: Some(step.encode()),
        overruled: None,
        decision: Some(decision),
        envelope: None,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// The explained choice is the plan's, the same bytes come out again, and a recording replays byte by byte.
    #[test]
    fn every_decision_is_the_plan_and_replays(
        rules in rules(),
        happenings in prop::collection::vec(happening(), 1..16),
    ) {
        let mut seen = machine(&[]);
        let (mut state, _) =
            record::load(std::iter::empty(), &seen, &rules, "0".parse().unwrap());
        let mut frames = vec![Frame::Snapshot(snapshot(&state, &seen, &rules))];
        for (number, happening) in (0u64..).zip(&happenings) {
            if let Happening::Online(offline) = happening {
                seen = machine(offline);
                frames.push(Frame::Snapshot(snapshot(&state, &seen, &rules)));
            }
            let step = step(happening, &state);
            let decided = decide(given(&state, &seen, &rules), &step);
            let again = decide(given(&state, &seen, &rules), &step.clone().pared());
            prop_assert_eq!(decided.decision.encode_to_vec(), again.decision.encode_to_vec());
            tells_the_plan(&state, &seen, &rules, &step, &decided)?;
            tells_what_was_weighed(&decided.decision, &rules)?;
            let entry = DecisionEntry { decision: Some(decided.decision.clone()), ..DecisionEntry::default() };
            prop_assert!(!page(&entry, &|_| String::new()).is_empty());
            frames.push(recorded(number, &step, decided.decision));
            if let Some(plan) = decided.plan {
                state = plan.after;
            }
        }
        let recording = Recording { written_by: "a test".into(), frames };
        let read = Recording::decode(&recording.encode()).unwrap();
        prop_assert_eq!(&read, &recording);
        let replay = Replay::of(&read).unwrap();
        prop_assert_eq!(&replay.differences, &[]);
        prop_assert_eq!(replay.steps, happenings.len() as u64);
        prop_assert_eq!(replay.world.state, state);
        prop_assert_eq!(replay.world.machine, seen);
    }
}

fn tells_the_plan(
    state: &State,
    machine: &Machine,
    rules: &Rules,
    step: &Step,
    decided: &Decided,
) -> Result<(), TestCaseError> {
    let outcome = match step {
        Step::Admit(request) => admit(state, machine, rules, request).map(|admission| admission.plan),
        Step::AdmitSpec(pod) => admit_spec(state, machine, rules, pod),
        Step::Whole(request) => plan(state, machine, rules, request),
        _ => return Ok(()),
    };
    let decision = &decided.decision;
    match outcome {
        Err(refusal) => {
            let told = decision.refused.as_ref().expect("a refusal is told");
            prop_assert_eq!(&told.message, &refusal.message);
            prop_assert_eq!(&told.reason, refusal.reason.as_str());
            prop_assert_eq!(&told.rule, refusal.rule.as_str());
            prop_assert!(decided.plan.is_none() && decision.chosen.is_empty());
            let free: Vec<_> = decision.free.iter().map(|free| (free.node, free.cpuset.clone())).collect();
            for node in &refusal.free {
                prop_assert!(free.contains(&(node.node, node.cpus.to_string())), "{:?}", node);
            }
        }
        Ok(plan) => {
            prop_assert!(decision.refused.is_none());
            if decision.outcome == "open" {
                return Ok(());
            }
            prop_assert_eq!(Some(&plan), decided.plan.as_ref());
            let uid = step.pod_uid().unwrap_or_default();
            let seen = rules.confine(machine);
            let placed =
                placement_of(&plan.after, &seen, uid).map(|placed| placed.containers).unwrap_or_default();
            prop_assert_eq!(placed.len(), decision.chosen.len());
            for (own, told) in placed.iter().zip(&decision.chosen) {
                prop_assert_eq!(&own.cpus.to_string(), &told.cpus);
                prop_assert_eq!(&own.mems.to_string(), &told.mems);
                prop_assert_eq!(own.exclusive, told.exclusive);
            }
            if decision.kind == "admit"
                && decision.placed_by.ends_with("numa-bound")
                && decision.outcome == "placed"
            {
                lies_where_it_was_merged(decision, &seen)?;
            }
        }
    }
    Ok(())
}

/// What came out of the merge is where the CPUs then are.
fn lies_where_it_was_merged(decision: &Decision, machine: &Machine) -> Result<(), TestCaseError> {
    let cpu = decision.merges.iter().flat_map(|merge| &merge.resources).find(|told| told.resource == "cpu");
    if let (Some(nodes), Some(own)) = (cpu.and_then(|told| told.chosen.as_ref()), decision.chosen.first()) {
        let nodes: NumaMask = nodes.parse().unwrap();
        let cpus: CpuSet = own.cpus.parse().unwrap();
        prop_assert!(machine.nodes_of(&cpus).is_subset(&nodes), "{} and {}", cpus, nodes);
    }
    Ok(())
}

fn tells_what_was_weighed(decision: &Decision, rules: &Rules) -> Result<(), TestCaseError> {
    // A refusal for want of room says what was looked at, resource by resource.
    let refused = decision.refused.as_ref();
    let is_of_room = |refused: &DecisionRefused| {
        refused.reason != "invalid"
            && matches!(refused.rule.as_str(), "cpu-room" | "memory-room" | "alignment")
    };
    if refused.is_some_and(is_of_room) {
        prop_assert!(decision.merges.iter().any(|merge| !merge.resources.is_empty()), "{:?}", decision);
    }
    for merge in &decision.merges {
        // Of several pods none is refused: who finds no room runs in the shared pool.
        let fell_through = decision.refused.is_some() || !merge.pod_uid.is_empty();
        prop_assert!(merge.admitted.is_some() || fell_through);
        if merge.admitted == Some(false) {
            prop_assert!(fell_through);
            prop_assert_ne!(&rules.topology, &Policy::BestEffort);
        }
        for told in &merge.resources {
            prop_assert!(told.candidates.len() <= 16);
            for candidate in &told.candidates {
                let mask: NumaMask = candidate.nodes.parse().unwrap();
                let chosen: Option<NumaMask> = told.chosen.as_ref().map(|nodes| nodes.parse().unwrap());
                let size = chosen.as_ref().map_or(0, NumaMask::len);
                let holds = match candidate.verdict.as_str() {
                    "chosen" => Some(&mask) == chosen.as_ref(),
                    "holds-chosen" => chosen.as_ref().is_some_and(|chosen| chosen.is_subset(&mask)),
                    "not-preferred" => !candidate.preferred || told.chosen.is_none(),
                    "wider" => mask.len() > size,
                    "narrower" => mask.len() < size,
                    "farther" | "later" => mask.len() == size && Some(&mask) != chosen.as_ref(),
                    "not-shared" => merge.resources.len() > 1,
                    "no-room" | "bound-pods" | "neighbour" | "shared-pods" => {
                        merge.admitted.is_none() && fell_through && told.chosen.is_none()
                    }
                    _ => false,
                };
                prop_assert!(holds, "{:?} of {:?}", candidate, told);
            }
        }
    }
    Ok(())
}

#[test]
fn a_refusal_tells_the_rule_and_what_is_free_on_each_numa_node() {
    let mut node = Node::new(sixteen_cpus());
    drop(node.admit(&bound(dedicated("a", 3))));
    let decision = explain(&node, &bound(dedicated("b", 5)));
    let refused = decision.refused.as_ref().unwrap();
    assert_eq!((refused.reason.as_str(), refused.rule.as_str()), ("insufficient", "cpu-room"));
    let free: Vec<_> =
        decision.free.iter().map(|free| (free.node, free.cpus, free.cpuset.as_str())).collect();
    assert_eq!(free, [(0, 1, "9"), (1, 4, "2-3,10-11"), (2, 4, "4-5,12-13"), (3, 4, "6-7,14-15")]);
}

#[test]
fn what_would_take_the_last_cpu_of_others_is_refused_by_their_rule() {
    let mut node = Node::new(pods_support::two_cpus());
    drop(node.admit(&shared("s")));
    let decision = explain(&node, &dedicated("a", 2));
    assert_eq!(decision.refused.unwrap().rule, "others-keep-cpus");
}

#[test]
fn the_candidates_tell_what_won_and_why_the_others_did_not() {
    let mut node = Node::new(sixteen_cpus());
    drop(node.admit(&bound(dedicated("a", 3))));
    let decision = explain(&node, &bound(dedicated("b", 2)));
    let told = &decision.merges[0].resources[0];
    assert_eq!((told.resource.as_str(), told.chosen.as_deref()), ("cpu", Some("1")));
    let verdicts: Vec<_> =
        told.candidates.iter().map(|c| (c.nodes.as_str(), c.free_cpus, c.verdict.as_str())).collect();
    assert_eq!(verdicts, [("1", 4, "chosen"), ("2", 4, "later"), ("3", 4, "later")]);
    assert_eq!(told.left_out, [("no-room".to_owned(), 12)].into());
    assert_eq!(decision.placed_by, "dedicated-numa-bound");
}

#[test]
fn sixteen_candidates_are_kept_and_the_rest_is_counted() {
    let cpu = |id: u32| oxalyst_topology::Cpu { id, core: id, socket: 0, numa: id / 2, l3: None };
    let node = Node::new(Machine::from_rows((0..12).map(cpu).collect(), &[]).unwrap());
    let decision = explain(&node, &alone(dedicated("a", 2)));
    let told = &decision.merges[0].resources[0];
    assert_eq!(told.candidates.len(), 16);
    // 6 NUMA nodes have 63 sets, and each has room.
    assert_eq!(told.left_out.values().sum::<u64>(), 63 - 16, "{:?}", told.left_out);
    assert!(!told.left_out.contains_key("no-room"));
}

#[test]
fn what_others_have_to_give_is_told() {
    let mut node = Node::new(sixteen_cpus());
    drop(node.admit(&shared("s")));
    let decision = explain(&node, &dedicated("a", 4));
    let other = &decision.affected[0];
    assert_eq!(other.pod_uid, "s");
    let set = |text: &str| text.parse::<CpuSet>().unwrap();
    let own = set(&decision.chosen[0].cpus);
    assert!(!set(&other.cpus_before).is_disjoint(&own) && set(&other.cpus_after).is_disjoint(&own));
}

#[test]
fn a_plan_that_is_overruled_is_a_refusal_and_leads_nowhere() {
    let node = Node::new(sixteen_cpus());
    let refusal = Refusal {
        reason: Reason::Storage,
        rule: Rule::Durable,
        message: "the disk is full".into(),
        asked: None,
        free: Vec::new(),
    };
    let given = Given { overruled: Some(&refusal), ..given(&node.state, &node.machine, &node.rules) };
    let decided = decide(given, &Step::Admit(dedicated("a", 2)));
    assert!(decided.plan.is_none());
    assert_eq!(decided.decision.refused.unwrap().rule, "durable");
}

#[test]
fn people_can_read_it() {
    let mut node = Node::new(sixteen_cpus());
    drop(node.admit(&bound(dedicated("a", 3))));
    let page_of = |decision| {
        let entry = DecisionEntry { decision: Some(decision), ..DecisionEntry::default() };
        page(&entry, &|_| String::new())
    };
    let placed = page_of(explain(&node, &bound(dedicated("b", 2))));
    for part in [
        "pod default/pod-b (uid b): admit placed\n",
        "  asked     dedicated_cores, burstable, 2 CPUs (told by sandbox-resources), numa_binding=true\n",
        "NUMA node 0: 1 CPU (9)\n",
        "nodes 1        preferred     4 CPUs free: chosen\n",
        "12 more: no room\n",
        "  got       all containers: CPUs 2,10 (its own), memory of NUMA nodes 1\n",
    ] {
        assert!(placed.contains(part), "{part:?} is not in\n{placed}");
    }
    let refused = page_of(explain(&node, &bound(dedicated("b", 5))));
    assert!(
        refused.starts_with("pod default/pod-b (uid b): admit refused (insufficient)\n  because   "),
        "{refused}"
    );
}

fn a_recording() -> Recording {
    let node = Node::new(sixteen_cpus());
    let step = Step::Admit(dedicated("a", 2));
    let decision = decide(given(&node.state, &node.machine, &node.rules), &step).decision;
    let frames = vec![
        Frame::Snapshot(snapshot(&node.state, &node.machine, &node.rules)),
        recorded(0, &step, decision),
    ];
    Recording { written_by: "a test".into(), frames }
}

#[test]
fn a_decision_that_is_another_one_now_is_a_difference() {
    let mut recording = a_recording();
    let Frame::Step(step) = &mut recording.frames[1] else { panic!("the second frame is a step") };
    step.decision.as_mut().unwrap().chosen[0].cpus = "3".into();
    let replay = Replay::of(&recording).unwrap();
    assert_eq!(replay.differences.len(), 1);
    assert_eq!(replay.differences[0].recorded.chosen[0].cpus, "3");
    assert_ne!(replay.differences[0].planned.chosen[0].cpus, "3");
}

#[test]
fn a_recording_that_is_cut_off_anywhere_says_so() {
    let bytes = a_recording().encode();
    for end in 0..bytes.len() {
        let error = Recording::decode(&bytes[..end]).unwrap_err();
        let cut = matches!(error, RecordingError::Truncated { .. });
        assert!(cut || end == 0 && matches!(error, RecordingError::Foreign), "{end}: {error}");
    }
}

#[test]
fn a_recording_with_any_byte_changed_is_refused() {
    let bytes = a_recording().encode();
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 0x10;
        assert!(Recording::decode(&changed).is_err(), "byte {at}");
    }
}

#[test]
fn a_recording_of_a_later_version_says_so_whatever_follows() {
    let head = RecordingHead { version: 2, written_by: "oxctl 9".into() };
    let name =
        opening("").iter().copied().take_while(|byte| *byte != b'\n').chain([b'\n']).collect::<Vec<u8>>();
    let bytes = [name, encode_frame(Frame::Head(head)), b"something new".to_vec()].concat();
    let error = Recording::decode(&bytes).unwrap_err();
    assert!(matches!(&error, RecordingError::Newer { found: 2, .. }), "{error}");
    assert!(error.to_string().contains("oxctl 9"));
}

#[test]
fn another_file_and_one_without_a_state_are_told_apart() {
    assert!(matches!(Recording::decode(b"apiVersion: v1\n"), Err(RecordingError::Foreign)));
    let empty = Recording { written_by: String::new(), frames: Vec::new() };
    let read = Recording::decode(&empty.encode()).unwrap();
    assert!(matches!(Replay::of(&read), Err(RecordingError::Empty)));
    let mut stepless = a_recording();
    stepless.frames.remove(0);
    assert!(matches!(Replay::of(&stepless), Err(RecordingError::Nowhere(0))));
}
