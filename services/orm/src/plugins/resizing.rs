//! A container is to have more or less of what a plugin gave it: the plugin is told as of an admission, with the mark of a resize,
//! and what it refuses does not happen.

use std::collections::{BTreeMap, BTreeSet};

use oxalyst_planner::plan::Reason;
use oxalyst_planner::pods::{Plugins as Gifts, PluginsGave};
use oxalyst_proto::orm::v1::AdmitReply;
use oxalyst_proto::orm::v1::admit_reply::Outcome;
use tokio::time::Instant;
use tonic::Status;

use super::asking::{by_place, give, say};
use super::{Ask, PluginError, Plugins, asks};
use crate::allocations::{AsHeld, Concern, KnownNodes, Occasion, RefuseResize, ResizePlugged};
use crate::allocator::Face;
use crate::specs::PodSpec;

/// Annotation by which plugins know a resize.
const RESIZING: &str = "pod.kubernetes.io/inplace-update-resizing";
/// Annotation that tells them, with the main container, what all containers ask for together.
const AGGREGATED: &str = "pod.kubernetes.io/pod-aggregated-requests";

/// A resize of which plugins have to be told. The pod is claimed by the caller.
pub struct Resizing<'a> {
    /// Whom to ask for the commit.
    pub face: &'a Face,
    /// The plugins.
    pub plugins: &'a Plugins,
    /// What is to change.
    pub concern: Concern,
    /// Past this time, milliseconds since the Unix epoch, nobody waits; 0: no such time.
    pub deadline_unix_ms: i64,
}

/// Why plugins stand against it.
struct Against {
    reason: Reason,
    message: String,
}

// === impl Against ===

impl From<PluginError> for Against {
    fn from(error: PluginError) -> Self {
        let reason = match &error {
            e if e.is_unusable() => Reason::Invalid,
            e if e.is_its_word() => Reason::Insufficient,
            _ => Reason::Unavailable,
        };
        Self { reason, message: error.to_string() }
    }
}

// === impl Resizing ===

impl Resizing<'_> {
    /// The answer to the runtime. What plugins gave for a resize that is then refused they are told to take back.
    ///
    /// # Errors
    /// The allocator cannot be asked.
    pub async fn decide(self, occasion: Occasion, end: Instant) -> Result<AdmitReply, Status> {
        match self.ask(end).await {
            Ok(gifts) => self.commit(gifts, occasion, end).await,
            Err(Against { reason, message }) => {
                let resize = self.concern.resize.clone();
                self.face.ask(RefuseResize { resize, reason, message, occasion }).await
            }
        }
    }

    /// The same for what a pod's spec asks for; gives why it is refused, which is tried again and not remembered each time.
    ///
    /// # Errors
    /// The allocator cannot be asked.
    pub async fn decide_for_spec(self, end: Instant) -> Result<Option<String>, Status> {
        let reply = match self.ask(end).await {
            Ok(gifts) => self.commit(gifts, Occasion::now(), end).await?,
            Err(Against { message, .. }) => return Ok(Some(message)),
        };
        Ok(match reply.outcome {
            Some(Outcome::Refused(refused)) => Some(refused.message),
            _ => None,
        })
    }

    async fn commit(self, plugins: Gifts, occasion: Occasion, end: Instant) -> Result<AdmitReply, Status> {
        let Self { face, concern, deadline_unix_ms, .. } = &self;
        let uid = concern.resize.uid.clone();
        let gave = PluginsGave { uid, plugins, whole: false, resize: Some(concern.resize.clone()) };
        let resize = ResizePlugged { gave, deadline_unix_ms: *deadline_unix_ms, occasion };
        let reply = face.ask(resize).await?;
        if matches!(reply.outcome, Some(Outcome::Refused(_))) {
            self.take_back(end).await;
        }
        Ok(reply)
    }

    async fn ask(&self, end: Instant) -> Result<Gifts, Against> {
        let outcome = tell(self.face, self.plugins, &self.concern, end).await;
        if let Err((against, true)) = outcome {
            self.take_back(end).await;
            return Err(against);
        }
        outcome.map_err(|(against, _)| against)
    }

    /// Plugins are told what the container goes on having; those that cannot be told now are told later.
    async fn take_back(&self, end: Instant) {
        let (uid, container) = (self.concern.resize.uid.clone(), self.concern.resize.container.clone());
        self.plugins.amends.note(uid.clone(), container.clone());
        amend(self.face, self.plugins, &uid, &container, end).await;
    }
}

