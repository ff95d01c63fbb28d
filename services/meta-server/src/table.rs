//! The actor that owns what is known of pods; readers take the published list and never wait for it.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use actix::{Actor, AsyncContext as _, Context, Handler, Message};
use oxalyst_mesh::{Condition, Facts, Mesh};
use oxalyst_proto::meta::v1::runtime_event::Event;
use oxalyst_proto::meta::v1::{RuntimeEvent, SourceAge};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::Notify;

use crate::kubelet::KubeletPod;
use crate::listed::Published;
use crate::pods::{KUBELET, RUNTIME, merge};
use crate::runtime::{RuntimeView, uid_of};

/// Changes within this time are published together: a runtime's start tells hundreds at once.
const COALESCE: Duration = Duration::from_millis(5);
/// Messages that may wait. A sender waits beyond that, which slows the gateway's stream and nothing else.
const MAILBOX: usize = 64;

/// Owns the runtime's view and the kubelet's last list.
#[derive(Debug)]
pub struct PodTable {
    published: Published,
    runtime: RuntimeView,
    kubelet: Vec<KubeletPod>,
    runtime_source: Source,
    kubelet_source: Option<Source>,
    /// Wakes the kubelet's poll.
    wanted: Arc<Notify>,
    /// The gateway's newest stream; what older ones still hold in flight is passed over.
    stream: u64,
    publishing: bool,
    facts: Facts,
    pods: Gauge,
    runtime_events: Counter,
    kubelet_lists: Counter,
    kubelet_failures: Counter,
}

/// How a source fares.
#[derive(Debug)]
struct Source {
    name: &'static str,
    heard_unix_ms: i64,
    error: String,
    condition: Condition,
}

/// The gateway told something. A stream begins with a whole list, and then is the current one.
#[derive(Debug, Message)]
#[rtype(result = "Result<(), Superseded>")]
pub struct RuntimeTold {
    /// Number of the stream; a later stream has a greater one.
    pub stream: u64,
    /// When it was heard, milliseconds since the Unix epoch.
    pub at_unix_ms: i64,
    /// What was told.
    pub event: RuntimeEvent,
}

/// The gateway's stream is over.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct RuntimeLost {
    /// Number of the stream.
    pub stream: u64,
    /// Why, for the operator.
    pub why: String,
}

/// The kubelet was asked.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct KubeletListed {
    /// When it answered, milliseconds since the Unix epoch.
    pub at_unix_ms: i64,
    /// Its pods (not empty), or why there are none.
    pub listed: Result<Vec<KubeletPod>, String>,
}

/// Why an event was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Superseded {
    /// Another stream began since.
    #[error("a newer stream of the gateway is connected; this one is closed")]
    ByNewer,
    /// The stream did not begin with a list.
    #[error("a stream must begin with the runtime's whole list (a snapshot)")]
    NoSnapshot,
}

#[derive(Message)]
#[rtype(result = "()")]
struct Publish;

/// Now, in milliseconds since the Unix epoch.
pub(crate) fn unix_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

// === impl Source ===

impl Source {
    fn heard(&mut self, at_unix_ms: i64) {
        self.heard_unix_ms = at_unix_ms;
        if self.condition_lost() {
            tracing::info!(source = self.name, "the source tells pods");
        }
        self.error.clear();
        self.condition.fulfilled();
    }

    fn failed(&mut self, why: String) {
        // One line for each change of state; the newest reason stands in status and readiness.
        if self.error.is_empty() {
            tracing::warn!(source = self.name, why, "the source fails; what it told is kept and ages");
        }
        self.condition.pending(why.clone());
        self.error = why;
    }

    fn condition_lost(&self) -> bool {
        self.heard_unix_ms == 0 || !self.error.is_empty()
    }

    fn age(&self) -> SourceAge {
        SourceAge {
            source: self.name.to_owned(),
            heard_unix_ms: self.heard_unix_ms,
            error: self.error.clone(),
        }
    }
}

// === impl PodTable ===

