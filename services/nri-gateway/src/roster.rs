//! The one owner of what the runtime runs, what was applied to it and what the kernel said of it.

mod actor;
mod born;
mod claims;
mod contest;
mod entry;
mod found;
mod lodging;
mod resize;
mod troubles;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use oxalyst_proto::gateway::v1::{AppliedContainer, RefusedPod};
use oxalyst_proto::meta::v1::{RuntimeSnapshot, runtime_event::Event};
use oxalyst_proto::runtime::v1::{Container, Sandbox};
use oxalyst_topology::CpuSet;

pub use actor::{
    Applied, CheckStart, Create, Ended, HaveSuccessor, Holds, Listing, Moved, Observed, Others, PutSandbox,
    RefreshSandbox, Refused, RefusedAgain, RefusedBefore, RemoveContainer, RemoveSandbox, Replace, Reported,
    ResizeHeard, Resized, Resynchronise, Standing, StopSandbox, TakeCensus, ToCheck, ToClaim, ToResize,
    Troubles, Wrote,
};
pub use born::Born;
pub use claims::{Claims, Idle};
use entry::Entry;
pub use entry::{Phase, Seen};
pub use found::{Census, Taken};
pub use lodging::Entrance;
use lodging::Lodging;
pub use troubles::Trouble;

use crate::adjustment::{Wish, others};
use crate::meta_link::Feed;
use crate::metrics::Metrics;
use crate::pinning::{Change, Corrections, difference};
use crate::placements::{Cpuset, Placements};

/// A container whose creation was answered and of which nothing was heard since: its creation failed elsewhere.
const NEVER_CREATED: Duration = Duration::from_secs(60);

/// A container whose kernel files are to be compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Check {
    /// The container.
    pub container_id: String,
    /// Its cgroup as the runtime told it.
    pub cgroups_path: String,
    /// Where it is to run.
    pub wanted: Option<Cpuset>,
    /// What else it is to have.
    pub others: Wish,
}

/// What of the settings decides about containers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    /// Reclaimed containers are idle to the kernel's scheduler.
    pub idle: bool,
    /// Changes by somebody else after which a container is mended once a reconcile period.
    pub flips: u32,
}

/// What is to be checked, and what can be corrected without looking (a container without a cgroup yet).
#[derive(Clone, Debug, Default)]
pub struct Due {
    /// To be compared with the kernel.
    pub checks: Vec<Check>,
    /// To be told to the runtime in any case.
    pub blind: Corrections,
}

/// Sandboxes and containers by id.
#[derive(Debug)]
pub struct Roster {
    sandboxes: BTreeMap<String, Lodging>,
    containers: BTreeMap<String, Entry>,
    placements: Arc<ArcSwap<Placements>>,
    feed: Feed,
    metrics: Metrics,
    rules: Rules,
}

// === impl Roster ===

impl Roster {
    /// An empty one.
    pub fn new(placements: Arc<ArcSwap<Placements>>, feed: Feed, metrics: Metrics, rules: Rules) -> Self {
        Self { sandboxes: BTreeMap::new(), containers: BTreeMap::new(), placements, feed, metrics, rules }
    }

    /// What a container that is being created is to have beside CPUs and memory nodes.
    fn others(&self, uid: &str, container: &str) -> Wish {
        let placements = self.placements.load();
        let told = placements.pod(uid).map(|pod| others(pod, container, self.rules.idle));
        let (wish, unusable) = told.unwrap_or_default();
        for fault in unusable {
            tracing::warn!(uid, container, "{fault}: the container is created without it");
        }
        wish
    }

    /// These parts of what a container is to have cannot be put into effect.
    /// What was reported of one that is not whole stands beside what is reported now: a look that writes nothing knows less.
    fn reported(&mut self, reports: Vec<(String, String)>, whole: &[String]) {
        let mut by_id: BTreeMap<String, Vec<String>> =
            whole.iter().map(|id| (id.clone(), Vec::new())).collect();
        for (id, report) in reports {
            by_id.entry(id).or_default().push(report);
        }
        for (id, reports) in by_id {
            let Some(entry) = self.containers.get_mut(&id) else { continue };
            let mut stand = if whole.contains(&id) { Vec::new() } else { entry.reports.clone() };
            let new = reports.into_iter().filter(|report| !stand.contains(report)).collect::<Vec<_>>();
            stand.extend(new);
            if entry.reports == stand {
                continue;
            }
            let reports = stand;
            match reports.is_empty() {
                true => tracing::info!(container = %id, "all that was decided is in effect"),
                false => {
                    tracing::warn!(container = %id, ?reports, "not all that was decided can be put into effect");
                }
            }
            entry.reports = reports;
        }
    }

