//! What the container runtime runs, as the gateway tells it: a whole list, then changes.

use std::collections::{BTreeMap, BTreeSet};

use oxalyst_proto::meta::v1::RuntimeSnapshot;
use oxalyst_proto::runtime::v1::{Container, ContainerState, Sandbox};

/// Label by which the kubelet names a container; some runtimes leave the container's own name empty.
const CONTAINER_NAME_LABEL: &str = "io.kubernetes.container.name";

/// The runtime's sandboxes and containers by id, each with the order in which it was first heard.
///
/// One pod may have several sandboxes (a new one is made before the old one is gone) and one container name several
/// containers (each restart makes one): the one heard last is current.
#[derive(Debug, Clone, Default)]
pub struct RuntimeView {
    sandboxes: BTreeMap<String, Heard<Sandbox>>,
    containers: BTreeMap<String, Heard<Container>>,
    next: u64,
}

#[derive(Debug, Clone)]
struct Heard<T> {
    order: u64,
    item: T,
}

/// A pod as the runtime knows it: its current sandbox, and its containers by name.
#[derive(Debug, Clone, PartialEq)]
pub struct RuntimePod<'a> {
    /// The current sandbox.
    pub sandbox: &'a Sandbox,
    /// The current container of each name, within that sandbox.
    pub containers: BTreeMap<&'a str, &'a Container>,
}

// === impl RuntimeView ===

impl RuntimeView {
    /// Replaces everything by the runtime's whole list; what was known before keeps its place in the order.
    pub fn replace(&mut self, snapshot: RuntimeSnapshot) {
        let old_sandboxes = std::mem::take(&mut self.sandboxes);
        let old_containers = std::mem::take(&mut self.containers);
        let running: BTreeSet<String> = snapshot
            .containers
            .iter()
            .filter(|c| c.state() == ContainerState::Running)
            .map(|c| c.sandbox_id.clone())
            .collect();
        let mut sandboxes = snapshot.sandboxes;
        // A list tells no order: of two unknown sandboxes of a pod, the one in which something runs is current.
        sandboxes.sort_by_key(|s| running.contains(&s.sandbox_id));
        for sandbox in sandboxes {
            let known = old_sandboxes.get(&sandbox.sandbox_id).map(|h| h.order);
            self.insert_sandbox(sandbox, known);
        }
        let mut containers = snapshot.containers;
        containers.sort_by_key(|c| (c.state() == ContainerState::Running, c.started_unix_ns));
        for container in containers {
            let known = old_containers.get(&container.container_id).map(|h| h.order);
            self.insert_container(container, known);
        }
    }

    /// A sandbox that is new or changed.
    pub fn sandbox(&mut self, sandbox: Sandbox) {
        let known = self.sandboxes.get(&sandbox.sandbox_id).map(|h| h.order);
        self.insert_sandbox(sandbox, known);
    }

    /// A container that is new or changed.
    pub fn container(&mut self, container: Container) {
        let known = self.containers.get(&container.container_id).map(|h| h.order);
        self.insert_container(container, known);
    }

    /// A sandbox is gone, and its containers with it.
    pub fn remove_sandbox(&mut self, id: &str) {
        self.sandboxes.remove(id);
        self.containers.retain(|_, heard| heard.item.sandbox_id != id);
    }

    /// A container is gone.
    pub fn remove_container(&mut self, id: &str) {
        self.containers.remove(id);
    }

    /// Whether the runtime knows a sandbox of this pod.
    pub fn knows_pod(&self, uid: &str) -> bool {
        self.sandboxes.values().any(|heard| uid_of(&heard.item) == uid)
    }

