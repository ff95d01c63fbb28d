//! What plugins give to pods that have their places: asked for later than the admission, or changed by a resize.

use std::collections::{BTreeMap, BTreeSet};

use actix::{Handler, Message, MessageResult};
use oxalyst_planner::decision::Step;
use oxalyst_planner::plan::{Flag, Reason, Refusal, Rule};
use oxalyst_planner::pods::{self, ALL, PluginsGave, Pod, Request, Resize, Role, State};
use oxalyst_proto::orm::v1 as orm;
use oxalyst_topology::NumaMask;
use oxalyst_units::{Bytes, MilliCpu};

use super::{Admitted, Allocations, Occasion};
use crate::resize::{self, Told};
use crate::{clock, wire};

const CPU: &str = "cpu";
const MEMORY: &str = "memory";

/// Pods whose specs are known and of which plugins were not asked.
#[derive(Debug, Message)]
#[rtype(result = "Vec<UnaskedPod>")]
pub struct Unasked;

/// One of them.
#[derive(Clone, Debug)]
pub struct UnaskedPod {
    /// Pod uid.
    pub uid: String,
    /// Container → the NUMA nodes that it is confined to; one that is not there is confined to none.
    pub homes: BTreeMap<String, NumaMask>,
    /// Container → plugins that gave it something already.
    pub has: BTreeMap<String, BTreeSet<String>>,
}

/// Plugins gave something to a pod; the error is why it is not the pod's.
#[derive(Debug, Message)]
#[rtype(result = "Result<(), String>")]
pub struct Gave(pub PluginsGave);

/// A resize of which plugins have to be told before it is decided.
#[derive(Clone, Debug)]
pub struct Concern {
    /// What is to change.
    pub resize: Resize,
    /// Plugins that gave the container something of what changes.
    pub plugins: BTreeSet<String>,
    /// CPUs that it asks for from then on.
    pub cpu: Option<MilliCpu>,
    /// Memory that it asks for from then on.
    pub memory: Option<Bytes>,
    /// CPUs that all containers ask for then, those apart that end before the application starts.
    pub total_cpu: MilliCpu,
    /// The same of memory.
    pub total_memory: Bytes,
    /// NUMA nodes that it is confined to then; `None`: to none.
    pub home: Option<NumaMask>,
}

/// Whether plugins have to be told of what the runtime was told; `None`: they need not, or it is refused without them, or it has
/// to wait.
#[derive(Debug, Message)]
#[rtype(result = "Option<Concern>")]
pub struct AskConcern {
    /// What the runtime was told.
    pub told: Told,
}

/// Resizes that pods' specs ask for, and of which plugins have to be told.
#[derive(Debug, Message)]
#[rtype(result = "Vec<Concern>")]
pub struct DueResizes;

/// What a container has, to be told to plugins; `None`: it is not there, or they gave it nothing that can be resized.
#[derive(Debug, Message)]
#[rtype(result = "Option<Concern>")]
pub struct AsHeld {
    /// Pod uid.
    pub uid: String,
    /// The container.
    pub container: String,
}

/// Plugins have said yes to a resize.
#[derive(Debug, Message)]
#[rtype(result = "Admitted")]
pub struct ResizePlugged {
    /// It, and what they gave.
    pub gave: PluginsGave,
    /// Past this time, milliseconds since the Unix epoch, nothing may be committed; 0: no such time.
    pub deadline_unix_ms: i64,
    /// When it came.
    pub occasion: Occasion,
}

/// Plugins stand against a resize.
#[derive(Debug, Message)]
#[rtype(result = "Admitted")]
pub struct RefuseResize {
    /// It.
    pub resize: Resize,
    /// Whether they cannot give, or cannot be heard.
    pub reason: Reason,
    /// Why.
    pub message: String,
    /// When it came.
    pub occasion: Occasion,
}

impl Handler<Unasked> for Allocations {
    type Result = MessageResult<Unasked>;

