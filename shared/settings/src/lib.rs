//! Settings in layers, each overriding the one before: built-in defaults, a YAML file, the environment, flags.
//!
//! Every service has one typed struct (`serde`, `default`, `deny_unknown_fields`) that holds a [`Common`] under the key
//! `common`. An unknown key is an error that names it; nothing is ignored silently.

mod common;
mod environment;
mod error;
mod layers;
mod whole;

pub use common::{Common, HasCommon, LogFormat};
pub use error::Error;
pub use layers::{Cli, load, print};
