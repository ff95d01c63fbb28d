//! What is told of pods that run: their specs, and containers that are to have more or less.

use std::collections::BTreeMap;
use std::sync::Arc;

use actix::{Handler, Message, MessageResult};
use oxalyst_planner::decision::Step;
use oxalyst_planner::plan::{Reason, Refusal, Rule};
use oxalyst_planner::pods::{self, PodRequest, Request, Resize};
use oxalyst_proto::orm::v1 as orm;
use oxalyst_proto::orm::v1::PlacementEvent;

use super::{Admitted, Allocations, Occasion};
use crate::resize::{self, Told};
use crate::{clock, wire};

/// The specs of pods are new, or others than before.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct SpecsTold(pub Vec<SpecTold>);

/// One of them.
#[derive(Clone, Debug)]
pub struct SpecTold {
    /// What it asked for before; `None`: not known.
    pub before: Option<PodRequest>,
    /// What it asks for. The sandbox counts as the current one.
    pub now: PodRequest,
}

/// The runtime is told of other resources for a container.
#[derive(Debug, Message)]
#[rtype(result = "Admitted")]
pub struct ResizeContainer {
    /// Which, and of what.
    pub told: Told,
    /// Past this time, milliseconds since the Unix epoch, nothing may be committed; 0: no such time.
    pub deadline_unix_ms: i64,
    /// When it came.
    pub occasion: Occasion,
}

/// What is wanted of containers and could not be given yet, by pod and container: tried again until there is room, or until
/// something else is wanted.
pub(super) type Unmet = BTreeMap<(String, String), Wanted>;

/// One of them.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) resize: Resize,
    /// Whether it was refused before, and not only put off: then it is no news.
    is_refused: bool,
}

impl Handler<SpecsTold> for Allocations {
    type Result = ();

    fn handle(&mut self, SpecsTold(specs): SpecsTold, _: &mut Self::Context) {
        for SpecTold { before, now } in specs {
            self.refine(&now);
            self.follow_spec(before.as_ref(), &now);
        }
    }
}

impl Handler<ResizeContainer> for Allocations {
    type Result = MessageResult<ResizeContainer>;

    fn handle(
        &mut self,
        ResizeContainer { told, deadline_unix_ms, occasion }: ResizeContainer,
        _: &mut Self::Context,
    ) -> Self::Result {
        let uid = told.uid.clone();
        let pod = self.state.pods.get(&uid).cloned();
        let is_meant = resize::meant(pod.as_deref(), &told).is_some();
        let understood = resize::by_runtime(pod.as_deref(), &told).inspect_err(|refusal| {
            self.note_refused(told.resize(), Some(refusal.clone()), occasion.clone());
        });
        let outcome = understood.and_then(|resize| {
            if deadline_unix_ms > 0 && clock::unix_ms() > deadline_unix_ms {
                let message = "the deadline has passed: nobody waits".to_owned();
                let (reason, rule) = (Reason::Expired, Rule::Deadline);
                let refusal = Refusal { reason, rule, message, asked: told.cpu, free: Vec::new() };
                if let Some(resize) = resize {
                    self.note_refused(resize, Some(refusal.clone()), occasion);
                }
                return Err(refusal);
            }
            resize.map(|resize| self.resize_now_or_later(resize, occasion)).transpose()
        });
        MessageResult(match outcome {
            Ok(event) => self.resized(is_meant.then_some(uid.as_str()), event.flatten()),
            Err(refusal) => {
                tracing::info!(uid, container = told.container, reason = %refusal.reason, "a resize is refused: {refusal}");
                self.metrics.refused(refusal.reason);
                orm::AdmitReply {
                    generation: self.ledger.generation(),
                    outcome: Some(orm::admit_reply::Outcome::Refused(wire::refusal(&refusal))),
                    changed: Vec::new(),
                    pools: self.pools(),
                }
            }
        })
    }
}

// === impl Allocations ===

impl Allocations {
    /// What was wanted and could not be given, again.
    pub(super) fn meet(&mut self) {
        for (of, wanted) in std::mem::take(&mut self.unmet) {
            let (uid, container) = &of;
            if self.state.pods.get(uid).is_none_or(|pod| pod.container(container).is_none()) {
                continue;
            }
            // Told to plugins first, by who waits for them.
            let waits =
                self.is_of_plugins(&wanted.resize) || pods::is_ramping_up(&self.state, uid, container);
            if waits {
                self.unmet.insert(of, wanted);
                continue;
            }
            match self.resize(wanted.resize.clone(), !wanted.is_refused, Occasion::now()) {
                Ok(_) => tracing::info!(uid, container, "resized as it was wanted: there is room now"),
                Err(refusal) => {
                    if !wanted.is_refused {
                        self.not_resized(uid, container, &refusal);
                    }
                    self.unmet.insert(of, Wanted { is_refused: true, ..wanted });
                }
            }
        }
    }

