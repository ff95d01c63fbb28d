//! What is merged at once: the resources of a container, or those of a whole pod.

use super::{
    hint::Provider,
    nodes::{Nodes, TooManyNodes},
    policy::{Merged, Policy, merge},
};

/// What has to agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Each container in itself.
    Container,
    /// All containers of a pod: hints are asked for the pod's totals, and the answer holds for each container.
    Pod,
}

/// Whom hints are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject<'a, C> {
    /// One container; those before it have their places already.
    Container(&'a C),
    /// The whole pod.
    Pod(&'a [C]),
}

/// Why a pod's containers cannot be aligned.
#[derive(Debug, PartialEq, Eq)]
pub enum Unaligned<E> {
    /// The policy refuses.
    Refused {
        /// Which container, counting from 0; `None` if it is the pod as a whole.
        container: Option<usize>,
        /// What the providers said.
        providers: Vec<Provider>,
        /// What came of it.
        merged: Merged,
    },
    /// The machine or the hints have too many nodes.
    TooManyNodes(TooManyNodes),
    /// Hints could not be had, or a container could not be placed by them.
    Other(E),
}

/// What is merged, asked and placed for one pod.
pub trait Containers<C> {
    /// What can go wrong while hints are gathered or a container is placed.
    type Error;

    /// What the providers say.
    ///
    /// # Errors
    /// Ends the pod's alignment.
    fn hints(&mut self, subject: Subject<'_, C>) -> Result<Vec<Provider>, Self::Error>;

    /// Takes what the container was given, before hints are asked for the next one.
    ///
    /// # Errors
    /// Ends the pod's alignment.
    fn place(&mut self, container: &C, merged: &Merged) -> Result<(), Self::Error>;
}

/// Aligns a pod's containers one after the other, in the order given (init containers first). The first refusal ends it; what
/// was placed before is the caller's to drop, by planning on a copy of the state.
///
/// # Errors
/// The first container, or the pod, that the policy refuses; or what `containers` fails with.
pub fn align<C, P: Containers<C>>(
    scope: Scope,
    policy: &Policy,
    nodes: &Nodes,
    containers: &[C],
    pod: &mut P,
) -> Result<(), Unaligned<P::Error>> {
    if !matches!(policy, Policy::None | Policy::InCommon) {
        // Before anybody lists sets of so many nodes.
        nodes.within_limit().map_err(Unaligned::TooManyNodes)?;
    }
    let merged_for = |container, providers: Vec<Provider>| {
        let merged = merge(policy, nodes, &providers).map_err(Unaligned::TooManyNodes)?;
        if merged.admit { Ok(merged) } else { Err(Unaligned::Refused { container, providers, merged }) }
    };
    let of_pod = match scope {
        Scope::Pod => {
            let providers = pod.hints(Subject::Pod(containers)).map_err(Unaligned::Other)?;
            Some(merged_for(None, providers)?)
        }
        Scope::Container => None,
    };
    for (index, container) in containers.iter().enumerate() {
        let merged = match &of_pod {
            Some(merged) => merged.clone(),
            None => {
                let providers = pod.hints(Subject::Container(container)).map_err(Unaligned::Other)?;
                merged_for(Some(index), providers)?
            }
        };
        pod.place(container, &merged).map_err(Unaligned::Other)?;
    }
    Ok(())
}
