//! What the actor is asked, and what it answers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use actix::{Handler, Message, MessageResult};
use oxalyst_ledger::CommitError;
use oxalyst_proto::orm::v1 as orm;
use oxalyst_proto::orm::v1::PlacementEvent;
use tokio::sync::broadcast;

use super::{Allocations, Occasion, lost};
use crate::specs::SpecFault;
use crate::{clock, uid, wire};
use oxalyst_planner::decision::Step;
use oxalyst_planner::plan::{Reason, Refusal, Rule, Stage};
use oxalyst_planner::pods::{self, Admission, Plan, PodRequest, RunningSandbox, SandboxRequest, State};
use oxalyst_qos::QosLevel;

/// Decide for a pod, or for a pod one of whose containers is created.
#[derive(Debug, Message)]
#[rtype(result = "Admitted")]
pub struct Admit {
    /// What is asked.
    pub request: SandboxRequest,
    /// What its spec asks for, where it is known, or what is wrong with that.
    pub spec: Option<Result<PodRequest, SpecFault>>,
    /// Past this time, milliseconds since the Unix epoch, nothing may be committed; 0: no such time.
    pub deadline_unix_ms: i64,
    /// When it came.
    pub occasion: Occasion,
}

/// The answer to [`Admit`], ready to be sent.
pub type Admitted = orm::AdmitReply;

/// A sandbox has ended.
#[derive(Debug, Message)]
#[rtype(result = "Released")]
pub struct Release {
    /// Pod uid.
    pub uid: String,
    /// The sandbox.
    pub sandbox_id: String,
}

/// The answer to [`Release`].
pub type Released = orm::ReleasePodReply;

/// The runtime's whole list.
#[derive(Debug, Message)]
#[rtype(result = "Reconciled")]
pub struct Reconcile {
    /// Every pod that has a sandbox; of several sandboxes of one pod, the newest last.
    pub running: Vec<RunningSandbox>,
}

/// The answer to [`Reconcile`].
pub type Reconciled = orm::ReconcileReply;

/// Follow the placements.
#[derive(Debug, Message)]
#[rtype(result = "Subscription")]
pub struct Subscribe;

/// A snapshot, and every event after it.
#[derive(Debug)]
pub struct Subscription {
    /// Everything now.
    pub snapshot: PlacementEvent,
    /// What comes after.
    pub events: broadcast::Receiver<Arc<PlacementEvent>>,
}

/// Everything that is held.
#[derive(Debug, Message)]
#[rtype(result = "orm::State")]
pub struct GetState {
    /// Of the pods only those that have CPUs of their own.
    pub exclusive_only: bool,
}

/// Whether there is a pod of this uid.
#[derive(Debug, Message)]
#[rtype(result = "bool")]
pub struct IsKnown {
    /// Pod uid.
    pub uid: String,
}

/// The machine.
#[derive(Debug, Message)]
#[rtype(result = "orm::Topology")]
pub struct GetTopology;

impl Handler<Admit> for Allocations {
    type Result = MessageResult<Admit>;

    fn handle(&mut self, message: Admit, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.answer(message))
    }
}

impl Handler<Release> for Allocations {
    type Result = MessageResult<Release>;

    fn handle(&mut self, Release { uid, sandbox_id }: Release, _: &mut Self::Context) -> Self::Result {
        let occasion = Occasion::now();
        let plan = pods::release(&self.state, &self.machine, &self.rules, &uid, &sandbox_id);
        let released = plan.removes(&uid);
        if released {
            self.absent.heard(&uid);
        }
        let step = Step::Release { uid: uid.clone(), sandbox_id };
        if let Err(e) = self.settle(plan, step, occasion) {
            tracing::error!(error = %e, uid, "a release cannot be refused by the disk");
        }
        MessageResult(orm::ReleasePodReply { generation: self.ledger.generation(), released })
    }
}

impl Handler<Reconcile> for Allocations {
    type Result = MessageResult<Reconcile>;

    fn handle(&mut self, Reconcile { running }: Reconcile, _: &mut Self::Context) -> Self::Result {
        let running = self.with_uids(running);
        let mut listed: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for pod in &running {
            listed.entry(&pod.request.pod_uid).or_default().insert(&pod.request.sandbox_id);
        }
        let occasion = Occasion::now();
        let current = current_sandboxes(&running, &self.state);
        let plan = pods::adopt(&self.state, &self.machine, &self.rules, &current);
        let taken_in =
            plan.pods.iter().filter(|(uid, pod)| pod.is_some() && !self.state.pods.contains_key(*uid));
        let adopted: Vec<String> = taken_in.map(|(uid, _)| uid.clone()).collect();
        match self.settle(plan, Step::Adopt(current), occasion) {
            Ok(_) => self.list_heard(),
            // They run, and go on running where they are; the next comparison tries again.
            Err(e) => tracing::warn!(error = %e, pods = adopted.len(), "running pods could not be taken in"),
        }
        self.absent
            .compare(&self.state, |uid, sandbox| listed.get(uid).is_some_and(|ids| ids.contains(sandbox)));
        MessageResult(orm::ReconcileReply {
            generation: self.ledger.generation(),
            adopted_pod_uids: adopted,
            freed_pod_uids: self.free_absent(),
            state: Some(self.whole_state()),
        })
    }
}

