//! Whole pods: every change of what the node holds, as one pure function.
//!
//! * [`State`] is what is held, [`Rules`] what is configured, [`Request`] what is to happen: a pod starts or ends, one of its
//!   containers is resized or made anew, time passes, the machine is another one.
//! * [`plan`] answers with a [`Plan`], which holds the state afterwards and the records to make durable first, or with a
//!   [`Refusal`], after which everything is as before: a pod is admitted as a whole or not at all.
//! * [`placements`] and [`pools`] say who runs where.
//!
//! Under [`CpuPolicy::Dynamic`] the containers of a dedicated pod run within its main container's set, under
//! [`CpuPolicy::Native`] each Guaranteed container that asks for whole CPUs has its own. What follows from exclusive sets, which
//! is the CPUs of pools and of all who run in them, is computed anew after each change, and so depends on no history.

mod adopt;
mod amounts;
mod batch;
mod deviations;
mod diff;
mod division;
mod dynamic;
mod ended;
mod gave;
mod join;
mod known;
mod lost;
mod mixed;
mod native;
mod native_memory;
mod near_memory;
mod outcome;
mod placement;
mod plugins;
mod pool;
mod promote;
pub mod record;
mod released;
mod request;
mod resize;
mod rules;
mod sandbox;
mod settled;
mod shortage;
mod spec;
mod state;
mod trace;
mod wording;

pub use adopt::{adopt, adopt_traced};
pub use deviations::remarks;
pub use gave::{PluginsGave, take_gave, take_gave_traced};
pub use known::{KnownPod, take_over};
pub use mixed::{of_other_policy, policy_in_force};
pub use outcome::Plan;
pub use placement::{
    ContainerPlacement, PodPlacement, free_per_node, placement_of, placements, placements_of, pools,
};
pub use plugins::{Given, PluginAllocation, Plugins};
pub use pool::{Pool, SYSTEM, pools as shown_pools};
pub use promote::{promote, promote_traced};
pub use released::Released;
pub use request::{Asked, PodRequest, Request, Resize, RunningSandbox, SandboxRequest, Told};
pub use resize::is_ramping_up;
pub use rules::{CpuPolicy, Native, PolicyName, Rules};
pub use sandbox::{ALL, Admission, admit, admit_traced, release, replan, replan_traced, understood};
pub use spec::{admit_spec, admit_spec_traced, refine, refine_traced};
pub use state::{Class, Container, Pod, Role, State};
pub use trace::{Merge, Trace};

pub use crate::plan::Refusal;

use crate::plan::{Reason, Rule};
use oxalyst_topology::Machine;

/// What becomes of the request. The same arguments give the same answer, byte for byte.
///
/// # Errors
/// The request is refused, with the rule that decided and the numbers; nothing changes then. What has happened already (a pod
/// has ended, time has passed, the machine is another one) is never refused.
pub fn plan(state: &State, machine: &Machine, rules: &Rules, request: &Request) -> Result<Plan, Refusal> {
    plan_traced(state, machine, rules, request, &mut Trace::off())
}

/// As [`plan`], and notes in `trace` what was weighed. The answer is the same: planning writes a trace and never reads it.
///
/// # Errors
/// As [`plan`].
pub fn plan_traced(
    state: &State,
    machine: &Machine,
    rules: &Rules,
    request: &Request,
    trace: &mut Trace,
) -> Result<Plan, Refusal> {
    let machine = rules.confine(machine);
    let mut after = state.clone();
    let outcome = match request {
        Request::Admit(pod) if pod.sandbox_id.is_empty() => Err(unnamed()),
        Request::Admit(pod) => join::admit(&mut after, &machine, rules, pod, trace),
        Request::Resize(resize) => resize::resize(&mut after, &machine, rules, resize, trace),
        Request::RestartContainer { uid, container } => match state.pods.get(uid) {
            Some(pod) if pod.container(container).is_some() => Ok(()),
            _ => {
                let message = format!("pod {uid} with container {container} is not known");
                Err(refuse(Reason::Invalid, Rule::Named, message))
            }
        },
        Request::Remove { uid } => {
            ended::remove(&mut after, &machine, rules, uid);
            Ok(())
        }
        Request::Elapse { now_unix_ms } => {
            ended::ramp_up(&mut after, &machine, rules, *now_unix_ms);
            Ok(())
        }
        Request::TakeUp { reserved } => {
            lost::take_up(&mut after, &machine, rules, reserved.as_ref(), trace);
            Ok(())
        }
    };
    outcome.map(|()| Plan::between(state, after, &machine)).map_err(|refusal| match request {
        Request::Admit(pod) => {
            let asked = pod.told.request.or_else(|| pod.total_cpu());
            wording::not_admitted(refusal, state, &machine, rules, pod, asked)
        }
        _ => wording::explained(refusal, state, &machine),
    })
}

fn unnamed() -> Refusal {
    refuse(Reason::Invalid, Rule::Named, "the pod's uid or its sandbox's id is missing")
}

fn refuse(reason: Reason, rule: Rule, message: impl Into<String>) -> Refusal {
    Refusal { reason, rule, message: message.into(), asked: None, free: Vec::new() }
}
