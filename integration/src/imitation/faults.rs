//! How the imitated runtime misbehaves.

use std::time::Duration;

/// What goes wrong, until it is switched off.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Connections are accepted, and their calls read, only this long after the runtime's start.
    pub serve_after: Duration,
    /// Calls of plugins are answered only this much later.
    pub stall: Duration,
    /// CreateContainer fails after the plugins have answered, as where another plugin refuses it. The plugins are told
    /// StopContainer and RemoveContainer, as containerd does.
    pub fail_create: bool,
    /// As `fail_create`, and nobody is told anything.
    pub fail_create_silently: bool,
    /// Updates answer success and change nothing.
    pub ignore_updates: bool,
}
