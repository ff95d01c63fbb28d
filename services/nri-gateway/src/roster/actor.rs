//! The roster's mailbox: typed requests with typed replies.

use std::collections::BTreeSet;
use std::time::Instant;

use actix::{Actor, Context, Handler, Message, MessageResult};
use oxalyst_proto::gateway::v1::{AppliedContainer, RefusedPod};
use oxalyst_proto::meta::v1::RuntimeSnapshot;
use oxalyst_proto::orm::v1::ResizeContainerRequest;
use oxalyst_proto::runtime::v1::{Container, Resources, Sandbox};

use super::{Born, Census, Check, Claims, Due, Entrance, Phase, Roster, Seen, Taken, Trouble};
use crate::adjustment::Wish;
use crate::pinning::{Change, Corrections};
use crate::placements::Cpuset;

/// Requests that may wait. Hooks come one at a time; the rest are a few tasks of this process.
const MAILBOX: usize = 256;

/// The runtime told its whole list.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Replace {
    /// Every sandbox.
    pub sandboxes: Vec<Sandbox>,
    /// Every container, and what it was created with.
    pub containers: Vec<(Container, Born)>,
}

/// A sandbox was let in.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct PutSandbox {
    /// It.
    pub sandbox: Sandbox,
    /// How.
    pub entrance: Entrance,
}

/// A sandbox that is there told other resources.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct RefreshSandbox(pub Sandbox);

/// The message with which this sandbox's pod was refused, if it was and its sandbox runs all the same.
#[derive(Debug, Message)]
#[rtype(result = "Option<String>")]
pub struct RefusedBefore(pub String);

/// A container of a pod was refused; where the pod was refused before, this is the message from now on.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct RefusedAgain {
    /// Its sandbox.
    pub sandbox_id: String,
    /// What the runtime is told.
    pub message: String,
}

/// A sandbox stops.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct StopSandbox(pub String);

/// Whether any of these pods, by UID and the sandbox that ended, has another sandbox that goes on.
#[derive(Debug, Message)]
#[rtype(result = "bool")]
pub struct HaveSuccessor(pub Vec<(String, String)>);

/// A sandbox is removed, with its containers.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct RemoveSandbox(pub String);

/// A container is removed.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct RemoveContainer(pub String);

/// A container is being created; the answer is what others have to lose in the same reply.
#[derive(Debug, Message)]
#[rtype(result = "Vec<Change>")]
pub struct Create {
    /// It.
    pub container: Container,
    /// Its pod.
    pub pod_uid: String,
    /// What it is given; `None`: it is not adjusted.
    pub cpuset: Option<Cpuset>,
    /// Placed without the orm.
    pub by_policy: bool,
    /// What it is created with.
    pub born: Born,
}

/// A container came further.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Moved {
    /// As told.
    pub container: Container,
    /// How far.
    pub phase: Phase,
}

/// A container is about to start: what has to be compared before its first instruction.
#[derive(Debug, Message)]
#[rtype(result = "Vec<Check>")]
pub struct CheckStart(pub String);

/// What a container is to stay on, whoever asks otherwise.
#[derive(Debug, Message)]
#[rtype(result = "Option<Cpuset>")]
pub struct Standing(pub String);

/// The runtime is told of other resources for a container: what the orm has to be asked, if anything.
#[derive(Debug, Message)]
#[rtype(result = "Option<ResizeContainerRequest>")]
pub struct ToResize {
    /// The container.
    pub container_id: String,
    /// What the runtime is told; zero and absent parts stay as they are.
    pub told: Resources,
}

/// A container has these resources from now on; the answer is what others have to lose in the same reply.
#[derive(Debug, Message)]
#[rtype(result = "Vec<Change>")]
pub struct Resized {
    /// It.
    pub container: Container,
    /// The orm agreed; else it has not heard of it.
    pub accepted: bool,
}

/// The orm heard of a resize after the runtime had made it.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct ResizeHeard {
    /// The container.
    pub container_id: String,
    /// Why it was refused, if it was.
    pub refused: Option<String>,
}

/// What is to be looked at.
#[derive(Debug, Message)]
#[rtype(result = "Due")]
pub struct ToCheck {
    /// All that runs, not only what changed.
    pub everything: bool,
}

/// What the kernel says; the answer is what has to change.
#[derive(Debug, Message)]
#[rtype(result = "Corrections")]
pub struct Observed(pub Vec<(String, Seen)>);

/// What the kernel says when the runtime synchronises; the answer is what the runtime has to change.
#[derive(Debug, Message)]
#[rtype(result = "Vec<Change>")]
pub struct Resynchronise(pub Vec<(String, Seen)>);

/// These were corrected in the kernel's files directly.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Wrote(pub Vec<String>);

