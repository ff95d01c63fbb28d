//! Resource plugins: who they are, what they say of a container, and what they give it.
//!
//! * `registry` knows them by the resources that they give out. They come on two ways: by a call to its socket, or by a
//!   socket of their own in a folder that is watched.
//! * `admission` asks them where a container's resources could be given, has that merged with its CPUs and its memory by the
//!   planner, and has them give what came out; `removal` tells them that a pod is gone until all of them have heard it.
//! * `late` asks them for pods that were decided before their specs were known, `resizing` tells them of containers that are to
//!   have more or less of what they gave.
//!
//! Every call has a deadline and every plugin a bound of calls under way: one that hangs costs those pods alone that ask for its
//! resource.

mod admission;
mod amends;
mod answer;
mod asking;
mod asks;
mod attend;
mod claims;
mod late;
mod plugin;
mod registry;
mod removal;
mod resizing;
mod socket;
mod watched;

pub use admission::Admission;
pub use amends::Amends;
pub use asks::{Ask, asks};
pub use attend::attend;
pub use claims::{Claim, Claims};
pub use late::catch_up_for_ever;
pub use plugin::{Plugin, PluginError, VERSION};
pub use registry::{Found, Plugins, Registry};
pub use removal::remove_for_ever;
pub use resizing::Resizing;
pub use socket::serve_registration;
pub use watched::watch;
