//! One list of pods out of two sources, joined by UID. Pure.

use std::collections::BTreeMap;

use oxalyst_proto::meta::v1::{Amounts, Owner, Pod, PodContainer};
use oxalyst_proto::runtime::v1::{Container, ContainerState};
use oxalyst_units::MilliCpu;

use crate::kubelet::{Asked, KubeletContainer, KubeletPod};
use crate::runtime::{RuntimePod, RuntimeView};

/// `told_by` and source name of the kubelet.
pub const KUBELET: &str = "kubelet";
/// `told_by` and source name of the runtime.
pub const RUNTIME: &str = "runtime";

/// All pods, ascending by namespace, name, UID.
///
/// What the kubelet tells of a pod's specification wins; sandbox, state and cgroups are the runtime's. A pod that has ended is
/// left out once the runtime has forgotten it too.
pub fn merge(kubelet: &[KubeletPod], runtime: &RuntimeView) -> Vec<Pod> {
    let mut running = runtime.pods();
    let mut pods: Vec<Pod> = Vec::with_capacity(kubelet.len().max(running.len()));
    for listed in kubelet {
        let known = running.remove(listed.uid.as_str());
        if known.is_some() || !listed.ended {
            pods.push(joined(listed, known));
        }
    }
    pods.extend(running.into_iter().map(|(uid, pod)| runtime_only(uid, &pod)));
    pods.sort_by(|a, b| (&a.namespace, &a.name, &a.uid).cmp(&(&b.namespace, &b.name, &b.uid)));
    pods
}

fn joined(listed: &KubeletPod, known: Option<RuntimePod<'_>>) -> Pod {
    let mut pod = Pod {
        uid: listed.uid.clone(),
        namespace: listed.namespace.clone(),
        name: listed.name.clone(),
        labels: listed.labels.clone(),
        annotations: listed.annotations.clone(),
        kubernetes_qos: listed.kubernetes_qos.clone(),
        priority: listed.priority,
        told_by: vec![KUBELET.to_owned()],
        owner: listed.owner.as_ref().map(|(kind, name)| Owner { kind: kind.clone(), name: name.clone() }),
        static_pod: listed.static_pod,
        pod_resources: listed.whole.as_ref().map(amounts),
        resize_status: listed.resize_status.to_owned(),
        ..Pod::default()
    };
    let mut containers = BTreeMap::new();
    if let Some(known) = known {
        // The sandbox may carry what a list from before the pod's last change does not, and labels of the kubelet's own.
        fill(&mut pod.labels, &known.sandbox.labels);
        fill(&mut pod.annotations, &known.sandbox.annotations);
        pod.sandbox_id.clone_from(&known.sandbox.sandbox_id);
        pod.cgroup_parent.clone_from(&known.sandbox.cgroup_parent);
        pod.told_by.push(RUNTIME.to_owned());
        containers = known.containers;
    }
    pod.containers =
        listed.containers.iter().map(|c| specified(c, containers.remove(c.name.as_str()))).collect();
    pod.containers.extend(containers.into_iter().map(|(name, c)| observed(name, c)));
    pod
}

fn runtime_only(uid: &str, pod: &RuntimePod<'_>) -> Pod {
    Pod {
        uid: uid.to_owned(),
        namespace: pod.sandbox.namespace.clone(),
        name: pod.sandbox.name.clone(),
        labels: pod.sandbox.labels.clone(),
        annotations: pod.sandbox.annotations.clone(),
        containers: pod.containers.iter().map(|(name, c)| observed(name, c)).collect(),
        sandbox_id: pod.sandbox.sandbox_id.clone(),
        cgroup_parent: pod.sandbox.cgroup_parent.clone(),
        told_by: vec![RUNTIME.to_owned()],
        ..Pod::default()
    }
}

