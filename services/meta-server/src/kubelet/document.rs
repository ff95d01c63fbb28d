//! core/v1 PodList as it stands in JSON, as far as the mesh reads it.

use std::collections::BTreeMap;

use oxalyst_kube_types::ResourceList;
use serde::{Deserialize, Deserializer};

/// Go writes an empty list as `null`.
fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(d: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(d)?.unwrap_or_default())
}

#[derive(Deserialize)]
pub(super) struct Document {
    // Not optional: a document without items is something else than a list.
    #[serde(deserialize_with = "or_default")]
    pub(super) items: Vec<Item>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Item {
    pub(super) metadata: Meta,
    pub(super) spec: Spec,
    pub(super) status: Status,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Meta {
    pub(super) uid: String,
    pub(super) namespace: String,
    pub(super) name: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) labels: BTreeMap<String, String>,
    #[serde(deserialize_with = "or_default")]
    pub(super) annotations: BTreeMap<String, String>,
    #[serde(deserialize_with = "or_default")]
    pub(super) owner_references: Vec<Owner>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Owner {
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) controller: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Spec {
    pub(super) priority: Option<i32>,
    #[serde(deserialize_with = "or_default")]
    pub(super) init_containers: Vec<Container>,
    #[serde(deserialize_with = "or_default")]
    pub(super) containers: Vec<Container>,
    #[serde(deserialize_with = "or_default")]
    pub(super) ephemeral_containers: Vec<Container>,
    #[serde(deserialize_with = "or_default")]
    pub(super) resources: Amounts,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Container {
    pub(super) name: String,
    pub(super) restart_policy: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub(super) resources: Amounts,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Amounts {
    #[serde(deserialize_with = "or_default")]
    pub(super) requests: ResourceList,
    #[serde(deserialize_with = "or_default")]
    pub(super) limits: ResourceList,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Status {
    pub(super) phase: String,
    pub(super) qos_class: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) init_container_statuses: Vec<ContainerStatus>,
    #[serde(deserialize_with = "or_default")]
    pub(super) container_statuses: Vec<ContainerStatus>,
    #[serde(deserialize_with = "or_default")]
    pub(super) ephemeral_container_statuses: Vec<ContainerStatus>,
    /// How a change in place fares, before there were conditions for it.
    pub(super) resize: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) conditions: Vec<PodCondition>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct PodCondition {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) status: String,
    pub(super) reason: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ContainerStatus {
    pub(super) name: String,
    #[serde(rename = "containerID")]
    pub(super) container_id: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) allocated_resources: ResourceList,
}