    fn handle(&mut self, _: Unasked, _: &mut Self::Context) -> Self::Result {
        let waits = |pod: &Pod| pod.flags.contains(&Flag::PluginsUnasked) && pod.container(ALL).is_none();
        let pods = self.state.pods.iter().filter(|(_, pod)| waits(pod) && !pod.told.open);
        let unasked = pods.map(|(uid, pod)| UnaskedPod {
            uid: uid.clone(),
            homes: self.homes(&self.state, uid),
            has: pod
                .given
                .iter()
                .map(|(name, all)| (name.clone(), all.iter().map(|given| given.plugin.clone()).collect()))
                .collect(),
        });
        MessageResult(unasked.collect())
    }
}

impl Handler<Gave> for Allocations {
    type Result = Result<(), String>;

    fn handle(&mut self, Gave(gave): Gave, _: &mut Self::Context) -> Self::Result {
        let occasion = Occasion::now();
        let plan = pods::take_gave(&self.state, &self.machine, &self.rules, &gave);
        let plan = plan.map_err(|refusal| refusal.to_string())?;
        if plan.is_empty() {
            return Ok(());
        }
        tracing::info!(
            uid = gave.uid,
            containers = gave.plugins.given.len(),
            "plugins gave what they were asked later"
        );
        self.settle(plan, Step::Gave(gave), occasion).map(drop).map_err(|e| e.to_string())
    }
}

impl Handler<AskConcern> for Allocations {
    type Result = MessageResult<AskConcern>;

    fn handle(&mut self, AskConcern { told }: AskConcern, _: &mut Self::Context) -> Self::Result {
        let pod = self.state.pods.get(&told.uid).map(AsRef::as_ref);
        let resize = resize::by_runtime(pod, &told).ok().flatten();
        MessageResult(resize.and_then(|resize| self.concern(&resize)))
    }
}

impl Handler<DueResizes> for Allocations {
    type Result = MessageResult<DueResizes>;

    fn handle(&mut self, _: DueResizes, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.unmet.values().filter_map(|wanted| self.concern(&wanted.resize)).collect())
    }
}

impl Handler<AsHeld> for Allocations {
    type Result = MessageResult<AsHeld>;

    fn handle(&mut self, AsHeld { uid, container }: AsHeld, _: &mut Self::Context) -> Self::Result {
        let held = || {
            let pod = self.state.pods.get(&uid)?;
            let asked = pod.container(&container)?;
            let given = pod.given.get(&container)?.iter().map(|given| given.plugin.clone());
            let plugins = given.filter(|plugin| [CPU, MEMORY].contains(&plugin.as_str())).collect();
            let (cpu, limit, memory) = (asked.cpu, asked.limit, asked.memory);
            let resize = Resize { uid: uid.clone(), container: container.clone(), cpu, limit, memory };
            self.concern_in(&self.state, &resize, plugins)
        };
        MessageResult(held())
    }
}

impl Handler<ResizePlugged> for Allocations {
    type Result = MessageResult<ResizePlugged>;

    fn handle(&mut self, message: ResizePlugged, _: &mut Self::Context) -> Self::Result {
        let ResizePlugged { gave, deadline_unix_ms, occasion } = message;
        let Some(resize) = gave.resize.clone() else {
            return MessageResult(self.resized(Some(&gave.uid), None));
        };
        let (uid, asked) = (gave.uid.clone(), resize.cpu);
        let refused = |reason, rule, message| Refusal { reason, rule, message, asked, free: Vec::new() };
        let planned = if deadline_unix_ms > 0 && clock::unix_ms() > deadline_unix_ms {
            Err(refused(Reason::Expired, Rule::Deadline, "the deadline has passed: nobody waits".to_owned()))
        } else {
            pods::take_gave(&self.state, &self.machine, &self.rules, &gave)
        };
        let arrived = occasion.clone();
        let settled = planned.and_then(|plan| {
            self.settle(plan, Step::Gave(gave), occasion).map_err(|e| {
                let message =
                    format!("CPUs are given exclusively only when that is durable, and it is not: {e}");
                refused(Reason::Storage, Rule::Durable, message)
            })
        });
        MessageResult(match settled {
            Ok(event) => {
                self.unmet.remove(&(uid.clone(), resize.container));
                self.resized(Some(&uid), Some(event))
            }
            Err(refusal) => self.refuse_resize(resize, Refusal { asked, ..refusal }, arrived),
        })
    }
}