impl PodTable {
    /// An empty table. `wanted` wakes the kubelet's poll where one is configured.
    pub fn new(mesh: &Mesh, published: Published, wanted: Option<Arc<Notify>>) -> Self {
        let condition = |name, detail: &str| mesh.readiness.condition(name, detail);
        let runtime_source = Source {
            name: RUNTIME,
            heard_unix_ms: 0,
            error: String::new(),
            condition: condition(
                "runtime",
                "the gateway has not told what the runtime runs: is nri-gateway up?",
            ),
        };
        let kubelet_source = wanted.is_some().then(|| Source {
            name: KUBELET,
            heard_unix_ms: 0,
            error: String::new(),
            condition: condition("kubelet", "the first list of pods is being fetched"),
        });
        let registry = &mesh.registry;
        Self {
            published,
            runtime: RuntimeView::default(),
            kubelet: Vec::new(),
            runtime_source,
            kubelet_source,
            wanted: wanted.unwrap_or_default(),
            stream: 0,
            publishing: false,
            facts: mesh.facts.clone(),
            pods: registry.register("meta_pods", "Pods known", Gauge::default()),
            runtime_events: registry.register(
                "meta_runtime_events",
                "Messages of the gateway's stream",
                Counter::default(),
            ),
            kubelet_lists: registry.register(
                "meta_kubelet_lists",
                "Lists asked of the kubelet",
                Counter::default(),
            ),
            kubelet_failures: registry.register(
                "meta_kubelet_list_failures",
                "Lists that failed or were empty",
                Counter::default(),
            ),
        }
    }

    fn apply(&mut self, event: RuntimeEvent) {
        match event.event {
            Some(Event::Snapshot(snapshot)) => {
                self.runtime.replace(snapshot);
                let runtime = self.runtime.pods();
                let unknown = runtime.keys().any(|uid| !self.kubelet.iter().any(|pod| pod.uid == **uid));
                if unknown {
                    self.wanted.notify_one();
                }
            }
            Some(Event::Sandbox(sandbox)) => {
                if !self.kubelet.iter().any(|pod| pod.uid == uid_of(&sandbox)) {
                    self.wanted.notify_one();
                }
                self.runtime.sandbox(sandbox);
            }
            Some(Event::Container(container)) => self.runtime.container(container),
            Some(Event::RemovedSandboxId(id)) => self.runtime.remove_sandbox(&id),
            Some(Event::RemovedContainerId(id)) => self.runtime.remove_container(&id),
            // A newer gateway may tell what this version does not know.
            None => {}
        }
    }

    fn publish_soon(&mut self, ctx: &mut Context<Self>) {
        if !self.publishing {
            self.publishing = true;
            ctx.notify_later(Publish, COALESCE);
        }
    }
}

impl Actor for PodTable {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX);
        self.publish_soon(ctx);
    }
}

impl Handler<RuntimeTold> for PodTable {
    type Result = Result<(), Superseded>;

    fn handle(&mut self, told: RuntimeTold, ctx: &mut Self::Context) -> Self::Result {
        let snapshot = matches!(told.event.event, Some(Event::Snapshot(_)));
        if told.stream < self.stream {
            return Err(Superseded::ByNewer);
        }
        if told.stream > self.stream && !snapshot {
            return Err(Superseded::NoSnapshot);
        }
        self.stream = told.stream;
        self.runtime_events.inc();
        self.runtime_source.heard(told.at_unix_ms);
        self.apply(told.event);
        self.publish_soon(ctx);
        Ok(())
    }
}

impl Handler<RuntimeLost> for PodTable {
    type Result = ();

    fn handle(&mut self, lost: RuntimeLost, ctx: &mut Self::Context) {
        if lost.stream == self.stream {
            self.runtime_source.failed(lost.why);
            self.publish_soon(ctx);
        }
    }
}

impl Handler<KubeletListed> for PodTable {
    type Result = ();

    fn handle(&mut self, asked: KubeletListed, ctx: &mut Self::Context) {
        let Some(source) = &mut self.kubelet_source else { return };
        self.kubelet_lists.inc();
        match asked.listed {
            Ok(pods) => {
                source.heard(asked.at_unix_ms);
                self.kubelet = pods;
            }
            Err(why) => {
                self.kubelet_failures.inc();
                source.failed(why);
            }
        }
        self.publish_soon(ctx);
    }
}

impl Handler<Publish> for PodTable {
    type Result = ();

    fn handle(&mut self, _: Publish, _: &mut Self::Context) {
        self.publishing = false;
        let pods = merge(&self.kubelet, &self.runtime);
        self.pods.set(i64::try_from(pods.len()).unwrap_or(i64::MAX));
        self.facts.set("pods", pods.len());
        let sources = self.kubelet_source.iter().chain([&self.runtime_source]).map(Source::age).collect();
        self.published.publish(pods, sources);
    }
}