/// The runtime was told these changes.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Applied(pub Vec<Change>);

/// What a container that is being created is to have beside CPUs and memory nodes.
#[derive(Debug, Message)]
#[rtype(result = "Wish")]
pub struct Others {
    /// Its pod.
    pub pod_uid: String,
    /// Its name there.
    pub container: String,
}

/// What of containers cannot be put into effect, and why.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Reported {
    /// Container and reason.
    pub reports: Vec<(String, String)>,
    /// Containers for which there is nothing to write: what was reported of an earlier write is over.
    pub whole: Vec<String>,
}

/// What the tree of cgroups shows, where no runtime tells.
#[derive(Debug, Message)]
#[rtype(result = "Taken")]
pub struct TakeCensus(pub Census);

/// Everything that the runtime holds.
#[derive(Debug, Message)]
#[rtype(result = "RuntimeSnapshot")]
pub struct Holds;

/// The pods of these sandboxes were found to have ended.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Ended(pub BTreeSet<String>);

/// What the allocator is to count as running.
#[derive(Debug, Message)]
#[rtype(result = "Claims")]
pub struct ToClaim;

/// Every container for an operator, with the runtime's name for its cgroup.
#[derive(Debug, Message)]
#[rtype(result = "Vec<(AppliedContainer, String)>")]
pub struct Listing;

/// Every container for the doctor.
#[derive(Debug, Message)]
#[rtype(result = "Vec<Trouble>")]
pub struct Troubles;

/// Every pod that was refused and whose sandbox runs all the same.
#[derive(Debug, Message)]
#[rtype(result = "Vec<RefusedPod>")]
pub struct Refused;

impl Actor for Roster {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX);
    }
}

/// Each message is one method of the roster.
macro_rules! answers {
    ($($message:ty => |$roster:ident, $it:pat_param| $answer:expr;)*) => {$(
        impl Handler<$message> for Roster {
            type Result = MessageResult<$message>;

            fn handle(&mut self, $it: $message, _: &mut Self::Context) -> Self::Result {
                let $roster = self;
                MessageResult($answer)
            }
        }
    )*};
}

answers! {
    Replace => |roster, Replace { sandboxes, containers }| roster.replace(sandboxes, containers);
    PutSandbox => |roster, PutSandbox { sandbox, entrance }| roster.put_sandbox(sandbox, entrance);
    RefreshSandbox => |roster, RefreshSandbox(sandbox)| roster.refresh_sandbox(sandbox);
    RefusedBefore => |roster, RefusedBefore(id)| roster.refused_before(&id);
    RefusedAgain => |roster, RefusedAgain { sandbox_id, message }| roster.refused_again(&sandbox_id, message);
    StopSandbox => |roster, StopSandbox(id)| roster.stop_sandbox(&id);
    HaveSuccessor => |roster, HaveSuccessor(ended)| roster.have_successor(&ended);
    RemoveSandbox => |roster, RemoveSandbox(id)| roster.remove_sandbox(&id);
    RemoveContainer => |roster, RemoveContainer(id)| roster.remove_container(&id);
    Create => |roster, Create { container, pod_uid, cpuset, by_policy, born }|
        roster.create(container, pod_uid, cpuset, by_policy, born);
    Moved => |roster, Moved { container, phase }| roster.moved(container, phase);
    CheckStart => |roster, CheckStart(id)| roster.check_start(&id);
    Standing => |roster, Standing(id)| roster.standing(&id);
    ToResize => |roster, ToResize { container_id, told }| roster.to_resize(&container_id, &told);
    Resized => |roster, Resized { container, accepted }| roster.resized(container, accepted);
    ResizeHeard => |roster, ResizeHeard { container_id, refused }| roster.resize_heard(&container_id, refused);
    ToCheck => |roster, ToCheck { everything }| roster.due(everything, Instant::now());
    Observed => |roster, Observed(seen)| roster.observed(seen);
    Resynchronise => |roster, Resynchronise(seen)| roster.resynchronise(seen);
    Wrote => |roster, Wrote(ids)| roster.wrote(&ids);
    Applied => |roster, Applied(changes)| roster.applied(&changes);
    Others => |roster, Others { pod_uid, container }| roster.others(&pod_uid, &container);
    Reported => |roster, Reported { reports, whole }| roster.reported(reports, &whole);
    TakeCensus => |roster, TakeCensus(census)| roster.take_census(census);
    Holds => |roster, Holds| roster.holds();
    Ended => |roster, Ended(ids)| roster.ended(&ids);
    ToClaim => |roster, ToClaim| roster.claims();
    Listing => |roster, Listing| roster.listing();
    Troubles => |roster, Troubles| roster.troubles();
    Refused => |roster, Refused| roster.refused();
}
