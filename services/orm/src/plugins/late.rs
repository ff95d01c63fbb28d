//! Pods that were decided before it was known what they ask of plugins: asked for later, as often as it takes.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::join_all;
use oxalyst_planner::pods::{self, PluginsGave};
use tokio::time::{Instant, sleep, timeout};
use tonic::Status;

use super::asking::{by_place, give, say};
use super::resizing::amend;
use super::{PluginError, Plugins, Resizing, asks};
use crate::allocations::{Abandon, Concern, DueResizes, Gave, KnownNodes, Unasked, UnaskedPod};
use crate::allocator::Face;

/// How long all plugins together may take for one pod: nobody waits for it, as an admission does.
const PATIENCE: Duration = Duration::from_secs(2);
/// While the allocator is not there yet.
const PAUSE: Duration = Duration::from_secs(1);
/// Pods that are worked for at once: fewer than calls that one plugin takes, so that one that hangs costs the others little.
const AT_ONCE: usize = 8;

/// Why a pod has not got what it asks of plugins.
#[derive(Debug, thiserror::Error)]
enum LateError {
    #[error(transparent)]
    Plugin(#[from] PluginError),
    #[error("{0}")]
    NotTaken(String),
    #[error("the allocator cannot be asked: {}", .0.message())]
    Unasked(Status),
}

/// Asks plugins for pods that had to be decided without them, and tells them of resizes that pods' specs ask for; for ever: at
/// once where a spec or a plugin has come, and what failed again each `period`.
pub async fn catch_up_for_ever(face: Face, plugins: Plugins, period: Duration) {
    let mut told: BTreeSet<(String, String)> = BTreeSet::new();
    loop {
        // Kept by the notice itself, where it comes while others are being worked for.
        let news = plugins.due.notified();
        let (Ok(unasked), Ok(resizes)) = (face.ask(Unasked).await, face.ask(DueResizes).await) else {
            sleep(PAUSE).await;
            continue;
        };
        let mut failures = BTreeSet::new();
        let late = async |pod: &UnaskedPod| {
            // Who works for it now looks by itself, or is looked at again.
            let _claim = plugins.claims.try_claim(&pod.uid)?;
            let error = ask_for(&face, &plugins, pod).await.err()?;
            Some((pod.uid.clone(), format!("{error}: the pod goes without, and its plugins are asked again")))
        };
        for some in unasked.chunks(AT_ONCE) {
            failures.extend(join_all(some.iter().map(late)).await.into_iter().flatten());
        }
        let resize = async |concern: &Concern| {
            let uid = concern.resize.uid.clone();
            let _claim = plugins.claims.try_claim(&uid)?;
            let (end, concern) = (Instant::now() + PATIENCE, concern.clone());
            let resizing = Resizing { face: &face, plugins: &plugins, concern, deadline_unix_ms: 0 };
            let why = resizing.decide_for_spec(end).await.ok()??;
            Some((uid, format!("{why}: the container keeps what it has, its spec asks for something else")))
        };
        for some in resizes.chunks(AT_ONCE) {
            failures.extend(join_all(some.iter().map(resize)).await.into_iter().flatten());
        }
        for (uid, why) in failures.difference(&told) {
            tracing::warn!(uid, "{why}");
        }
        for (uid, container) in plugins.amends.due() {
            let Some(_claim) = plugins.claims.try_claim(&uid) else { continue };
            amend(&face, &plugins, &uid, &container, Instant::now() + PATIENCE).await;
        }
        told = failures;
        let _ = timeout(period, news).await;
    }
}

/// Container by container, and each is kept at once: what was given is not to be forgotten because another one fails.
async fn ask_for(face: &Face, plugins: &Plugins, pod: &UnaskedPod) -> Result<(), LateError> {
    let Some(spec) = face.spec_of(&pod.uid) else { return Ok(()) };
    let end = Instant::now() + PATIENCE;
    let asks = match face.is_asked_for(&spec) {
        true => asks(&spec, face.names(), |resource| plugins.knows(resource)),
        false => Ok(Vec::new()),
    };
    let asks = asks.map_err(|fault| LateError::NotTaken(fault.to_string()))?;
    let mut asks: Vec<_> = asks
        .into_iter()
        .filter_map(|ask| {
            let has = pod.has.get(&ask.container);
            ask.only(|resource| has.is_none_or(|has| !has.contains(resource)))
        })
        .collect();
    let last = asks.pop();
    for ask in &asks {
        for_one(face, plugins, pod, (&spec, ask), (false, end)).await?;
    }
    if let Some(ask) = &last {
        return for_one(face, plugins, pod, (&spec, ask), (true, end)).await;
    }
    keep(face, &pod.uid, pods::Plugins::default(), true).await.map_err(LateError::NotTaken)
}

async fn for_one(
    face: &Face,
    plugins: &Plugins,
    pod: &UnaskedPod,
    (spec, ask): (&crate::specs::PodSpec, &super::Ask),
    (whole, end): (bool, Instant),
) -> Result<(), LateError> {
    let nodes = face.ask(KnownNodes).await.map_err(LateError::Unasked)?;
    let said = say(plugins, &nodes, spec, ask, end).await?;
    let by = by_place(&said, pod.homes.get(&ask.container));
    let mut gave = BTreeSet::new();
    let given = give(plugins, spec, ask, &by, &mut gave, end).await?;
    let container = ask.container.clone();
    let mut all = pods::Plugins::default();
    if !said.is_empty() {
        all.hints.insert(container.clone(), said);
    }
    if !given.is_empty() {
        all.given.insert(container, given);
    }
    let Err(why) = keep(face, &pod.uid, all, whole).await else { return Ok(()) };
    // The pod is gone meanwhile.
    face.ask(Abandon { uid: pod.uid.clone(), plugins: gave }).await.map_err(LateError::Unasked)?;
    Err(LateError::NotTaken(why))
}

async fn keep(face: &Face, uid: &str, plugins: pods::Plugins, whole: bool) -> Result<(), String> {
    let gave = PluginsGave { uid: uid.to_owned(), plugins, whole, resize: None };
    match face.ask(Gave(gave)).await {
        Ok(kept) => kept,
        Err(status) => Err(status.message().to_owned()),
    }
}
