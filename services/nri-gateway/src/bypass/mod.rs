//! Bypass mode: where no runtime speaks NRI, pods are known from the meta-server and from the tree of cgroups, and what the orm
//! decides is written to the kernel's files. One round after another, each of which holds the [`Hands`].

mod census;
mod pods;
mod strays;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use oxalyst_mesh::{Condition, Facts};
use oxalyst_proto::meta::v1::PodList;
use oxalyst_proto::orm::v1::admit_reply;
use oxalyst_proto::runtime::v1::Sandbox;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tonic::transport::Channel;

use crate::duties::Duties;
use crate::few::Few;
use crate::hands::{Hands, Way};
use crate::kernel::{Kernel, KernelError};
use crate::metrics::Metrics;
use crate::orm::Orm;
use crate::roster::{Roster, TakeCensus, Taken};
use crate::settings::{Mode, Settings};
use crate::written::{self, WriteError};
pub use census::join;
use strays::Strays;

/// For a look at the tree, or a pass over the kernel's files.
const LOOK_DEADLINE: Duration = Duration::from_secs(2);

/// For an answer of the orm. No hook waits.
const ADMIT_DEADLINE: Duration = Duration::from_secs(1);

/// What bypass mode works with.
#[derive(Debug)]
pub struct Bypass {
    /// How it is told to behave.
    pub settings: Arc<Settings>,
    /// Whose turn it is.
    pub hands: Hands,
    /// What runs.
    pub roster: Addr<Roster>,
    /// The kernel's files.
    pub kernel: Kernel,
    /// Decides.
    pub orm: Orm,
    /// What the orm has to be told in any case.
    pub duties: Duties,
    /// Whether anybody knows what runs.
    pub knows: watch::Sender<bool>,
    /// The way to the meta-server.
    pub meta: Channel,
    /// Counts.
    pub metrics: Metrics,
    /// What an operator is told.
    pub facts: Facts,
}

/// What a round remembers for the next.
#[derive(Debug)]
struct Memory {
    pods: watch::Receiver<Option<Arc<PodList>>>,
    follower: JoinHandle<()>,
    /// Pods that the orm refused: they run all the same, and are taken in.
    refused: BTreeSet<String>,
    /// Containers that lie where no known naming puts them.
    strays: Strays,
    everything_at: Instant,
}

/// Why a round could not be what it should be.
#[derive(Debug, thiserror::Error)]
enum RoundError {
    #[error("{0}")]
    Kernel(#[from] KernelError),
    #[error("the gateway is stopping")]
    Stopping,
}

impl From<WriteError> for RoundError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Kernel(e) => Self::Kernel(e),
            WriteError::Stopping => Self::Stopping,
        }
    }
}

/// Does it for ever, whenever it is its turn. `condition` tells what it lacks.
pub async fn run(bypass: Bypass, condition: Condition) {
    let mut memory: Option<Memory> = None;
    let mut last = String::new();
    condition.fulfilled();
    loop {
        if let Some(wait) = bypass.waits() {
            if memory.take().is_some() || !last.is_empty() {
                condition.fulfilled();
                last.clear();
            }
            tokio::time::sleep(wait).await;
            continue;
        }
        let Some(turn) = bypass.hands.for_bypass() else {
            tokio::time::sleep(bypass.scan()).await;
            continue;
        };
        if let Some(held) = bypass.hands.is_others() {
            let reason = format!("another gateway holds {held}: waits for it to end, and writes nothing");
            if reason != last {
                tracing::warn!(%reason, "bypass mode does not begin");
                condition.pending(reason.clone());
                last = reason;
            }
            bypass.hands.go(Way::Nobody);
            drop(turn);
            tokio::time::sleep(bypass.scan()).await;
            continue;
        }
        bypass.hands.go(Way::Bypass);
        let known = memory.get_or_insert_with(|| Memory::new(bypass.meta.clone()));
        let lacks = match bypass.round(known).await {
            Ok(lacks) => lacks,
            Err(RoundError::Stopping) => return,
            Err(e) => vec![e.to_string()],
        };
        drop(turn);
        let lacks = lacks.join("; ");
        if lacks != last {
            match lacks.is_empty() {
                true => condition.fulfilled(),
                false => {
                    tracing::warn!(reason = %lacks, "bypass mode is not whole");
                    condition.pending(lacks.clone());
                }
            }
            last = lacks;
        }
        bypass.rest(known).await;
    }
}

// === impl Memory ===

