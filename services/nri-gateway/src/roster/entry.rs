//! One container.

use std::time::{Duration, Instant};

use oxalyst_proto::gateway::v1::AppliedContainer;
use oxalyst_proto::runtime::v1::{Container, ContainerState, Sandbox};
use oxalyst_topology::CpuSet;

use super::contest::Contest;
use super::{Born, Check};
use crate::adjustment::{Wish, others};
use crate::metrics::Metrics;
use crate::pinning::{Difference, difference, target};
use crate::placements::{Cpuset, Placements};
use crate::{policy, translate};

/// How far a container has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Its creation was answered; the runtime has not stored it, and drops every update of it.
    Creating,
    /// Stored, without a process: an update changes the runtime's notes only.
    Created,
    /// Its process runs.
    Running,
    /// Its process has ended.
    Stopped,
}

/// What was seen in the kernel's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Their contents.
    Files(Cpuset),
    /// There is no such cgroup.
    Gone,
    /// They could not be read.
    Unreadable,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) container: Container,
    pub(super) pod_uid: String,
    pub(super) phase: Phase,
    /// What it was last told or seen to run on.
    pub(super) applied: Option<Cpuset>,
    /// What the kernel's files said when last read.
    pub(super) kernel: Option<Cpuset>,
    /// Something was sent that the kernel has not been seen to hold yet.
    pub(super) unseen: bool,
    /// It was corrected in the kernel's files, and the runtime does not know.
    pub(super) past_the_runtime: bool,
    /// Placed without the orm: in the share pool, whatever that comes to be, until the orm places it.
    policy: bool,
    drift: bool,
    pub(super) contest: Contest,
    /// What of its placement cannot be put into effect.
    pub(super) reports: Vec<String>,
    /// Why the orm refused a resize that the runtime had made by then.
    pub(super) resize_refused: Option<String>,
    /// What it was created with, as far as that is known.
    pub(super) born: Born,
    /// What beside CPUs and memory nodes it was last looked at for.
    looked_for: Wish,
    since: Instant,
}

// === impl Entry ===

impl Entry {
    /// As the runtime lists it; what was known of it `before` is kept.
    pub(super) fn listed(container: Container, pod_uid: String, before: Option<Self>) -> Self {
        let phase = match container.state() {
            ContainerState::Running | ContainerState::Paused => Phase::Running,
            ContainerState::Stopped => Phase::Stopped,
            ContainerState::Created | ContainerState::Unspecified => Phase::Created,
        };
        let (policy, drift, contest, reports, resize_refused, born) = before
            .map_or_else(Default::default, |b| {
                (b.policy, b.drift, b.contest, b.reports, b.resize_refused, b.born)
            });
        let told = container.resources.as_ref().and_then(|r| r.cpuset_cpus.clone()).map(|cpus| Cpuset {
            cpus,
            mems: container.resources.as_ref().and_then(|r| r.cpuset_mems.clone()).unwrap_or_default(),
        });
        Self {
            pod_uid,
            phase,
            applied: told,
            kernel: None,
            unseen: true,
            past_the_runtime: false,
            policy,
            drift,
            contest,
            reports,
            resize_refused,
            born,
            looked_for: Wish::default(),
            since: Instant::now(),
            container,
        }
    }

    /// As its creation was answered.
    pub(super) fn created(
        container: Container,
        pod_uid: String,
        cpuset: Option<Cpuset>,
        policy: bool,
        born: Born,
    ) -> Self {
        Self {
            container,
            pod_uid,
            phase: Phase::Creating,
            policy,
            applied: cpuset,
            kernel: None,
            unseen: true,
            past_the_runtime: false,
            drift: false,
            contest: Contest::default(),
            reports: Vec::new(),
            resize_refused: None,
            born,
            looked_for: Wish::default(),
            since: Instant::now(),
        }
    }

    /// As it was found running, without a runtime that tells. Until its pod is placed it follows the share pool: wherever it
    /// runs now may be somebody's own.
    pub(super) fn found(container: Container, pod_uid: String) -> Self {
        Self { phase: Phase::Running, policy: true, ..Self::listed(container, pod_uid, None) }
    }

    /// It was found again; whether more is known of it than before.
    pub(super) fn refreshed(&mut self, container: Container) -> bool {
        let known = &mut self.container;
        let is_new = known.cgroups_path != container.cgroups_path
            || known.sandbox_id != container.sandbox_id
            || (known.name.is_empty() && !container.name.is_empty())
            || self.phase != Phase::Running;
        known.cgroups_path = container.cgroups_path;
        known.sandbox_id = container.sandbox_id;
        if known.name.is_empty() {
            known.name = container.name;
        }
        if known.resources.is_none() {
            known.resources = container.resources;
        }
        known.state = ContainerState::Running.into();
        self.phase = Phase::Running;
        is_new
    }

