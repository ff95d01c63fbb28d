//! `kubelet_qrm_checkpoint`: what the resource manager had cached of each plugin's answers.

use std::str::FromStr;

use serde::Deserialize;
use serde_json::Value;

use super::fields::{null_is_empty, set};
use super::{Cached, Fault, ORM_CHECKPOINT, Sets};

#[derive(Deserialize)]
struct File {
    #[serde(rename = "Data", default, deserialize_with = "null_is_empty")]
    data: Data,
}

#[derive(Default, Deserialize)]
struct Data {
    #[serde(rename = "PodResourceEntries", default, deserialize_with = "null_is_empty")]
    entries: Vec<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    #[serde(rename = "PodUID")]
    pod_uid: String,
    container_name: String,
    /// JSON within JSON.
    allocation_info: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AllocationInfo {
    oci_property_name: String,
    allocation_result: String,
}

/// CPUs and memory nodes by pod and container, and what could not be understood.
pub fn orm_checkpoint(bytes: &[u8]) -> (Cached, Vec<Fault>) {
    let file: File = match serde_json::from_slice(bytes) {
        Ok(file) => file,
        Err(e) => {
            return (
                Cached::default(),
                vec![Fault::NotUnderstood { file: ORM_CHECKPOINT, why: e.to_string() }],
            );
        }
    };
    let mut cached = Cached::default();
    let mut faults = Vec::new();
    for value in file.data.entries {
        let uid = value.get("PodUID").and_then(Value::as_str).unwrap_or("(none)").to_owned();
        if let Err(why) = take(&mut cached, value) {
            faults.push(Fault::Entry { file: ORM_CHECKPOINT, uid, why });
        }
    }
    (cached, faults)
}

fn take(cached: &mut Cached, value: Value) -> Result<(), String> {
    let entry: Entry = serde_json::from_value(value).map_err(|e| e.to_string())?;
    let info: AllocationInfo =
        serde_json::from_str(&entry.allocation_info).map_err(|e| format!("AllocationInfo: {e}"))?;
    match info.oci_property_name.as_str() {
        "CpusetCpus" => insert(&mut cached.cpus, entry, &info),
        "CpusetMems" => insert(&mut cached.mems, entry, &info),
        // Other resources have no set.
        _ => Ok(()),
    }
}

fn insert<T: FromStr>(sets: &mut Sets<T>, entry: Entry, info: &AllocationInfo) -> Result<(), String>
where
    T::Err: std::fmt::Display,
{
    if let Some(set) = set(&info.allocation_result).map_err(|e: T::Err| e.to_string())? {
        sets.entry(entry.pod_uid).or_default().insert(entry.container_name, set);
    }
    Ok(())
}
