//! Pods that have something of plugins: planned before it is given, committed after, and remembered until plugins know that they
//! are gone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use actix::{Handler, Message, MessageResult};
use oxalyst_ledger::{Change, Ledger};
use oxalyst_planner::decision::Step;
use oxalyst_planner::plan::{Reason, Rule};
use oxalyst_planner::pods::{self, Plan, PodRequest, SandboxRequest, Trace};
use oxalyst_planner::topology_manager::Hint;
use oxalyst_topology::NumaMask;
use tokio::sync::Notify;

use super::{Admit, Admitted, Allocations, Occasion};
use crate::record;

/// Container → resource → the hint that came out of the merge.
pub type Chosen = BTreeMap<String, BTreeMap<String, Hint>>;

/// Decide for a pod of which plugins say something.
#[derive(Debug, Message)]
#[rtype(result = "Plugged")]
pub struct AdmitPlugged {
    /// How its sandbox tells it.
    pub request: SandboxRequest,
    /// What its spec asks for, and what plugins say and gave.
    pub pod: PodRequest,
    /// By which hints plugins gave: only if these still come out of the merge is the pod admitted. `None`: nothing is given yet.
    pub by: Option<Chosen>,
    /// Past this time, milliseconds since the Unix epoch, nothing may be committed; 0: no such time.
    pub deadline_unix_ms: i64,
    /// When it came.
    pub occasion: Occasion,
}

/// The answer to [`AdmitPlugged`].
#[derive(Debug)]
pub enum Plugged {
    /// The pod is admitted, or refused.
    Answer(Box<Admitted>),
    /// By these hints plugins are to give. Nothing is committed.
    Chosen(Chosen),
}

/// The NUMA nodes of the machine.
#[derive(Debug, Message)]
#[rtype(result = "NumaMask")]
pub struct KnownNodes;

/// Refuse a pod because of a plugin.
#[derive(Debug, Message)]
#[rtype(result = "Admitted")]
pub struct RefusePlugged {
    /// How its sandbox tells it.
    pub request: SandboxRequest,
    /// What its spec asks for.
    pub pod: PodRequest,
    /// Whether the plugin cannot be heard, or what it says cannot be.
    pub reason: Reason,
    /// What is wrong.
    pub message: String,
    /// When it came.
    pub occasion: Occasion,
}

/// Plugins were asked to give something for a pod that is not admitted.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Abandon {
    /// Pod uid.
    pub uid: String,
    /// The plugins.
    pub plugins: BTreeSet<String>,
}

/// Whether the pod is known.
#[derive(Debug, Message)]
#[rtype(result = "bool")]
pub struct IsHeld {
    /// Pod uid.
    pub uid: String,
}

/// Pods of which plugins have yet to hear that they are gone.
#[derive(Debug, Message)]
#[rtype(result = "Due")]
pub struct Removals;

/// The answer to [`Removals`].
#[derive(Debug)]
pub struct Due {
    /// Uid → plugins that gave it something.
    pub pods: BTreeMap<String, BTreeSet<String>>,
    /// Heard when another one becomes due.
    pub news: Arc<Notify>,
}

/// All plugins have heard that the pod is gone.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Removed {
    /// Pod uid.
    pub uid: String,
}

/// Resources that plugins gave pods which are held, or are gone and not forgotten by all of them.
#[derive(Debug, Message)]
#[rtype(result = "BTreeSet<String>")]
pub struct PluginNames;

/// Pods that are gone and that plugins have yet to hear of; as durable as the pods were.
#[derive(Debug, Default)]
pub(super) struct Unheard {
    pods: BTreeMap<String, BTreeSet<String>>,
    news: Arc<Notify>,
}

// === impl Unheard ===

impl Unheard {
    /// As the ledger remembers them.
    pub(super) fn read(ledger: &Ledger) -> Self {
        let mut pods = BTreeMap::new();
        for (key, bytes) in ledger.records() {
            match record::removal_of(key, bytes) {
                Some(Ok((uid, plugins))) => drop(pods.insert(uid, plugins)),
                Some(Err(error)) => {
                    tracing::error!(key, %error, "a record cannot be understood and is passed over")
                }
                None => {}
            }
        }
        Self { pods, news: Arc::default() }
    }

    fn change(uid: &str, plugins: Option<&BTreeSet<String>>) -> Change {
        record::removal(uid, plugins)
    }
}

// === impl Allocations ===

impl Allocations {
    /// What a plan means for plugins: pods that are gone are to be heard of, and those that are here again are not.
    pub(super) fn for_plugins(&self, plan: &Plan) -> BTreeMap<String, Option<BTreeSet<String>>> {
        let mut changes = BTreeMap::new();
        for (uid, pod) in &plan.pods {
            let before = self.state.pods.get(uid);
            let given = before.into_iter().flat_map(|pod| pod.given.values().flatten());
            let plugins: BTreeSet<String> = given.map(|given| given.plugin.clone()).collect();
            if pod.is_none() && !plugins.is_empty() {
                changes.insert(uid.clone(), Some(plugins));
            } else if pod.is_some() && self.unheard.pods.contains_key(uid) {
                changes.insert(uid.clone(), None);
            }
        }
        changes
    }