    /// Counts and tells what somebody else changed; where it goes on, it is said once.
    pub(super) fn contested(
        &mut self,
        id: &str,
        drifted: Difference,
        limit: u32,
        metrics: &Metrics,
        placements: &Placements,
        waiting: &CpuSet,
    ) {
        for (differs, file) in [(drifted.cpus, "cpuset.cpus"), (drifted.mems, "cpuset.mems")] {
            if !differs {
                continue;
            }
            metrics.drift(file);
            if !self.contest.is_on() {
                tracing::warn!(container = %id, file, kernel = ?self.kernel, "somebody else changed a container's cpuset");
            }
        }
        if drifted.cpus || drifted.mems {
            if let Some(wanted) = self.target(placements, waiting)
                && self.contest.flipped(&wanted, limit.max(1))
            {
                metrics.contended();
                tracing::warn!(
                    container = %id, changes = limit,
                    "somebody else keeps changing a container's cpuset: it is mended once a reconcile period from now on"
                );
            }
        } else if !self.unseen && self.kernel.is_some() && self.contest.agreed() {
            tracing::info!(container = %id, "nobody else changes the container's cpuset any more");
        }
    }

    pub(super) fn moved(&mut self, container: Container, phase: Phase) {
        // A process may end before its start is told: an ended one does not run again under the same id.
        let phase = if self.phase == Phase::Stopped { Phase::Stopped } else { phase };
        self.container = container;
        self.phase = phase;
        self.container.state = match phase {
            Phase::Creating | Phase::Created => ContainerState::Created,
            Phase::Running => ContainerState::Running,
            Phase::Stopped => ContainerState::Stopped,
        }
        .into();
        self.unseen |= phase == Phase::Running;
    }

    /// Where it is to run: by the orm, else by the policy under which it was let in. CPUs that were in the pool when it was let
    /// in may be somebody's own by now: it follows the pool.
    pub(super) fn wanted(&self, placements: &Placements) -> Option<Cpuset> {
        self.decided(placements).or_else(|| policy::place(placements).filter(|_| self.policy))
    }

    /// Where the orm has it run.
    fn decided(&self, placements: &Placements) -> Option<Cpuset> {
        placements.cpuset_of(&self.pod_uid, translate::container_name(&self.container))
    }

    /// What it is to run on now.
    pub(super) fn target(&self, placements: &Placements, waiting: &CpuSet) -> Option<Cpuset> {
        Some(target(self.applied.as_ref(), self.wanted(placements)?, waiting))
    }

    /// Whether what was applied is what is wanted, letter by letter: nearly always, and cheap to say.
    pub(super) fn stands(&self, placements: &Placements) -> bool {
        let name = translate::container_name(&self.container);
        let (Some(place), Some(applied)) = (placements.place(&self.pod_uid, name), &self.applied) else {
            return false;
        };
        place.0 == applied.cpus && place.1 == applied.mems
    }

    /// What it runs on as far as that is certain: what was sent and not yet seen may wait for the very call that is being answered.
    pub(super) fn held(&self) -> Option<&Cpuset> {
        self.kernel.as_ref().filter(|_| self.unseen).or(self.applied.as_ref())
    }

    pub(super) fn runs_or_will(&self) -> bool {
        self.phase != Phase::Stopped
    }

    /// What it is to have beside CPUs and memory nodes, and was not created with.
    fn others(&self, placements: &Placements, idle: bool) -> Wish {
        let name = translate::container_name(&self.container);
        let wish = placements.pod(&self.pod_uid).map(|pod| others(pod, name, idle).0);
        self.born.lacks(wish.unwrap_or_default())
    }

    /// Whether the orm has placed what policy let in, and it was not looked at since: where it follows the pool, nothing may differ.
    pub(super) fn is_newly_placed(&self, placements: &Placements) -> bool {
        self.policy && self.decided(placements).is_some()
    }

    /// Whether it is to have other things beside CPUs and memory nodes than when it was last looked at for them.
    pub(super) fn is_to_be_looked_at(&mut self, placements: &Placements, idle: bool) -> bool {
        let wish = self.others(placements, idle);
        let is_news = wish != self.looked_for;
        self.looked_for = wish;
        is_news
    }

    pub(super) fn check(&self, placements: &Placements, waiting: &CpuSet, idle: bool) -> Check {
        Check {
            others: self.others(placements, idle),
            container_id: self.container.container_id.clone(),
            cgroups_path: self.container.cgroups_path.clone(),
            wanted: self.target(placements, waiting),
        }
    }