impl Handler<RefuseResize> for Allocations {
    type Result = MessageResult<RefuseResize>;

    fn handle(&mut self, message: RefuseResize, _: &mut Self::Context) -> Self::Result {
        let RefuseResize { resize, reason, message, occasion } = message;
        let free = pods::free_per_node(&self.state, &self.view());
        let refusal = Refusal { reason, rule: Rule::Plugin, message, asked: resize.cpu, free };
        MessageResult(self.refuse_resize(resize, refusal, occasion))
    }
}

// === impl Allocations ===

impl Allocations {
    /// Whether plugins gave the container something of what changes.
    pub(super) fn is_of_plugins(&self, resize: &Resize) -> bool {
        !self.changed_of_plugins(resize).is_empty()
    }

    /// What has to be told to plugins of a resize that could be had otherwise; `None`: nothing, or it cannot, or it has to wait.
    pub(super) fn concern(&self, resize: &Resize) -> Option<Concern> {
        let plugins = self.changed_of_plugins(resize);
        if plugins.is_empty() || pods::is_ramping_up(&self.state, &resize.uid, &resize.container) {
            return None;
        }
        let request = Request::Resize(resize.clone());
        let plan = pods::plan(&self.state, &self.machine, &self.rules, &request).ok()?;
        self.concern_in(&plan.after, resize, plugins)
    }

    fn changed_of_plugins(&self, resize: &Resize) -> BTreeSet<String> {
        let Some(pod) = self.state.pods.get(&resize.uid) else { return BTreeSet::new() };
        let (Some(asked), Some(given)) = (pod.container(&resize.container), pod.given.get(&resize.container))
        else {
            return BTreeSet::new();
        };
        let changes = |plugin: &str| match plugin {
            CPU => resize.cpu.is_some() && resize.cpu != asked.cpu,
            MEMORY => resize.memory.is_some() && resize.memory != asked.memory,
            _ => false,
        };
        given.iter().map(|given| given.plugin.clone()).filter(|plugin| changes(plugin)).collect()
    }

    /// As it is with `state`.
    fn concern_in(&self, state: &State, resize: &Resize, plugins: BTreeSet<String>) -> Option<Concern> {
        if plugins.is_empty() {
            return None;
        }
        let pod = state.pods.get(&resize.uid)?;
        let own = pod.container(&resize.container)?;
        let lasting = || pod.containers.iter().filter(|own| own.role != Role::Init);
        Some(Concern {
            resize: resize.clone(),
            plugins,
            cpu: own.cpu,
            memory: own.memory,
            total_cpu: MilliCpu(
                lasting().filter_map(|own| own.cpu).fold(0, |all, cpu| all.saturating_add(cpu.0)),
            ),
            total_memory: Bytes(
                lasting().filter_map(|own| own.memory).fold(0, |all, bytes| all.saturating_add(bytes.0)),
            ),
            home: self.homes(state, &resize.uid).remove(&resize.container),
        })
    }

    /// The NUMA nodes of containers that have CPUs of their own, or are bound.
    fn homes(&self, state: &State, uid: &str) -> BTreeMap<String, NumaMask> {
        let machine = self.view();
        let bound = state.pods.get(uid).is_some_and(|pod| pod.wishes.numa_binding());
        let placed = pods::placement_of(state, &machine, uid);
        let containers = placed.into_iter().flat_map(|placed| placed.containers);
        let confined = containers.filter(|own| own.exclusive || bound);
        confined
            .map(|own| (own.name, machine.nodes_of(&own.cpus)))
            .filter(|(_, home)| !home.is_empty())
            .collect()
    }

    fn refuse_resize(&mut self, resize: Resize, refusal: Refusal, occasion: Occasion) -> Admitted {
        let (uid, container) = (resize.uid.clone(), resize.container.clone());
        tracing::info!(uid, container, reason = %refusal.reason, "a resize is refused: {refusal}");
        self.metrics.refused(refusal.reason);
        self.note_refused(resize, Some(refusal.clone()), occasion);
        orm::AdmitReply {
            generation: self.ledger.generation(),
            outcome: Some(orm::admit_reply::Outcome::Refused(wire::refusal(&refusal))),
            changed: Vec::new(),
            pools: self.pools(),
        }
    }
}
