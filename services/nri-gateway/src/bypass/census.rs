//! What the tree of cgroups shows, joined with what the meta-server knows: pure.

use std::collections::BTreeMap;

use oxalyst_proto::meta::v1::{Pod, PodContainer, PodList};
use oxalyst_proto::runtime::v1::{Container, ContainerState, Resources, Sandbox};
use oxalyst_units::MIN_CPU_SHARES;

use crate::kernel::Shown;
use crate::roster::Census;

/// The period in which limits are told.
const PERIOD_US: u64 = 100_000;

/// Joins them by UID and container id. The tree says what runs and where; the list says what it is.
///
/// A pod whose sandbox nobody has told goes by an id made of its UID. A container that the list does not name yet belongs to its
/// pod all the same, without a name.
pub fn join(shown: &Shown, list: Option<&PodList>) -> Census {
    let mut known: BTreeMap<&str, &Pod> = BTreeMap::new();
    for pod in list.into_iter().flat_map(|list| &list.pods) {
        if pod.told_by.iter().any(|by| by == "kubelet") || !pod.name.is_empty() {
            known.insert(&pod.uid, pod);
        }
    }
    let mut census = Census::default();
    let mut ids: BTreeMap<&str, String> = BTreeMap::new();
    for found in &shown.pods {
        let pod = known.get(found.pod_uid.as_str()).copied();
        let told = pod.map(|pod| pod.sandbox_id.clone()).filter(|id| !id.is_empty());
        let id = told.unwrap_or_else(|| format!("cgroup-{}", found.pod_uid));
        // A pod that lies in two places is one pod.
        if ids.insert(&found.pod_uid, id.clone()).is_none() {
            census.sandboxes.push((sandbox(id, &found.pod_uid, &found.path.to_string(), pod), pod.is_some()));
        }
    }
    for found in &shown.containers {
        let Some(sandbox_id) = ids.get(found.pod_uid.as_str()) else { continue };
        let pod = known.get(found.pod_uid.as_str()).copied();
        let told =
            pod.into_iter().flat_map(|pod| &pod.containers).find(|c| c.container_id == found.container_id);
        census.containers.push(Container {
            container_id: found.container_id.clone(),
            sandbox_id: sandbox_id.clone(),
            name: told.map(|c| c.name.clone()).unwrap_or_default(),
            state: ContainerState::Running.into(),
            resources: told.map(|c| resources(std::slice::from_ref(&c))),
            cgroups_path: found.path.to_string(),
            ..Container::default()
        });
    }
    census
}

fn sandbox(id: String, uid: &str, parent: &str, pod: Option<&Pod>) -> Sandbox {
    let pod_only = pod.filter(|pod| !pod.containers.is_empty());
    Sandbox {
        sandbox_id: id,
        pod_uid: uid.to_owned(),
        namespace: pod.map(|pod| pod.namespace.clone()).unwrap_or_default(),
        name: pod.map(|pod| pod.name.clone()).unwrap_or_default(),
        labels: pod.map(|pod| pod.labels.clone()).unwrap_or_default(),
        annotations: pod.map(|pod| pod.annotations.clone()).unwrap_or_default(),
        resources: pod_only.map(total),
        cgroup_parent: parent.to_owned(),
    }
}

