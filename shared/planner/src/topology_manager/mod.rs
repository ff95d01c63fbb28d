//! The topology manager: reconciles what the resources of a container would like, as pure functions over [`Hint`]s.
//!
//! * [`merge`] does so for one container, or for a pod's totals, by a [`Policy`]; [`align`] for the containers of a pod by a
//!   [`Scope`].
//! * It never walks the product of the lists: the cost is that of n·2ⁿ additions a resource for up to 16 nodes. Above, it looks
//!   at pairs of masks while they are few (2²⁰), then at those of the smallest size and the next only, the widest and those that are in both lists.

mod enough;
mod hint;
mod in_common;
mod mask_set;
mod nodes;
mod numeric;
mod one_hint;
mod pack;
mod policy;
mod scope;

pub use enough::OFFERED_SETS;
pub(crate) use enough::{Budget, EVERY_SET_NODES, Enough, place_in_order};
pub(crate) use hint::Offered;
pub use hint::{ANY_RESOURCE, Hint, Hints, Provider, impossible, minima};
pub use nodes::{NODE_LIMIT, Nodes, TooManyNodes, every_mask};
pub use policy::{Merged, Policy, UnknownPolicy, merge};
pub use scope::{Containers, Scope, Subject, Unaligned, align};
