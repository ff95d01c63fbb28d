//! What planning weighs, noted while it decides.

use super::{Asked, Refusal};
use crate::topology_manager::{
    Containers, Merged, Nodes, Policy, Provider, Scope, Subject, Unaligned, align,
};

/// Notes of one planning. Planning writes it and never reads it, so that nothing depends on whether anybody wants to know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    is_wanted: bool,
    /// What was merged, in this order.
    pub merges: Vec<Merge>,
}

/// One merge of the topology manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merge {
    /// The container; `None`: the pod as a whole.
    pub container: Option<String>,
    /// What the resources said.
    pub providers: Vec<Provider>,
    /// What came of it; `None` where it was not come to that.
    pub merged: Option<Merged>,
}

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
        Self { is_wanted: true, merges: Vec::new() }
    }

    pub(super) fn weighed(&mut self, container: Option<&str>, providers: &[Provider]) {
        if self.is_wanted {
            let container = container.map(str::to_owned);
            self.merges.push(Merge { container, providers: providers.to_vec(), merged: None });
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
        let providers = self.containers.hints(subject)?;
        self.trace.weighed(container, &providers);
        Ok(providers)
    }

    fn place(&mut self, container: &Asked, merged: &Merged) -> Result<(), Refusal> {
        self.trace.merged(merged);
        self.containers.place(container, merged)
    }
}
