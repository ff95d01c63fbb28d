//! The actor that keeps time, and the thread that blocks.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use actix::prelude::*;
use oxalyst_mesh::Condition;
use tokio::sync::oneshot;

use super::Pass;
use crate::clock::{Clock, Now};
use crate::exposition::PassMetrics;
use crate::names::Directory;
use crate::store::{Snapshot, Store};

/// When passes happen.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    /// From the beginning of a pass to that of the next.
    pub period: Duration,
    /// A pass that takes longer is reported as trouble; no other begins before it ends.
    pub deadline: Duration,
}

/// Makes a pass every period and publishes what it finds. At most one pass is under way.
#[derive(Debug)]
pub struct Reader {
    schedule: Schedule,
    store: Arc<Store>,
    names: Arc<Directory>,
    clock: Arc<dyn Clock>,
    metrics: PassMetrics,
    thread: mpsc::Sender<Order>,
    under_way: Option<Now>,
    first_pass: Option<Condition>,
    trouble: Option<Arc<str>>,
    failing: bool,
}

/// One pass, asked of the thread.
struct Order {
    named: Arc<[super::Named]>,
    reply: oneshot::Sender<Snapshot>,
}

#[derive(Message)]
#[rtype(result = "()")]
struct Done(Result<Snapshot, oneshot::error::RecvError>);

// === impl Reader ===

impl Reader {
    /// Gives `pass` a thread of its own. `first_pass` is fulfilled by the first pass that finds a cgroup tree.
    ///
    /// A detached thread rather than the runtime's pool: a read that hangs must not keep the process from ending.
    ///
    /// # Errors
    /// What the system says if it has no thread left.
    pub fn new(
        pass: Pass,
        schedule: Schedule,
        store: Arc<Store>,
        names: Arc<Directory>,
        clock: Arc<dyn Clock>,
        metrics: PassMetrics,
        first_pass: Option<Condition>,
    ) -> std::io::Result<Self> {
        let (thread, orders) = mpsc::channel();
        std::thread::Builder::new().name("cgroup-pass".to_owned()).spawn(move || work(pass, &orders))?;
        Ok(Self {
            schedule,
            store,
            names,
            clock,
            metrics,
            thread,
            under_way: None,
            first_pass,
            trouble: None,
            failing: false,
        })
    }

    fn tick(&mut self, ctx: &mut Context<Self>) {
        let now = self.clock.now();
        if let Some(began) = self.under_way {
            let running = now.since(began);
            if running > self.schedule.deadline {
                let what = "a pass is past its deadline: a read of a cgroup or proc file hangs";
                self.told(Some(what.into()));
                self.store.publish_trouble(what.into());
            }
            return;
        }
        let (reply, answer) = oneshot::channel();
        if self.thread.send(Order { named: self.names.named(), reply }).is_err() {
            tracing::error!("the thread that reads cgroups ended");
            ctx.stop();
            return;
        }
        self.under_way = Some(now);
        ctx.spawn(answer.into_actor(self).map(|answer, _, ctx| ctx.notify(Done(answer))));
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
        self.tick(ctx);
        ctx.run_interval(self.schedule.period, Self::tick);
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
        self.metrics.observe(&snapshot.pass);
        self.told(snapshot.pass.trouble.clone());
        let failing = snapshot.pass.failed_files > 0;
        if failing != self.failing {
            let (files, example) =
                (snapshot.pass.failed_files, snapshot.pass.failure.as_deref().unwrap_or_default());
            if failing {
                tracing::warn!(files, example, "some files cannot be read; their metrics are missing");
            } else {
                tracing::info!("all files can be read");
            }
            self.failing = failing;
        }
        if snapshot.pass.trouble.is_none() {
            // Dropped, it is fulfilled for good: a tree lost later shows in qualities, not in readiness.
            self.first_pass = None;
        } else if let (Some(condition), Some(trouble)) = (&self.first_pass, &snapshot.pass.trouble) {
            condition.pending(&**trouble);
        }
        self.store.publish(snapshot);
    }
}

fn work(mut pass: Pass, orders: &mpsc::Receiver<Order>) {
    while let Ok(Order { named, reply }) = orders.recv() {
        // If nobody waits any more the process is ending.
        let _ = reply.send(pass.run(&named));
    }
}
