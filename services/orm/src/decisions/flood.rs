//! More is decided at once than can be written meanwhile.

use std::sync::Arc;
use std::time::Duration;

use oxalyst_mesh::Facts;
use oxalyst_planner::decision::{Recording, Replay, Step};
use oxalyst_planner::plan::{RequestSource, Stage};
use oxalyst_planner::pods::{self, Class, Rules, SandboxRequest, State};
use oxalyst_proto::orm::v1::{DecisionEnvelope, recording_frame::Frame};
use oxalyst_topology::{Cpu, CpuSet, Machine};
use oxalyst_units::MilliCpu;

use super::kept::{Decisions, Limits};
use super::recorder::{Noted, Recorder};

const PATIENCE: Duration = Duration::from_secs(120);
const LIMITS: Limits = Limits { records: 100_000, bytes: 1 << 30 };

/// A node on which pods come and go, and its decisions.
struct Node {
    machine: Arc<Machine>,
    rules: Arc<Rules>,
    state: State,
    decisions: Decisions,
    recorder: Recorder,
    _folder: tempfile::TempDir,
}

impl Node {
    fn new() -> Self {
        let cpus = (0..8).map(|id| Cpu { id, core: id, socket: 0, numa: 0, l3: None });
        let machine = Machine::from_rows(cpus.collect(), &[]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let decisions = Decisions::default();
        let recorder =
            Recorder::open(folder.path().to_path_buf(), LIMITS, decisions.clone(), Facts::default());
        let state = State::new(&machine, CpuSet::new());
        let (machine, rules) = (Arc::new(machine), Arc::new(Rules::default()));
        Self { machine, rules, state, decisions, recorder, _folder: folder }
    }

    /// A pod that is admitted, or released where it is held.
    fn next(&mut self, number: usize) {
        let uid = (number / 2).to_string();
        let before = self.state.clone();
        let sandbox_id = format!("s{uid}");
        let (plan, step) = if number.is_multiple_of(2) {
            let request = SandboxRequest {
                plugins_unasked: false,
                sandbox_id,
                pod_uid: uid,
                namespace: "ns".into(),
                name: "pod".into(),
                labels: [].into(),
                annotations: [("katalyst.kubewharf.io/qos_level".into(), "dedicated_cores".into())].into(),
                priority: None,
                class: Class::Guaranteed,
                request: Some(MilliCpu::cpus(2)),
                request_source: RequestSource::SandboxResources,
                stage: Stage::Sandbox,
                now_unix_ms: 0,
            };
            let admission = pods::admit(&before, &self.machine, &self.rules, &request).unwrap();
            (admission.plan, Step::Admit(request))
        } else {
            let plan = pods::release(&before, &self.machine, &self.rules, &uid, &sandbox_id);
            (plan, Step::Release { uid, sandbox_id })
        };
        self.state = plan.after;
        self.note(before, step);
    }

    fn note(&mut self, before: State, step: Step) {
        self.recorder.note(Noted {
            generation: 0,
            before,
            after: self.state.clone(),
            machine: self.machine.clone(),
            rules: self.rules.clone(),
            step,
            overruled: None,
            envelope: DecisionEnvelope::default(),
        });
    }

    fn frames(&self) -> (usize, usize, Replay) {
        let frames = self.decisions.frames();
        let count = |of: fn(&Frame) -> bool| frames.iter().filter(|frame| of(frame)).count();
        let steps = count(|frame| matches!(frame, Frame::Step(_)));
        let states = count(|frame| matches!(frame, Frame::Snapshot(_)));
        (steps, states, Replay::of(&Recording { written_by: String::new(), frames }).unwrap())
    }
}

#[tokio::test]
async fn a_flood_is_kept_whole_in_few_appends_and_with_one_state() {
    let mut node = Node::new();
    let decisions = node.decisions.clone();
    {
        // Nothing is written while this is held: as if the writer came to nothing.
        let _held = decisions.segments();
        (0..2000).for_each(|number| node.next(number));
    }
    assert_eq!(decisions.settle(PATIENCE).await, 0);
    assert_eq!(decisions.lost(), 0);
    let (steps, states, replay) = node.frames();
    assert_eq!((steps, states), (2000, 1));
    assert!(decisions.appends() <= 2 + 2000 / 256, "{} appends", decisions.appends());
    assert_eq!(replay.differences, []);
    assert_eq!(replay.world.state, node.state);
}

#[tokio::test]
async fn what_is_too_much_is_lost_in_one_row_counted_and_what_comes_later_replays() {
    let mut node = Node::new();
    let decisions = node.decisions.clone();
    {
        let _held = decisions.segments();
        (0..5000).for_each(|number| node.next(number));
    }
    assert_eq!(decisions.settle(PATIENCE).await, 0);
    let lost = decisions.lost();
    assert!((5000 - 4096 - 1..=5000 - 4096).contains(&lost), "{lost}");
    node.next(5000);
    assert_eq!(decisions.settle(PATIENCE).await, 0);
    let (steps, states, replay) = node.frames();
    // What was lost came and went: the gap is bridged by what has ended, or by a state.
    assert_eq!(steps as u64, 5001 - lost);
    assert!(states <= 2, "{states}");
    assert_eq!(decisions.lost(), lost);
    assert_eq!(replay.differences, []);
    assert_eq!(replay.world.state, node.state);
}

#[tokio::test]
async fn what_changed_unnoted_in_between_comes_with_its_state() {
    let mut node = Node::new();
    let decisions = node.decisions.clone();
    node.next(0);
    // Nobody is told of this one.
    node.state = pods::release(&node.state, &node.machine, &node.rules, "0", "s0").after;
    node.next(2);
    assert_eq!(decisions.settle(PATIENCE).await, 0);
    let (steps, states, replay) = node.frames();
    assert_eq!((steps, states), (2, 2));
    assert_eq!(replay.world.state, node.state);
}
