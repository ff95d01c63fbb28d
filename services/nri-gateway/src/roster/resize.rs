//! A running container is to have other resources: what that means to the orm.

use oxalyst_proto::orm::v1::ResizeContainerRequest;
use oxalyst_proto::runtime::v1::{Container, Resources};

use super::{Entry, Roster};
use crate::pinning::Change;

// === impl Roster ===

impl Roster {
    /// What the orm has to be asked when the runtime is told `told` of a container; `None`: nothing that it decides by changes.
    pub(super) fn to_resize(&self, id: &str, told: &Resources) -> Option<ResizeContainerRequest> {
        let entry = self.containers.get(id).filter(|entry| entry.runs_or_will())?;
        let sandbox = self.sandboxes.get(&entry.container.sandbox_id)?.sandbox.clone();
        let resources = resized(entry.container.resources.as_ref(), told)?;
        let beside = |e: &&Entry| e.runs_or_will() && e.container.sandbox_id == sandbox.sandbox_id;
        Some(ResizeContainerRequest {
            running: self.containers.values().filter(beside).map(|e| e.container.clone()).collect(),
            container: Some(Container { resources: Some(resources), ..entry.container.clone() }),
            sandbox: Some(sandbox),
            ..ResizeContainerRequest::default()
        })
    }

    /// The runtime is let change the container; `accepted`: the orm agreed. Gives the changes of others, which have to leave CPUs
    /// that are this one's now.
    pub(super) fn resized(&mut self, container: Container, accepted: bool) -> Vec<Change> {
        let id = container.container_id.clone();
        self.feed.tell(oxalyst_proto::meta::v1::runtime_event::Event::Container(container.clone()));
        if let Some(entry) = self.containers.get_mut(&id) {
            entry.container.resources = container.resources;
            if accepted {
                entry.resize_refused = None;
            }
        }
        self.make_room(&id)
    }

    /// What the orm said to a resize that the runtime had made before it could be asked: `refused` is why it does not stand.
    pub(super) fn resize_heard(&mut self, id: &str, refused: Option<String>) {
        if let Some(entry) = self.containers.get_mut(id) {
            entry.resize_refused = refused;
        }
    }
}

/// The resources after an update, where it changes what they were. Zero, which an update that is about something else carries,
/// changes nothing.
fn resized(before: Option<&Resources>, told: &Resources) -> Option<Resources> {
    let mut after = before.cloned().unwrap_or_default();
    let mut changes = false;
    let mut take = |now: bool| changes |= now;
    take(replace(&mut after.cpu_shares, told.cpu_shares.filter(|shares| *shares > 0)));
    take(replace(&mut after.cpu_quota_us, told.cpu_quota_us.filter(|quota| *quota != 0)));
    take(replace(&mut after.cpu_period_us, told.cpu_period_us.filter(|period| *period > 0)));
    take(replace(&mut after.memory_limit_bytes, told.memory_limit_bytes.filter(|bytes| *bytes != 0)));
    changes.then_some(after)
}

fn replace<T: PartialEq>(held: &mut Option<T>, told: Option<T>) -> bool {
    let changes = told.is_some() && *held != told;
    if changes {
        *held = told;
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resources(shares: u64, quota: i64, memory: i64) -> Resources {
        Resources {
            cpu_shares: Some(shares),
            cpu_quota_us: Some(quota),
            cpu_period_us: Some(100_000),
            memory_limit_bytes: Some(memory),
            cpuset_cpus: Some("0-1".into()),
            ..Resources::default()
        }
    }

    #[test]
    fn an_update_of_the_cpuset_alone_is_no_resize() {
        let cpuset =
            Resources { cpu_period_us: Some(0), cpuset_cpus: Some("3".into()), ..resources(0, 0, 0) };
        assert_eq!(resized(Some(&resources(1024, -1, 1 << 20)), &cpuset), None);
        assert_eq!(resized(None, &cpuset), None);
    }

    #[test]
    fn what_is_told_replaces_what_was_and_the_rest_stays() {
        let told = Resources { cpu_shares: Some(2048), ..Resources::default() };
        let after = resized(Some(&resources(1024, -1, 1 << 20)), &told).unwrap();
        assert_eq!(after, Resources { cpu_shares: Some(2048), ..resources(1024, -1, 1 << 20) });
    }

    #[test]
    fn the_same_again_is_no_resize() {
        let same = resources(1024, 100_000, 1 << 20);
        assert_eq!(resized(Some(&same), &same), None);
    }
}
