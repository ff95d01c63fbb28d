//! The one writer of allocation state: an actor on a thread of its own, because a commit waits for the disk.

mod absent;
mod gave;
mod handlers;
mod import;
mod lost;
mod machine;
mod noting;
mod open;
mod plugged;
mod refusing;
mod reserving;
mod storage;
mod told;

pub use gave::{
    AsHeld, AskConcern, Concern, DueResizes, Gave, RefuseResize, ResizePlugged, Unasked, UnaskedPod,
};
pub use handlers::{
    Admit, Admitted, GetState, GetTopology, IsKnown, Reconcile, Reconciled, Release, Released, Subscribe,
    Subscription,
};
pub use noting::{Occasion, Snapshot, WhatIf};
pub use open::OpenError;
pub use plugged::{
    Abandon, AdmitPlugged, Chosen, Due, IsHeld, KnownNodes, Plugged, PluginNames, RefusePlugged, Removals,
    Removed,
};
pub use reserving::Reserve;
pub use told::{ResizeContainer, SpecTold, SpecsTold};

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, AsyncContext as _, Context, Handler, Message, WeakAddr};
use oxalyst_ledger::{Change, CommitError, Ledger};
use oxalyst_mesh::{Condition, Facts};
use oxalyst_proto::orm::v1 as orm;
use oxalyst_proto::orm::v1::PlacementEvent;
use oxalyst_topology::Machine;
use tokio::sync::broadcast;

use crate::decisions::Recorder;
use crate::metrics::Metrics;
use crate::refusals::Refusals;
use crate::{clock, record, wire};
use absent::Absent;
use machine::Watched;
use oxalyst_planner::decision::Step;
use oxalyst_planner::pods::{self, Plan, Request, Rules, State};
use oxalyst_planner::policy::INTERRUPT;

/// Requests that may wait for the actor. A node starts pods one by one; more than this is a flood.
const MAILBOX: usize = 256;
/// Between two plans for those who wait for room: whoever has asked meanwhile is answered.
const PROMOTION_PAUSE: Duration = Duration::from_millis(10);
/// Events that a watcher may lag behind before it is cut off and has to come back for a snapshot.
const EVENTS: usize = 1024;

/// Allocation state: in memory, and durable in the ledger.
#[derive(Debug)]
pub struct Allocations {
    ledger: Ledger,
    state: State,
    rules: Arc<Rules>,
    machine: Arc<Machine>,
    watched: Watched,
    /// Set where the kubelet's reservation counts.
    as_kubelet: Option<reserving::AsKubelet>,
    /// Changes that hold but could not be made durable yet, by key. Never an exclusive set.
    unsaved: BTreeMap<String, Change>,
    absent: Absent,
    /// The ledger was lost, and the runtime has not told yet who runs where.
    awaits_list: bool,
    /// Sandboxes that the runtime listed last and that are of no pod that can be known.
    passed_over: BTreeSet<String>,
    unmet: told::Unmet,
    unheard: plugged::Unheard,
    events: broadcast::Sender<Arc<PlacementEvent>>,
    /// Events that watchers have not been told yet: whoever asked is answered first.
    untold: Vec<Arc<PlacementEvent>>,
    refusals: Refusals,
    /// Its own mailbox; `None` before it is started.
    own: Option<WeakAddr<Self>>,
    watch_period: Duration,
    storage_fault: Option<String>,
    /// How often the ledger was built anew, as last told.
    rebuilt: u64,
    /// Pending while the disk fails.
    writable: Condition,
    facts: Facts,
    metrics: Metrics,
    recorder: Recorder,
}

/// Events wait to be told.
#[derive(Debug, Message)]
#[rtype(result = "()")]
struct Tell;

impl Handler<Tell> for Allocations {
    type Result = ();

    fn handle(&mut self, _: Tell, _: &mut Self::Context) {
        self.tell_now();
    }
}

// === impl Allocations ===

impl Actor for Allocations {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX);
        self.own = Some(ctx.address().downgrade());
        ctx.run_interval(self.watch_period, |this, ctx| this.tick(ctx));
        // Soon after a commit, not with it: sled is the second witness and may lag behind.
        ctx.run_interval(Duration::from_secs(1), |this, _| this.flush());
    }
}

impl Allocations {
    /// Makes the plan durable and true, and tells the watchers.
    ///
    /// # Errors
    /// The disk failed and the plan gives CPUs away exclusively: those must not be given before it is durable. Any other plan
    /// holds at once and is made durable later.
    fn settle(
        &mut self,
        plan: Plan,
        step: Step,
        occasion: Occasion,
    ) -> Result<Arc<PlacementEvent>, CommitError> {
        let generation = self.ledger.generation();
        let changes = pods::record::changes(&plan, &self.rules);
        let plugins = self.for_plugins(&plan);
        let changes = changes.into_iter().map(record::change).chain(Self::removal_changes(&plugins));
        self.commit(changes, self.gives_away(&plan))?;
        self.take_up_removals(plugins);
        // That the machine was looked at concerns every pod, and is worth remembering only if something came of it.
        let came_of_it = !plan.pods.is_empty() || plan.moved || plan.remembered.is_some();
        let (event, before) = self.publish(plan);
        if came_of_it {
            self.note((before, generation), step, None, occasion);
        }
        Ok(event)
    }

