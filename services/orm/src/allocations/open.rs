//! From the ledger's records and the machine as it is to a running actor.

use std::io;
use std::path::PathBuf;

use oxalyst_ledger::{Ledger, Opened, Options};
use oxalyst_mesh::Mesh;
use oxalyst_topology::{CpuSet, DiscoveryError, Machine, discover};
use tokio::sync::broadcast;

use super::absent::Absent;
use super::import;
use super::machine::Watched;
use super::{Allocations, EVENTS};
use crate::metrics::Metrics;
use crate::record;
use crate::settings::Settings;
use oxalyst_planner::plan::State;

/// Why the allocator cannot start.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The machine cannot be read.
    #[error("cannot read the machine: {0}: check common.host_root")]
    Machine(#[from] DiscoveryError),
    /// `reserved_cpus` is no list of CPUs.
    #[error("reserved_cpus {given:?}: {source}: write a list such as 0-1,8")]
    Reserved {
        /// As given.
        given: String,
        /// What is wrong with it.
        source: oxalyst_topology::ParseSetError,
    },
    /// Reserving these would leave no CPU for pods.
    #[error("reserved_cpus {reserved} leaves none of the online CPUs {online} for pods: reserve fewer")]
    ReservedAll {
        /// As given.
        reserved: CpuSet,
        /// What is online.
        online: CpuSet,
    },
    /// The parent of the ledger's folder cannot be made.
    #[error("cannot create {path}: {source}: set ledger_dir to a folder that can be written", path = path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The ledger's folder cannot be used.
    #[error(transparent)]
    Ledger(#[from] oxalyst_ledger::OpenError),
    /// What is taken over from Katalyst could not be written.
    #[error(transparent)]
    Commit(#[from] oxalyst_ledger::CommitError),
}

// === impl OpenError ===

impl OpenError {
    /// Whether it may pass by itself or by what an operator does elsewhere: a disk that is full or fails. A wrong setting, another
    /// owner and a newer format do not.
    pub fn can_pass(&self) -> bool {
        use oxalyst_ledger::OpenError as Unopened;
        match self {
            Self::Ledger(Unopened::Disk(e)) => is_of_the_disk(&e.source),
            Self::Folder { source, .. } => is_of_the_disk(source),
            Self::Commit(_) => true,
            Self::Ledger(_) | Self::Machine(_) | Self::Reserved { .. } | Self::ReservedAll { .. } => false,
        }
    }
}

fn is_of_the_disk(e: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    let of_the_path =
        [Kind::PermissionDenied, Kind::NotADirectory, Kind::InvalidInput, Kind::InvalidFilename];
    !of_the_path.contains(&e.kind())
}

// === impl Allocations ===

impl Allocations {
    /// Reads the machine and the ledger. Blocks.
    ///
    /// # Errors
    /// [`OpenError`], one line each; some [can pass](OpenError::can_pass). Damage of the ledger is no error: it is reported, and what is sound is used.
    pub fn open(settings: &Settings, mesh: &Mesh) -> Result<Self, OpenError> {
        let watched = Watched::new(settings.common.host_root.clone());
        let machine = discover(&watched.host_root)?;
        let reserved: CpuSet = settings
            .reserved_cpus
            .parse()
            .map_err(|source| OpenError::Reserved { given: settings.reserved_cpus.clone(), source })?;
        if machine.online().is_subset(&reserved) {
            return Err(OpenError::ReservedAll { reserved, online: machine.online().clone() });
        }
        let absent = absent(&reserved, &machine);
        if !absent.is_empty() {
            tracing::warn!(%absent, online = %machine.online(), "reserved_cpus names CPUs that this machine does not have");
        }
        mesh.facts
            .set("reserved.absent", if absent.is_empty() { "none".to_owned() } else { absent.to_string() });
        std::fs::create_dir_all(&settings.ledger_dir)
            .map_err(|source| OpenError::Folder { path: settings.ledger_dir.clone(), source })?;
        let (mut ledger, opened) = Ledger::open(&settings.ledger_dir, Options::default())?;
        if let Some(dir) = &settings.import_katalyst_dir {
            import::take_over(&mut ledger, dir, &mesh.facts)?;
        }
        let writable = mesh.readiness.condition("ledger", "it is being read");
        // Nothing fails from here on, so that another attempt never registers them again.
        let metrics = Metrics::new(&mesh.registry);
        report(&opened, mesh, &metrics);
        let mut allocations = Self {
            state: state(&ledger, reserved),
            ledger,
            machine,
            watched,
            unsaved: std::collections::BTreeMap::new(),
            absent: Absent::new(settings.absent_grace()),
            events: broadcast::Sender::new(EVENTS),
            watch_period: settings.watch_period(),
            storage_fault: None,
            rebuilt: 0,
            writable,
            facts: mesh.facts.clone(),
            metrics,
        };
        tracing::info!(
            generation = opened.generation,
            pods = allocations.state.pods.len(),
            online = %allocations.machine.online(),
            reserved = %allocations.state.reserved,
            "the ledger is open"
        );
        if let Err(e) = allocations.take_up_machine() {
            tracing::error!(error = %e, "sets on CPUs that have gone could not be replaced; they keep what is recorded");
        }
        allocations.writable.fulfilled();
        Ok(allocations)
    }
}

/// Reserved CPUs that are neither online nor offline.
fn absent(reserved: &CpuSet, machine: &Machine) -> CpuSet {
    &(reserved - machine.online()) - machine.offline()
}

fn state(ledger: &Ledger, reserved: CpuSet) -> State {
    let mut state = State::new(reserved);
    for (key, bytes) in ledger.records() {
        let Some(uid) = record::pod_uid(key) else { continue };
        match record::decode(bytes) {
            Ok(entry) => {
                state.pods.insert(uid.to_owned(), entry);
            }
            // The pod, if it still runs, is in the runtime's list and is taken in anew from there.
            Err(e) => {
                tracing::error!(uid, error = %e, "a pod's record cannot be understood and is passed over")
            }
        }
    }
    state
}

fn report(opened: &Opened, mesh: &Mesh, metrics: &Metrics) {
    mesh.facts.set("ledger.generation", opened.generation);
    mesh.facts.set("ledger.replayed", opened.replayed);
    mesh.facts.set("ledger.fault", "none");
    mesh.facts.set("ledger.damage", if opened.damage.is_empty() { "none" } else { "found and put aside" });
    for damage in &opened.damage {
        tracing::error!(%damage, quarantined = ?opened.quarantined, "the ledger was damaged; going on with what is sound");
        metrics.damage_found();
    }
}
