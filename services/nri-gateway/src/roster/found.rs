//! What bypass mode finds in the tree of cgroups, where no runtime tells.

use std::collections::{BTreeMap, BTreeSet};

use oxalyst_proto::runtime::v1::{Container, Sandbox};

use super::{Entry, Lodging, Roster};

/// Everything that the tree shows, joined with what is known of it.
#[derive(Debug, Default)]
pub struct Census {
    /// Each pod's sandbox, and whether anything but its UID is known.
    pub sandboxes: Vec<(Sandbox, bool)>,
    /// Each container; the name is empty where nobody told.
    pub containers: Vec<Container>,
}

/// What a census changed.
#[derive(Debug, Default)]
pub struct Taken {
    /// Known pods without a placement: the allocator is to be asked for them.
    pub unplaced: Vec<Sandbox>,
    /// Sandboxes that are gone.
    pub ended: Vec<Sandbox>,
    /// Containers that came.
    pub came: Vec<String>,
}

impl Roster {
    /// Replaces what runs by a census; what was known of those that are still there is kept.
    pub(super) fn take_census(&mut self, census: Census) -> Taken {
        let mut taken = Taken::default();
        let mut known = std::mem::take(&mut self.sandboxes);
        let mut is_changed = false;
        let placements = self.placements.load_full();
        for (sandbox, is_known) in census.sandboxes {
            let before = known.remove(&sandbox.sandbox_id);
            is_changed |= before.as_ref().is_none_or(|before| before.sandbox != sandbox);
            let lodging = Lodging::found(sandbox, is_known, before);
            if is_known && !lodging.stopped && placements.pod(&lodging.sandbox.pod_uid).is_none() {
                taken.unplaced.push(lodging.sandbox.clone());
            }
            self.sandboxes.insert(lodging.sandbox.sandbox_id.clone(), lodging);
        }
        // Whatever a runtime has told, and never lay where pods are looked for, is not known to have ended: it keeps what it has
        // until the runtime is back.
        let told: BTreeSet<&str> = self.sandboxes.values().map(|l| l.sandbox.pod_uid.as_str()).collect();
        let (kept, gone): (Vec<_>, Vec<_>) =
            known.into_values().partition(|l| !l.found && !told.contains(l.sandbox.pod_uid.as_str()));
        is_changed |= !gone.is_empty();
        taken.ended = gone.into_iter().map(|lodging| lodging.sandbox).collect();
        let kept: BTreeMap<String, Lodging> =
            kept.into_iter().map(|lodging| (lodging.sandbox.sandbox_id.clone(), lodging)).collect();
        let mut known: BTreeMap<String, Entry> = std::mem::take(&mut self.containers);
        for container in census.containers {
            let id = container.container_id.clone();
            let entry = match known.remove(&id) {
                Some(mut entry) => {
                    is_changed |= entry.refreshed(container);
                    entry
                }
                None => {
                    is_changed = true;
                    taken.came.push(id.clone());
                    let uid = self.uid_of(&container.sandbox_id);
                    Entry::found(container, uid)
                }
            };
            self.containers.insert(id, entry);
        }
        let (stay, go): (Vec<_>, Vec<_>) =
            known.into_iter().partition(|(_, entry)| kept.contains_key(&entry.container.sandbox_id));
        is_changed |= !go.is_empty();
        self.containers.extend(stay);
        self.sandboxes.extend(kept);
        if is_changed {
            self.feed.resnapshot();
        }
        taken
    }

    /// Whether the meta-server is told of a container: one without a name would stand beside the one that the kubelet names.
    pub(super) fn is_told(&self, container: &Container) -> bool {
        let found = self.sandboxes.get(&container.sandbox_id).is_some_and(|lodging| lodging.found);
        !found || !container.name.is_empty()
    }
}