    /// The runtime told its whole list. What was known of containers that are still there is kept.
    fn replace(&mut self, sandboxes: Vec<Sandbox>, containers: Vec<(Container, Born)>) {
        let mut known = std::mem::take(&mut self.sandboxes);
        for sandbox in sandboxes {
            let before = known.remove(&sandbox.sandbox_id);
            let id = sandbox.sandbox_id.clone();
            self.sandboxes.insert(id, Lodging::listed(sandbox, before));
        }
        let mut known = std::mem::take(&mut self.containers);
        for (container, born) in containers {
            let id = container.container_id.clone();
            let before = known.remove(&id);
            let uid = self.uid_of(&container.sandbox_id);
            let mut entry = Entry::listed(container, uid, before);
            entry.born = born.and(std::mem::take(&mut entry.born));
            self.containers.insert(id, entry);
        }
        self.feed.resnapshot();
    }

    fn put_sandbox(&mut self, sandbox: Sandbox, entrance: Entrance) {
        self.feed.tell(Event::Sandbox(sandbox.clone()));
        let lodging = Lodging { entrance, stopped: false, listed: false, found: false, sandbox };
        self.sandboxes.insert(lodging.sandbox.sandbox_id.clone(), lodging);
    }

    fn refresh_sandbox(&mut self, sandbox: Sandbox) {
        if let Some(lodging) = self.sandboxes.get_mut(&sandbox.sandbox_id)
            && lodging.sandbox != sandbox
        {
            self.feed.tell(Event::Sandbox(sandbox.clone()));
            lodging.sandbox = sandbox;
        }
    }

    fn refused_before(&self, id: &str) -> Option<String> {
        Some(self.sandboxes.get(id)?.refusal()?.to_owned())
    }

    fn refused_again(&mut self, id: &str, message: String) {
        if let Some(lodging) = self.sandboxes.get_mut(id).filter(|l| l.refusal().is_some()) {
            lodging.entrance = Entrance::Refused(message);
        }
    }

    fn refused(&self) -> Vec<RefusedPod> {
        self.sandboxes.values().filter_map(Lodging::refused).collect()
    }

    fn stop_sandbox(&mut self, id: &str) {
        if let Some(lodging) = self.sandboxes.get_mut(id) {
            lodging.stopped = true;
        }
    }

    fn have_successor(&self, ended: &[(String, String)]) -> bool {
        let goes_on = |lodging: &&Lodging| !lodging.stopped && lodging.refusal().is_none();
        let ended: BTreeMap<_, _> = ended.iter().map(|(uid, id)| (uid.as_str(), id.as_str())).collect();
        let is_other =
            |own: &Sandbox| ended.get(own.pod_uid.as_str()).is_some_and(|id| *id != own.sandbox_id);
        self.sandboxes.values().filter(goes_on).any(|lodging| is_other(&lodging.sandbox))
    }

    fn remove_sandbox(&mut self, id: &str) {
        self.sandboxes.remove(id);
        let left: Vec<_> = self
            .containers
            .iter()
            .filter(|(_, e)| e.container.sandbox_id == id)
            .map(|(id, _)| id.clone())
            .collect();
        for container in left {
            self.remove_container(&container);
        }
        self.feed.tell(Event::RemovedSandboxId(id.to_owned()));
    }

    fn remove_container(&mut self, id: &str) {
        if self.containers.remove(id).is_some() {
            self.feed.tell(Event::RemovedContainerId(id.to_owned()));
        }
    }

    /// A container is being created on `cpuset`. Gives the changes of all others that lose CPUs by now.
    fn create(
        &mut self,
        container: Container,
        uid: String,
        cpuset: Option<Cpuset>,
        policy: bool,
        born: Born,
    ) -> Vec<Change> {
        if cpuset.is_none() {
            self.metrics.unpinned_starts.inc();
        }
        self.feed.tell(Event::Container(container.clone()));
        if let Some(lodging) = self.sandboxes.get_mut(&container.sandbox_id) {
            lodging.got_container(policy);
        }
        let id = container.container_id.clone();
        self.containers.insert(id.clone(), Entry::created(container, uid, cpuset, policy, born));
        self.make_room(&id)
    }

