//! What the orm has to be told in any case, one thing after another: releases, and the whole list.
//!
//! One task does both, so that a list taken before a release cannot reach the orm after it and take the pod in again.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use oxalyst_backoff::Backoff;
use oxalyst_proto::orm::v1::{ReconcileRequest, ReleasePodRequest, ResizeContainerRequest, admit_reply};
use tokio::sync::{Notify, mpsc, watch};

use crate::kernel::Kernel;
use crate::metrics::Metrics;
use crate::orm::{Orm, OrmError};
use crate::roster::{Ended, HaveSuccessor, ResizeHeard, Roster, ToClaim};

/// Releases that may wait. What does not fit is found by the orm, which frees pods that are no longer listed.
const WAITING: usize = 4096;

/// Resizes that may wait. What does not fit is found by the orm when the pod's spec changes.
const RESIZES: usize = 256;

/// For one call. Nobody waits for these.
const DEADLINE: Duration = Duration::from_secs(2);

/// For a look at the cgroups of pods in which nothing runs.
const LOOK_DEADLINE: Duration = Duration::from_millis(250);

/// Where duties are left. Never waits.
#[derive(Clone, Debug)]
pub struct Duties {
    releases: mpsc::Sender<ReleasePodRequest>,
    resizes: mpsc::Sender<ResizeContainerRequest>,
    reconcile: Arc<Notify>,
    /// Releases that the orm has not heard yet.
    unheard: watch::Sender<usize>,
}

/// The task's end.
#[derive(Debug)]
pub struct DutiesOutlet {
    releases: mpsc::Receiver<ReleasePodRequest>,
    resizes: mpsc::Receiver<ResizeContainerRequest>,
    reconcile: Arc<Notify>,
    unheard: watch::Sender<usize>,
}

/// Both ends.
pub fn duties() -> (Duties, DutiesOutlet) {
    let (tell, releases) = mpsc::channel(WAITING);
    let (ask, resizes) = mpsc::channel(RESIZES);
    let reconcile = Arc::<Notify>::default();
    let unheard = watch::Sender::new(0);
    (
        Duties { releases: tell, resizes: ask, reconcile: reconcile.clone(), unheard: unheard.clone() },
        DutiesOutlet { releases, resizes, reconcile, unheard },
    )
}

// === impl Duties ===

impl Duties {
    /// The sandbox stopped or was removed.
    pub fn release(&self, pod_uid: String, sandbox_id: String) {
        self.unheard.send_modify(|count| *count += 1);
        if self.releases.try_send(ReleasePodRequest { pod_uid, sandbox_id }).is_err() {
            heard(&self.unheard);
            tracing::warn!(
                "too many releases wait: the orm frees these pods when they have been absent for its grace time"
            );
        }
    }

    /// Returns when the orm has heard every release, at the latest after `patience`. What is asked for next may need the CPUs.
    pub async fn all_heard(&self, patience: Duration) {
        let mut unheard = self.unheard.subscribe();
        // Past its patience the question is put all the same: the answer is then the orm's.
        let _ = tokio::time::timeout(patience, unheard.wait_for(|count| *count == 0)).await;
    }

    /// A container was resized, and the orm did not hear of it.
    pub fn resize(&self, request: ResizeContainerRequest) {
        if self.resizes.try_send(request).is_err() {
            tracing::warn!("too many resizes wait: the orm finds this one in the pod's spec");
        }
    }

    /// The orm has to hear the whole list.
    pub fn reconcile(&self) {
        self.reconcile.notify_one();
    }
}

/// Does the duties for ever.
pub async fn perform(
    mut outlet: DutiesOutlet,
    orm: Orm,
    roster: Addr<Roster>,
    kernel: Kernel,
    synchronised: watch::Receiver<bool>,
    metrics: Metrics,
) {
    let mut streaming = orm.streaming();
    let mut recovered = orm.recovered();
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
    let mut waiting: VecDeque<ReleasePodRequest> = VecDeque::new();
    let mut resizes: VecDeque<ResizeContainerRequest> = VecDeque::new();
    let mut list_is_due = false;
    loop {
        let delay = backoff.next_delay();
        let idle = waiting.is_empty() && resizes.is_empty() && !list_is_due;
        if idle {
            backoff.reset();
        }
        tokio::select! {
            release = outlet.releases.recv() => match release {
                Some(release) => queue(&mut waiting, release, &outlet.unheard),
                None => return,
            },
            Some(resize) = outlet.resizes.recv() => queue_resize(&mut resizes, resize),
            () = outlet.reconcile.notified() => list_is_due = true,
            up = streaming.changed() => match up {
                // An orm that came back has not seen what happened meanwhile.
                Ok(()) => list_is_due |= *streaming.borrow_and_update(),
                Err(_) => return,
            },
            again = recovered.changed() => match again {
                Ok(()) => {
                    backoff.reset();
                    list_is_due = true;
                }
                Err(_) => return,
            },
            () = tokio::time::sleep(delay), if !idle => {}
        }
        while let Ok(release) = outlet.releases.try_recv() {
            queue(&mut waiting, release, &outlet.unheard);
        }
        let is_suspended = orm.is_suspended();
        if !is_suspended && *synchronised.borrow() && has_successor(&roster, &waiting).await {
            list_is_due = true;
            if let Err(e) = reconcile(&orm, &roster, &kernel).await {
                tracing::debug!(error = %e, waiting = waiting.len(), "releases wait");
                continue;
            }
            list_is_due = false;
        }
        // What it cannot hear would only wait before it, as often as it was repeated: it is told everything when it answers again.
        if is_suspended {
            list_is_due = true;
        } else if let Err(e) = release_all(&orm, &mut waiting, &outlet.unheard).await {
            tracing::debug!(error = %e, waiting = waiting.len(), "releases wait");
        } else if let Err(e) = resize_all(&orm, &roster, &mut resizes).await {
            tracing::debug!(error = %e, waiting = resizes.len(), "resizes wait");
        } else if list_is_due && *synchronised.borrow() {
            list_is_due = reconcile(&orm, &roster, &kernel).await.is_err();
        } else {
            // Without a session nobody knows what runs; the next synchronisation tells.
            list_is_due = false;
        }
        metrics.releases_waiting.set(i64::try_from(waiting.len()).unwrap_or(i64::MAX));
    }
}

