//! The node's measured use, as far as the cluster needs it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ResourceList, schema};

/// Measured use of a node, in all and by QoS level.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeMetricStatus {
    /// When the figures were taken; readers judge their age by it.
    #[schemars(schema_with = "schema::time")]
    pub update_time: Time,
    /// Use of the whole node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_metric: Option<NodeMetric>,
    /// Use by QoS level.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub group_metric: Vec<GroupMetric>,
}

/// Use of the whole node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeMetric {
    /// Use per NUMA node, ascending by id.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub numa_usage: Vec<NumaUsage>,
    /// Use without regard to NUMA nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generic_usage: Option<ResourceList>,
}

/// Use of one NUMA node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NumaUsage {
    /// Id of the NUMA node.
    pub numa_id: i32,
    /// Its use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<ResourceList>,
}

/// Use of all pods of one QoS level.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupMetric {
    /// The QoS level: "shared_cores", "dedicated_cores", "reclaimed_cores", "system_cores".
    #[serde(rename = "QoSLevel")]
    pub qos_level: String,
    /// Use per NUMA node, ascending by id.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub numa_usage: Vec<NumaUsage>,
    /// Use without regard to NUMA nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generic_usage: Option<ResourceList>,
    /// Pods of the level.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pod_list: Vec<String>,
}
