//! The specs of the node's pods, as the meta-server tells them, and what they ask for.
//!
//! Nobody waits for them: a pod whose spec is not here yet is decided by what its sandbox tells, and refined later.

mod book;
mod link;
mod reader;
mod request;
mod resource_names;
mod spec;

pub use book::{SpecChange, Specs};
pub use link::follow;
pub use reader::{Reader, ReadingRules, ReadingRulesError};
pub use request::{SpecFault, pod_request};
pub use resource_names::{Amount, NamedTwice, ResourceNames, ResourceNamesError};
pub use spec::{Amounts, ContainerSpec, InPlace, PodSpec};
