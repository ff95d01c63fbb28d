//! Bypass mode: where no runtime speaks NRI, pods are known from the meta-server and from the tree of cgroups, and what the orm
//! decides is written to the kernel's files. One round after another, each of which holds the [`Hands`].

mod census;
mod pods;

use std::collections::{BTreeMap, BTreeSet};
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
use crate::hands::{Hands, Way};
use crate::kernel::{Kernel, KernelError};
use crate::metrics::Metrics;
use crate::orm::Orm;
use crate::pinning::{Change, Corrections};
use crate::placements::Cpuset;
use crate::roster::{Check, Observed, Reported, Roster, SettleUnknown, TakeCensus, Taken, ToCheck};
use crate::settings::{Mode, Settings};
pub use census::join;

/// For a look at the tree, or a pass over the kernel's files.
const LOOK_DEADLINE: Duration = Duration::from_secs(2);

/// For the memory nodes of one container: the kernel may move its pages before it answers.
const MEMS_DEADLINE: Duration = Duration::from_secs(5);

/// For an answer of the orm. No hook waits.
const ADMIT_DEADLINE: Duration = Duration::from_secs(1);

/// How long it is waited for somebody to tell more of a pod than its UID.
const PATIENCE: Duration = Duration::from_secs(10);

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
    /// When a pod of which only the UID is known was first seen.
    unknown: BTreeMap<String, Instant>,
    /// Those that were waited for long enough.
    settled: BTreeSet<String>,
    /// Pods that the orm refused: they run all the same, and are taken in.
    refused: BTreeSet<String>,
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
            unknown: BTreeMap::new(),
            settled: BTreeSet::new(),
            refused: BTreeSet::new(),
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
        let shown = self.kernel.shown(LOOK_DEADLINE).await?;
        let pods = memory.pods.borrow_and_update().clone();
        let roots = if shown.roots.is_empty() { "none".to_owned() } else { shown.roots.join(" ") };
        self.facts.set("pod_roots", roots);
        let census = join(&shown, pods.as_deref());
        let unknown: Vec<String> =
            census.sandboxes.iter().filter(|(_, known)| !known).map(|(s, _)| s.pod_uid.clone()).collect();
        let there: BTreeSet<String> = census.sandboxes.iter().map(|(s, _)| s.pod_uid.clone()).collect();
        let taken = self.roster.send(TakeCensus(census)).await.map_err(|_| RoundError::Stopping)?;
        self.knows.send_if_modified(|knows| !std::mem::replace(knows, true));
        let mut asks = self.settle(memory, &unknown).await?;
        asks |= self.admit(memory, &taken, &there).await;
        for sandbox in taken.ended.iter().filter(|sandbox| !there.contains(&sandbox.pod_uid)) {
            self.duties.release(sandbox.pod_uid.clone(), sandbox.sandbox_id.clone());
        }
        if !taken.came.is_empty() {
            tracing::info!(containers = ?taken.came, "found running");
        }
        let everything = Instant::now() >= memory.everything_at;
        if everything {
            memory.everything_at = Instant::now() + self.settings.reconcile_period();
        }
        if everything || asks {
            self.duties.reconcile();
        }
        let mut lacks: Vec<String> = self.apply(everything).await?.into_iter().collect();
        if pods.is_none() {
            lacks.push(
                "the meta-server has told no pods: is it running, with the same common.run_dir?".to_owned(),
            );
        }
        Ok(lacks)
    }

    /// Pods of which nobody has told more for long enough are taken in as they are. True where there are new ones.
    async fn settle(&self, memory: &mut Memory, unknown: &[String]) -> Result<bool, RoundError> {
        memory.unknown.retain(|uid, _| unknown.contains(uid));
        let now = Instant::now();
        for uid in unknown {
            memory.unknown.entry(uid.clone()).or_insert(now);
        }
        memory.settled.retain(|uid| unknown.contains(uid));
        let late = |since: &Instant| now.saturating_duration_since(*since) >= PATIENCE;
        let due = memory.unknown.iter().filter(|(uid, since)| late(since) && !memory.settled.contains(*uid));
        let due: Vec<String> = due.map(|(uid, _)| uid.clone()).collect();
        if due.is_empty() {
            return Ok(false);
        }
        tracing::info!(pods = ?due, "nobody tells more of these pods: they are taken in as they are");
        memory.settled.extend(due.iter().cloned());
        self.roster.send(SettleUnknown(due)).await.map_err(|_| RoundError::Stopping)?;
        Ok(true)
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

    /// Compares with the kernel and writes what differs; gives a fault.
    async fn apply(&self, everything: bool) -> Result<Option<String>, RoundError> {
        let stopping = |_| RoundError::Stopping;
        let due = self.roster.send(ToCheck { everything }).await.map_err(stopping)?;
        let look = self.kernel.read(due.checks.clone(), LOOK_DEADLINE).await?;
        let (reports, whole) = (look.reports, look.whole);
        self.roster.send(Reported { reports, whole }).await.map_err(stopping)?;
        let corrections = self.roster.send(Observed(look.seen)).await.map_err(stopping)?;
        let mut fault = look.fault;
        for (changes, deadline) in in_order(&due.checks, corrections, &look.unheld) {
            let look = match self.kernel.change(changes, deadline).await {
                Ok(look) => look,
                Err(e) => {
                    fault.get_or_insert_with(|| e.to_string());
                    continue;
                }
            };
            if !look.wrote.is_empty() {
                tracing::info!(containers = ?look.wrote, "written");
            }
            self.metrics.updated("written", look.wrote.len());
            if let Some(told) = look.fault {
                self.metrics.updated("failed", 1);
                fault.get_or_insert(told);
            }
            let (reports, whole) = (look.reports, look.whole);
            self.roster.send(Reported { reports, whole }).await.map_err(stopping)?;
            let _left_for_the_next_round = self.roster.send(Observed(look.seen)).await.map_err(stopping)?;
        }
        Ok(fault)
    }
}

/// What is taken away first, in one pass with what is given; then memory nodes, one container at a time.
fn in_order(
    checks: &[Check],
    corrections: Corrections,
    unheld: &[String],
) -> Vec<(Vec<(Check, Change)>, Duration)> {
    let of = |id: &str| checks.iter().find(|check| check.container_id == id).cloned();
    let with = |change: Change| Some((of(&change.container_id)?, change));
    let Corrections { shrink, grow, mems } = corrections;
    let mut first: Vec<_> = shrink.into_iter().chain(grow).filter_map(with).collect();
    for id in unheld {
        if first.iter().all(|(check, _)| check.container_id != *id) {
            first.extend(with(Change { container_id: id.clone(), cpuset: Cpuset::default() }));
        }
    }
    let mut batches = Vec::new();
    if !first.is_empty() {
        batches.push((first, LOOK_DEADLINE));
    }
    batches.extend(mems.into_iter().filter_map(with).map(|change| (vec![change], MEMS_DEADLINE)));
    batches
}