    /// The changes of all containers but this one that lose CPUs by now. They count as made.
    fn make_room(&mut self, id: &str) -> Vec<Change> {
        let placements = self.placements.load();
        let waiting = self.waiting(&placements);
        let mut corrections = Corrections::default();
        for (other, entry) in self.containers.iter().filter(|(other, e)| *other != id && e.runs_or_will()) {
            if entry.stands(&placements) && !entry.unseen {
                continue;
            }
            if let Some(target) = entry.target(&placements, &waiting) {
                corrections.add(other, &target, difference(entry.held(), &target));
            }
        }
        let shrink = std::mem::take(&mut corrections.shrink);
        drop(placements);
        self.applied(&shrink);
        shrink
    }

    /// The runtime was told these changes; whether it made them is still to be seen.
    fn applied(&mut self, changes: &[Change]) {
        for change in changes {
            if let Some(entry) = self.containers.get_mut(&change.container_id) {
                entry.sent(&change.cpuset);
            }
        }
    }

    fn moved(&mut self, container: Container, phase: Phase) {
        self.feed.tell(Event::Container(container.clone()));
        let uid = self.uid_of(&container.sandbox_id);
        let entry = self
            .containers
            .entry(container.container_id.clone())
            .or_insert_with(|| Entry::listed(container.clone(), uid, None));
        entry.moved(container, phase);
    }

    /// The container that is about to start, and the others whose last change has not been seen in the kernel yet.
    fn check_start(&mut self, id: &str) -> Vec<Check> {
        let placements = self.placements.load();
        let waiting = self.waiting(&placements);
        let idle = self.rules.idle;
        let own = self.containers.get(id).map(|e| e.check(&placements, &waiting, idle));
        let others = self
            .containers
            .iter()
            .filter(|(other, e)| *other != id && e.phase == Phase::Running && e.unseen && !e.contest.is_on())
            .map(|(_, e)| e.check(&placements, &waiting, idle));
        own.into_iter().chain(others).filter(|check| check.wanted.is_some()).collect()
    }

    /// Where a container stands: what it is to run on, and the memory nodes it has.
    fn standing(&self, id: &str) -> Option<Cpuset> {
        let entry = self.containers.get(id)?;
        let placements = self.placements.load();
        let wanted = entry.target(&placements, &self.waiting(&placements))?;
        // The memory nodes of a running container never change in a reply: what it has is repeated.
        let mems = [&entry.kernel, &entry.applied]
            .into_iter()
            .flatten()
            .map(|held| held.mems.clone())
            .find(|mems| !mems.is_empty());
        Some(Cpuset { mems: mems.unwrap_or_else(|| wanted.mems.clone()), cpus: wanted.cpus })
    }

    /// What is to be looked at: everything, or only what changed, was sent, or is wanted elsewhere.
    fn due(&mut self, everything: bool, now: Instant) -> Due {
        let placements = self.placements.load_full();
        self.containers.retain(|_, e| !e.never_came(now, NEVER_CREATED));
        let waiting = self.waiting(&placements);
        let mut due = Due::default();
        for (id, entry) in &mut self.containers {
            let running = entry.phase == Phase::Running;
            let wishes = running && entry.is_to_be_looked_at(&placements, self.rules.idle);
            let news = wishes || entry.is_newly_placed(&placements);
            // Nearly all stand as they are: their sets are not formed and compared.
            let is_looked_at = running && (everything || entry.unseen || news);
            if !is_looked_at && entry.stands(&placements) {
                continue;
            }
            let wanted = entry.target(&placements, &waiting);
            let differs = wanted.as_ref().map(|w| difference(entry.applied.as_ref(), w)).unwrap_or_default();
            match entry.phase {
                // Whoever keeps changing it is not fought, but mended when everything is.
                Phase::Running if !everything && entry.contest.waits(wanted.as_ref()) => {}
                Phase::Running if everything || entry.unseen || news || differs.cpus || differs.mems => {
                    due.checks.push(entry.check(&placements, &waiting, self.rules.idle));
                }
                // It has no cgroup yet: the runtime's own notes are changed, and its start is checked.
                Phase::Created if differs.cpus || differs.mems => {
                    if let Some(wanted) = wanted {
                        due.blind.add(id, &wanted, differs);
                    }
                }
                _ => {}
            }
        }
        due
    }

