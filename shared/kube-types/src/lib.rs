//! Custom resources of the Katalyst API as Rust types: the same group, names and JSON, so that Katalyst's controllers and
//! scheduler read what Oxalyst writes.
//!
//! [`crd`] builds the CustomResourceDefinitions out of these types; `crds/` holds the generated files
//! (`cargo run -p oxalyst-kube-types --example crds` writes them, a test compares them).

pub mod crd;
mod metrics;
mod node;
mod quantity;
mod schema;
mod zone;

pub use metrics::{GroupMetric, NodeMetric, NodeMetricStatus, NumaUsage};
pub use node::{
    Condition, CustomNodeResource, CustomNodeResourceSpec, CustomNodeResourceStatus, NodeResourceProperty,
    Taint, TopologyPolicy,
};
pub use quantity::{Quantity, ResourceList};
pub use zone::{
    Allocation, Attribute, ResourcePackage, ResourcePool, Resources, Sibling, TopologyZone, ZoneType,
};

/// API group of the node's resources.
pub const GROUP: &str = "node.katalyst.kubewharf.io";
/// Served and stored version of [`GROUP`].
pub const VERSION: &str = "v1alpha1";
/// `apiVersion` of objects in [`GROUP`].
pub const API_VERSION: &str = "node.katalyst.kubewharf.io/v1alpha1";