    /// The pods by UID.
    pub fn pods(&self) -> BTreeMap<&str, RuntimePod<'_>> {
        let mut current: BTreeMap<&str, &Heard<Sandbox>> = BTreeMap::new();
        for heard in self.sandboxes.values() {
            let slot = current.entry(uid_of(&heard.item)).or_insert(heard);
            if heard.order > slot.order {
                *slot = heard;
            }
        }
        let mut containers: BTreeMap<(&str, &str), &Heard<Container>> = BTreeMap::new();
        for heard in self.containers.values() {
            let slot = containers
                .entry((heard.item.sandbox_id.as_str(), container_name(&heard.item)))
                .or_insert(heard);
            if heard.order > slot.order {
                *slot = heard;
            }
        }
        let mut pods: BTreeMap<&str, RuntimePod<'_>> = current
            .into_iter()
            .map(|(uid, heard)| (uid, RuntimePod { sandbox: &heard.item, containers: BTreeMap::new() }))
            .collect();
        let by_sandbox: BTreeMap<&str, &str> =
            pods.iter().map(|(uid, pod)| (pod.sandbox.sandbox_id.as_str(), *uid)).collect();
        for ((sandbox, name), heard) in containers {
            if let Some(pod) = by_sandbox.get(sandbox).and_then(|uid| pods.get_mut(uid)) {
                pod.containers.insert(name, &heard.item);
            }
        }
        pods
    }

    fn insert_sandbox(&mut self, item: Sandbox, known: Option<u64>) {
        let order = known.unwrap_or_else(|| self.tick());
        self.sandboxes.insert(item.sandbox_id.clone(), Heard { order, item });
    }

    fn insert_container(&mut self, item: Container, known: Option<u64>) {
        let order = known.unwrap_or_else(|| self.tick());
        self.containers.insert(item.container_id.clone(), Heard { order, item });
    }

    fn tick(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// The pod's UID; a sandbox made by hand may have none, and then stands for itself.
pub(crate) fn uid_of(sandbox: &Sandbox) -> &str {
    if sandbox.pod_uid.is_empty() { &sandbox.sandbox_id } else { &sandbox.pod_uid }
}

fn container_name(container: &Container) -> &str {
    if container.name.is_empty() {
        container.labels.get(CONTAINER_NAME_LABEL).map_or(container.container_id.as_str(), String::as_str)
    } else {
        &container.name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox(id: &str, uid: &str) -> Sandbox {
        Sandbox { sandbox_id: id.into(), pod_uid: uid.into(), ..Sandbox::default() }
    }

    fn container(id: &str, sandbox: &str, name: &str, state: ContainerState) -> Container {
        Container {
            container_id: id.into(),
            sandbox_id: sandbox.into(),
            name: name.into(),
            state: state.into(),
            ..Container::default()
        }
    }

    #[test]
    fn a_new_sandbox_takes_over_and_the_removal_of_the_old_one_changes_nothing() {
        let mut view = RuntimeView::default();
        view.sandbox(sandbox("z-old", "u"));
        view.sandbox(sandbox("a-new", "u"));
        view.container(container("c", "a-new", "app", ContainerState::Created));
        view.sandbox(sandbox("z-old", "u"));
        assert_eq!(view.pods()["u"].sandbox.sandbox_id, "a-new");
        view.remove_sandbox("z-old");
        assert_eq!(view.pods()["u"].containers["app"].container_id, "c");
        view.remove_sandbox("a-new");
        assert!(view.pods().is_empty() && !view.knows_pod("u"));
    }

    #[test]
    fn a_restarted_container_replaces_the_stopped_one_of_its_name() {
        let mut view = RuntimeView::default();
        view.replace(RuntimeSnapshot {
            sandboxes: vec![sandbox("s", "u")],
            containers: vec![
                container("a", "s", "app", ContainerState::Running),
                container("b", "s", "app", ContainerState::Stopped),
            ],
        });
        assert_eq!(view.pods()["u"].containers["app"].container_id, "a");
        view.container(container("0", "s", "app", ContainerState::Created));
        assert_eq!(view.pods()["u"].containers["app"].container_id, "0");
        view.remove_container("0");
        assert_eq!(view.pods()["u"].containers["app"].container_id, "a");
    }

    #[test]
    fn a_whole_list_forgets_what_it_does_not_name_and_keeps_the_order() {
        let mut view = RuntimeView::default();
        view.sandbox(sandbox("old", "u"));
        view.sandbox(sandbox("new", "u"));
        view.sandbox(sandbox("gone", "v"));
        view.replace(RuntimeSnapshot {
            sandboxes: vec![sandbox("new", "u"), sandbox("old", "u")],
            containers: vec![container("c", "old", "app", ContainerState::Running)],
        });
        assert_eq!(view.pods().keys().copied().collect::<Vec<_>>(), ["u"]);
        assert_eq!(view.pods()["u"].sandbox.sandbox_id, "new");
    }

    #[test]
    fn in_a_first_list_the_sandbox_with_a_running_container_is_current() {
        let mut view = RuntimeView::default();
        view.replace(RuntimeSnapshot {
            sandboxes: vec![sandbox("live", "u"), sandbox("dead", "u")],
            containers: vec![container("c", "live", "app", ContainerState::Running)],
        });
        assert_eq!(view.pods()["u"].sandbox.sandbox_id, "live");
    }

    #[test]
    fn names_fall_back_to_the_kubelets_label_and_to_ids() {
        let mut view = RuntimeView::default();
        view.sandbox(sandbox("s", ""));
        let mut c = container("c", "s", "", ContainerState::Running);
        c.labels.insert(CONTAINER_NAME_LABEL.into(), "app".into());
        view.container(c);
        view.container(container("d", "s", "", ContainerState::Running));
        assert_eq!(view.pods()["s"].containers.keys().copied().collect::<Vec<_>>(), ["app", "d"]);
    }
}
