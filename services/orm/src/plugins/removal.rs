//! Plugins are told that a pod is gone, again and again until all of them have heard it.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::join_all;
use tokio::time::{Instant, sleep, timeout};

use super::{PluginError, Plugins};
use crate::allocations::{Removals, Removed};
use crate::allocator::Face;

/// How long all plugins together may take to hear of one pod.
const PATIENCE: Duration = Duration::from_secs(1);
/// Pods of which plugins are told at once: fewer than calls that one of them takes.
const AT_ONCE: usize = 8;
/// While the allocator is not there yet.
const PAUSE: Duration = Duration::from_secs(1);

/// Tells plugins of pods that are gone, for ever: at once, and those that could not be told again each `period`.
pub async fn remove_for_ever(face: Face, plugins: Plugins, period: Duration) {
    let mut told: BTreeSet<(String, String)> = BTreeSet::new();
    loop {
        let Ok(due) = face.ask(Removals).await else {
            sleep(PAUSE).await;
            continue;
        };
        // Before working, so that what comes meanwhile is heard.
        let news = due.news.notified();
        let mut failures = BTreeSet::new();
        let uids: Vec<&String> = due.pods.keys().collect();
        let remove = async |uid: &&String| {
            // Who works for it now looks by itself.
            let Some(_claim) = plugins.claims.try_claim(uid) else { return Vec::new() };
            let failed = remove_now(&face, &plugins, uid, Instant::now() + PATIENCE).await;
            failed.into_iter().map(|error| ((*uid).clone(), error)).collect()
        };
        let mut failed = Vec::new();
        for some in uids.chunks(AT_ONCE) {
            failed.extend(join_all(some.iter().map(remove)).await.into_iter().flatten());
        }
        for (uid, error) in failed {
            let text = error.to_string();
            if !told.contains(&(uid.clone(), text.clone())) {
                tracing::warn!(uid, "{text}: the pod is gone, and is kept until all plugins have heard it");
            }
            failures.insert((uid, text));
        }
        told = failures;
        let _ = timeout(period, news).await;
    }
}

/// Tells all plugins, if that is due, of this pod; gives what went wrong. The pod is claimed by the caller.
pub(super) async fn remove_now(face: &Face, plugins: &Plugins, uid: &str, end: Instant) -> Vec<PluginError> {
    let Ok(due) = face.ask(Removals).await else { return Vec::new() };
    let Some(named) = due.pods.get(uid) else { return Vec::new() };
    let come = plugins.come();
    let missing = named.iter().filter(|name| !come.iter().any(|plugin| plugin.name == **name));
    let mut failed: Vec<_> = missing.map(|name| PluginError::Away { plugin: name.clone() }).collect();
    let all = come.iter().map(|plugin| plugin.remove_pod(uid.to_owned(), end));
    failed.extend(join_all(all).await.into_iter().filter_map(Result::err));
    if failed.is_empty() {
        let _ = face.ask(Removed { uid: uid.to_owned() }).await;
    }
    failed
}
