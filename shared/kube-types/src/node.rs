//! CustomNodeResource: one object per node, named as the node.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::{ClusterResourceScope, Metadata, Resource};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::{API_VERSION, GROUP, NodeMetricStatus, Quantity, Resources, TopologyZone, VERSION, schema};

/// What a node has, what is given out, and to whom.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CustomNodeResource {
    /// Always [`API_VERSION`].
    #[serde(default = "api_version")]
    pub api_version: String,
    /// Always `CustomNodeResource`.
    #[serde(default = "kind")]
    pub kind: String,
    /// Name: that of the node.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// Slowly changing facts.
    #[serde(default)]
    pub spec: CustomNodeResourceSpec,
    /// Present state; a sub-resource, written by requests of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<CustomNodeResourceStatus>,
}

/// Slowly changing facts about a node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CustomNodeResourceSpec {
    /// Properties of the node that a scheduler may match, ascending by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::by_property_name::<NodeResourceProperty>")]
    pub node_resource_properties: Vec<NodeResourceProperty>,
    /// Taints that hold for pods of one QoS level only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::by_taint::<Taint>")]
    pub taints: Vec<Taint>,
}

/// A property of the node: a set of values, or an amount.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeResourceProperty {
    /// Name, for example `numa`, `cpu`, `memory`, `cis`.
    pub property_name: String,
    /// Values of a property that is a set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub property_values: Vec<String>,
    /// Amount of a property that is counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub property_quantity: Option<Quantity>,
}

/// A taint for pods of one QoS level.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Taint {
    /// Key that a toleration names.
    pub key: String,
    /// Value that a toleration may name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// NoSchedule, PreferNoSchedule or NoExecute.
    pub effect: String,
    /// When a NoExecute taint was set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub time_added: Option<Time>,
    /// The QoS level whose pods it holds for.
    pub qos_level: String,
}

/// Present state of a node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CustomNodeResourceStatus {
    /// Amounts beyond those of the Node object: reclaimed resources.
    #[serde(default)]
    pub resources: Resources,
    /// The node's parts, sockets at the root.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::by_type_and_name::<TopologyZone>")]
    pub topology_zone: Vec<TopologyZone>,
    /// How the node aligns resources of a pod or a container.
    #[serde(default)]
    pub topology_policy: TopologyPolicy,
    /// Health as controllers see it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::by_type::<Condition>")]
    pub conditions: Vec<Condition>,
    /// Measured use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_metric_status: Option<NodeMetricStatus>,
}

/// A condition that a controller keeps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// AgentReady or AgentNotFound.
    #[serde(rename = "type")]
    pub condition_type: String,
    /// True, False or Unknown.
    pub status: String,
    /// When it was last confirmed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub last_heartbeat_time: Option<Time>,
    /// One word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// One sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Topology manager policy and scope in one word.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TopologyPolicy {
    /// No alignment.
    #[default]
    None,
    /// One NUMA node for each container.
    SingleNUMANodeContainerLevel,
    /// One NUMA node for each pod.
    SingleNUMANodePodLevel,
    /// The fewest NUMA nodes for each container, or refused.
    RestrictedContainerLevel,
    /// The fewest NUMA nodes for each pod, or refused.
    RestrictedPodLevel,
    /// The fewest NUMA nodes for each container where possible.
    BestEffortContainerLevel,
    /// The fewest NUMA nodes for each pod where possible.
    BestEffortPodLevel,
    /// As the pod's annotation counts, for each container.
    NumericContainerLevel,
    /// As the pod's annotation counts, for each pod.
    NumericPodLevel,
}

fn api_version() -> String {
    API_VERSION.into()
}

fn kind() -> String {
    CustomNodeResource::KIND.into()
}

// === impl CustomNodeResource ===

impl CustomNodeResource {
    /// Plural name, as in URLs and in `kubectl get`.
    pub const PLURAL: &str = "customnoderesources";
    /// Short name for `kubectl`.
    pub const SHORT_NAME: &str = "kcnr";

    /// An object for the node `name`.
    pub fn new(
        name: impl Into<String>,
        spec: CustomNodeResourceSpec,
        status: Option<CustomNodeResourceStatus>,
    ) -> Self {
        let metadata = ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() };
        Self { api_version: api_version(), kind: kind(), metadata, spec, status }
    }
}

