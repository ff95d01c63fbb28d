//! The policies, and the one entry to all of them.

use super::{
    hint::{ANY_RESOURCE, Hint, Provider, impossible},
    in_common,
    nodes::{Nodes, TooManyNodes},
    numeric, one_hint,
    pack::{Numbering, Packed},
};
use std::collections::BTreeMap;

/// How strictly resources have to agree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Nothing is merged, everything admitted.
    None,
    /// `none` for a container that must be somewhere, on more nodes than can be merged: the best set of nodes that its resources have
    /// in common; always admitted.
    InCommon,
    /// One hint for all resources, the best there is; always admitted.
    BestEffort,
    /// The same hint; admitted if every resource prefers it.
    Restricted,
    /// Only preferred hints of one node (or of any); admitted if there is one for all.
    SingleNumaNode,
    /// A hint for each resource: masks nest, and those of the resources named here are equal.
    Numeric {
        /// Resources whose masks must be equal, as far as a container asks for them.
        align: Vec<String>,
    },
}

/// A name that no policy has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "topology policy {name:?} is unknown; set it to \"none\", \"best-effort\", \"restricted\", \"single-numa-node\" or \
     \"numeric\""
)]
pub struct UnknownPolicy {
    /// The name.
    pub name: String,
}

/// What came of merging.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merged {
    /// Whether the policy lets the container in.
    pub admit: bool,
    /// Resource → its hint, with [`ANY_RESOURCE`] for providers without entries or if there are none. Empty under
    /// [`Policy::None`]; `None` where [`Policy::Numeric`] refuses.
    pub best: Option<BTreeMap<String, Hint>>,
}

/// Merges what the providers say. Providers and the order of their hints matter to [`Policy::Numeric`] alone; resources are
/// visited in ascending order of their names.
///
/// # Errors
/// More than [`NODE_LIMIT`](super::NODE_LIMIT) different NUMA nodes, under any policy but [`Policy::None`] and [`Policy::InCommon`].
pub fn merge(policy: &Policy, nodes: &Nodes, providers: &[Provider]) -> Result<Merged, TooManyNodes> {
    if *policy == Policy::None {
        return Ok(Merged { admit: true, best: Some(BTreeMap::new()) });
    }
    if *policy == Policy::InCommon {
        let best = in_common::best(providers).unwrap_or(Hint::anywhere(true));
        return Ok(Merged { admit: true, best: Some([(ANY_RESOURCE.to_owned(), best)].into()) });
    }
    let hints = || providers.iter().flat_map(Provider::values).flatten().flatten();
    let masks = hints().filter_map(|hint| hint.mask.as_ref());
    let numbering = Numbering::new(masks.chain([nodes.all()]))?;
    let (resources, mut lists) = filtered(&numbering, providers);
    let one = |lists: &[Vec<Packed>]| one_hint::best(nodes, &numbering, lists);
    Ok(match policy {
        Policy::None | Policy::InCommon | Policy::BestEffort => {
            for_all(&resources, one(&lists), &numbering, true)
        }
        Policy::Restricted => {
            let best = one(&lists);
            for_all(&resources, best, &numbering, best.preferred)
        }
        Policy::SingleNumaNode => {
            let one_node = |hint: &Packed| hint.mask.is_none_or(|mask| mask.count_ones() == 1);
            for list in &mut lists {
                list.retain(|hint| hint.preferred && one_node(hint));
            }
            let mut best = one(&lists);
            if best.mask == Some(numbering.pack(nodes.all())) {
                best.mask = None;
            }
            for_all(&resources, best, &numbering, best.preferred)
        }
        Policy::Numeric { .. } if resources.is_empty() => {
            for_all(&resources, Packed { mask: None, preferred: true }, &numbering, true)
        }
        Policy::Numeric { .. } if impossible(providers).is_some() => Merged { admit: false, best: None },
        Policy::Numeric { align } => {
            let place = |name: &String| resources.iter().position(|resource| resource == name);
            let aligned: Vec<usize> = align.iter().filter_map(place).collect();
            let best = numeric::best(&lists, &aligned).map(|chosen| {
                let named = resources.iter().map(|name| (*name).to_owned());
                named.zip(chosen.iter().map(|hint| unpacked(hint, &numbering))).collect()
            });
            Merged { admit: best.is_some(), best }
        }
    })
}

/// The resources and the lists to choose from, where silence has become a hint.
fn filtered<'a>(numbering: &Numbering, providers: &'a [Provider]) -> (Vec<&'a str>, Vec<Vec<Packed>>) {
    let packed = |hint: &Hint| Packed {
        mask: hint.mask.as_ref().map(|mask| numbering.pack(mask)),
        preferred: hint.preferred,
    };
    let anywhere = |preferred| vec![Packed { mask: None, preferred }];
    let mut lists = Vec::new();
    for provider in providers {
        if provider.is_empty() {
            lists.push((ANY_RESOURCE, anywhere(true)));
        }
        for (resource, hints) in provider {
            let list = match hints.as_deref() {
                None => anywhere(true),
                Some([]) => anywhere(false),
                Some(hints) => hints.iter().map(packed).collect(),
            };
            lists.push((resource.as_str(), list));
        }
    }
    lists.into_iter().unzip()
}

fn for_all(resources: &[&str], best: Packed, numbering: &Numbering, admit: bool) -> Merged {
    let hint = unpacked(&best, numbering);
    let names: &[&str] = if resources.is_empty() { &[ANY_RESOURCE] } else { resources };
    let best = names.iter().map(|resource| ((*resource).to_owned(), hint.clone())).collect();
    Merged { admit, best: Some(best) }
}

fn unpacked(hint: &Packed, numbering: &Numbering) -> Hint {
    Hint { mask: hint.mask.map(|mask| numbering.unpack(mask)), preferred: hint.preferred }
}

// === impl Policy ===

impl Policy {
    /// The policy of this name; `align` is what `numeric` aligns.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn named(name: &str, align: &[String]) -> Result<Self, UnknownPolicy> {
        Ok(match name {
            "none" => Self::None,
            "best-effort" => Self::BestEffort,
            "restricted" => Self::Restricted,
            "single-numa-node" => Self::SingleNumaNode,
            "numeric" => Self::Numeric { align: align.to_vec() },
            name => return Err(UnknownPolicy { name: name.to_owned() }),
        })
    }

    /// Its name.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::None | Self::InCommon => "none",
            Self::BestEffort => "best-effort",
            Self::Restricted => "restricted",
            Self::SingleNumaNode => "single-numa-node",
            Self::Numeric { .. } => "numeric",
        }
    }
}

// === impl Merged ===

impl Merged {
    /// The hint to allocate this resource by: its own, else that of [`ANY_RESOURCE`], else any node and not preferred.
    pub fn hint(&self, resource: &str) -> Hint {
        let best = self.best.as_ref();
        let of = |name| best.and_then(|best| best.get(name)).cloned();
        of(resource).or_else(|| of(ANY_RESOURCE)).unwrap_or_else(|| Hint::anywhere(false))
    }
}