    /// Refused where nobody waits for the answer.
    fn not_resized(&self, uid: &str, container: &str, refusal: &Refusal) {
        self.metrics.refused(refusal.reason);
        tracing::warn!(
            uid, container, reason = %refusal.reason,
            "the container keeps what it has, something else is asked for: {refusal}"
        );
    }

    /// The pod's containers, one by one, in place of its total.
    fn refine(&mut self, now: &PodRequest) {
        let occasion = Occasion::now();
        let plan = pods::refine(&self.state, &self.machine, &self.rules, now);
        if plan.is_empty() {
            return;
        }
        tracing::debug!(uid = now.uid, containers = now.containers.len(), "the pod is known by its spec");
        if let Err(e) = self.settle(plan, Step::Refine(now.clone()), occasion) {
            tracing::warn!(error = %e, uid = now.uid, "the pod's spec cannot be taken up");
        }
    }

    fn follow_spec(&mut self, before: Option<&PodRequest>, now: &PodRequest) {
        let Some(pod) = self.state.pods.get(&now.uid) else { return };
        for refusal in resize::fixed_by_spec(pod, before, now) {
            self.metrics.refused(refusal.reason);
            tracing::warn!(uid = now.uid, reason = %refusal.reason, "the container keeps its huge pages: {refusal}");
        }
        for resize in resize::by_spec(pod, before, now) {
            let (uid, container) = (resize.uid.clone(), resize.container.clone());
            match self.resize_now_or_later(resize.clone(), Occasion::now()) {
                Ok(Some(_)) => tracing::info!(uid, container, "resized as its spec asks"),
                Ok(None) => tracing::debug!(
                    uid,
                    container,
                    "to be resized once it has started, or plugins have said yes"
                ),
                Err(refusal) => {
                    self.not_resized(&uid, &container, &refusal);
                    self.unmet.insert((uid, container), Wanted { resize, is_refused: true });
                }
            }
        }
    }

    /// As [`Allocations::resize`]; a container that has just started and runs where its pool's size means nothing yet is resized
    /// as soon as it does: then there is no event. Whatever was wanted of it before is not wanted any more.
    fn resize_now_or_later(
        &mut self,
        resize: Resize,
        occasion: Occasion,
    ) -> Result<Option<Arc<PlacementEvent>>, Refusal> {
        let of = (resize.uid.clone(), resize.container.clone());
        self.unmet.remove(&of);
        // One that plugins have to be told of is made once they have said yes.
        if pods::is_ramping_up(&self.state, &of.0, &of.1) || self.concern(&resize).is_some() {
            self.unmet.insert(of, Wanted { resize, is_refused: false });
            return Ok(None);
        }
        self.resize(resize, true, occasion).map(Some)
    }

    /// Makes the resize durable and true. The set of a container that grows is told to nobody before that. A refusal is remembered
    /// if it is `news`, and not each time that it is tried again.
    fn resize(
        &mut self,
        resize: Resize,
        news: bool,
        occasion: Occasion,
    ) -> Result<Arc<PlacementEvent>, Refusal> {
        let asked = resize.cpu;
        let request = Request::Resize(resize.clone());
        let plan = match pods::plan(&self.state, &self.machine, &self.rules, &request) {
            Ok(plan) => plan,
            Err(refusal) => {
                if news {
                    self.note_refused(resize, None, occasion);
                }
                return Err(Refusal { asked, ..refusal });
            }
        };
        let arrived = occasion.clone();
        self.settle(plan, Step::Whole(request), occasion).map_err(|e| {
            let refusal = Refusal {
                reason: Reason::Storage,
                rule: Rule::Durable,
                message: format!("CPUs are given exclusively only when that is durable, and it is not: {e}"),
                asked,
                free: pods::free_per_node(&self.state, &self.view()),
            };
            if news {
                self.note_refused(resize, Some(refusal.clone()), arrived);
            }
            refusal
        })
    }

    /// What is refused changes nothing: it was planned on what is held now.
    pub(super) fn note_refused(&mut self, resize: Resize, overruled: Option<Refusal>, occasion: Occasion) {
        let now = (self.state.clone(), self.ledger.generation());
        self.note(now, Step::Whole(Request::Resize(resize)), overruled, occasion);
    }

    /// `uid` of the pod that was meant; `None`: it is not known, or by another sandbox, and then nothing is said to be placed.
    pub(super) fn resized(&self, uid: Option<&str>, event: Option<Arc<PlacementEvent>>) -> orm::AdmitReply {
        let placed = uid.and_then(|uid| wire::placement(&self.state, &self.view(), uid));
        let (changed, pools) = match event {
            Some(event) => (event.placed.clone(), event.pools.clone()),
            None => (Vec::new(), self.pools()),
        };
        orm::AdmitReply {
            generation: self.ledger.generation(),
            outcome: placed.map(orm::admit_reply::Outcome::Placed),
            changed,
            pools,
        }
    }
}
