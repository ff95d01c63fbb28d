//! From the ledger's records and the machine as it is to a running actor.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use oxalyst_ledger::{CommitError, Ledger, Opened, Options};
use oxalyst_mesh::Mesh;
use oxalyst_topology::{CpuSet, DiscoveryError, Machine};
use oxalyst_units::Bytes;
use tokio::sync::broadcast;

use super::absent::Absent;
use super::import;
use super::lost;
use super::machine::Watched;
use super::plugged::Unheard;
use super::reserving::{AsKubelet, ruled};
use super::{Allocations, EVENTS};
use crate::decisions::{Decisions, Recorder};
use crate::metrics::Metrics;
use crate::record::{self, former::Former};
use crate::refusals::Refusals;
use crate::reservation::Reservation;
use crate::settings::{Settings, SettingsError};
use oxalyst_planner::pods::{self, Rules, State};
use oxalyst_planner::policy::INTERRUPT;
use oxalyst_planner::rules::{self, RulesError};

/// Why the allocator cannot start.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The machine cannot be read.
    #[error("cannot read the machine: {0}: check common.host_root")]
    Machine(#[from] DiscoveryError),
    /// A setting of the rules of placement cannot be understood.
    #[error("settings of orm: {0}")]
    Rules(#[from] RulesError),
    /// A setting that this machine cannot serve.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The root cpuset names no CPU that is online.
    #[error("root_cpuset {root} has none of the online CPUs {online}: leave it empty, or name some of them")]
    Root {
        /// As given.
        root: CpuSet,
        /// What is online.
        online: CpuSet,
    },
    /// Reserving these would leave no CPU for pods.
    #[error(
        "reserved_cpus {reserved} leaves none of the online CPUs {online} for pods, those of interrupt_cpus left out: reserve fewer"
    )]
    ReservedAll {
        /// As given.
        reserved: CpuSet,
        /// What is online.
        online: CpuSet,
    },
    /// What the kubelet reserves is to be reserved, and has never been told.
    #[error(
        "reserved_cpus is \"kubelet\", and the meta-server has not told what the kubelet reserves: see the fact reserved.kubelet, \
         and set kubelet.endpoint of meta-server"
    )]
    Unreserved,
    /// CPUs are to serve interrupts and to be kept for the system.
    #[error("interrupt_cpus and reserved_cpus both name CPUs {both}: name each in one of them")]
    InterruptReserved {
        /// Named in both.
        both: CpuSet,
    },
    /// Memory is reserved of a NUMA node that does not have it.
    #[error(
        "memory_reserved keeps {bytes} bytes of NUMA node {node}, {has}: name nodes of this machine, and no more than they have"
    )]
    MemoryReserved {
        /// The node.
        node: u32,
        /// As given.
        bytes: u64,
        /// What is there instead.
        has: String,
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
    /// What is taken over from Katalyst, or from the version before this one, could not be written.
    #[error(transparent)]
    Commit(#[from] CommitError),
}

// === impl OpenError ===

impl OpenError {
    /// Whether it may pass by itself or by what an operator does elsewhere: a disk that is full or fails. A wrong setting, another
    /// owner and a newer format do not.
    pub fn can_pass(&self) -> bool {
        use oxalyst_ledger::OpenError as Unopened;
        match self {
            Self::Ledger(Unopened::Disk(e)) => is_of_the_disk(&e.source),
            // Its parents are made as well: where one still is not found, as in /proc, none can be.
            Self::Folder { source, .. } => source.kind() != io::ErrorKind::NotFound && is_of_the_disk(source),
            Self::Commit(_) | Self::Unreserved => true,
            Self::Ledger(_)
            | Self::MemoryReserved { .. }
            | Self::Machine(_)
            | Self::Rules(_)
            | Self::Settings(_)
            | Self::Root { .. }
            | Self::ReservedAll { .. }
            | Self::InterruptReserved { .. } => false,
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
    pub fn open(
        settings: &Settings,
        mesh: &Mesh,
        decisions: &Decisions,
        reservation: Option<&Reservation>,
    ) -> Result<Self, OpenError> {
        let interrupt = rules::interrupt(&settings.rules())?;
        let watched = Watched::new(settings.common.host_root.clone(), interrupt.clone());
        let machine = watched.discover()?;
        // Bad settings end it before the ledger is touched; what the kubelet reserved is in the ledger.
        let (rules, reserved) = ruled(&settings.rules(), &machine, &interrupt)?;
        memory_is_there(&rules, &machine)?;
        settings.check_on(&machine)?;
        std::fs::create_dir_all(&settings.ledger_dir)
            .map_err(|source| OpenError::Folder { path: settings.ledger_dir.clone(), source })?;
        let (mut ledger, opened) = Ledger::open(&settings.ledger_dir, Options::default())?;
        // Before anything can fail: what was found is told by this opening alone.
        let awaits_list = lost::awaits_list(&mut ledger, &opened);
        let told = reservation.map(|reservation| {
            let recorded = || record::kubelet_reservation_of(ledger.records());
            reservation.told().or_else(recorded).ok_or(OpenError::Unreserved)
        });
        let as_kubelet = told
            .transpose()?
            .map(|told| AsKubelet { settings: settings.rules_reserving(told.clone()), told });
        let (rules, reserved) = match &as_kubelet {
            Some(known) => ruled(&known.settings, &machine, &interrupt)?,
            None => (rules, reserved),
        };
        let absent = absent(&reserved, &machine);
        if !absent.is_empty() {
            tracing::warn!(%absent, online = %machine.online(), "reserved_cpus names CPUs that this machine does not have");
        }
        mesh.facts.set("reserved.absent", or_none(&absent));
        let unknown = self::absent(&interrupt, &machine);
        if !unknown.is_empty() {
            tracing::warn!(absent = %unknown, online = %machine.online(), "interrupt_cpus names CPUs that this machine does not have");
        }
        mesh.facts.set("interrupt.absent", or_none(&unknown));
        mesh.facts.set(super::machine::FACT, "ok");
        if let Some(dir) = &settings.import_katalyst_dir {
            import::take_over(&mut ledger, dir, (&machine, &rules, &reserved), &mesh.facts)?;
        }
        take_over_former(&mut ledger, &machine, &rules, &reserved)?;
        let writable = mesh.readiness.condition("ledger", "it is being read");
        // Nothing fails from here on, so that another attempt never registers them again.
        let metrics = Metrics::new(&mesh.registry);
        report(&opened, mesh, &metrics);
        lost::report(awaits_list, &mesh.facts);
        let recorder = Recorder::open(
            settings.ledger_dir.join("decisions"),
            settings.decision_limits(),
            decisions.clone(),
            mesh.facts.clone(),
        );
        let mut allocations = Self {
            state: state(&ledger, &machine, &rules, reserved, &interrupt),
            unheard: Unheard::read(&ledger),
            rules: Arc::new(rules),
            ledger,
            machine: Arc::new(machine),
            watched,
            as_kubelet,
            unsaved: std::collections::BTreeMap::new(),
            absent: Absent::new(settings.absent_grace()),
            awaits_list,
            passed_over: std::collections::BTreeSet::new(),
            unmet: std::collections::BTreeMap::new(),
            events: broadcast::Sender::new(EVENTS),
            untold: Vec::new(),
            refusals: Refusals::default(),
            own: None,
            watch_period: settings.watch_period(),
            storage_fault: None,
            rebuilt: 0,
            writable,
            facts: mesh.facts.clone(),
            metrics,
            recorder,
        };
        tracing::info!(
            generation = opened.generation,
            pods = allocations.state.pods.len(),
            online = %allocations.machine.online(),
            reserved = %allocations.state.cpus.reserved,
            "the ledger is open"
        );
        allocations.tell_advice(None);
        if let Err(e) = allocations.take_up_machine() {
            tracing::error!(error = %e, "sets on CPUs that have gone could not be replaced; they keep what is recorded");
        }
        allocations.writable.fulfilled();
        Ok(allocations)
    }
}

/// Checks what is kept of memory against the machine. A node of unknown size may have all of it.
fn memory_is_there(rules: &Rules, machine: &Machine) -> Result<(), OpenError> {
    for (&node, &Bytes(bytes)) in &rules.memory_reserved {
        let has = match machine.nodes().iter().find(|own| own.id == node) {
            None => "which is not there".to_owned(),
            Some(own) => match own.memory {
                Some(Bytes(memory)) if bytes > memory => format!("which has {memory}"),
                _ => continue,
            },
        };
        return Err(OpenError::MemoryReserved { node, bytes, has });
    }
    Ok(())
}

pub(super) fn or_none(cpus: &CpuSet) -> String {
    if cpus.is_empty() { "none".to_owned() } else { cpus.to_string() }
}

/// CPUs that are neither online nor offline.
pub(super) fn absent(reserved: &CpuSet, machine: &Machine) -> CpuSet {
    &(reserved - machine.online()) - machine.offline()
}

/// Makes this version's records of what the version before it has left, in one commit.
fn take_over_former(
    ledger: &mut Ledger,
    machine: &Machine,
    rules: &Rules,
    reserved: &CpuSet,
) -> Result<(), CommitError> {
    let former = Former::of(ledger.records());
    for (key, error) in &former.faults {
        tracing::error!(key, %error, "a pod's record cannot be understood and is passed over");
    }
    let records: Vec<_> = ledger.records().collect();
    let changes = former.changes(&records, machine, rules, reserved);
    if !changes.is_empty() {
        ledger.commit(&changes)?;
        tracing::info!(pods = former.pods.len(), "records of the version before this one are taken over");
    }
    Ok(())
}

fn state(ledger: &Ledger, machine: &Machine, rules: &Rules, reserved: CpuSet, interrupt: &CpuSet) -> State {
    let (mut state, faults) = pods::record::load(ledger.records(), machine, rules, reserved);
    for (key, error) in faults {
        // The pod, if it still runs, is in the runtime's list and is taken in anew from there.
        tracing::error!(key, %error, "a record cannot be understood and is passed over");
    }
    // Whatever was recorded, the setting counts; without any such CPU there is no such pool to be named.
    if interrupt.is_empty() {
        state.cpus.pools.remove(INTERRUPT);
    } else {
        state.cpus.pools.insert(INTERRUPT.to_owned(), interrupt.clone());
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