fn queue(
    waiting: &mut VecDeque<ReleasePodRequest>,
    release: ReleasePodRequest,
    unheard: &watch::Sender<usize>,
) {
    if waiting.len() < WAITING && !waiting.contains(&release) {
        waiting.push_back(release);
    } else {
        heard(unheard);
    }
}

fn heard(unheard: &watch::Sender<usize>) {
    unheard.send_modify(|count| *count = count.saturating_sub(1));
}

/// Whether a pod whose sandbox ended has another one by now. The orm may not have heard of it, for it was away when it came, and
/// would give away what runs: it is told the whole list first, and then that the older one has ended.
async fn has_successor(roster: &Addr<Roster>, waiting: &VecDeque<ReleasePodRequest>) -> bool {
    if waiting.is_empty() {
        return false;
    }
    let of = |release: &ReleasePodRequest| (release.pod_uid.clone(), release.sandbox_id.clone());
    roster.send(HaveSuccessor(waiting.iter().map(of).collect())).await.unwrap_or_default()
}

async fn release_all(
    orm: &Orm,
    waiting: &mut VecDeque<ReleasePodRequest>,
    unheard: &watch::Sender<usize>,
) -> Result<(), OrmError> {
    while let Some(next) = waiting.front() {
        let reply = orm.release(next.clone(), DEADLINE).await?;
        if reply.released {
            tracing::info!(pod = %next.pod_uid, generation = reply.generation, "released");
        }
        waiting.pop_front();
        heard(unheard);
    }
    Ok(())
}

/// Of one container the newest counts.
fn queue_resize(waiting: &mut VecDeque<ResizeContainerRequest>, resize: ResizeContainerRequest) {
    let id = |resize: &ResizeContainerRequest| resize.container.as_ref().map(|c| c.container_id.clone());
    waiting.retain(|other| id(other) != id(&resize));
    if waiting.len() == RESIZES {
        waiting.pop_front();
    }
    waiting.push_back(resize);
}

/// The runtime has made these resizes: one that the orm refuses is marked, until another of the container is accepted.
async fn resize_all(
    orm: &Orm,
    roster: &Addr<Roster>,
    waiting: &mut VecDeque<ResizeContainerRequest>,
) -> Result<(), OrmError> {
    while let Some(next) = waiting.front() {
        let pod = next.sandbox.as_ref().map(|sandbox| sandbox.name.clone()).unwrap_or_default();
        let refused = match orm.resize_container(next.clone(), DEADLINE).await {
            Ok(reply) => match reply.outcome {
                Some(admit_reply::Outcome::Refused(refused)) => {
                    tracing::warn!(pod, reason = %refused.reason, message = %refused.message, "resized, and refused by the orm: it keeps its CPUs");
                    Some(format!("{}: {}", refused.reason, refused.message))
                }
                _ => {
                    tracing::info!(pod, generation = reply.generation, "the orm heard of a resize");
                    None
                }
            },
            // The same question would be answered the same way again.
            Err(e @ OrmError::Failed(_)) => {
                tracing::warn!(pod, reason = %e, "resized without the orm");
                Some(e.to_string())
            }
            Err(e) => return Err(e),
        };
        let container_id = next.container.as_ref().map(|c| c.container_id.clone()).unwrap_or_default();
        let _ = roster.send(ResizeHeard { container_id, refused }).await;
        waiting.pop_front();
    }
    Ok(())
}

/// Tells the orm everything that runs and takes up what it answers.
///
/// # Errors
/// [`OrmError`], and then it is still due.
pub async fn reconcile(orm: &Orm, roster: &Addr<Roster>, kernel: &Kernel) -> Result<(), OrmError> {
    let Ok(mut claims) = roster.send(ToClaim).await else { return Ok(()) };
    let ended = match std::mem::take(&mut claims.idle) {
        idle if idle.is_empty() => BTreeSet::new(),
        // Where the tree cannot be read, nothing is known to have ended.
        idle => kernel.ended(idle, LOOK_DEADLINE).await.unwrap_or_default(),
    };
    let runs = claims.without(&ended);
    if !ended.is_empty() {
        let _ = roster.send(Ended(ended)).await;
    }
    let request = ReconcileRequest { sandboxes: runs.sandboxes, containers: runs.containers };
    let reply = orm.reconcile(request, DEADLINE).await?;
    if !reply.adopted_pod_uids.is_empty() || !reply.freed_pod_uids.is_empty() {
        tracing::info!(
            adopted = reply.adopted_pod_uids.len(),
            freed = reply.freed_pod_uids.len(),
            generation = reply.generation,
            "the orm took in and freed pods"
        );
    }
    Ok(())
}
