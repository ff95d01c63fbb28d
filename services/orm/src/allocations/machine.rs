//! The machine changes under us: CPUs come and go at run time.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use oxalyst_ledger::CommitError;
use oxalyst_topology::{CpuSet, DiscoveryError, Machine, discover, huge_pages};
use oxalyst_units::Bytes;

use super::{Allocations, Occasion};
use crate::clock;
use oxalyst_planner::decision::Step;
use oxalyst_planner::pods;

/// What is looked at, and what was seen last.
#[derive(Debug)]
pub(super) struct Watched {
    host_root: PathBuf,
    /// CPUs that serve interrupts, whether they are there or not.
    interrupt: CpuSet,
    /// What tells whether the machine is still the one that was last discovered.
    signs: Option<Signs>,
    fault: Option<Fault>,
}

/// Why the machine cannot be read.
#[derive(Debug)]
struct Fault {
    text: String,
    since_unix_ms: i64,
}

/// Fact that tells whether the machine can be read.
pub(super) const FACT: &str = "machine";

/// What of a machine changes at run time: a few small files instead of the many of a discovery.
#[derive(Debug, PartialEq, Eq)]
struct Signs {
    /// The kernel's list of online CPUs.
    online: String,
    /// Bytes of huge pages by NUMA node and bytes of a page; `None` where that cannot be read.
    huge_pages: Option<BTreeMap<u32, BTreeMap<Bytes, Bytes>>>,
}

// === impl Watched ===

impl Watched {
    /// To be made just before the machine is discovered, so that a change meanwhile is not missed.
    pub(super) fn new(host_root: PathBuf, interrupt: CpuSet) -> Self {
        let mut watched = Self { host_root, interrupt, signs: None, fault: None };
        watched.signs = watched.read().ok();
        watched
    }

    /// The machine as it is now. CPUs that serve interrupts count as isolated: nobody is given those, by any policy.
    pub(super) fn discover(&self) -> Result<Machine, DiscoveryError> {
        let machine = discover(&self.host_root)?;
        let kept = machine.isolated() | &self.interrupt;
        Ok(machine.with_isolated(&kept))
    }

    pub(super) const fn interrupt(&self) -> &CpuSet {
        &self.interrupt
    }

    fn read(&self) -> std::io::Result<Signs> {
        let online = std::fs::read_to_string(self.host_root.join("sys/devices/system/cpu/online"))?;
        Ok(Signs { online, huge_pages: huge_pages(&self.host_root).ok() })
    }
}

// === impl Allocations ===

impl Allocations {
    pub(super) fn look_at_machine(&mut self) {
        let signs = self.watched.read().ok();
        // The same signs after a fault are a reason to look: that it has passed is to be told.
        if signs.is_some() && signs == self.watched.signs && self.watched.fault.is_none() {
            return;
        }
        match self.watched.discover() {
            Ok(machine) => {
                self.watched.signs = signs;
                if self.watched.fault.take().is_some() {
                    tracing::info!("the machine can be read again");
                    self.facts.set(FACT, "ok");
                }
                if machine != *self.machine {
                    self.change_machine(machine);
                }
            }
            Err(e) => self.cannot_read(e.to_string()),
        }
    }

    fn cannot_read(&mut self, text: String) {
        if self.watched.fault.as_ref().is_some_and(|known| known.text == text) {
            return;
        }
        tracing::warn!(error = text, "the machine cannot be read; going on with what was read last");
        let since_unix_ms =
            self.watched.fault.as_ref().map_or_else(clock::unix_ms, |known| known.since_unix_ms);
        let since = clock::rfc3339(since_unix_ms);
        self.facts.set(FACT, format!("unreadable since {since}, what was read before counts: {text}"));
        self.watched.fault = Some(Fault { text, since_unix_ms });
    }

    fn change_machine(&mut self, machine: Machine) {
        let (before, now) = (self.machine.online().to_string(), machine.online().to_string());
        tracing::warn!(before, now, "the machine has changed");
        self.machine = Arc::new(machine);
        if let Err(e) = self.take_up_machine() {
            tracing::error!(error = %e, "sets on CPUs that have gone could not be replaced; trying again");
        }
    }

    /// What the machine and the reserved CPUs as they are now ask for, and a record of them.
    pub(super) fn take_up_machine(&mut self) -> Result<(), CommitError> {
        self.facts.set("online", self.machine.online());
        let occasion = Occasion::now();
        let plan = pods::replan(&self.state, &self.machine, &self.rules);
        self.commit(self.ground().into_iter(), false)?;
        self.settle(plan, Step::Replan, occasion).map(drop)
    }
}
