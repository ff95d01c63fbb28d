//! Pods that belong to the node rather than to a user.

use crate::Attributes;

/// Why a pod counts as an agent of the node: it is never refused, whatever else runs (the mesh itself, kube-proxy and CNI
/// would be, as soon as the last shared CPU were given away).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeAgent {
    /// From a manifest on the node, or the mirror of one.
    StaticPod,
    /// Of a DaemonSet.
    DaemonSet,
    /// Priority of `system-cluster-critical` or `system-node-critical`.
    SystemCritical,
}

/// Where the kubelet has a pod from; it sets "file", "http" or "api".
const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
/// On the API server's image of a static pod.
const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";
/// Both labels together are on DaemonSet pods alone: StatefulSets set only the second.
const DAEMON_SET_LABELS: [&str; 2] = ["pod-template-generation", "controller-revision-hash"];
/// `SystemCriticalPriority` of the Kubernetes scheduling API.
const SYSTEM_CRITICAL: i32 = 2_000_000_000;
const PART_OF: &str = "app.kubernetes.io/part-of";

/// Whether and why a pod is a node agent. `priority` is `None` where the pod's spec is not known.
pub fn node_agent(labels: &Attributes, annotations: &Attributes, priority: Option<i32>) -> Option<NodeAgent> {
    let source = annotations.get(CONFIG_SOURCE).map(String::as_str);
    if matches!(source, Some("file" | "http")) || annotations.contains_key(CONFIG_MIRROR) {
        Some(NodeAgent::StaticPod)
    } else if DAEMON_SET_LABELS.iter().all(|&label| labels.contains_key(label)) {
        Some(NodeAgent::DaemonSet)
    } else if priority.is_some_and(|priority| priority >= SYSTEM_CRITICAL) {
        Some(NodeAgent::SystemCritical)
    } else {
        None
    }
}

/// Whether the pod is one of the mesh's own.
pub fn is_mesh(labels: &Attributes) -> bool {
    labels.get(PART_OF).is_some_and(|value| value == "oxalyst")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> Attributes {
        pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    }

    #[test]
    fn static_pods_come_from_a_file_or_by_http() {
        for source in ["file", "http"] {
            let annotations = map(&[("kubernetes.io/config.source", source)]);
            assert_eq!(node_agent(&map(&[]), &annotations, None), Some(NodeAgent::StaticPod));
        }
        let mirror = map(&[("kubernetes.io/config.mirror", "0a1b"), ("kubernetes.io/config.source", "api")]);
        assert_eq!(node_agent(&map(&[]), &mirror, None), Some(NodeAgent::StaticPod));
    }

    #[test]
    fn a_pod_of_the_api_is_none() {
        assert_eq!(node_agent(&map(&[]), &map(&[("kubernetes.io/config.source", "api")]), Some(0)), None);
    }

    #[test]
    fn daemon_sets_have_both_labels() {
        let daemon_set = map(&[("pod-template-generation", "1"), ("controller-revision-hash", "5d4f")]);
        let stateful_set =
            map(&[("statefulset.kubernetes.io/pod-name", "db-0"), ("controller-revision-hash", "db-5d4f")]);
        assert_eq!(node_agent(&daemon_set, &map(&[]), None), Some(NodeAgent::DaemonSet));
        assert_eq!(node_agent(&stateful_set, &map(&[]), None), None);
    }

    #[test]
    fn critical_begins_at_two_billions() {
        let agent = |priority| node_agent(&map(&[]), &map(&[]), priority);
        assert_eq!(agent(Some(2_000_000_000)), Some(NodeAgent::SystemCritical));
        assert_eq!(agent(Some(1_999_999_999)), None);
        assert_eq!(agent(None), None);
    }

    #[test]
    fn the_mesh_knows_its_own() {
        assert!(is_mesh(&map(&[("app.kubernetes.io/part-of", "oxalyst")])));
        assert!(!is_mesh(&map(&[("app.kubernetes.io/part-of", "argocd")])));
        assert!(!is_mesh(&map(&[])));
    }
}
