//! The part of core/v1 PodList that the mesh needs. Unknown fields are passed over; a broken document is an error.

use std::collections::BTreeMap;

use oxalyst_kube_types::{Quantity, ResourceList};

use super::document::{Amounts, Container, ContainerStatus, Document, Item, Status};

/// Where the kubelet puts the UID of a static pod's file on the mirror pod; the runtime knows the pod by this one.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// Where the kubelet has a pod from: "file" and "http" are manifests on the node.
const SOURCE: &str = "kubernetes.io/config.source";
/// Prefix of huge pages among resource names; what follows is the size of a page.
const HUGE_PAGES: &str = "hugepages-";

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
    /// Kind and name of its controller.
    pub owner: Option<(String, String)>,
    /// From a manifest on the node, or the mirror of one.
    pub static_pod: bool,
    /// What the pod as a whole asks for, where its spec says so beside its containers.
    pub whole: Option<Asked>,
    /// How a change of its resources in place fares: "", "proposed", "in-progress", "deferred", "infeasible".
    pub resize_status: &'static str,
}

/// What is asked for; `None` and absent: nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Asked {
    /// Requested CPU in milli-CPU.
    pub request_milli_cpu: Option<u64>,
    /// CPU limit in milli-CPU.
    pub limit_milli_cpu: Option<u64>,
    /// Requested memory in bytes.
    pub request_memory_bytes: Option<u64>,
    /// Memory limit in bytes.
    pub limit_memory_bytes: Option<u64>,
    /// Requested bytes of huge pages by the bytes of a page.
    pub huge_pages: BTreeMap<u64, u64>,
    /// Every other requested resource, in units, by its full name.
    pub extended: BTreeMap<String, u64>,
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
    /// What it asks for.
    pub asked: Asked,
    /// Its own restart policy; empty where the spec gives it none.
    pub restart_policy: String,
    /// What the kubelet has set aside for it: CPU in milli-CPU.
    pub allocated_milli_cpu: Option<u64>,
    /// What the kubelet has set aside for it: bytes of memory.
    pub allocated_memory_bytes: Option<u64>,
}

/// Reads a PodList. Pods without UID are passed over: nothing could be joined to them.
///
/// # Errors
/// Text that is not JSON, is cut short, or is not a list of objects.
pub fn parse(text: &str) -> Result<Vec<KubeletPod>, serde_json::Error> {
    let list: Document = serde_json::from_str(text)?;
    Ok(list.items.into_iter().map(KubeletPod::from).filter(|pod| !pod.uid.is_empty()).collect())
}

// === impl KubeletPod ===

impl From<Item> for KubeletPod {
    fn from(item: Item) -> Self {
        let Item { metadata, spec, status } = item;
        let resize_status = resize_status(&status);
        let groups = [
            (spec.init_containers, status.init_container_statuses, "init"),
            (spec.containers, status.container_statuses, "app"),
            (spec.ephemeral_containers, status.ephemeral_container_statuses, "ephemeral"),
        ];
        let containers = groups
            .into_iter()
            .flat_map(|(specified, told, kind)| {
                specified.into_iter().map(move |container| {
                    let status = told.iter().find(|status| status.name == container.name);
                    KubeletContainer::new(container, status, kind)
                })
            })
            .collect();
        let controller = metadata.owner_references.into_iter().find(|owner| owner.controller == Some(true));
        let source = metadata.annotations.get(SOURCE).map(String::as_str);
        let mirror = metadata.annotations.get(MIRROR).cloned();
        Self {
            static_pod: mirror.is_some() || matches!(source, Some("file" | "http")),
            uid: mirror.unwrap_or(metadata.uid),
            namespace: metadata.namespace,
            name: metadata.name,
            labels: metadata.labels,
            annotations: metadata.annotations,
            kubernetes_qos: status.qos_class,
            priority: spec.priority,
            containers,
            ended: matches!(status.phase.as_str(), "Succeeded" | "Failed"),
            owner: controller.map(|owner| (owner.kind, owner.name)),
            whole: Some(Asked::from(spec.resources)).filter(|whole| *whole != Asked::default()),
            resize_status,
        }
    }
}

/// By the pod's conditions, and by the field that was there before them.
fn resize_status(status: &Status) -> &'static str {
    let holds = |kind: &str| status.conditions.iter().find(|c| c.kind == kind && c.status == "True");
    let word = match (holds("PodResizePending"), holds("PodResizeInProgress")) {
        (Some(pending), _) => pending.reason.as_str(),
        (None, Some(_)) => "InProgress",
        (None, None) => status.resize.as_str(),
    };
    match word {
        "Proposed" => "proposed",
        "InProgress" => "in-progress",
        "Deferred" => "deferred",
        "Infeasible" => "infeasible",
        _ => "",
    }
}

// === impl KubeletContainer ===

impl KubeletContainer {
    fn new(container: Container, status: Option<&ContainerStatus>, kind: &'static str) -> Self {
        let restart_policy = container.restart_policy.unwrap_or_default();
        let lasts = kind == "init" && restart_policy == "Always";
        let none = ResourceList::new();
        let allocated = status.map_or(&none, |status| &status.allocated_resources);
        Self {
            name: container.name,
            kind: if lasts { "restartable-init" } else { kind },
            id: status.map(|status| bare(&status.container_id)).unwrap_or_default(),
            asked: container.resources.into(),
            restart_policy,
            allocated_milli_cpu: allocated.get("cpu").and_then(Quantity::to_milli),
            allocated_memory_bytes: allocated.get("memory").and_then(Quantity::to_units),
        }
    }
}