impl Allocations {
    /// Those that may be taken in, and those that are held already: what runs is not taken for absent because of its name. Of the
    /// others the log says so when they come, and not with each list.
    fn with_uids(&mut self, running: Vec<RunningSandbox>) -> Vec<RunningSandbox> {
        let mut others = BTreeSet::new();
        let mut first = None;
        let kept = running.into_iter().filter(|RunningSandbox { request, .. }| {
            let Err(fault) = uid::check(&request.pod_uid) else { return true };
            if self.state.pods.contains_key(&request.pod_uid) {
                return true;
            }
            others.insert(request.sandbox_id.clone());
            first.get_or_insert((uid::shown(&request.sandbox_id), fault));
            false
        });
        let kept = kept.collect();
        if let Some((sandbox, fault)) = first.filter(|_| !others.is_subset(&self.passed_over)) {
            let count = others.len();
            tracing::warn!(count, sandbox, %fault, "running pods are passed over: they run on unmanaged");
        }
        self.passed_over = others;
        kept
    }
}

impl Handler<Subscribe> for Allocations {
    type Result = MessageResult<Subscribe>;

    fn handle(&mut self, _: Subscribe, _: &mut Self::Context) -> Self::Result {
        // What the snapshot holds is not told after it.
        self.tell_now();
        let snapshot = PlacementEvent {
            generation: self.ledger.generation(),
            snapshot: true,
            placed: wire::placements(&self.state, &self.view(), self.state.pods.keys()),
            removed_pod_uids: Vec::new(),
            pools: self.pools(),
        };
        MessageResult(Subscription { snapshot, events: self.events.subscribe() })
    }
}

impl Handler<GetState> for Allocations {
    type Result = MessageResult<GetState>;

    fn handle(&mut self, GetState { exclusive_only }: GetState, _: &mut Self::Context) -> Self::Result {
        MessageResult(if exclusive_only { self.exclusive_state() } else { self.whole_state() })
    }
}

impl Handler<IsKnown> for Allocations {
    type Result = bool;

    fn handle(&mut self, IsKnown { uid }: IsKnown, _: &mut Self::Context) -> bool {
        self.state.pods.contains_key(&uid)
    }
}

impl Handler<GetTopology> for Allocations {
    type Result = MessageResult<GetTopology>;

    fn handle(&mut self, _: GetTopology, _: &mut Self::Context) -> Self::Result {
        MessageResult(wire::topology(&self.machine))
    }
}

// === impl Allocations ===

impl Allocations {
    pub(super) fn answer(&mut self, message: Admit) -> Admitted {
        let Admit { request, spec, deadline_unix_ms, occasion } = message;
        self.absent.heard(&request.pod_uid);
        match self.admit(&request, spec, deadline_unix_ms, occasion) {
            Ok((placed, event)) => {
                self.metrics.admitted();
                orm::AdmitReply {
                    generation: event.generation,
                    outcome: placed.map(orm::admit_reply::Outcome::Placed),
                    changed: event.placed.clone(),
                    pools: event.pools.clone(),
                }
            }
            Err(refusal) => self.refusing(&request, &refusal),
        }
    }

    fn admit(
        &mut self,
        request: &SandboxRequest,
        spec: Option<Result<PodRequest, SpecFault>>,
        deadline_unix_ms: i64,
        occasion: Occasion,
    ) -> Result<(Option<orm::PodPlacement>, Arc<PlacementEvent>), Refusal> {
        // By its spec where that is known, else by what its sandbox tells.
        let step = match &spec {
            Some(Ok(pod)) => Step::AdmitSpec(pod.clone()),
            Some(Err(_)) | None => Step::Admit(request.clone()),
        };
        let now = |this: &Self| (this.state.clone(), this.ledger.generation());
        if let Some(fault) = spec.as_ref().and_then(|spec| spec.as_ref().err()) {
            // What runs already goes on running.
            if !self.state.pods.contains_key(&request.pod_uid) {
                let refusal = self.refused(request, Reason::Invalid, Rule::Understood, fault.to_string());
                self.note(now(self), step, Some(refusal.clone()), occasion);
                return Err(refusal);
            }
        }
        let Admission { plan, open } = match self.admission(&step) {
            Ok(admission) => admission,
            Err(refusal) => {
                self.note(now(self), step, None, occasion);
                return Err(refusal);
            }
        };
        if deadline_unix_ms > 0 && clock::unix_ms() > deadline_unix_ms {
            let message = "the deadline has passed: nobody waits".into();
            let refusal = self.refused(request, Reason::Expired, Rule::Deadline, message);
            self.note(now(self), step, Some(refusal.clone()), occasion);
            return Err(refusal);
        }
        if open {
            // Nothing is decided yet, so there is nothing to hold: its containers bring the request.
            self.note(now(self), step, None, occasion);
            return Ok(self.undecided(&plan, &request.pod_uid));
        }
        if self.awaits_list && self.gives_away(&plan) {
            let refusal = self.refused(request, Reason::Expired, Rule::Durable, lost::WHY.to_owned());
            self.note(now(self), step, Some(refusal.clone()), occasion);
            return Err(refusal);
        }
        let arrived = occasion.clone();
        let event = self.settle(plan, step.clone(), occasion).map_err(|e| {
            let refusal = self.refused_by_disk(request, &e);
            // What the disk refuses changes nothing.
            self.note(now(self), step, Some(refusal.clone()), arrived);
            refusal
        })?;
        let told = event.placed.iter().find(|placed| placed.pod_uid == request.pod_uid).cloned();
        // The same question again changes nothing, and so tells nothing.
        let placed = told.or_else(|| wire::placement(&self.state, &self.view(), &request.pod_uid));
        Ok((placed, event))
    }

