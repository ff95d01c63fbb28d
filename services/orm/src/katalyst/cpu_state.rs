//! `cpu_plugin_state`: which pod has which CPUs.

use std::collections::BTreeMap;

use oxalyst_qos::{Attributes, QOS_LEVEL, QosLevel};
use oxalyst_units::MilliCpu;
use serde::Deserialize;
use serde_json::Value;

use super::fields::{null_is_empty, set};
use super::{CPU_STATE, Container, Fault, Pod, timestamp};
use crate::uid;

/// Under this name a pool's own entry stands among the containers' ones.
const POOL_ENTRY: &str = "";
/// Owner of CPUs that are one pod's alone.
pub(super) const DEDICATED: &str = "dedicated";

#[derive(Deserialize)]
struct File {
    /// Always there, if null: a file without it is another one.
    #[serde(deserialize_with = "null_is_empty")]
    pod_entries: BTreeMap<String, Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AllocationInfo {
    pod_namespace: String,
    pod_name: String,
    container_type: String,
    owner_pool_name: String,
    #[serde(deserialize_with = "null_is_empty")]
    labels: Attributes,
    #[serde(deserialize_with = "null_is_empty")]
    annotations: Attributes,
    #[serde(rename = "qosLevel")]
    qos_level: String,
    #[serde(deserialize_with = "null_is_empty")]
    allocation_result: String,
    init_timestamp: String,
    request_quantity: f64,
}

/// The pods of a `cpu_plugin_state`, ascending by uid, and what could not be understood.
pub fn cpu_state(bytes: &[u8]) -> (Vec<Pod>, Vec<Fault>) {
    let file: File = match serde_json::from_slice(bytes) {
        Ok(file) => file,
        Err(e) => return (Vec::new(), vec![Fault::NotUnderstood { file: CPU_STATE, why: e.to_string() }]),
    };
    let mut pods = Vec::new();
    let mut faults = Vec::new();
    for (uid, entry) in file.pod_entries {
        match pod(&uid, entry) {
            Ok(pod) => pods.extend(pod),
            Err(why) => faults.push(Fault::Entry { file: CPU_STATE, uid: uid::shown(&uid), why }),
        }
    }
    (pods, faults)
}

/// One pod; `None` for a pool and for a pod without containers.
fn pod(uid: &str, entry: Value) -> Result<Option<Pod>, String> {
    let infos: BTreeMap<String, Option<AllocationInfo>> =
        serde_json::from_value(entry).map_err(|e| e.to_string())?;
    if infos.contains_key(POOL_ENTRY) {
        return Ok(None);
    }
    uid::check(uid).map_err(|fault| fault.to_string())?;
    let infos: Vec<(String, AllocationInfo)> =
        infos.into_iter().filter_map(|(name, info)| Some((name, info?))).collect();
    // The main container speaks for its pod.
    let Some((_, main)) = infos.iter().min_by_key(|(_, info)| info.container_type != "MAIN") else {
        return Ok(None);
    };
    let containers = infos.iter().map(|(name, info)| container(name, info)).collect::<Result<_, String>>()?;
    Ok(Some(Pod {
        uid: uid.to_owned(),
        namespace: main.pod_namespace.clone(),
        name: main.pod_name.clone(),
        qos: level(main)?,
        labels: main.labels.clone(),
        annotations: main.annotations.clone(),
        containers,
        since_unix_ms: infos.iter().filter_map(|(_, info)| timestamp::unix_ms(&info.init_timestamp)).min(),
    }))
}

fn container(name: &str, info: &AllocationInfo) -> Result<Container, String> {
    Ok(Container {
        name: name.to_owned(),
        kind: info.container_type.clone(),
        pool: info.owner_pool_name.clone(),
        cpus: set(&info.allocation_result).map_err(|e| format!("container {name}: {e}"))?,
        request: milli_cpu(info.request_quantity),
    })
}

fn level(info: &AllocationInfo) -> Result<QosLevel, String> {
    let said = Some(info.qos_level.as_str()).filter(|level| !level.is_empty());
    let said = said.or_else(|| info.annotations.get(QOS_LEVEL).map(String::as_str));
    match said {
        Some(level) => level.parse().map_err(|_| format!("{level:?} is no QoS level")),
        // The native policy knows no levels.
        None if info.owner_pool_name == DEDICATED => Ok(QosLevel::Dedicated),
        None => Ok(QosLevel::Shared),
    }
}

/// Cores as a binary fraction, in thousandths, rounded up but for the fraction's own error.
fn milli_cpu(cores: f64) -> Option<MilliCpu> {
    let milli = (cores * 1000.0 - 1e-6).ceil();
    // Beyond any machine it is no request but damage; what is not a number fails the comparison.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in range")]
    (1.0..1e9).contains(&milli).then_some(MilliCpu(milli as u64))
}
