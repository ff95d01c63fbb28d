use std::path::PathBuf;

/// Why settings could not be had. Each reads as one line that names the place and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file given by `--config` cannot be read.
    #[error("cannot read the settings file {path}: {source}: give --config a readable YAML file", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is no YAML mapping.
    #[error("the settings file {path} is not valid YAML: {what}", path = path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where and why.
        what: String,
    },
    /// A variable with one underscore where a level of keys ends.
    #[error(
        "{given} sets nothing: {key} lies within another key, write two underscores between them: {meant}"
    )]
    Variable {
        /// As given.
        given: String,
        /// The key that was meant, with dots.
        key: String,
        /// The variable's right name.
        meant: String,
    },
    /// A `--set` without `=`, or with an empty key.
    #[error("--set {given}: expected KEY=VALUE, such as --set common.log=debug")]
    Flag {
        /// As given.
        given: String,
    },
    /// A key nobody knows, or a value of the wrong kind.
    #[error("settings of {service}: {what} (layers read: {layers}; see --print-config for the known keys)")]
    Value {
        /// The service.
        service: String,
        /// Key and fault.
        what: String,
        /// Where values came from.
        layers: String,
    },
}