    /// Makes the plan true and tells the watchers; gives the state before.
    fn publish(&mut self, plan: Plan) -> (Arc<PlacementEvent>, State) {
        let changes_something = !plan.is_empty();
        let removed = plan.removed().cloned().collect();
        let Plan { after, affected, .. } = plan;
        let before = std::mem::replace(&mut self.state, after);
        let event = Arc::new(PlacementEvent {
            generation: self.ledger.generation(),
            snapshot: false,
            placed: wire::placements(&self.state, &self.view(), &affected),
            removed_pod_uids: removed,
            pools: self.pools(),
        });
        self.metrics.pods(self.state.pods.len());
        self.tell_policy();
        if changes_something {
            self.tell(Arc::clone(&event));
        }
        (event, before)
    }

    /// Tells the watchers, once whoever waits for this change is answered: a carved pool is told of each pod in it, and to write
    /// that down for every watcher takes longer than the answer.
    fn tell(&mut self, event: Arc<PlacementEvent>) {
        let asked = !self.untold.is_empty();
        self.untold.push(event);
        match self.own.as_ref().and_then(WeakAddr::upgrade) {
            Some(_) if asked => {}
            Some(own) => own.do_send(Tell),
            None => self.tell_now(),
        }
    }

    fn tell_now(&mut self) {
        for event in self.untold.drain(..) {
            // An error means that nobody watches.
            let _ = self.events.send(event);
        }
    }

    /// The machine as far as it may be used.
    fn view(&self) -> Cow<'_, Machine> {
        self.rules.confine(&self.machine)
    }

    /// Which policy gives out CPUs, and how many pods another one has placed, as a fact.
    fn tell_policy(&self) {
        let word = pods::policy_in_force(&self.state, &self.rules);
        match pods::of_other_policy(&self.state) {
            0 => self.facts.set("cpu_policy", word),
            others => {
                let now = self.rules.policy_name();
                self.facts
                    .set("cpu_policy", format!("{word}: {now}, and {others} pod(s) of the other policy"));
            }
        }
    }

    /// The pools as they are told, the one for interrupts also where none of its CPUs is there.
    fn pools(&self) -> Vec<orm::Pool> {
        let mut pools = wire::pools(&self.state, &self.view());
        let interrupt = self.watched.interrupt();
        if !interrupt.is_empty() && !pools.iter().any(|pool| pool.name == INTERRUPT) {
            let cpus = (interrupt & self.view().online()).to_string();
            pools.push(orm::Pool { name: INTERRUPT.to_owned(), cpus, ..orm::Pool::default() });
        }
        pools
    }

    fn tick(&mut self, ctx: &mut Context<Self>) {
        self.look_at_machine();
        self.free_absent();
        self.calm_down();
        self.end_ramp_up();
        self.promote(ctx);
        self.meet();
        if !self.unsaved.is_empty() {
            // The outcome is told by `storage_works` or `storage_fails`; nothing waits for this attempt.
            let _ = self.commit(std::iter::empty(), false);
        }
    }

    /// Pods that wait for room get it, some at a time: who starts meanwhile is answered in between.
    fn promote(&mut self, ctx: &mut Context<Self>) {
        let occasion = Occasion::now();
        let promoted = pods::promote(&self.state, &self.machine, &self.rules);
        if promoted.is_empty() {
            return;
        }
        tracing::info!(pods = promoted.pods.len(), "pods that had waited for room get what they asked for");
        // Refused by a failing disk, they wait for the next period.
        if self.settle(promoted, Step::Promote, occasion).is_ok() {
            ctx.run_later(PROMOTION_PAUSE, |this, ctx| this.promote(ctx));
        }
    }

    /// Shared pods that have been running for long enough join their pools.
    fn end_ramp_up(&mut self) {
        let occasion = Occasion::now();
        let elapsed = Request::Elapse { now_unix_ms: clock::unix_ms() };
        match pods::plan(&self.state, &self.machine, &self.rules, &elapsed) {
            Ok(plan) if plan.is_empty() => {}
            Ok(plan) => {
                tracing::debug!(pods = plan.pods.len(), "shared pods have started and join their pools");
                // It gives no CPUs away: what a failing disk refuses is written later.
                let _ = self.settle(plan, Step::Whole(elapsed), occasion);
            }
            Err(refusal) => tracing::error!(%refusal, "that time passes cannot be refused"),
        }
    }

    /// Frees the pods that the runtime has not listed for the grace time, and names them.
    fn free_absent(&mut self) -> Vec<String> {
        let overdue = self.absent.overdue(&self.state);
        for (uid, sandbox_id) in &overdue {
            tracing::info!(uid, sandbox_id, "freed: the runtime has not listed the pod for the grace time");
            let occasion = Occasion::now();
            let plan = pods::release(&self.state, &self.machine, &self.rules, uid, sandbox_id);
            let step = Step::Release { uid: uid.clone(), sandbox_id: sandbox_id.clone() };
            if let Err(e) = self.settle(plan, step, occasion) {
                tracing::error!(error = %e, "a release cannot be refused by the disk");
            }
        }
        overdue.into_iter().map(|(uid, _)| uid).collect()
    }

    fn flush(&mut self) {
        if let Err(e) = self.ledger.flush() {
            tracing::debug!(error = %e, "the ledger's second witness lags behind");
        }
        self.notice_rebuilding();
        match self.ledger.fault() {
            Some(why) => self.facts.set("ledger.sled", why),
            None => self.facts.set("ledger.sled", "ok"),
        }
    }
}
