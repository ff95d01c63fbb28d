//! Topology zones: a tree of sockets, NUMA nodes and what lies in them.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::{ResourceList, schema};

/// What a zone stands for. An open set: `Other` carries kinds that a plugin brings.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum ZoneType {
    /// A CPU package.
    Socket,
    /// A NUMA node.
    Numa,
    /// CPUs that share a last-level cache.
    L3CacheGroup,
    /// A graphics processor.
    Gpu,
    /// A network interface.
    Nic,
    /// A storage device.
    Storage,
    /// Anything else, by its name.
    Other(String),
}

/// Part of a node, and what it holds.
///
/// Katalyst sorts zones by type and then by name, both as text, and keys them by that pair.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TopologyZone {
    /// What the zone stands for: Socket, Numa, L3CacheGroup, GPU, NIC, Storage, or a plugin's own kind.
    #[serde(rename = "type")]
    pub zone_type: ZoneType,
    /// Identifier of the zone among those of its type on the node; decimal for sockets and NUMA nodes.
    pub name: String,
    /// Capacity and allocatable amounts of the zone.
    #[serde(default)]
    pub resources: Resources,
    /// Further facts, ascending by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attributes: Vec<Attribute>,
    /// What is given to whom in this zone, ascending by consumer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allocations: Vec<Allocation>,
    /// Zones within this one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::children")]
    pub children: Vec<TopologyZone>,
    /// Zones of the same level that are near this one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub siblings: Vec<Sibling>,
}

/// Amounts of a node or of a zone.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// What may be given out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocatable: Option<ResourceList>,
    /// What is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<ResourceList>,
    /// Named parts of the allocatable amount.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resource_packages: Vec<ResourcePackage>,
    /// Pools with bounds of their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resource_pools: Vec<ResourcePool>,
}

/// A named part of what may be given out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourcePackage {
    /// Name of the package, unique in its zone.
    pub package_name: String,
    /// What the package may give out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocatable: Option<ResourceList>,
    /// Further facts, ascending by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attributes: Vec<Attribute>,
}

/// A pool of resources with bounds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourcePool {
    /// Name of the pool, unique in its zone.
    pub pool_name: String,
    /// Least that the pool keeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_allocatable: Option<ResourceList>,
    /// Most that the pool may grow to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_allocatable: Option<ResourceList>,
    /// Further facts, ascending by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attributes: Vec<Attribute>,
}

/// A named fact about a zone, a package or a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Attribute {
    /// Name, for example `numa_distance`.
    pub name: String,
    /// Value in the notation that the name implies, for example "10,20".
    pub value: String,
}

/// What one consumer got in a zone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Allocation {
    /// The pod, as "namespace/name/uid".
    pub consumer: String,
    /// How much it got here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<ResourceList>,
}

/// A zone near another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Sibling {
    /// What the sibling stands for.
    #[serde(rename = "type")]
    pub zone_type: ZoneType,
    /// Its identifier.
    pub name: String,
    /// Further facts, ascending by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attributes: Vec<Attribute>,
}

// === impl ZoneType ===

impl From<String> for ZoneType {
    fn from(name: String) -> Self {
        match name.as_str() {
            "Socket" => Self::Socket,
            "Numa" => Self::Numa,
            "L3CacheGroup" => Self::L3CacheGroup,
            "GPU" => Self::Gpu,
            "NIC" => Self::Nic,
            "Storage" => Self::Storage,
            _ => Self::Other(name),
        }
    }
}

impl From<ZoneType> for String {
    fn from(zone: ZoneType) -> Self {
        match zone {
            ZoneType::Socket => "Socket".into(),
            ZoneType::Numa => "Numa".into(),
            ZoneType::L3CacheGroup => "L3CacheGroup".into(),
            ZoneType::Gpu => "GPU".into(),
            ZoneType::Nic => "NIC".into(),
            ZoneType::Storage => "Storage".into(),
            ZoneType::Other(name) => name,
        }
    }
}

impl JsonSchema for ZoneType {
    fn schema_name() -> Cow<'static, str> {
        "ZoneType".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string" })
    }
}