    /// The runtime was told to set this; empty parts stay as they are.
    pub(super) fn sent(&mut self, cpuset: &Cpuset) {
        let applied = self.applied.get_or_insert_default();
        if !cpuset.cpus.is_empty() {
            applied.cpus.clone_from(&cpuset.cpus);
            self.past_the_runtime = false;
        }
        if !cpuset.mems.is_empty() {
            applied.mems.clone_from(&cpuset.mems);
        }
        self.unseen = true;
    }

    /// Takes up what the kernel says; gives what somebody else changed since it was last seen to agree.
    pub(super) fn observe(&mut self, seen: Seen, placements: &Placements, waiting: &CpuSet) -> Difference {
        let held = match seen {
            Seen::Files(held) => held,
            Seen::Gone => {
                self.kernel = None;
                // Nothing to wait for: a process without a cgroup has ended.
                self.unseen = false;
                return Difference::default();
            }
            Seen::Unreadable => {
                self.kernel = None;
                return Difference::default();
            }
        };
        let settled = !self.unseen;
        let drifted = match &self.applied {
            Some(applied) if settled => difference(Some(&held), applied),
            _ => Difference::default(),
        };
        let left = self
            .wanted(placements)
            .map(|wanted| difference(Some(&held), &target(Some(&held), wanted, waiting)))
            .unwrap_or_default();
        let agrees = !left.cpus && !left.mems;
        if agrees {
            self.drift = false;
            self.unseen = false;
            if self.decided(placements).is_some() {
                self.policy = false;
            }
        } else {
            self.unseen = true;
        }
        self.drift |= drifted.cpus || drifted.mems;
        self.applied = Some(held.clone());
        self.kernel = Some(held);
        drifted
    }

    /// What a synchronisation has to say of it: CPUs that differ in the kernel or in the runtime's notes. Memory nodes only
    /// before it runs.
    pub(super) fn resynchronised(&self, wanted: &Cpuset) -> Option<Cpuset> {
        let noted = self.container.resources.as_ref().and_then(|r| r.cpuset_cpus.clone()).unwrap_or_default();
        let noted = Cpuset { cpus: noted, mems: String::new() };
        let differs = difference(Some(&noted), wanted).cpus
            || self.kernel.as_ref().is_some_and(|held| difference(Some(held), wanted).cpus);
        let mems = if self.phase == Phase::Running { String::new() } else { wanted.mems.clone() };
        differs.then(|| Cpuset { cpus: wanted.cpus.clone(), mems })
    }

    pub(super) fn never_came(&self, now: Instant, limit: Duration) -> bool {
        self.phase == Phase::Creating && now.saturating_duration_since(self.since) >= limit
    }

    pub(super) fn listing(
        &self,
        placements: &Placements,
        sandbox: Option<&Sandbox>,
        pod_by_policy: bool,
    ) -> AppliedContainer {
        let wanted = self.wanted(placements);
        let mut marks = Vec::new();
        let mut mark = |holds: bool, name: &str| {
            if holds {
                marks.push(name.to_owned());
            }
        };
        let running = self.phase == Phase::Running;
        let decided = self.decided(placements).is_some();
        mark(wanted.is_none() && self.phase != Phase::Stopped, "unpinned");
        mark(self.drift, "drift");
        mark(self.contest.is_on(), "contended");
        let unusable = placements
            .pod(&self.pod_uid)
            .is_some_and(|pod| !others(pod, translate::container_name(&self.container), false).1.is_empty());
        mark(!self.reports.is_empty() || unusable, "not-adjusted");
        mark(self.resize_refused.is_some(), "resize-refused");
        mark(self.policy || (pod_by_policy && !decided), "answered-by-policy");
        mark(matches!(self.phase, Phase::Creating | Phase::Created), "being-created");
        let kernel = self.kernel.as_ref().filter(|_| running);
        let wanted = wanted.unwrap_or_default();
        AppliedContainer {
            container_id: self.container.container_id.clone(),
            pod_uid: self.pod_uid.clone(),
            namespace: sandbox.map(|s| s.namespace.clone()).unwrap_or_default(),
            pod: sandbox.map(|s| s.name.clone()).unwrap_or_default(),
            name: self.container.name.clone(),
            state: self.container.state,
            wanted_cpus: wanted.cpus,
            wanted_mems: wanted.mems,
            kernel_cpus: kernel.map(|k| k.cpus.clone()),
            kernel_mems: kernel.map(|k| k.mems.clone()),
            marks,
            // The kernel's, read by whoever answers.
            effective_cpus: None,
            max_milli_cpu: None,
        }
    }
}
