//! What a pod's annotations and labels say about its quality of service. Pure functions of maps; nothing is read from
//! anywhere else.
//!
//! * [`QosLevel`]: how a pod's CPUs are chosen, from the annotation [`QOS_LEVEL`].
//! * [`Enhancements`]: finer wishes (NUMA binding and so on), JSON objects in annotations of their own.
//! * [`NodeAgent`]: pods that must run on every node whatever else does.

mod agent;
mod enhancement;
mod kept_labels;
mod level;
mod rules;

pub use agent::{NodeAgent, is_mesh, node_agent};
pub use enhancement::{
    CPU_ENHANCEMENT, EnhancementFault, Enhancements, Fault, MEMORY_ENHANCEMENT, enhancements,
};
pub use kept_labels::KeptLabels;
pub use level::{QOS_LEVEL, QosLevel, UnknownQosLevel, qos_level};
pub use rules::{QosRules, QosRulesError};

/// Annotations or labels of a pod. Ordered, so that whatever follows from them does so in one order.
pub type Attributes = std::collections::BTreeMap<String, String>;