// === impl Asked ===

impl From<Amounts> for Asked {
    fn from(Amounts { requests, limits }: Amounts) -> Self {
        let units = |quantity: &Quantity| quantity.to_units();
        let page = |name: &str| Quantity::from(name.strip_prefix(HUGE_PAGES)?).to_units();
        // Huge pages are never overcommitted: a limit without a request is the request.
        let huge = limits.iter().chain(&requests);
        let known = |name: &str| matches!(name, "cpu" | "memory" | "ephemeral-storage" | "storage");
        Self {
            request_milli_cpu: requests.get("cpu").and_then(Quantity::to_milli),
            limit_milli_cpu: limits.get("cpu").and_then(Quantity::to_milli),
            request_memory_bytes: requests.get("memory").and_then(units),
            limit_memory_bytes: limits.get("memory").and_then(units),
            huge_pages: huge.filter_map(|(name, amount)| Some((page(name)?, units(amount)?))).collect(),
            extended: requests
                .iter()
                .filter(|(name, _)| !known(name) && !name.starts_with(HUGE_PAGES))
                .filter_map(|(name, amount)| Some((name.clone(), units(amount)?)))
                .collect(),
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
      {"metadata":{"name":"web","namespace":"shop","uid":"u1","labels":{"app":"web"},"annotations":null,"creationTimestamp":null,
         "ownerReferences":[{"kind":"Other","name":"x"},{"kind":"ReplicaSet","name":"web-1","controller":true}]},
       "spec":{"nodeName":"n","priority":7,"resources":{"requests":{"cpu":"3"}},"newField":[1,{"x":2}],
         "initContainers":[{"name":"once","resources":{}},{"name":"side","restartPolicy":"Always","resources":{"requests":{"cpu":"100m"}}}],
         "containers":[{"name":"app","image":"x","resources":{"requests":{"cpu":"1500m","memory":"1Gi","ephemeral-storage":"1Gi","vendor.io/gpu":"2","hugepages-2Mi":"4Mi"},"limits":{"cpu":2,"memory":"1.5Gi","hugepages-2Mi":"4Mi","hugepages-1Gi":"1Gi"}}}],
         "ephemeralContainers":[{"name":"debug"}]},
       "status":{"phase":"Running","qosClass":"Burstable","containerStatuses":[{"name":"app","containerID":"containerd://abc","allocatedResources":{"cpu":"1","memory":"512Mi"}}],"initContainerStatuses":null}},
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
                asked: Asked {
                    request_milli_cpu: Some(1500),
                    limit_milli_cpu: Some(2000),
                    request_memory_bytes: Some(1 << 30),
                    limit_memory_bytes: Some(3 << 29),
                    huge_pages: [(2 << 20, 4 << 20), (1 << 30, 1 << 30)].into(),
                    extended: [("vendor.io/gpu".to_owned(), 2)].into(),
                },
                restart_policy: String::new(),
                allocated_milli_cpu: Some(1000),
                allocated_memory_bytes: Some(1 << 29),
            }
        );
        assert_eq!(web.containers[0].asked, Asked::default());
        assert_eq!(web.containers[1].restart_policy, "Always");
        assert_eq!(web.owner, Some(("ReplicaSet".to_owned(), "web-1".to_owned())));
        assert_eq!(web.whole.as_ref().and_then(|whole| whole.request_milli_cpu), Some(3000));
        assert!(!web.static_pod);
    }

    #[test]
    fn a_static_pod_has_the_uid_that_the_runtime_knows_and_a_pod_without_uid_is_passed_over() {
        let pods = parse(LIST).unwrap();
        assert_eq!(pods.len(), 2);
        assert_eq!((pods[1].uid.as_str(), pods[1].ended), ("file", true));
        assert!(pods[1].static_pod);
        assert_eq!(pods[1].owner, None);
    }

    #[test]
    fn how_a_change_in_place_fares_is_read_from_conditions_and_from_the_older_field() {
        let told = |status: &str| {
            let list = format!(r#"{{"items":[{{"metadata":{{"uid":"u"}},"status":{status}}}]}}"#);
            parse(&list).unwrap()[0].resize_status
        };
        let condition = |kind: &str, status: &str, reason: &str| {
            format!(r#"{{"conditions":[{{"type":"{kind}","status":"{status}","reason":"{reason}"}}]}}"#)
        };
        assert_eq!(told(&condition("PodResizePending", "True", "Deferred")), "deferred");
        assert_eq!(told(&condition("PodResizePending", "True", "Infeasible")), "infeasible");
        assert_eq!(told(&condition("PodResizePending", "False", "Deferred")), "");
        assert_eq!(told(&condition("PodResizeInProgress", "True", "")), "in-progress");
        assert_eq!(told(r#"{"resize":"Proposed"}"#), "proposed");
        assert_eq!(told(r#"{"conditions":null}"#), "");
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