    /// The same as changes of the ledger.
    pub(super) fn removal_changes(changes: &BTreeMap<String, Option<BTreeSet<String>>>) -> Vec<Change> {
        changes.iter().map(|(uid, plugins)| Unheard::change(uid, plugins.as_ref())).collect()
    }

    /// Takes them up, once they are durable.
    pub(super) fn take_up_removals(&mut self, changes: BTreeMap<String, Option<BTreeSet<String>>>) {
        for (uid, plugins) in changes {
            match plugins {
                Some(plugins) => {
                    self.unheard.pods.insert(uid, plugins);
                    self.unheard.news.notify_waiters();
                }
                None => drop(self.unheard.pods.remove(&uid)),
            }
        }
    }

    fn chosen(&self, pod: &PodRequest) -> Option<Chosen> {
        let mut trace = Trace::on();
        let _ = pods::admit_spec_traced(&self.state, &self.machine, &self.rules, pod, &mut trace).ok()?;
        let mut chosen = Chosen::new();
        for (container, provider) in &pod.plugins.hints {
            let own = |merge: &&pods::Merge| merge.container.as_deref().is_none_or(|name| name == container);
            let Some(merged) = trace.merges.iter().find(own).and_then(|merge| merge.merged.as_ref()) else {
                continue;
            };
            let hints = provider.keys().map(|resource| (resource.clone(), merged.hint(resource))).collect();
            chosen.insert(container.clone(), hints);
        }
        Some(chosen)
    }
}

impl Handler<AdmitPlugged> for Allocations {
    type Result = MessageResult<AdmitPlugged>;

    fn handle(&mut self, message: AdmitPlugged, _: &mut Self::Context) -> Self::Result {
        let AdmitPlugged { request, pod, by, deadline_unix_ms, occasion } = message;
        // What is refused is refused on the usual way, and remembered there.
        let chosen = self.chosen(&pod);
        if let Some(chosen) = chosen.filter(|chosen| by.as_ref() != Some(chosen)) {
            return MessageResult(Plugged::Chosen(chosen));
        }
        let answer = self.answer(Admit { request, spec: Some(Ok(pod)), deadline_unix_ms, occasion });
        MessageResult(Plugged::Answer(Box::new(answer)))
    }
}

impl Handler<KnownNodes> for Allocations {
    type Result = MessageResult<KnownNodes>;

    fn handle(&mut self, _: KnownNodes, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.machine.nodes().iter().map(|node| node.id).collect())
    }
}

impl Handler<RefusePlugged> for Allocations {
    type Result = MessageResult<RefusePlugged>;

    fn handle(&mut self, message: RefusePlugged, _: &mut Self::Context) -> Self::Result {
        let RefusePlugged { request, pod, reason, message, occasion } = message;
        let refusal = self.refused(&request, reason, Rule::Plugin, message);
        let now = (self.state.clone(), self.ledger.generation());
        self.note(now, Step::AdmitSpec(pod), Some(refusal.clone()), occasion);
        MessageResult(self.refusing(&request, &refusal))
    }
}

impl Handler<Abandon> for Allocations {
    type Result = ();

    fn handle(&mut self, Abandon { uid, plugins }: Abandon, _: &mut Self::Context) {
        let mut plugins = plugins;
        plugins.extend(self.unheard.pods.get(&uid).into_iter().flatten().cloned());
        let changes = BTreeMap::from([(uid, Some(plugins))]);
        // It gives no CPUs away: what a failing disk refuses is written later.
        let _ = self.commit(Self::removal_changes(&changes).into_iter(), false);
        self.take_up_removals(changes);
    }
}

impl Handler<IsHeld> for Allocations {
    type Result = bool;

    fn handle(&mut self, IsHeld { uid }: IsHeld, _: &mut Self::Context) -> bool {
        self.state.pods.get(&uid).is_some_and(|pod| !pod.told.open)
    }
}

impl Handler<Removals> for Allocations {
    type Result = MessageResult<Removals>;

    fn handle(&mut self, _: Removals, _: &mut Self::Context) -> Self::Result {
        MessageResult(Due { pods: self.unheard.pods.clone(), news: Arc::clone(&self.unheard.news) })
    }
}

impl Handler<Removed> for Allocations {
    type Result = ();

    fn handle(&mut self, Removed { uid }: Removed, _: &mut Self::Context) {
        if self.unheard.pods.contains_key(&uid) {
            let changes = BTreeMap::from([(uid, None)]);
            let _ = self.commit(Self::removal_changes(&changes).into_iter(), false);
            self.take_up_removals(changes);
        }
    }
}

impl Handler<PluginNames> for Allocations {
    type Result = MessageResult<PluginNames>;

    fn handle(&mut self, _: PluginNames, _: &mut Self::Context) -> Self::Result {
        let given = self.state.pods.values().flat_map(|pod| pod.given.values().flatten());
        let held = given.map(|given| given.plugin.clone());
        MessageResult(held.chain(self.unheard.pods.values().flatten().cloned()).collect())
    }
}
