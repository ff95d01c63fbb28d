//! `memory_plugin_state`: which pod is bound to which NUMA nodes.

use std::collections::BTreeMap;

use oxalyst_topology::NumaMask;
use serde::Deserialize;
use serde_json::Value;

use super::fields::{null_is_empty, set};
use super::{Fault, MEMORY_STATE, Sets};

const MEMORY: &str = "memory";

#[derive(Deserialize)]
struct File {
    #[serde(default, deserialize_with = "null_is_empty")]
    pod_resource_entries: BTreeMap<String, Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AllocationInfo {
    #[serde(deserialize_with = "null_is_empty")]
    numa_allocation_result: String,
}

/// Memory nodes by pod and container, and what could not be understood.
pub fn memory_state(bytes: &[u8]) -> (Sets<NumaMask>, Vec<Fault>) {
    let not_understood = |e: serde_json::Error| {
        (Sets::new(), vec![Fault::NotUnderstood { file: MEMORY_STATE, why: e.to_string() }])
    };
    let mut file: File = match serde_json::from_slice(bytes) {
        Ok(file) => file,
        Err(e) => return not_understood(e),
    };
    let Some(pods) = file.pod_resource_entries.remove(MEMORY) else { return (Sets::new(), Vec::new()) };
    let pods: Option<BTreeMap<String, Value>> = match serde_json::from_value(pods) {
        Ok(pods) => pods,
        Err(e) => return not_understood(e),
    };
    let mut sets = Sets::new();
    let mut faults = Vec::new();
    for (uid, entry) in pods.unwrap_or_default() {
        match containers(entry) {
            Ok(containers) => drop(sets.insert(uid, containers)),
            Err(why) => faults.push(Fault::Entry { file: MEMORY_STATE, uid, why }),
        }
    }
    (sets, faults)
}

fn containers(entry: Value) -> Result<BTreeMap<String, NumaMask>, String> {
    let infos: BTreeMap<String, Option<AllocationInfo>> =
        serde_json::from_value(entry).map_err(|e| e.to_string())?;
    let mut sets = BTreeMap::new();
    for (name, info) in infos {
        let text = info.unwrap_or_default().numa_allocation_result;
        if let Some(nodes) = set(&text).map_err(|e| format!("container {name}: {e}"))? {
            sets.insert(name, nodes);
        }
    }
    Ok(sets)
}
