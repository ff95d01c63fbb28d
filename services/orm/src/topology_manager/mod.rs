//! The topology manager: reconciles what the resources of a container would like, as pure functions over [`Hint`]s.

mod hint;

pub use hint::{ANY_RESOURCE, Hint, Hints, Provider};
