//! The actor that keeps time, and watches the thread that blocks.

use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use oxalyst_mesh::{Condition, Facts};
use tokio::sync::oneshot;

use super::Pass;
use super::driver::{Driver, Watch};
use crate::clock::{Clock, Now};
use crate::exposition::PassMetrics;
use crate::names::Directory;
use crate::store::{PassReport, Snapshot, Store};

/// When passes happen.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    /// From the beginning of a pass to that of the next, but for a twentieth more or less.
    pub period: Duration,
    /// A pass that takes longer is reported as trouble; no other begins before it ends.
    pub deadline: Duration,
    /// A single read that takes longer is given up with its thread, and the pass goes on without it.
    pub read_deadline: Duration,
}

/// What a [`Reader`] is connected to.
#[derive(Debug)]
pub struct Wiring {
    /// Where snapshots go.
    pub store: Arc<Store>,
    /// Who names containers.
    pub names: Arc<Directory>,
    /// The present moment.
    pub clock: Arc<dyn Clock>,
    /// Where passes are counted.
    pub metrics: PassMetrics,
    /// What an operator is told: the version of cgroups and the number of containers.
    pub facts: Facts,
    /// Fulfilled by the first pass that finds a cgroup tree.
    pub first_pass: Option<Condition>,
}

/// Makes a pass every period and publishes what it finds. At most one pass is under way.
#[derive(Debug)]
pub struct Reader {
    schedule: Schedule,
    wiring: Wiring,
    driver: Driver,
    under_way: Option<Now>,
    trouble: Option<Arc<str>>,
    failing: bool,
}

#[derive(Message)]
#[rtype(result = "()")]
struct Done(Result<Snapshot, oneshot::error::RecvError>);

// === impl Reader ===

impl Reader {
    /// Gives `pass` a thread of its own.
    ///
    /// # Errors
    /// What the system says if it has no thread left.
    pub fn new(pass: Pass, schedule: Schedule, wiring: Wiring) -> std::io::Result<Self> {
        Ok(Self {
            schedule,
            wiring,
            driver: Driver::new(pass)?,
            under_way: None,
            trouble: None,
            failing: false,
        })
    }

    fn tick(&mut self, ctx: &mut Context<Self>) {
        let now = self.wiring.clock.now();
        if let Some(began) = self.under_way {
            let running = now.since(began);
            if running > self.schedule.deadline {
                let what = "a pass is past its deadline: a read of a cgroup or proc file hangs";
                self.told(Some(what.into()));
                self.wiring.store.publish_trouble(what.into());
            }
            return;
        }
        let answer = self.driver.order(self.wiring.names.named());
        self.under_way = Some(now);
        let (driver, deadline) = (self.driver.clone(), self.schedule.read_deadline);
        let store = Arc::clone(&self.wiring.store);
        let answer = async move {
            let (mut answer, mut seen) = (answer, Watch::default());
            loop {
                // Four looks within a deadline: a read is given up after it, and soon after.
                match tokio::time::timeout(deadline / 4, &mut answer).await {
                    Ok(answer) => return answer,
                    Err(_) if driver.watch(&mut seen, deadline) => store.publish_late(),
                    Err(_) => {}
                }
            }
        };
        ctx.spawn(answer.into_actor(self).map(|answer, _, ctx| ctx.notify(Done(answer))));
    }

    /// A pass now, and so on. A twentieth of the period more or less keeps nodes that began together, and whatever else on a
    /// node keeps the same time, from meeting for ever.
    fn keep_time(&mut self, ctx: &mut Context<Self>) {
        self.tick(ctx);
        ctx.run_later(self.schedule.period.mul_f64(0.95 + 0.1 * fastrand::f64()), Self::keep_time);
    }

    /// One log line for each change of state, not for each pass.
    fn told(&mut self, trouble: Option<Arc<str>>) {
        if trouble != self.trouble {
            match &trouble {
                Some(trouble) => tracing::warn!(%trouble, "cgroups cannot be read; what is known ages"),
                None => tracing::info!("cgroups are read again"),
            }
            self.trouble = trouble;
        }
    }
}

impl Actor for Reader {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(4);
        self.keep_time(ctx);
    }
}

impl Handler<Done> for Reader {
    type Result = ();

    fn handle(&mut self, Done(answer): Done, ctx: &mut Self::Context) {
        self.under_way = None;
        let Ok(snapshot) = answer else {
            tracing::error!("the thread that reads cgroups ended in a pass");
            ctx.stop();
            return;
        };
        self.wiring.metrics.observe(&snapshot);
        self.wiring
            .facts
            .set("containers", snapshot.containers.iter().filter(|s| s.removed.is_none()).count());
        if snapshot.unified.is_some() {
            self.wiring.facts.set("cgroups", snapshot.cgroup_source());
        }
        self.told(snapshot.pass.trouble.clone());
        let failing = snapshot.pass.failed_files > 0;
        if failing != self.failing {
            let PassReport { failed_files: files, failure, node_failure, .. } = &snapshot.pass;
            let example = failure.as_deref().or(node_failure.as_deref()).unwrap_or_default();
            if failing {
                tracing::warn!(
                    files,
                    example,
                    "some files cannot be read, or say what cannot be; what they told before ages"
                );
            } else {
                tracing::info!("all files can be read");
            }
            self.failing = failing;
        }
        if snapshot.pass.trouble.is_none() {
            // Dropped, it is fulfilled for good: a tree lost later shows in qualities, not in readiness.
            self.wiring.first_pass = None;
        } else if let (Some(condition), Some(trouble)) = (&self.wiring.first_pass, &snapshot.pass.trouble) {
            condition.pending(&**trouble);
        }
        self.wiring.store.histories.add(&snapshot);
        self.wiring.store.publish(snapshot);
    }
}
