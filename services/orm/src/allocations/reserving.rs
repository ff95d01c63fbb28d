//! CPUs that are kept for the system: by the settings, or as the kubelet does.

use actix::{Handler, Message, MessageResult};
use oxalyst_planner::decision::Step;
use oxalyst_planner::pods::{self, Request, Rules};
use oxalyst_planner::rules::{self, RuleSettings};
use oxalyst_topology::{CpuSet, Machine};

use super::{Allocations, Occasion, OpenError};
use crate::record;

/// The kubelet reserves this: a list, or an amount such as `750m`.
#[derive(Debug, Message)]
#[rtype(result = "Result<(), String>")]
pub struct Reserve(pub String);

/// What the kubelet reserves, where the settings ask for that.
#[derive(Debug)]
pub(super) struct AsKubelet {
    /// All other settings.
    pub(super) settings: RuleSettings,
    /// What counts now.
    pub(super) told: String,
}

impl Handler<Reserve> for Allocations {
    type Result = MessageResult<Reserve>;

    fn handle(&mut self, Reserve(told): Reserve, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.reserve(told))
    }
}

/// The rules, and the CPUs kept for the system, that these settings make on this machine.
///
/// # Errors
/// What cannot be understood, or leaves nothing.
pub(super) fn ruled(
    settings: &RuleSettings,
    machine: &Machine,
    interrupt: &CpuSet,
) -> Result<(Rules, CpuSet), OpenError> {
    let rules = rules::rules(settings)?;
    let usable = rules.confine(machine).into_owned();
    if let Some(root) = rules.root.clone().filter(|_| usable.online().is_empty()) {
        return Err(OpenError::Root { root, online: machine.online().clone() });
    }
    let reserved = rules::reserved(settings, &usable)?;
    let both = &reserved & interrupt;
    if !both.is_empty() {
        return Err(OpenError::InterruptReserved { both });
    }
    if usable.online().is_subset(&(&reserved | interrupt)) {
        return Err(OpenError::ReservedAll { reserved, online: usable.online().clone() });
    }
    Ok((rules, reserved))
}

// === impl Allocations ===

impl Allocations {
    /// Reserves what the kubelet now does, as a change of the setting would.
    fn reserve(&mut self, told: String) -> Result<(), String> {
        let Some(known) = &self.as_kubelet else { return Ok(()) };
        if known.told == told {
            return Ok(());
        }
        let settings = RuleSettings { reserved_cpus: told.clone(), ..known.settings.clone() };
        let before = self.state.cpus.reserved.to_string();
        let (rules, reserved) =
            ruled(&settings, &self.machine, self.watched.interrupt()).map_err(|e| e.to_string())?;
        tracing::warn!(was = known.told, told, before, now = %reserved, "the kubelet reserves other CPUs");
        self.rules = rules.into();
        self.as_kubelet = Some(AsKubelet { settings, told });
        self.facts
            .set("reserved.absent", super::open::or_none(&super::open::absent(&reserved, &self.machine)));
        let occasion = Occasion::now();
        let request = Request::TakeUp { reserved: Some(reserved) };
        let plan =
            pods::plan(&self.state, &self.machine, &self.rules, &request).map_err(|e| e.to_string())?;
        let plan = pods::Plan { affected: plan.after.pods.keys().cloned().collect(), moved: true, ..plan };
        // It gives no CPUs away: what a failing disk refuses is written later.
        let _ = self.settle(plan, Step::Whole(request), occasion);
        let _ = self.commit(self.ground().into_iter(), false);
        Ok(())
    }

    /// What pools follow from beside pods, as records.
    pub(super) fn ground(&self) -> Vec<oxalyst_ledger::Change> {
        let reservation = self.as_kubelet.as_ref().map(|known| record::kubelet_reservation(&known.told));
        let machine = record::machine(&self.machine, &self.state.cpus.reserved);
        std::iter::once(machine).chain(reservation).collect()
    }
}