fn specified(listed: &KubeletContainer, known: Option<&Container>) -> PodContainer {
    let (id, state, cgroups_path) = match known {
        Some(c) => (c.container_id.clone(), c.state, c.cgroups_path.clone()),
        None => (listed.id.clone(), ContainerState::Unspecified.into(), String::new()),
    };
    PodContainer {
        name: listed.name.clone(),
        container_id: id,
        r#type: listed.kind.to_owned(),
        request_milli_cpu: listed.asked.request_milli_cpu,
        limit_milli_cpu: listed.asked.limit_milli_cpu,
        request_memory_bytes: listed.asked.request_memory_bytes,
        limit_memory_bytes: listed.asked.limit_memory_bytes,
        state,
        cgroups_path,
        huge_pages: listed.asked.huge_pages.clone(),
        extended: listed.asked.extended.clone(),
        restart_policy: listed.restart_policy.clone(),
        allocated_milli_cpu: listed.allocated_milli_cpu,
        allocated_memory_bytes: listed.allocated_memory_bytes,
    }
}

fn amounts(asked: &Asked) -> Amounts {
    Amounts {
        request_milli_cpu: asked.request_milli_cpu,
        limit_milli_cpu: asked.limit_milli_cpu,
        request_memory_bytes: asked.request_memory_bytes,
        limit_memory_bytes: asked.limit_memory_bytes,
        huge_pages: asked.huge_pages.clone(),
        extended: asked.extended.clone(),
    }
}

/// A container of which only the runtime told: its request is what its shares say. Memory requests leave no trace there.
fn observed(name: &str, container: &Container) -> PodContainer {
    let resources = container.resources.as_ref();
    PodContainer {
        name: name.to_owned(),
        container_id: container.container_id.clone(),
        r#type: "unknown".to_owned(),
        request_milli_cpu: resources.and_then(|r| r.cpu_shares).and_then(MilliCpu::from_shares).map(|m| m.0),
        limit_milli_cpu: resources
            .and_then(|r| MilliCpu::from_quota(r.cpu_quota_us?, r.cpu_period_us?))
            .map(|m| m.0),
        request_memory_bytes: None,
        limit_memory_bytes: resources
            .and_then(|r| r.memory_limit_bytes)
            .and_then(|bytes| u64::try_from(bytes).ok())
            .filter(|bytes| *bytes > 0),
        state: container.state,
        cgroups_path: container.cgroups_path.clone(),
        ..PodContainer::default()
    }
}

fn fill(into: &mut BTreeMap<String, String>, from: &BTreeMap<String, String>) {
    for (key, value) in from {
        into.entry(key.clone()).or_insert_with(|| value.clone());
    }
}

#[cfg(test)]
mod tests {
    use oxalyst_proto::runtime::v1::{Resources, Sandbox};
    use proptest::prelude::*;

    use super::*;

    fn listed(uid: &str, containers: &[&str]) -> KubeletPod {
        KubeletPod {
            uid: uid.into(),
            namespace: "ns".into(),
            name: format!("pod-{uid}"),
            kubernetes_qos: "Guaranteed".into(),
            annotations: [("level".to_owned(), "kubelet".to_owned())].into(),
            containers: containers
                .iter()
                .map(|name| KubeletContainer {
                    name: (*name).into(),
                    kind: "app",
                    id: format!("old-{name}"),
                    asked: Asked { request_milli_cpu: Some(500), ..Asked::default() },
                    ..KubeletContainer::default()
                })
                .collect(),
            ..KubeletPod::default()
        }
    }

    fn run(view: &mut RuntimeView, uid: &str, containers: &[&str]) {
        view.sandbox(Sandbox {
            sandbox_id: format!("sandbox-{uid}"),
            pod_uid: uid.into(),
            namespace: "ns".into(),
            name: format!("pod-{uid}"),
            annotations: [("level".to_owned(), "sandbox".to_owned()), ("more".to_owned(), "x".to_owned())]
                .into(),
            cgroup_parent: format!("/kubepods/pod{uid}"),
            ..Sandbox::default()
        });
        for name in containers {
            view.container(Container {
                container_id: format!("id-{uid}-{name}"),
                sandbox_id: format!("sandbox-{uid}"),
                name: (*name).into(),
                state: ContainerState::Running.into(),
                cgroups_path: format!("/kubepods/pod{uid}/{name}"),
                resources: Some(Resources {
                    cpu_shares: Some(1536),
                    cpu_quota_us: Some(-1),
                    cpu_period_us: Some(100_000),
                    memory_limit_bytes: Some(1 << 20),
                    ..Resources::default()
                }),
                ..Container::default()
            });
        }
    }