impl Memory {
    fn new(meta: Channel) -> Self {
        let (tell, pods) = watch::channel(None);
        Self {
            pods,
            follower: tokio::spawn(pods::follow(meta, tell)),
            refused: BTreeSet::new(),
            strays: Strays::default(),
            everything_at: Instant::now(),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.follower.abort();
    }
}

// === impl Bypass ===

impl Bypass {
    fn scan(&self) -> Duration {
        Duration::from_millis(self.settings.bypass_scan_ms)
    }

    /// How long it is not its turn at least; `None`: it is.
    fn waits(&self) -> Option<Duration> {
        if self.settings.mode == Mode::Bypass {
            return None;
        }
        match self.hands.down_for() {
            None => Some(self.scan()),
            Some(_) if self.hands.way() == Way::Bypass => None,
            Some(down) => {
                let after = Duration::from_millis(self.settings.bypass_after_ms);
                Some(after.saturating_sub(down)).filter(|left| !left.is_zero())
            }
        }
    }

    /// Until something changes, or the tree is looked at again.
    async fn rest(&self, memory: &mut Memory) {
        let mut decided = self.orm.changed();
        decided.mark_unchanged();
        tokio::select! {
            () = tokio::time::sleep(self.scan()) => {}
            _ = memory.pods.changed() => {}
            _ = decided.changed() => {}
        }
    }

    /// One look at the tree and what follows from it; gives what is lacking.
    async fn round(&self, memory: &mut Memory) -> Result<Vec<String>, RoundError> {
        let mut shown = self.kernel.shown(LOOK_DEADLINE).await?;
        let pods = memory.pods.borrow_and_update().clone();
        memory.strays.join(&mut shown, pods.as_deref(), &self.kernel, LOOK_DEADLINE).await;
        let roots = if shown.roots.is_empty() { "none".to_owned() } else { shown.roots.join(" ") };
        self.facts.set("pod_roots", roots);
        let census = join(&shown, pods.as_deref());
        let there: BTreeSet<String> = census.sandboxes.iter().map(|(s, _)| s.pod_uid.clone()).collect();
        let taken = self.roster.send(TakeCensus(census)).await.map_err(|_| RoundError::Stopping)?;
        self.knows.send_if_modified(|knows| !std::mem::replace(knows, true));
        let asks = self.admit(memory, &taken, &there).await;
        for sandbox in taken.ended.iter().filter(|sandbox| !there.contains(&sandbox.pod_uid)) {
            self.duties.release(sandbox.pod_uid.clone(), sandbox.sandbox_id.clone());
        }
        if !taken.came.is_empty() {
            tracing::info!(containers = %Few(&taken.came), "found running");
        }
        let everything = Instant::now() >= memory.everything_at;
        if everything {
            memory.everything_at = Instant::now() + self.settings.reconcile_period();
        }
        if everything || asks {
            self.duties.reconcile();
        }
        let fault = written::write(&self.roster, &self.kernel, &self.metrics, everything).await?;
        let mut lacks: Vec<String> = fault.into_iter().collect();
        if pods.is_none() {
            lacks.push(
                "the meta-server has told no pods: is it running, with the same common.run_dir?".to_owned(),
            );
        }
        Ok(lacks)
    }

    /// Asks the orm for pods that have no placement. True where a pod was refused, and so has to be taken in.
    async fn admit(&self, memory: &mut Memory, taken: &Taken, there: &BTreeSet<String>) -> bool {
        memory.refused.retain(|uid| there.contains(uid));
        let mut refused = false;
        let due = |s: &&Sandbox| !memory.refused.contains(&s.pod_uid);
        let due: Vec<Sandbox> = taken.unplaced.iter().filter(due).cloned().collect();
        for sandbox in due {
            let (uid, name) = (sandbox.pod_uid.clone(), sandbox.name.clone());
            match self.orm.admit_pod(sandbox, ADMIT_DEADLINE).await {
                Ok(reply) => {
                    if let Some(admit_reply::Outcome::Refused(refusal)) = reply.outcome {
                        tracing::warn!(pod = %name, reason = %refusal.message, "refused, and runs already: taken in");
                    }
                    // What is not settled needs its containers, which the whole list tells.
                    refused |= memory.refused.insert(uid);
                }
                // The orm is away: the next round asks again.
                Err(e) => {
                    tracing::debug!(pod = %name, reason = %e, "not admitted yet");
                    break;
                }
            }
        }
        refused
    }
}