    /// What the kernel says. Gives what has to change.
    fn observed(&mut self, seen: Vec<(String, Seen)>) -> Corrections {
        let placements = self.placements.load_full();
        let waiting = self.waiting(&placements);
        let mut corrections = Corrections::default();
        for (id, seen) in seen {
            let Some(entry) = self.containers.get_mut(&id) else { continue };
            let drifted = entry.observe(seen, &placements, &waiting);
            entry.contested(&id, drifted, self.rules.flips, &self.metrics, &placements, &waiting);
            let Some(wanted) = entry.target(&placements, &waiting).filter(|_| entry.phase == Phase::Running)
            else {
                continue;
            };
            // Without the kernel's word, what was last told stands for it.
            let mut left = difference(entry.applied.as_ref(), &wanted);
            // Written past the runtime: it has to hear of it, or its next update of the container undoes it.
            left.cpus |= entry.past_the_runtime;
            corrections.add(&id, &wanted, left);
        }
        corrections
    }

    /// The answer to a synchronisation: whose CPUs differ in the kernel, or in what the runtime notes of it.
    fn resynchronise(&mut self, seen: Vec<(String, Seen)>) -> Vec<Change> {
        let placements = self.placements.load_full();
        let waiting = self.waiting(&placements);
        for (id, seen) in seen {
            if let Some(entry) = self.containers.get_mut(&id) {
                let drifted = entry.observe(seen, &placements, &waiting);
                entry.contested(&id, drifted, self.rules.flips, &self.metrics, &placements, &waiting);
            }
        }
        let changes: Vec<_> = self
            .containers
            .iter()
            .filter(|(_, entry)| entry.runs_or_will())
            .filter_map(|(id, entry)| {
                Some((id, entry.resynchronised(&entry.target(&placements, &waiting)?)?))
            })
            .map(|(id, cpuset)| Change { container_id: id.clone(), cpuset })
            .collect();
        self.applied(&changes);
        changes
    }

    /// These were written to the kernel's files directly.
    fn wrote(&mut self, ids: &[String]) {
        for id in ids {
            if let Some(entry) = self.containers.get_mut(id) {
                entry.past_the_runtime = true;
            }
        }
    }

    /// What the meta-server is told.
    fn holds(&self) -> RuntimeSnapshot {
        let RuntimeSnapshot { sandboxes, mut containers } = self.snapshot(|_| true);
        containers.retain(|container| self.is_told(container));
        RuntimeSnapshot { sandboxes, containers }
    }

    /// What the runtime holds, as far as it is in sandboxes that `takes` takes.
    fn snapshot(&self, takes: impl Fn(&str) -> bool) -> RuntimeSnapshot {
        RuntimeSnapshot {
            sandboxes: self
                .sandboxes
                .iter()
                .filter(|(id, _)| takes(id))
                .map(|(_, l)| l.sandbox.clone())
                .collect(),
            containers: self
                .containers
                .values()
                .filter(|e| takes(&e.container.sandbox_id))
                .map(|e| e.container.clone())
                .collect(),
        }
    }

    fn listing(&self) -> Vec<(AppliedContainer, String)> {
        let placements = self.placements.load();
        self.containers
            .values()
            .map(|entry| {
                let lodging = self.sandboxes.get(&entry.container.sandbox_id);
                let by_policy =
                    lodging.is_some_and(|l| matches!(l.entrance, Entrance::ByPolicy | Entrance::Unknown));
                let told = entry.listing(&placements, lodging.map(|l| &l.sandbox), by_policy);
                (told, entry.container.cgroups_path.clone())
            })
            .collect()
    }

    /// CPUs that were decided for pods of which no container is there yet: nobody has to leave them before one comes.
    fn waiting(&self, placements: &Placements) -> CpuSet {
        let mut bare: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (uid, own) in placements.exclusive() {
            bare.entry(uid).or_default().push(own);
        }
        for entry in self.containers.values().filter(|entry| entry.runs_or_will()) {
            if bare.is_empty() {
                break;
            }
            bare.remove(entry.pod_uid.as_str());
        }
        let sets = bare.into_values().flatten().filter_map(|own| own.parse::<CpuSet>().ok());
        sets.fold(CpuSet::default(), |mut waiting, cpus| {
            waiting |= &cpus;
            waiting
        })
    }

    fn uid_of(&self, sandbox_id: &str) -> String {
        self.sandboxes.get(sandbox_id).map(|l| l.sandbox.pod_uid.clone()).unwrap_or_default()
    }
}
