//! What the allocator is told to be running: only what has, or may have, a claim to CPUs.

use std::collections::BTreeSet;

use oxalyst_proto::meta::v1::RuntimeSnapshot;

use super::{Entrance, Roster};

/// What is told, unless it is found to have ended.
#[derive(Debug, Default)]
pub struct Claims {
    /// What is told.
    pub runs: RuntimeSnapshot,
    /// Sandboxes in which nothing runs and of whose own end nobody would tell.
    pub idle: Vec<Idle>,
}

/// A sandbox in which nothing runs.
#[derive(Debug)]
pub struct Idle {
    /// The sandbox.
    pub sandbox_id: String,
    /// The cgroup of its pod, as the runtime told it; gone: the pod has ended.
    pub cgroup_parent: String,
}

// === impl Roster ===

impl Roster {
    /// Left out are sandboxes that were told to stop, and those without a live container that nobody has admitted: a refused
    /// pod's, or a leftover of one, must not come to CPUs by being listed.
    pub(super) fn claims(&self) -> Claims {
        let live: BTreeSet<&str> = self
            .containers
            .values()
            .filter(|e| e.runs_or_will())
            .map(|e| e.container.sandbox_id.as_str())
            .collect();
        let placements = self.placements.load();
        let claims = |id: &str| match self.sandboxes.get(id) {
            Some(lodging) if lodging.stopped => false,
            Some(lodging) => {
                // One that nobody has told of keeps what it has. Taken in as it is, it would be nobody's for good.
                let may_come = lodging.entrance != Entrance::Unknown && live.contains(id);
                may_come
                    || lodging.entrance == Entrance::Admitted
                    || placements.pod(&lodging.sandbox.pod_uid).is_some()
            }
            None => true,
        };
        let runs = self.snapshot(claims);
        let idle = self
            .sandboxes
            .iter()
            .filter(|(id, l)| l.listed && !live.contains(id.as_str()) && !l.sandbox.cgroup_parent.is_empty())
            .map(|(id, l)| Idle { sandbox_id: id.clone(), cgroup_parent: l.sandbox.cgroup_parent.clone() })
            .collect();
        Claims { runs, idle }
    }

    /// Forgets those of these sandboxes that have no container left.
    pub(super) fn ended(&mut self, ids: &BTreeSet<String>) {
        for id in ids {
            if self.containers.values().all(|e| e.container.sandbox_id != *id) {
                self.remove_sandbox(id);
            }
        }
    }
}

// === impl Claims ===

impl Claims {
    /// Without these sandboxes, which have ended.
    #[must_use]
    pub fn without(self, ended: &BTreeSet<String>) -> RuntimeSnapshot {
        let RuntimeSnapshot { mut sandboxes, mut containers } = self.runs;
        sandboxes.retain(|s| !ended.contains(&s.sandbox_id));
        containers.retain(|c| !ended.contains(&c.sandbox_id));
        RuntimeSnapshot { sandboxes, containers }
    }
}
