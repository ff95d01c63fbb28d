//! What the imitated runtime saw of its plugins.

use std::time::{Duration, Instant};

use oxalyst_nri::api::{Container, ContainerUpdate, CreateContainerResponse};

use super::reference::Seen;

/// Everything since the start or since it was last forgotten, oldest first.
#[derive(Debug, Default)]
pub struct Observed {
    /// Plugins taken in.
    pub registrations: Vec<Registration>,
    /// The most plugins that were there at one time, counted whenever one had been synchronised.
    pub most_at_once: usize,
    /// Lists told.
    pub synchronizations: Vec<Synchronization>,
    /// Calls of the plugins, but for Configure and Synchronize.
    pub calls: Vec<Call>,
    /// Containers told with CreateContainer, and each answer.
    pub creations: Vec<(Container, CreateContainerResponse)>,
    /// Updates that plugins sent by themselves.
    pub updates: Vec<(Instant, Vec<ContainerUpdate>)>,
    /// Of those, how many came while a plugin was being called, and waited for its answer.
    pub overlapping_updates: u32,
    /// Updates of containers that were not stored yet, dropped without a word.
    pub dropped: Vec<String>,
    /// Updates that the kernel refused: container and reason.
    pub refused: Vec<(String, String)>,
    /// Containers for which a plugin sent an adjustment without CPUs, or an update with neither CPUs nor memory nodes.
    pub empty_cpus: Vec<String>,
    /// Why connections ended, or plugins were not taken in.
    pub ended: Vec<String>,
    /// Messages of plugins that the reference library has read, where it is the one that calls.
    pub seen: Vec<Seen>,
}

/// A plugin that was taken in.
#[derive(Clone, Debug)]
pub struct Registration {
    /// When it had answered Configure.
    pub at: Instant,
    /// Its name.
    pub name: String,
    /// Its index, two digits.
    pub index: String,
    /// The events it asked for.
    pub mask: i32,
}

/// A list that was told.
#[derive(Clone, Debug)]
pub struct Synchronization {
    /// When the last answer was there.
    pub at: Instant,
    /// From the first request to the last answer.
    pub took: Duration,
    /// Sandboxes told.
    pub pods: usize,
    /// Containers told.
    pub containers: usize,
    /// What the plugin wanted changed.
    pub updates: Vec<ContainerUpdate>,
}

/// A call of a plugin.
#[derive(Clone, Debug)]
pub struct Call {
    /// Event, as NRI names it.
    pub event: oxalyst_nri::api::Event,
    /// From the request to the answer.
    pub took: Duration,
    /// Why it failed, if it did.
    pub error: Option<String>,
}

// === impl Observed ===

impl Observed {
    /// Calls of one event.
    pub fn calls_of(&self, event: oxalyst_nri::api::Event) -> impl Iterator<Item = &Call> {
        self.calls.iter().filter(move |call| call.event == event)
    }

    pub(super) fn check_cpus(&mut self, update: &ContainerUpdate) {
        let resources = update.linux.as_ref().and_then(|l| l.resources.as_ref());
        let cpu = resources.and_then(|r| r.cpu.as_ref());
        // Memory nodes change by themselves, after the reply: without a list of CPUs these stay.
        if cpu.is_none_or(|cpu| cpu.cpus.trim().is_empty() && cpu.mems.trim().is_empty()) {
            self.empty_cpus.push(update.container_id.clone());
        }
    }
}
