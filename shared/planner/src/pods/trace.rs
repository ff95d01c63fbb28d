//! What planning weighs, noted while it decides.

use super::{Asked, Refusal};
use crate::{
    policy::Lack,
    topology_manager::{Containers, Hint, Merged, Nodes, Policy, Provider, Scope, Subject, Unaligned, align},
};
use oxalyst_topology::NumaMask;
use std::collections::BTreeMap;

/// Notes of one planning. Planning writes it and never reads it, so that nothing depends on whether anybody wants to know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    is_wanted: bool,
    /// Of the pod that is weighed now.
    uid: String,
    /// What was merged, in this order.
    pub merges: Vec<Merge>,
}

/// One merge of the topology manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merge {
    /// Uid of the pod.
    pub uid: String,
    /// The container; `None`: the pod as a whole.
    pub container: Option<String>,
    /// What the resources said.
    pub providers: Vec<Provider>,
    /// What came of it; `None` where it was not come to that.
    pub merged: Option<Merged>,
    /// Where hints could not be had: the resource, the sets of NUMA nodes that were looked at for it, and what each lacks.
    pub lacking: Option<(String, Vec<(NumaMask, Lack)>)>,
}

/// How far a trace was written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark(usize);

/// Containers that are aligned, and who notes what they say.
struct Noted<'a, P> {
    containers: &'a mut P,
    trace: &'a mut Trace,
}

// === impl Trace ===

impl Trace {
    /// Nobody wants to know.
    pub fn off() -> Self {
        Self::default()
    }

    /// To be written.
    pub fn on() -> Self {
        Self { is_wanted: true, ..Self::default() }
    }

    /// What follows is weighed for this pod.
    pub(super) fn about(&mut self, uid: &str) {
        if self.is_wanted {
            uid.clone_into(&mut self.uid);
        }
    }

    pub(super) const fn mark(&self) -> Mark {
        Mark(self.merges.len())
    }

    /// Forgets what was weighed since: nothing came of it.
    pub(super) fn rewind(&mut self, Mark(merges): Mark) {
        self.merges.truncate(merges);
    }

    fn push(&mut self, container: Option<&str>, providers: &[Provider]) {
        self.merges.push(Merge {
            uid: self.uid.clone(),
            container: container.map(str::to_owned),
            providers: providers.to_vec(),
            merged: None,
            lacking: None,
        });
    }

    /// The container stays on these NUMA nodes, where it runs already; `None`: it is bound to none.
    pub(super) fn stays(&mut self, container: Option<&str>, resource: &str, nodes: Option<&NumaMask>) {
        if !self.is_wanted {
            return;
        }
        let hint = nodes.filter(|nodes| !nodes.is_empty()).map(|nodes| Hint::on(nodes.clone(), true));
        let said = hint.iter().map(|hint| (resource.to_owned(), Some(vec![hint.clone()])));
        self.push(container, &[said.collect()]);
        let best: BTreeMap<_, _> = hint.into_iter().map(|hint| (resource.to_owned(), hint)).collect();
        self.merged(&Merged { admit: true, best: Some(best) });
    }

    /// No hints could be had for the container.
    pub(super) fn unhinted(&mut self, container: Option<&str>) {
        if self.is_wanted {
            self.push(container, &[]);
        }
    }

    /// What was looked at for the resource when no hints could be had last.
    pub(super) fn lacking(&mut self, lacking: Option<(String, Vec<(NumaMask, Lack)>)>) {
        let unhinted =
            self.merges.last_mut().filter(|merge| merge.merged.is_none() && merge.providers.is_empty());
        if let (Some(merge), Some((resource, nodes))) = (unhinted, lacking) {
            merge.lacking = Some((resource, nodes));
        }
    }

    pub(super) fn weighed(&mut self, container: Option<&str>, providers: &[Provider]) {
        if self.is_wanted {
            self.push(container, providers);
        }
    }

    pub(super) fn merged(&mut self, merged: &Merged) {
        if let Some(merge) = self.merges.last_mut().filter(|merge| merge.merged.is_none()) {
            merge.merged = Some(merged.clone());
        }
    }

    /// [`align`], noting what it weighs.
    pub(super) fn align<P: Containers<Asked, Error = Refusal>>(
        &mut self,
        scope: Scope,
        policy: &Policy,
        nodes: &Nodes,
        order: &[Asked],
        containers: &mut P,
    ) -> Result<(), Unaligned<Refusal>> {
        let outcome = align(scope, policy, nodes, order, &mut Noted { containers, trace: self });
        if let Err(Unaligned::Refused { merged, .. }) = &outcome {
            self.merged(merged);
        }
        outcome
    }
}

// === impl Noted ===

impl<P: Containers<Asked, Error = Refusal>> Containers<Asked> for Noted<'_, P> {
    type Error = Refusal;

    fn hints(&mut self, subject: Subject<'_, Asked>) -> Result<Vec<Provider>, Refusal> {
        let container = match &subject {
            Subject::Container(asked) => Some(asked.name.as_str()),
            Subject::Pod(_) => None,
        };
        let providers = self.containers.hints(subject).inspect_err(|_| self.trace.unhinted(container))?;
        self.trace.weighed(container, &providers);
        Ok(providers)
    }

    fn place(&mut self, container: &Asked, merged: &Merged) -> Result<(), Refusal> {
        self.trace.merged(merged);
        self.containers.place(container, merged)
    }
}