/// The pod's totals as the kubelet tells them to a runtime: its lasting containers together, or the largest of those that run
/// before them.
fn total(pod: &Pod) -> Resources {
    let lasting: Vec<&PodContainer> =
        pod.containers.iter().filter(|c| c.r#type != "init" && c.r#type != "ephemeral").collect();
    let before = pod.containers.iter().filter(|c| c.r#type == "init");
    let most = before.filter_map(|c| c.request_milli_cpu).max();
    let mut total = resources(&lasting);
    if let Some(most) = most
        && most > request(&lasting).unwrap_or(0)
    {
        total.cpu_shares = Some(shares(most));
    }
    total
}

fn request(containers: &[&PodContainer]) -> Option<u64> {
    containers.iter().filter_map(|c| c.request_milli_cpu).reduce(u64::saturating_add)
}

fn resources(containers: &[&PodContainer]) -> Resources {
    let limit = |of: fn(&PodContainer) -> Option<u64>| {
        let limits: Option<Vec<u64>> = containers.iter().map(|c| of(c)).collect();
        limits
            .filter(|limits| !limits.is_empty())
            .map(|limits| limits.into_iter().fold(0, u64::saturating_add))
    };
    let milli = limit(|c| c.limit_milli_cpu);
    let quota = milli.and_then(|milli| i64::try_from(milli.saturating_mul(PERIOD_US) / 1_000).ok());
    Resources {
        cpu_shares: request(containers).map(shares),
        cpu_quota_us: quota,
        cpu_period_us: quota.map(|_| PERIOD_US),
        memory_limit_bytes: limit(|c| c.limit_memory_bytes).and_then(|bytes| i64::try_from(bytes).ok()),
        cpuset_cpus: None,
        cpuset_mems: None,
    }
}

/// As the kubelet computes them.
fn shares(milli: u64) -> u64 {
    (milli.saturating_mul(1_024) / 1_000).max(MIN_CPU_SHARES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxalyst_cgroups::{CgroupPath, Found, FoundPod};

    fn path(path: &str) -> CgroupPath {
        CgroupPath::new(path).unwrap()
    }

    fn shown(uid: &str, ids: &[&str]) -> Shown {
        let pod = format!("kubepods/pod{uid}");
        Shown {
            pods: vec![FoundPod { path: path(&pod), pod_uid: uid.into() }],
            containers: ids
                .iter()
                .map(|id| Found {
                    path: path(&format!("{pod}/{id}")),
                    pod_uid: uid.into(),
                    container_id: (*id).into(),
                })
                .collect(),
            roots: vec!["/".into()],
        }
    }

    fn container(name: &str, id: &str, kind: &str, milli: u64) -> PodContainer {
        PodContainer {
            name: name.into(),
            container_id: id.into(),
            r#type: kind.into(),
            request_milli_cpu: Some(milli),
            ..PodContainer::default()
        }
    }

    fn listed(uid: &str, containers: Vec<PodContainer>) -> PodList {
        let pod = Pod {
            uid: uid.into(),
            name: "web".into(),
            namespace: "shop".into(),
            told_by: vec!["kubelet".into()],
            annotations: [("q".to_owned(), "d".to_owned())].into(),
            containers,
            ..Pod::default()
        };
        PodList { pods: vec![pod], ..PodList::default() }
    }

    #[test]
    fn the_tree_says_what_runs_and_the_list_what_it_is() {
        let list =
            listed("u", vec![container("app", "a", "app", 1_500), container("once", "b", "init", 2_000)]);
        let census = join(&shown("u", &["a", "new"]), Some(&list));
        let (sandbox, known) = &census.sandboxes[0];
        assert!(known);
        assert_eq!((sandbox.sandbox_id.as_str(), sandbox.name.as_str()), ("cgroup-u", "web"));
        assert_eq!(sandbox.annotations["q"], "d");
        assert_eq!(sandbox.resources.as_ref().unwrap().cpu_shares, Some(2_048), "the init container's");
        assert_eq!(sandbox.cgroup_parent, "/kubepods/podu");
        let names: Vec<_> =
            census.containers.iter().map(|c| (c.container_id.as_str(), c.name.as_str())).collect();
        assert_eq!(names, [("a", "app"), ("new", "")]);
        assert_eq!(census.containers[0].cgroups_path, "/kubepods/podu/a");
        assert_eq!(census.containers[0].resources.as_ref().unwrap().cpu_shares, Some(1_536));
        assert_eq!(census.containers[1].resources, None, "absent is not zero");
    }

    #[test]
    fn k7_a_pod_that_nobody_told_of_is_there_and_unknown() {
        let ours = Pod {
            uid: "u".into(),
            sandbox_id: "cgroup-u".into(),
            told_by: vec!["runtime".into()],
            ..Pod::default()
        };
        for list in [None, Some(PodList { pods: vec![ours], ..PodList::default() })] {
            let census = join(&shown("u", &["a"]), list.as_ref());
            assert!(!census.sandboxes[0].1, "what we told ourselves is no knowledge");
            assert_eq!(census.containers[0].sandbox_id, "cgroup-u");
        }
    }

    #[test]
    fn a_listed_pod_without_a_cgroup_does_not_run() {
        let list = listed("v", vec![]);
        assert!(join(&shown("u", &[]), Some(&list)).sandboxes.iter().all(|(s, _)| s.pod_uid == "u"));
    }
}