    #[test]
    fn a_pod_of_both_has_the_kubelets_specification_and_the_runtimes_state() {
        let mut view = RuntimeView::default();
        run(&mut view, "u", &["app", "surprise"]);
        let pods = merge(&[listed("u", &["app", "later"])], &view);
        let pod = &pods[0];
        assert_eq!(pods.len(), 1);
        assert_eq!(pod.told_by, ["kubelet", "runtime"]);
        assert_eq!((pod.annotations["level"].as_str(), pod.annotations["more"].as_str()), ("kubelet", "x"));
        assert_eq!((pod.sandbox_id.as_str(), pod.kubernetes_qos.as_str()), ("sandbox-u", "Guaranteed"));
        let seen: Vec<_> = pod
            .containers
            .iter()
            .map(|c| (c.name.as_str(), c.container_id.as_str(), c.r#type.as_str(), c.request_milli_cpu))
            .collect();
        assert_eq!(
            seen,
            [
                ("app", "id-u-app", "app", Some(500)),
                ("later", "old-later", "app", Some(500)),
                ("surprise", "id-u-surprise", "unknown", Some(1500)),
            ]
        );
        assert_eq!(pod.containers[0].state(), ContainerState::Running);
        assert_eq!(pod.containers[1].state(), ContainerState::Unspecified);
    }

    #[test]
    fn with_the_runtime_alone_requests_come_from_its_resources_and_absent_is_not_zero() {
        let mut view = RuntimeView::default();
        run(&mut view, "u", &["app"]);
        view.container(Container {
            container_id: "bare".into(),
            sandbox_id: "sandbox-u".into(),
            name: "bare".into(),
            ..Container::default()
        });
        let pods = merge(&[], &view);
        let [app, bare] = pods[0].containers.as_slice() else { panic!("{pods:?}") };
        assert_eq!((app.request_milli_cpu, app.limit_milli_cpu), (Some(1500), None));
        assert_eq!((app.request_memory_bytes, app.limit_memory_bytes), (None, Some(1 << 20)));
        assert_eq!((bare.request_milli_cpu, bare.limit_memory_bytes), (None, None));
        assert_eq!(
            (pods[0].told_by.as_slice(), pods[0].kubernetes_qos.as_str()),
            (["runtime".to_owned()].as_slice(), "")
        );
    }

    #[test]
    fn an_ended_pod_stays_while_the_runtime_knows_it() {
        let ended = KubeletPod { ended: true, ..listed("u", &[]) };
        let mut view = RuntimeView::default();
        run(&mut view, "u", &[]);
        assert_eq!(merge(std::slice::from_ref(&ended), &view).len(), 1);
        assert_eq!(merge(&[ended], &RuntimeView::default()), []);
    }

    proptest! {
        #[test]
        fn every_uid_of_either_source_is_there_once_and_in_order(kubelet: Vec<u8>, runtime: Vec<u8>) {
            let mut uids: Vec<u8> = kubelet;
            uids.sort_unstable();
            uids.dedup();
            let list: Vec<KubeletPod> = uids.iter().map(|u| listed(&u.to_string(), &["app"])).collect();
            let mut view = RuntimeView::default();
            for uid in &runtime {
                run(&mut view, &uid.to_string(), &["app"]);
            }
            let pods = merge(&list, &view);
            let mut expected: Vec<String> = uids.iter().chain(&runtime).map(u8::to_string).collect();
            expected.sort();
            expected.dedup();
            let mut got: Vec<String> = pods.iter().map(|p| p.uid.clone()).collect();
            prop_assert!(pods.is_sorted_by_key(|p| (p.namespace.clone(), p.name.clone(), p.uid.clone())));
            got.sort();
            prop_assert_eq!(got, expected);
        }
    }
}