/// Tells plugins what a container has, where they may think that it has something else; what fails is noted already.
pub(super) async fn amend(face: &Face, plugins: &Plugins, uid: &str, container: &str, end: Instant) {
    let as_held = AsHeld { uid: uid.to_owned(), container: container.to_owned() };
    let Ok(held) = face.ask(as_held).await else { return };
    let heard = match held {
        Some(held) => tell(face, plugins, &held, end).await.is_ok(),
        // It is gone, and plugins hear that on another way.
        None => true,
    };
    if heard {
        plugins.amends.made(uid, container);
    } else {
        tracing::warn!(
            uid,
            container,
            "a plugin may count a resize that was refused: it is told again until it hears it"
        );
    }
}

/// Asks plugins of one resize. With a failure: whether one of them may have given already.
async fn tell(
    face: &Face,
    plugins: &Plugins,
    concern: &Concern,
    end: Instant,
) -> Result<Gifts, (Against, bool)> {
    let container = &concern.resize.container;
    let unknown = || {
        let message = format!(
            "plugins gave container {container} something, and have to be told of a resize by the pod's spec, which the \
             meta-server has not told"
        );
        (Against { reason: Reason::Unavailable, message }, false)
    };
    let spec = face.spec_of(&concern.resize.uid).ok_or_else(unknown)?;
    let all = asks(&spec, face.names(), |resource| concern.plugins.contains(resource)).unwrap_or_default();
    let ask = all.into_iter().find(|ask| ask.container == *container).ok_or_else(unknown)?;
    let ask = ask.resized(concern.cpu, concern.memory);
    let spec = marked(&spec, &ask, concern);
    let nodes = face.ask(KnownNodes).await.map_err(|status| {
        let message = format!("the allocator cannot be asked: {}", status.message());
        (Against { reason: Reason::Unavailable, message }, false)
    })?;
    let said = say(plugins, &nodes, &spec, &ask, end).await.map_err(|e| (e.into(), false))?;
    if let Some((resource, _)) = said.iter().find(|(_, hints)| hints.as_ref().is_some_and(Vec::is_empty)) {
        let message =
            format!("container {container}: {resource} says that there is no room for what it is to have");
        return Err((Against { reason: Reason::Insufficient, message }, false));
    }
    let by = by_place(&said, concern.home.as_ref());
    let mut gave = BTreeSet::new();
    let given = give(plugins, &spec, &ask, &by, &mut gave, end).await;
    let given = given.map_err(|e| (e.into(), !gave.is_empty()))?;
    let mut gifts = Gifts::default();
    if !said.is_empty() {
        gifts.hints.insert(container.clone(), said);
    }
    if !given.is_empty() {
        gifts.given.insert(container.clone(), given);
    }
    Ok(gifts)
}

/// The spec with the marks of a resize.
fn marked(spec: &PodSpec, ask: &Ask, concern: &Concern) -> PodSpec {
    let mut marks = BTreeMap::from([(RESIZING.to_owned(), "true".to_owned())]);
    if ask.is_main() {
        let (cpu, memory) = (concern.total_cpu.0, concern.total_memory.0);
        marks.insert(AGGREGATED.to_owned(), format!(r#"{{"cpu":"{cpu}m","memory":"{memory}"}}"#));
    }
    let mut spec = spec.clone();
    spec.annotations.extend(marks);
    spec
}
