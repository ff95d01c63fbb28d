//! Everything of a recording planned anew.

use super::{Decision, Given, Recording, RecordingError, Step, World, decide, restore};
use crate::plan::{Reason, Refusal, Rule};
use crate::pods::Released;
use oxalyst_proto::orm::v1::{DecisionRefused, EndedSandboxes, RecordedStep, recording_frame::Frame};
use prost::Message as _;

/// What came of planning a recording anew.
#[derive(Clone, Debug, PartialEq)]
pub struct Replay {
    /// Steps that were planned.
    pub steps: u64,
    /// Those whose decision is another one now.
    pub differences: Vec<Difference>,
    /// What is held at the end.
    pub world: World,
    /// The ledger's generation at the end, as far as it is told.
    pub generation: u64,
}

/// A step that is decided otherwise now.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The step's number.
    pub number: u64,
    /// As it was decided.
    pub recorded: Decision,
    /// As it is decided now.
    pub planned: Decision,
}

// === impl Replay ===

impl Replay {
    /// Plans every step of the recording on the state that it was planned on.
    ///
    /// # Errors
    /// The recording cannot be understood.
    pub fn of(recording: &Recording) -> Result<Self, RecordingError> {
        let mut world: Option<World> = None;
        let (mut steps, mut generation, mut differences) = (0, 0, Vec::new());
        for frame in &recording.frames {
            match frame {
                Frame::Snapshot(snapshot) => {
                    world = Some(restore(snapshot)?);
                    generation = generation.max(snapshot.generation);
                }
                Frame::Step(recorded) => {
                    let world = world.as_mut().ok_or(RecordingError::Nowhere(recorded.number))?;
                    steps += 1;
                    generation = recorded.generation;
                    differences.extend(again(world, recorded)?);
                }
                Frame::Ended(ended) => {
                    let world = world.as_mut().ok_or(RecordingError::Empty)?;
                    ended_elsewhere(&mut world.state.released, ended);
                }
                Frame::Head(_) | Frame::Repeated(_) | Frame::End(_) => {}
            }
        }
        let world = world.ok_or(RecordingError::Empty)?;
        Ok(Self { steps, differences, world, generation })
    }
}

/// Takes over what ended besides the steps.
pub fn ended_elsewhere(released: &mut Released, ended: &EndedSandboxes) {
    for sandbox_id in &ended.forgotten {
        released.forget(sandbox_id);
    }
    for sandbox_id in &ended.remembered {
        released.remember(sandbox_id);
    }
}

/// Plans the step and takes what follows for true.
fn again(world: &mut World, recorded: &RecordedStep) -> Result<Option<Difference>, RecordingError> {
    let number = recorded.number;
    let of = |source| RecordingError::Step { number, source };
    let step = recorded.step.as_ref().ok_or_else(|| of(super::StepError::Unknown))?;
    let step = Step::decode(step).map_err(of)?;
    let overruled = recorded.overruled.as_ref().map(overruled).transpose().map_err(of)?;
    let given = Given {
        state: &world.state,
        machine: &world.machine,
        rules: &world.rules,
        generation: recorded.generation,
        overruled: overruled.as_ref(),
    };
    let decided = decide(given, &step);
    if let Some(plan) = decided.plan {
        world.state = plan.after;
    }
    let recorded = recorded.decision.clone().unwrap_or_default();
    let same = recorded.encode_to_vec() == decided.decision.encode_to_vec();
    Ok((!same).then_some(Difference { number, recorded, planned: decided.decision }))
}

fn overruled(told: &DecisionRefused) -> Result<Refusal, super::StepError> {
    Ok(Refusal {
        reason: told.reason.parse::<Reason>()?,
        rule: told.rule.parse::<Rule>()?,
        message: told.message.clone(),
        asked: None,
        free: Vec::new(),
    })
}
