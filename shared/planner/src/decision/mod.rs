//! Why it was decided so.
//!
//! * [`decide`] plans a [`Step`] as the service does, with a trace, and makes a [`Decision`] of what was given, weighed and chosen.
//!   It follows from its arguments alone: the same ones give the same bytes.
//! * [`snapshot`] and [`Step`] turn what is planned from into messages and back, so that it can be planned again elsewhere.
//! * [`Recording`] is a file of both, and [`Replay`] plans all of it anew.
//! * [`page`] shows a decision to people.

mod candidates;
mod machine;
mod outcome;
mod page;
mod recording;
mod replay;
mod request;
mod rules;
mod snapshot;
mod step;
mod way;

pub use outcome::refused;
pub use oxalyst_proto::orm::v1::{Decision, DecisionEntry, DecisionEnvelope};
pub use page::{line, page};
pub use recording::{Recording, RecordingError, VERSION, decode_frames, encode_frame, opening};
pub use replay::{Difference, Replay, ended_elsewhere};
pub use snapshot::{SnapshotError, World, digest_of, restore, snapshot};
pub use step::{Step, StepError};

use crate::{
    plan::Refusal,
    pods::{self, Plan, Rules, State, Trace},
};
use oxalyst_topology::Machine;

/// What a decision is made on, the step apart.
#[derive(Clone, Copy, Debug)]
pub struct Given<'a> {
    /// What is held.
    pub state: &'a State,
    /// Where.
    pub machine: &'a Machine,
    /// By which rules.
    pub rules: &'a Rules,
    /// The ledger's generation.
    pub generation: u64,
    /// Why what is planned is not done (a failing disk, a deadline that has passed); `None`: it is.
    pub overruled: Option<&'a Refusal>,
}

/// A decision, and what it leads to.
#[derive(Clone, Debug, PartialEq)]
pub struct Decided {
    /// The decision.
    pub decision: Decision,
    /// The plan; `None` where the step is refused, overruled, or left open.
    pub plan: Option<Plan>,
}

/// What planning answered.
enum Answer {
    Planned { plan: Plan, open: bool },
    Refused(Refusal),
}

/// Decides, by the very functions that the service calls, and says why.
pub fn decide(given: Given<'_>, step: &Step) -> Decided {
    let mut trace = Trace::on();
    let answer = plan(given, step, &mut trace);
    let answer = given.overruled.map_or(answer, |refusal| Answer::Refused(refusal.clone()));
    let decision = outcome::decision(given, step, &trace, &answer);
    let plan = match answer {
        Answer::Planned { plan, open: false } => Some(plan),
        Answer::Planned { open: true, .. } | Answer::Refused(_) => None,
    };
    Decided { decision, plan }
}

fn plan(given: Given<'_>, step: &Step, trace: &mut Trace) -> Answer {
    let Given { state, machine, rules, .. } = given;
    let sure = |plan| Answer::Planned { plan, open: false };
    match step {
        Step::Admit(request) => match pods::admit_traced(state, machine, rules, request, trace) {
            Ok(admission) => Answer::Planned { plan: admission.plan, open: admission.open },
            Err(refusal) => Answer::Refused(refusal),
        },
        Step::AdmitSpec(pod) => match pods::admit_spec_traced(state, machine, rules, pod, trace) {
            Ok(plan) => sure(plan),
            Err(refusal) => Answer::Refused(refusal),
        },
        Step::Refine(pod) => sure(pods::refine_traced(state, machine, rules, pod, trace)),
        Step::Release { uid, sandbox_id } => sure(pods::release(state, machine, rules, uid, sandbox_id)),
        Step::Adopt(running) => sure(pods::adopt_traced(state, machine, rules, running, trace)),
        Step::Replan => sure(pods::replan_traced(state, machine, rules, trace)),
        Step::Promote => sure(pods::promote_traced(state, machine, rules, trace)),
        Step::Gave(gave) => match pods::take_gave_traced(state, machine, rules, gave, trace) {
            Ok(plan) => sure(plan),
            Err(refusal) => Answer::Refused(refusal),
        },
        Step::Whole(request) => match pods::plan_traced(state, machine, rules, request, trace) {
            Ok(plan) => sure(plan),
            Err(refusal) => Answer::Refused(refusal),
        },
    }
}
