//! The machine changes under us: CPUs come and go at run time.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use oxalyst_ledger::CommitError;
use oxalyst_topology::{Machine, discover, huge_pages};
use oxalyst_units::Bytes;

use super::{Allocations, Occasion};
use crate::record;
use oxalyst_planner::decision::Step;
use oxalyst_planner::pods;

/// What is looked at, and what was seen last.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) host_root: PathBuf,
    /// What tells whether the machine is still the one that was last discovered.
    signs: Option<Signs>,
    fault: Option<String>,
}

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
    pub(super) fn new(host_root: PathBuf) -> Self {
        let mut watched = Self { host_root, signs: None, fault: None };
        watched.signs = watched.read().ok();
        watched
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
        if signs.is_some() && signs == self.watched.signs {
            return;
        }
        match discover(&self.watched.host_root) {
            Ok(machine) => {
                self.watched.signs = signs;
                if self.watched.fault.take().is_some() {
                    tracing::info!("the machine can be read again");
                }
                if machine != *self.machine {
                    self.change_machine(machine);
                }
            }
            Err(e) => {
                let text = e.to_string();
                if self.watched.fault.as_ref() != Some(&text) {
                    tracing::warn!(
                        error = text,
                        "the machine cannot be read; going on with what was read last"
                    );
                    self.watched.fault = Some(text);
                }
            }
        }
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
        self.commit(std::iter::once(record::machine(&self.machine, &self.state.cpus.reserved)), false)?;
        self.settle(plan, Step::Replan, occasion).map(drop)
    }
}
