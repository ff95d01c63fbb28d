//! The loop of a source that is asked over HTTP: its own period, deadline, jitter and health.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::ailments::Told;
use super::fold::Fold;
use super::health::Health;
use super::http::{Client, FetchError};
use super::{kubelet, malachite};
use crate::clock::Clock;
use crate::machine::Machine;
use crate::names::Directory;
use crate::sample::Ages;
use crate::store::{Layer, PassReport, Source, Store};

/// Older values of malachite count as late, whatever its period.
const MALACHITE_LATE: Duration = Duration::from_secs(30);
/// The same of its sensors.
const REALTIME_LATE: Duration = Duration::from_secs(5);

/// One such source.
pub struct Remote {
    /// Which.
    pub source: Source,
    /// Who is asked.
    pub client: Client,
    /// From the end of a pass to the beginning of the next, but for a tenth more or less.
    pub period: Duration,
    /// Ages that hold where a request names none.
    pub ages: Ages,
    /// Where `/sys` is found.
    pub host_root: PathBuf,
    /// Where values go, and where cgroups are known.
    pub store: Arc<Store>,
    /// Who is who.
    pub names: Arc<Directory>,
    /// The present moment.
    pub clock: Arc<dyn Clock>,
    /// Where its health is told.
    pub health: Health,
}

/// Passes for ever. A pass that fails leaves everything as it was, ageing; one log line tells each change of state.
pub async fn follow(mut remote: Remote) {
    let late = match remote.source {
        Source::Malachite => MALACHITE_LATE,
        Source::Realtime => REALTIME_LATE,
        _ => remote.ages.max_age,
    };
    let mut fold = Fold::new(remote.source, late).with_clock(Arc::clone(&remote.clock));
    let (mut memory, mut told) = (malachite::Memory::default(), Told::default());
    loop {
        let began = remote.clock.now();
        fold.begin(began);
        let outcome = pass(&remote, &mut fold, &mut memory).await;
        if outcome.is_ok() {
            told.news(remote.source.name(), &fold.ailments);
        }
        let finished = remote.clock.now();
        let trouble = outcome.err().map(|e| e.to_string());
        remote.health.told(trouble.as_deref(), finished);
        remote.store.publish_layer(Layer {
            source: remote.source,
            period: remote.period,
            ages: remote.ages,
            subjects: fold.subjects(),
            pass: PassReport {
                number: fold.cycle(),
                finished: Some(finished),
                took: finished.since(began),
                failure: fold.ailments.text().map(Into::into),
                trouble: trouble.map(Into::into),
                ..PassReport::default()
            },
            stale_total: fold.stale_total,
        });
        tokio::time::sleep(remote.period.mul_f64(0.9 + 0.2 * fastrand::f64())).await;
    }
}

async fn pass(remote: &Remote, fold: &mut Fold, memory: &mut malachite::Memory) -> Result<(), FetchError> {
    match remote.source {
        Source::Kubelet => kubelet::pass(&remote.client, fold, &remote.names.load()).await,
        Source::Realtime => {
            let snapshot = remote.store.load();
            malachite::realtime_pass(&remote.client, fold, memory, &snapshot, &remote.host_root).await
        }
        _ => {
            let machine = Machine::read(&remote.host_root);
            let snapshot = remote.store.load();
            malachite::pass(&remote.client, fold, memory, &snapshot, (&machine, &remote.host_root)).await
        }
    }
}