impl Resource for CustomNodeResource {
    const API_VERSION: &'static str = API_VERSION;
    const GROUP: &'static str = GROUP;
    const KIND: &'static str = "CustomNodeResource";
    const VERSION: &'static str = VERSION;
    const URL_PATH_SEGMENT: &'static str = Self::PLURAL;
    type Scope = ClusterResourceScope;
}

impl Metadata for CustomNodeResource {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

// === impl TopologyPolicy ===

impl TopologyPolicy {
    const NAMES: [&str; 9] = [
        "None",
        "SingleNUMANodeContainerLevel",
        "SingleNUMANodePodLevel",
        "RestrictedContainerLevel",
        "RestrictedPodLevel",
        "BestEffortContainerLevel",
        "BestEffortPodLevel",
        "NumericContainerLevel",
        "NumericPodLevel",
    ];
}

impl JsonSchema for TopologyPolicy {
    fn schema_name() -> Cow<'static, str> {
        "TopologyPolicy".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "enum": Self::NAMES })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{Allocation, Attribute, ZoneType};

    #[test]
    fn an_object_of_katalyst_is_read_and_written_back_unchanged() {
        let text = json!({
            "apiVersion": "node.katalyst.kubewharf.io/v1alpha1",
            "kind": "CustomNodeResource",
            "metadata": { "name": "n1" },
            "spec": {
                "nodeResourceProperties": [{ "propertyName": "numa", "propertyQuantity": "2" }, { "propertyName": "cis", "propertyValues": ["avx2"] }],
                "taints": [{ "key": "k", "effect": "NoSchedule", "qosLevel": "reclaimed_cores", "timeAdded": "2026-01-02T03:04:05Z" }],
            },
            "status": {
                "resources": { "allocatable": { "resource.katalyst.kubewharf.io/reclaimed_millicpu": "1000" } },
                "topologyZone": [{
                    "type": "Socket", "name": "0", "resources": {},
                    "children": [{
                        "type": "Numa", "name": "0", "resources": { "allocatable": { "cpu": "24" }, "capacity": { "cpu": "24", "memory": "16Gi" } },
                        "attributes": [{ "name": "numa_distance", "value": "10,20" }],
                        "allocations": [{ "consumer": "default/p/u1", "requests": { "cpu": "2" } }],
                        "siblings": [{ "type": "Numa", "name": "1" }],
                    }],
                }],
                "topologyPolicy": "SingleNUMANodeContainerLevel",
                "conditions": [{ "type": "AgentReady", "status": "True" }],
                "nodeMetricStatus": {
                    "updateTime": "2026-01-02T03:04:05Z",
                    "nodeMetric": { "numaUsage": [{ "numaId": 0, "usage": { "cpu": "1500m" } }] },
                    "groupMetric": [{ "QoSLevel": "shared_cores", "genericUsage": { "memory": "2Gi" }, "podList": ["default/p"] }],
                },
            },
        });
        let object: CustomNodeResource = serde_json::from_value(text.clone()).unwrap();
        assert_eq!(serde_json::to_value(&object).unwrap(), text);

        let zone = &object.status.as_ref().unwrap().topology_zone[0].children[0];
        assert_eq!(zone.zone_type, ZoneType::Numa);
        assert_eq!(zone.attributes, [Attribute { name: "numa_distance".into(), value: "10,20".into() }]);
        let requests = [("cpu".to_owned(), Quantity::count(2))].into_iter().collect();
        assert_eq!(
            zone.allocations,
            [Allocation { consumer: "default/p/u1".into(), requests: Some(requests) }]
        );
    }

    #[test]
    fn a_status_always_tells_the_fields_that_the_schema_requires() {
        let status = serde_json::to_value(CustomNodeResourceStatus::default()).unwrap();
        assert_eq!(status, json!({ "resources": {}, "topologyPolicy": "None" }));
    }

    #[test]
    fn every_policy_of_the_schema_is_one_of_the_type() {
        for name in TopologyPolicy::NAMES {
            let policy: TopologyPolicy = serde_json::from_value(json!(name)).unwrap();
            assert_eq!(serde_json::to_value(policy).unwrap(), json!(name));
        }
    }

    #[test]
    fn a_list_item_without_type_meta_is_read() {
        let object: CustomNodeResource =
            serde_json::from_value(json!({ "metadata": { "name": "a" } })).unwrap();
        assert_eq!(object, CustomNodeResource::new("a", CustomNodeResourceSpec::default(), None));
    }
}
