//! The loop of a kernel interface that is asked about each container, on a thread of its own: it may hang without holding
//! anybody up. Of one that hangs nothing more is asked until it comes back.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::oneshot;

use super::fold::{Block, Fold};
use super::health::Health;
use crate::catalogue::Scope;
use crate::clock::{Clock, Now};
use crate::sample::Ages;
use crate::store::{Id, Layer, PassReport, Source, Store};

/// Passes after which a container that is gone is forgotten.
const FORGET: u64 = 10;

/// Asks the kernel. It blocks for as long as the kernel does.
pub trait Probe: Send + 'static {
    /// What is told of those of `containers` that it can ask about.
    ///
    /// # Errors
    /// What ails the interface as a whole, for people.
    fn read(&mut self, containers: &[Arc<Id>], clock: &dyn Clock) -> Result<Told, String>;
}

/// What one pass brought.
#[derive(Debug, Default)]
pub struct Told {
    /// Of each container: when it was true, and the values by the names that malachite gives them in its block `Cpu`.
    pub answers: Vec<(Arc<Id>, Now, Value)>,
    /// How many containers gave none.
    pub failed: usize,
    /// Why one of them gave none.
    pub failure: Option<Arc<str>>,
}

/// What the loop is connected to.
#[derive(Debug)]
pub struct Apart {
    /// Which source it is.
    pub source: Source,
    /// From the end of a pass to the beginning of the next, but for a tenth more or less.
    pub period: Duration,
    /// What one pass may take.
    pub deadline: Duration,
    /// Ages that hold where a request names none.
    pub ages: Ages,
    /// Where values go, and where containers are known.
    pub store: Arc<Store>,
    /// The present moment.
    pub clock: Arc<dyn Clock>,
    /// Where its health is told.
    pub health: Health,
}

type Answer<P> = oneshot::Receiver<(P, Result<Told, String>)>;

/// Passes for ever. While nothing was ever told, and nothing is wrong, the source is not there.
pub async fn follow<P: Probe>(mut apart: Apart, probe: P) {
    let mut fold = Fold::new(apart.source, apart.ages.max_age).with_clock(Arc::clone(&apart.clock));
    let (mut idle, mut away) = (Some(probe), None);
    let mut there = false;
    loop {
        let began = apart.clock.now();
        fold.begin(began);
        let snapshot = apart.store.load();
        if let Some(probe) = idle.take() {
            let live = snapshot.containers.iter().filter(|s| s.removed.is_none());
            away = ask(probe, live.map(|s| Arc::clone(&s.id)).collect(), Arc::clone(&apart.clock));
        }
        let outcome = match wait(&mut away, apart.deadline).await {
            Some((probe, outcome)) => {
                (idle, away) = (Some(probe), None);
                outcome
            }
            None => Err(format!("the kernel did not answer within {} ms", apart.deadline.as_millis())),
        };
        let told = outcome.as_ref().ok();
        for (id, at, value) in told.into_iter().flat_map(|t| &t.answers) {
            let block = Block { name: "Cpu", value, unix_ns: Some(at.unix_ns) };
            fold.take(Scope::Container, (**id).clone(), snapshot.unified == Some(true), &[block]);
        }
        fold.forget(FORGET);
        there |= outcome.as_ref().map_or(true, |t| !t.answers.is_empty() || t.failed > 0);
        if there {
            let (failed, failure) = told.map(|t| (t.failed, t.failure.clone())).unwrap_or_default();
            let finished = apart.clock.now();
            let trouble = outcome.err();
            apart.health.told(trouble.as_deref(), Some(finished), finished);
            apart.store.publish_layer(Layer {
                source: apart.source,
                period: apart.period,
                ages: apart.ages,
                subjects: fold.subjects(),
                pass: PassReport {
                    number: fold.cycle(),
                    finished: Some(finished),
                    took: finished.since(began),
                    failed_files: failed,
                    failure,
                    trouble: trouble.map(Into::into),
                    ..PassReport::default()
                },
                stale_total: fold.stale_total,
            });
        }
        tokio::time::sleep(apart.period.mul_f64(0.9 + 0.2 * fastrand::f64())).await;
    }
}