    fn whole_state(&self) -> orm::State {
        self.state_with(wire::placements(&self.state, &self.view(), self.state.pods.keys()))
    }

    /// Costs what the pods do that have CPUs of their own, however many others there are.
    fn exclusive_state(&self) -> orm::State {
        let own = self.state.cpus.containers.of_kind(|container| container.qos == QosLevel::Dedicated);
        let uids: BTreeSet<String> = own.map(|(id, _)| id.pod.to_string()).collect();
        let mut placed = wire::placements(&self.state, &self.view(), &uids);
        placed.retain(|pod| pod.exclusive_sets().next().is_some());
        self.state_with(placed)
    }

    fn state_with(&self, pods: Vec<orm::PodPlacement>) -> orm::State {
        orm::State {
            generation: self.ledger.generation(),
            pools: self.pools(),
            pods,
            online: self.view().online().to_string(),
            // Those that the machine does not have are the fact `reserved.absent`.
            reserved: (&self.state.cpus.reserved & &(self.machine.online() | self.machine.offline()))
                .to_string(),
            free: pods::free_per_node(&self.state, &self.view()).iter().map(wire::free).collect(),
            storage_fault: self.storage_fault.clone().unwrap_or_default(),
            cpu_policy: pods::policy_in_force(&self.state, &self.rules),
        }
    }

    fn admission(&self, step: &Step) -> Result<Admission, Refusal> {
        match step {
            Step::AdmitSpec(pod) => pods::admit_spec(&self.state, &self.machine, &self.rules, pod)
                .map(|plan| Admission { plan, open: false }),
            Step::Admit(request) => pods::admit(&self.state, &self.machine, &self.rules, request),
            _ => Err(Refusal {
                reason: Reason::Unsupported,
                rule: Rule::Named,
                message: format!("a {} is no admission", step.kind()),
                asked: None,
                free: Vec::new(),
            }),
        }
    }

    /// What an unsettled plan would say, without holding it.
    fn undecided(&self, plan: &Plan, uid: &str) -> (Option<orm::PodPlacement>, Arc<PlacementEvent>) {
        let placed = wire::placement(&plan.after, &self.view(), uid).map(|placed| orm::PodPlacement {
            cpus: String::new(),
            mems: String::new(),
            pool: String::new(),
            ..placed
        });
        let event = PlacementEvent {
            generation: self.ledger.generation(),
            pools: self.pools(),
            ..PlacementEvent::default()
        };
        (placed, Arc::new(event))
    }

    pub(super) fn refused(
        &self,
        request: &SandboxRequest,
        reason: Reason,
        rule: Rule,
        message: String,
    ) -> Refusal {
        Refusal {
            reason,
            rule,
            message,
            asked: request.request,
            free: pods::free_per_node(&self.state, &self.view()),
        }
    }

    fn refused_by_disk(&self, request: &SandboxRequest, e: &CommitError) -> Refusal {
        let message = format!("CPUs are given exclusively only when that is durable, and it is not: {e}");
        self.refused(request, Reason::Storage, Rule::Durable, message)
    }
}

/// One sandbox a pod: the one that is known, else one in which something is confined or runs, else the last.
fn current_sandboxes(running: &[RunningSandbox], state: &State) -> Vec<RunningSandbox> {
    let mut current: BTreeMap<&str, &RunningSandbox> = BTreeMap::new();
    for pod in running {
        let rank = |pod: &RunningSandbox| {
            let known =
                state.pods.get(&pod.request.pod_uid).is_some_and(|e| e.sandbox_id == pod.request.sandbox_id);
            (known, pod.cpus.is_some(), pod.request.stage == Stage::Container)
        };
        current
            .entry(&pod.request.pod_uid)
            .and_modify(|best| {
                if rank(pod) >= rank(best) {
                    *best = pod;
                }
            })
            .or_insert(pod);
    }
    current.into_values().cloned().collect()
}
