//! The part of core/v1 PodList that the mesh needs. Unknown fields are passed over; a broken document is an error.

use std::collections::BTreeMap;

use oxalyst_kube_types::Quantity;
use serde::{Deserialize, Deserializer};

/// Where the kubelet puts the UID of a static pod's file on the mirror pod; the runtime knows the pod by this one.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// A pod as the kubelet lists it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct KubeletPod {
    /// UID by which the runtime knows the pod.
    pub uid: String,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// "Guaranteed", "Burstable", "BestEffort"; empty if the status does not tell yet.
    pub kubernetes_qos: String,
    /// Value of its priority class.
    pub priority: Option<i32>,
    /// Init containers, containers, ephemeral containers, each in the order of the specification.
    pub containers: Vec<KubeletContainer>,
    /// It has ended and will not start again.
    pub ended: bool,
}

/// A container as the kubelet lists it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KubeletContainer {
    /// Name, unique in its pod.
    pub name: String,
    /// "app", "init", "restartable-init", "ephemeral".
    pub kind: &'static str,
    /// Id without the runtime's prefix; empty if it has not been created.
    pub id: String,
    /// Requested CPU in milli-CPU.
    pub request_milli_cpu: Option<u64>,
    /// CPU limit in milli-CPU.
    pub limit_milli_cpu: Option<u64>,
    /// Requested memory in bytes.
    pub request_memory_bytes: Option<u64>,
    /// Memory limit in bytes.
    pub limit_memory_bytes: Option<u64>,
}

/// Reads a PodList. Pods without UID are passed over: nothing could be joined to them.
///
/// # Errors
/// Text that is not JSON, is cut short, or is not a list of objects.
pub fn parse(text: &str) -> Result<Vec<KubeletPod>, serde_json::Error> {
    let list: List = serde_json::from_str(text)?;
    Ok(list.items.into_iter().map(KubeletPod::from).filter(|pod| !pod.uid.is_empty()).collect())
}

/// Go writes an empty list as `null`.
fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(d: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(d)?.unwrap_or_default())
}

#[derive(Deserialize)]
struct List {
    // Not optional: a document without items is something else than a list.
    #[serde(deserialize_with = "or_default")]
    items: Vec<Item>,
}

