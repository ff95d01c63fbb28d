//! The actor that brings the object to its target: only what changed, one attempt at a time, again until it is there.

use std::mem::Discriminant;
use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, ActorFutureExt as _, AsyncContext as _, Context, Handler, Message, WrapFuture as _};
use oxalyst_backoff::Backoff;
use oxalyst_kube_types::CustomNodeResource;
use oxalyst_mesh::{Condition, Facts, Mesh};
use prometheus_client::metrics::counter::Counter;
use tokio::time::Instant;

use crate::target::{Part, PublishError, Target};

const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// Owns the target and what was last sent there.
pub struct Publisher {
    /// Away while a request is under way.
    target: Option<Target>,
    desired: Option<Desired>,
    sent_spec: Option<Arc<CustomNodeResource>>,
    sent_status: Option<Arc<CustomNodeResource>>,
    /// A timer runs that will look again.
    waiting: bool,
    last_attempt: Option<Instant>,
    spacing: Duration,
    check_period: Duration,
    backoff: Backoff,
    failing: Option<Discriminant<PublishError>>,
    condition: Condition,
    facts: Facts,
    patches: Counter,
    failures: Counter,
}

/// What the cluster should see.
#[derive(Debug, Clone, Message)]
#[rtype(result = "()")]
pub struct Desired {
    /// Generation of the allocator's ledger that the object shows.
    pub generation: u64,
    /// The object.
    pub object: Arc<CustomNodeResource>,
}

/// What became of an attempt.
struct Attempt {
    target: Target,
    object: Arc<CustomNodeResource>,
    spec: bool,
    status: bool,
    sent: u64,
    error: Option<PublishError>,
}

// === impl Publisher ===

impl Publisher {
    /// A publisher that has sent nothing yet.
    pub fn new(mesh: &Mesh, target: Target, spacing: Duration, check_period: Duration) -> Self {
        let registry = &mesh.registry;
        mesh.facts.set("patches_sent", 0);
        Self {
            target: Some(target),
            desired: None,
            sent_spec: None,
            sent_status: None,
            waiting: false,
            last_attempt: None,
            spacing,
            check_period,
            backoff: Backoff::new(RETRY_MIN, RETRY_MAX),
            failing: None,
            condition: mesh.readiness.condition("publish", "nothing is published yet"),
            facts: mesh.facts.clone(),
            patches: registry.register("reporter_patches", "Writes of the object", Counter::default()),
            failures: registry.register(
                "reporter_publish_failures",
                "Attempts to write the object that failed",
                Counter::default(),
            ),
        }
    }

    /// The parts of `object` that were not sent as they are.
    fn unsent(&self, object: &CustomNodeResource) -> Vec<Part> {
        let spec = self
            .sent_spec
            .as_ref()
            .is_some_and(|sent| sent.metadata == object.metadata && sent.spec == object.spec);
        let status = self.sent_status.as_ref().is_some_and(|sent| sent.status == object.status);
        [(Part::Spec, spec), (Part::Status, status)]
            .into_iter()
            .filter(|(_, same)| !same)
            .map(|(part, _)| part)
            .collect()
    }

    /// Sends what is unsent, now or when it may.
    fn advance(&mut self, ctx: &mut Context<Self>) {
        let Some(desired) = self.desired.clone() else { return };
        let parts = self.unsent(&desired.object);
        if parts.is_empty() {
            self.facts.set("published_generation", desired.generation);
            // Also after a failure, if what was wanted meanwhile is no longer wanted.
            self.succeeded();
            return;
        }
        // Whoever waits or works now comes back here.
        if self.waiting || self.target.is_none() {
            return;
        }
        let rest =
            self.last_attempt.map_or(Duration::ZERO, |last| self.spacing.saturating_sub(last.elapsed()));
        if !rest.is_zero() {
            self.look_again(rest, ctx);
            return;
        }
        let Some(target) = self.target.take() else { return };
        self.last_attempt = Some(Instant::now());
        let object = desired.object;
        let work = async move {
            let mut attempt = Attempt { target, object, spec: false, status: false, sent: 0, error: None };
            for part in parts {
                match attempt.target.write(part, &attempt.object).await {
                    Ok(sent) => attempt.sent += u64::from(sent),
                    Err(e) => {
                        attempt.error = Some(e);
                        break;
                    }
                }
                match part {
                    Part::Spec => attempt.spec = true,
                    Part::Status => attempt.status = true,
                }
            }
            attempt
        };
        ctx.spawn(work.into_actor(self).map(|attempt, this, ctx| this.attempted(attempt, ctx)));
    }

    fn attempted(&mut self, attempt: Attempt, ctx: &mut Context<Self>) {
        self.facts.set("target", &attempt.target);
        self.target = Some(attempt.target);
        if attempt.spec {
            self.sent_spec = Some(attempt.object.clone());
        }
        if attempt.status {
            self.sent_status = Some(attempt.object);
        }
        if attempt.sent > 0 {
            self.patches.inc_by(attempt.sent);
            self.facts.set("patches_sent", self.patches.get());
        }
        match attempt.error {
            None => self.succeeded(),
            Some(e) => {
                self.failed(&e);
                let delay = self.backoff.next_delay();
                self.look_again(delay, ctx);
            }
        }
        self.advance(ctx);
    }

    fn succeeded(&mut self) {
        self.backoff.reset();
        self.condition.fulfilled();
        if self.failing.take().is_some() {
            tracing::info!("the object is published again");
        }
    }

    fn failed(&mut self, error: &PublishError) {
        self.failures.inc();
        self.facts.set("failures", self.failures.get());
        self.condition.pending(error.to_string());
        // One line for each change of state; the newest text stands in readiness.
        let kind = std::mem::discriminant(error);
        if self.failing.replace(kind) != Some(kind) {
            tracing::warn!(%error, "the object is not published; trying again until it is");
        }
        if matches!(error, PublishError::Absent { .. }) {
            // It was there and is gone: the spec makes it anew.
            self.sent_spec = None;
            self.sent_status = None;
        }
    }

    fn look_again(&mut self, after: Duration, ctx: &mut Context<Self>) {
        self.waiting = true;
        ctx.run_later(after, |this, ctx| {
            this.waiting = false;
            this.advance(ctx);
        });
    }

    /// Looks whether the published object still stands: it may have been deleted or changed by others.
    fn check(&mut self, ctx: &mut Context<Self>) {
        let Some(desired) = self.desired.clone() else { return };
        if !self.unsent(&desired.object).is_empty() {
            return;
        }
        let Some(mut target) = self.target.take() else { return };
        let work = async move {
            let holds = target.holds(&desired.object).await;
            (target, holds)
        };
        ctx.spawn(work.into_actor(self).map(|(target, holds), this, ctx| {
            this.target = Some(target);
            match holds {
                Ok(true) => {}
                Ok(false) => {
                    tracing::info!(
                        "the published object was changed or deleted by others; publishing it again"
                    );
                    this.sent_spec = None;
                    this.sent_status = None;
                }
                Err(e) => {
                    // Unknown is not unchanged: write again, which changes nothing if all is well.
                    this.failed(&e);
                    this.sent_spec = None;
                    this.sent_status = None;
                }
            }
            this.advance(ctx);
        }));
    }
}

impl Actor for Publisher {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.run_interval(self.check_period, Self::check);
    }
}

impl Handler<Desired> for Publisher {
    type Result = ();

    fn handle(&mut self, desired: Desired, ctx: &mut Self::Context) {
        self.desired = Some(desired);
        self.advance(ctx);
    }
}
