//! A pod that asks for what plugins give: hints, one merge, and what came out of it given.

use std::collections::BTreeSet;
use std::sync::Arc;

use oxalyst_planner::plan::Reason;
use oxalyst_planner::pods::{PodRequest, SandboxRequest};
use oxalyst_planner::topology_manager::Scope;
use oxalyst_proto::orm::v1::AdmitReply;
use oxalyst_proto::orm::v1::admit_reply::Outcome;
use tokio::time::{Instant, timeout_at};
use tonic::Status;

use super::asking::{give, say};
use super::{Ask, PluginError, Plugins, removal};
use crate::allocations::{Abandon, AdmitPlugged, Chosen, KnownNodes, Occasion, Plugged, RefusePlugged};
use crate::allocator::Face;
use crate::specs::PodSpec;

/// How often what came out of the merge may be another one by the time that it has been given.
const ATTEMPTS: usize = 3;

/// The admission of one pod.
pub struct Admission<'a> {
    /// Whom to ask for the plan and the commit.
    pub face: &'a Face,
    /// The plugins.
    pub plugins: &'a Plugins,
    /// How its sandbox tells the pod.
    pub request: SandboxRequest,
    /// Its spec.
    pub spec: Arc<PodSpec>,
    /// What that asks of the planner.
    pub pod: PodRequest,
    /// What that asks of plugins.
    pub asks: Vec<Ask>,
    /// Past this time, milliseconds since the Unix epoch, nobody waits; 0: no such time.
    pub deadline_unix_ms: i64,
    /// When it came.
    pub occasion: Occasion,
    /// What is asked at once: each container in itself, or the pod.
    pub scope: Scope,
}

/// Why an attempt did not come to its end.
enum Stopped {
    /// There is an answer.
    Answered(Box<AdmitReply>),
    /// A plugin failed.
    Plugin(PluginError),
    /// What came out of the merge is another one than before.
    Moved,
    /// The allocator cannot be asked.
    Unasked(Status),
}

/// What has been done so far in one attempt.
#[derive(Default)]
struct Attempt {
    pod: PodRequestPlugins,
    by: Chosen,
    /// Plugins that were asked to give something.
    gave: BTreeSet<String>,
}

type PodRequestPlugins = oxalyst_planner::pods::Plugins;

// === impl Admission ===

impl Admission<'_> {
    /// The answer. What plugins gave for a pod that is then refused they are told to take back.
    ///
    /// # Errors
    /// The allocator cannot be asked.
    pub async fn decide(self) -> Result<AdmitReply, Status> {
        let end = Instant::now() + self.plugins.deadline;
        let claimed = timeout_at(end, self.plugins.claims.claim(&self.request.pod_uid)).await;
        let Ok(_claim) = claimed else {
            return self.refuse("another call works for this pod: it has not come to its end in time").await;
        };
        self.forget().await;
        for _ in 0..ATTEMPTS {
            let mut attempt = Attempt::default();
            let outcome = self.attempt(&mut attempt, end).await;
            let (stopped, stays) = match outcome {
                Ok(reply) => {
                    let placed = matches!(reply.outcome, Some(Outcome::Placed(_)));
                    (Stopped::Answered(Box::new(reply)), placed)
                }
                Err(stopped) => (stopped, false),
            };
            if !stays && !attempt.gave.is_empty() {
                let plugins = attempt.gave;
                let _ = self.face.ask(Abandon { uid: self.request.pod_uid.clone(), plugins }).await;
                if matches!(stopped, Stopped::Moved) {
                    self.forget().await;
                }
            }
            match stopped {
                Stopped::Answered(reply) => return Ok(*reply),
                Stopped::Unasked(status) => return Err(status),
                Stopped::Plugin(e) => {
                    let reason = if e.is_unusable() { Reason::Invalid } else { Reason::Unavailable };
                    return self.refuse_for(reason, &e.to_string()).await;
                }
                Stopped::Moved => {}
            }
        }
        self.refuse("other pods took what plugins had been asked for, each time: try again").await
    }

    /// What plugins have of this pod from before they are told to take back. One that hangs must not cost the whole deadline: it
    /// may have nothing to do with the pod.
    async fn forget(&self) {
        let end = Instant::now() + self.plugins.deadline / 3;
        removal::remove_now(self.face, self.plugins, &self.request.pod_uid, end).await;
    }

    async fn attempt(&self, attempt: &mut Attempt, end: Instant) -> Result<AdmitReply, Stopped> {
        let batches: Vec<&[Ask]> = match self.scope {
            Scope::Container => self.asks.chunks(1).collect(),
            Scope::Pod => vec![&self.asks],
        };
        let nodes = self.face.ask(KnownNodes).await.map_err(Stopped::Unasked)?;
        for batch in batches {
            for ask in batch {
                let said = say(self.plugins, &nodes, &self.spec, ask, end).await.map_err(Stopped::Plugin)?;
                if !said.is_empty() {
                    attempt.pod.hints.insert(ask.container.clone(), said);
                }
            }
            let chosen = match self.plan(attempt, None).await? {
                Plugged::Answer(reply) => return Ok(*reply),
                Plugged::Chosen(chosen) => chosen,
            };
            if attempt.by.iter().any(|(container, by)| chosen.get(container) != Some(by)) {
                return Err(Stopped::Moved);
            }
            for ask in batch {
                let by = chosen.get(&ask.container).cloned().unwrap_or_default();
                let given = give(self.plugins, &self.spec, ask, &by, &mut attempt.gave, end);
                let given = given.await.map_err(Stopped::Plugin)?;
                if !given.is_empty() {
                    attempt.pod.given.insert(ask.container.clone(), given);
                }
            }
            attempt.by = chosen;
        }
        match self.plan(attempt, Some(attempt.by.clone())).await? {
            Plugged::Answer(reply) => Ok(*reply),
            Plugged::Chosen(_) => Err(Stopped::Moved),
        }
    }

    async fn plan(&self, attempt: &Attempt, by: Option<Chosen>) -> Result<Plugged, Stopped> {
        let message = AdmitPlugged {
            request: self.request.clone(),
            pod: PodRequest { plugins: attempt.pod.clone(), ..self.pod.clone() },
            by,
            deadline_unix_ms: self.deadline_unix_ms,
            occasion: self.occasion.clone(),
        };
        self.face.ask(message).await.map_err(Stopped::Unasked)
    }

    async fn refuse(&self, message: &str) -> Result<AdmitReply, Status> {
        self.refuse_for(Reason::Unavailable, message).await
    }

    async fn refuse_for(&self, reason: Reason, message: &str) -> Result<AdmitReply, Status> {
        let refuse = RefusePlugged {
            request: self.request.clone(),
            pod: self.pod.clone(),
            reason,
            message: message.to_owned(),
            occasion: self.occasion.clone(),
        };
        self.face.ask(refuse).await
    }
}
