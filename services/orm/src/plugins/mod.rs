//! Resource plugins: who they are, what they say of a container, and what they give it.
//!
//! * `registry` knows them by the resources that they give out. They come on two ways: by a call to its socket, or by a
//!   socket of their own in a folder that is watched.
//! * `admission` asks them where a container's resources could be given, has that merged with its CPUs and its memory by the
//!   planner, and has them give what came out; `removal` tells them that a pod is gone until all of them have heard it.
//!
//! Every call has a deadline and every plugin a bound of calls under way: one that hangs costs those pods alone that ask for its
//! resource.

mod admission;
mod asks;
mod attend;
mod claims;
mod plugin;
mod registry;
mod removal;
mod socket;
mod watched;

pub use admission::Admission;
pub use asks::{Ask, asks};
pub use attend::attend;
pub use claims::{Claim, Claims};
pub use plugin::{Plugin, PluginError, VERSION};
pub use registry::{Found, Plugins, Registry};
pub use removal::remove_for_ever;
pub use socket::serve_registration;
pub use watched::watch;