/// Sends the probe to a thread, detached; `None` if there is no thread left, and then the probe is lost.
fn ask<P: Probe>(mut probe: P, containers: Vec<Arc<Id>>, clock: Arc<dyn Clock>) -> Option<Answer<P>> {
    let (reply, answer) = oneshot::channel();
    let thread = std::thread::Builder::new().name("probe".to_owned());
    let work = move || {
        let outcome = probe.read(&containers, &*clock);
        // If nobody waits any more the process is ending.
        let _ = reply.send((probe, outcome));
    };
    thread.spawn(work).ok().map(|_| answer)
}

async fn wait<P>(away: &mut Option<Answer<P>>, deadline: Duration) -> Option<(P, Result<Told, String>)> {
    tokio::time::timeout(deadline, away.as_mut()?).await.ok()?.ok()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::clock::SystemClock;
    use crate::store::{Snapshot, Subject};

    /// Answers one question each time that it is let go on.
    struct Stuck(mpsc::Receiver<Result<u64, String>>);

    impl Probe for Stuck {
        fn read(&mut self, containers: &[Arc<Id>], clock: &dyn Clock) -> Result<Told, String> {
            let n = self.0.recv().map_err(|e| e.to_string())??;
            let value = serde_json::json!({"task_nr_runnable": n});
            let answers = containers.iter().map(|id| (Arc::clone(id), clock.now(), value.clone())).collect();
            Ok(Told { answers, ..Told::default() })
        }
    }

    #[tokio::test]
    async fn m15_a_probe_that_hangs_holds_nobody_up_and_goes_on_when_it_comes_back() {
        let store = Arc::new(Store::default());
        let id = Id { container_id: "c".into(), ..Id::default() };
        let containers = vec![Arc::new(Subject::unknown(Scope::Container, id))];
        store.publish(Snapshot { unified: Some(false), containers, ..Snapshot::default() });
        let (go, stuck) = mpsc::channel();
        let ages = Ages { max_age: Duration::from_secs(30), withdrawal: Duration::from_secs(60) };
        let apart = Apart {
            source: Source::Tasks,
            period: Duration::from_millis(10),
            deadline: Duration::from_millis(20),
            ages,
            store: Arc::clone(&store),
            clock: Arc::new(SystemClock::default()),
            health: Health::new(Source::Tasks, ages, None),
        };
        let mut news = store.news();
        let following = tokio::spawn(follow(apart, Stuck(stuck)));
        let mut until = async |what: &str, holds: &dyn Fn(&Layer) -> bool| {
            let waiting = async {
                loop {
                    if let Some(layer) = store.view().layers.first()
                        && holds(layer)
                    {
                        return;
                    }
                    news.changed().await.unwrap();
                }
            };
            assert!(tokio::time::timeout(Duration::from_secs(30), waiting).await.is_ok(), "{what}");
        };
        let value = |layer: &Layer| {
            let (place, _) = crate::catalogue::find("cpu.nr.runnable.container").unwrap();
            layer.subjects.first().and_then(|s| s.cells.get(place)?.last.map(|r| r.value))
        };
        until("the first question hangs", &|l| l.pass.trouble.as_ref().is_some_and(|t| t.contains("answer")))
            .await;
        go.send(Ok(3)).unwrap();
        until("it came back", &|l| l.pass.trouble.is_none() && value(l) == Some(3.0)).await;
        go.send(Err("no such family".to_owned())).unwrap();
        until("it fails; nothing is wiped", &|l| {
            l.pass.trouble.as_deref() == Some("no such family") && value(l) == Some(3.0)
        })
        .await;
        following.abort();
    }
}