#[derive(Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[derive(Default)]
struct Item {
    metadata: Meta,
    spec: Spec,
    status: Status,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Meta {
    uid: String,
    namespace: String,
    name: String,
    #[serde(deserialize_with = "or_default")]
    labels: BTreeMap<String, String>,
    #[serde(deserialize_with = "or_default")]
    annotations: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    priority: Option<i32>,
    #[serde(deserialize_with = "or_default")]
    init_containers: Vec<Specified>,
    #[serde(deserialize_with = "or_default")]
    containers: Vec<Specified>,
    #[serde(deserialize_with = "or_default")]
    ephemeral_containers: Vec<Specified>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Specified {
    name: String,
    restart_policy: Option<String>,
    #[serde(deserialize_with = "or_default")]
    resources: Amounts,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Amounts {
    #[serde(deserialize_with = "or_default")]
    requests: BTreeMap<String, Quantity>,
    #[serde(deserialize_with = "or_default")]
    limits: BTreeMap<String, Quantity>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    phase: String,
    qos_class: String,
    #[serde(deserialize_with = "or_default")]
    init_container_statuses: Vec<Created>,
    #[serde(deserialize_with = "or_default")]
    container_statuses: Vec<Created>,
    #[serde(deserialize_with = "or_default")]
    ephemeral_container_statuses: Vec<Created>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Created {
    name: String,
    #[serde(rename = "containerID")]
    container_id: String,
}

// === impl KubeletPod ===

impl From<Item> for KubeletPod {
    fn from(item: Item) -> Self {
        let Item { metadata, spec, status } = item;
        let groups = [
            (spec.init_containers, status.init_container_statuses, "init"),
            (spec.containers, status.container_statuses, "app"),
            (spec.ephemeral_containers, status.ephemeral_container_statuses, "ephemeral"),
        ];
        let containers = groups
            .into_iter()
            .flat_map(|(specified, created, kind)| {
                specified.into_iter().map(move |container| {
                    let id = created.iter().find(|c| c.name == container.name).map(|c| bare(&c.container_id));
                    container.into_container(kind, id.unwrap_or_default())
                })
            })
            .collect();
        Self {
            uid: metadata.annotations.get(MIRROR).cloned().unwrap_or(metadata.uid),
            namespace: metadata.namespace,
            name: metadata.name,
            labels: metadata.labels,
            annotations: metadata.annotations,
            kubernetes_qos: status.qos_class,
            priority: spec.priority,
            containers,
            ended: matches!(status.phase.as_str(), "Succeeded" | "Failed"),
        }
    }
}

// === impl Specified ===

impl Specified {
    fn into_container(self, kind: &'static str, id: String) -> KubeletContainer {
        let Amounts { requests, limits } = self.resources;
        let restarts = self.restart_policy.as_deref() == Some("Always");
        KubeletContainer {
            name: self.name,
            kind: if kind == "init" && restarts { "restartable-init" } else { kind },
            id,
            request_milli_cpu: requests.get("cpu").and_then(Quantity::to_milli),
            limit_milli_cpu: limits.get("cpu").and_then(Quantity::to_milli),
            request_memory_bytes: requests.get("memory").and_then(Quantity::to_units),
            limit_memory_bytes: limits.get("memory").and_then(Quantity::to_units),
        }
    }
}

/// `containerd://abc` is `abc`.
fn bare(id: &str) -> String {
    id.split_once("://").map_or(id, |(_, bare)| bare).to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIST: &str = r#"{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[
      {"metadata":{"name":"web","namespace":"shop","uid":"u1","labels":{"app":"web"},"annotations":null,"creationTimestamp":null},
       "spec":{"nodeName":"n","priority":7,"newField":[1,{"x":2}],
         "initContainers":[{"name":"once","resources":{}},{"name":"side","restartPolicy":"Always","resources":{"requests":{"cpu":"100m"}}}],
         "containers":[{"name":"app","image":"x","resources":{"requests":{"cpu":"1500m","memory":"1Gi"},"limits":{"cpu":2,"memory":"1.5Gi"}}}],
         "ephemeralContainers":[{"name":"debug"}]},
       "status":{"phase":"Running","qosClass":"Burstable","containerStatuses":[{"name":"app","containerID":"containerd://abc"}],"initContainerStatuses":null}},
      {"metadata":{"name":"s-node","namespace":"kube-system","uid":"api","annotations":{"kubernetes.io/config.mirror":"file"}},"spec":{},"status":{"phase":"Failed"}},
      {"metadata":{"name":"no-uid"}}]}"#;

    #[test]
    fn a_list_is_read_with_its_resources_and_ids() {
        let pods = parse(LIST).unwrap();
        let web = &pods[0];
        assert_eq!(
            (web.uid.as_str(), web.kubernetes_qos.as_str(), web.priority, web.ended),
            ("u1", "Burstable", Some(7), false)
        );
        let kinds: Vec<_> = web.containers.iter().map(|c| (c.name.as_str(), c.kind)).collect();
        assert_eq!(
            kinds,
            [("once", "init"), ("side", "restartable-init"), ("app", "app"), ("debug", "ephemeral")]
        );
        assert_eq!(
            web.containers[2],
            KubeletContainer {
                name: "app".into(),
                kind: "app",
                id: "abc".into(),
                request_milli_cpu: Some(1500),
                limit_milli_cpu: Some(2000),
                request_memory_bytes: Some(1 << 30),
                limit_memory_bytes: Some(3 << 29),
            }
        );
        assert_eq!(web.containers[0].request_milli_cpu, None);
    }

    #[test]
    fn a_static_pod_has_the_uid_that_the_runtime_knows_and_a_pod_without_uid_is_passed_over() {
        let pods = parse(LIST).unwrap();
        assert_eq!(pods.len(), 2);
        assert_eq!((pods[1].uid.as_str(), pods[1].ended), ("file", true));
    }

    #[test]
    fn an_empty_list_is_a_list_and_other_documents_are_not() {
        assert!(parse(r#"{"items":null}"#).unwrap().is_empty());
        for text in ["", "Unauthorized", "[]", r#"{"kind":"Status","status":"Failure"}"#, r#"{"items":{}}"#] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_list_cut_short_is_an_error(end in 0..LIST.len()) {
            prop_assume!(LIST.is_char_boundary(end));
            prop_assert!(parse(&LIST[..end]).is_err());
        }

        #[test]
        fn damaged_text_never_breaks_the_reader(at in 0..LIST.len(), byte in 0u8..128) {
            let mut bytes = LIST.as_bytes().to_vec();
            bytes[at] = byte;
            let _ = parse(std::str::from_utf8(&bytes).unwrap());
        }
    }
}
