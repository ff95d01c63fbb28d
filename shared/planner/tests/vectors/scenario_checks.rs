//! What holds after every step.

use super::{names, scenario::Sight};
use oxalyst_topology::{CpuSet, Machine};
use serde_json::Value;

pub fn outcome(expect: &Value, refused: Option<&String>) -> Option<String> {
    match (expect, refused) {
        (Value::Null | Value::Bool(false), None) | (Value::Bool(true), Some(_)) => None,
        (Value::Null | Value::Bool(false), Some(kind)) => Some(format!("refused as {kind}")),
        (want, Some(kind)) if names(want, kind) => None,
        (want, got) => Some(format!("must be refused as {want}, got {got:?}")),
    }
}

pub fn always(now: &Sight, machine: &Machine) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, seen) in now {
        if seen.cpus.is_empty() && seen.pod.is_some() {
            faults.push(format!("{name} has no CPU"));
        }
        if !seen.cpus.is_subset(machine.online()) {
            faults.push(format!("{name} has {} and only {} can be used", seen.cpus, machine.online()));
        }
        for (other, seen_other) in now.iter().filter(|(other, _)| seen.exclusive && *other != name) {
            let concerns = seen_other.pod.is_none() || seen_other.exclusive && seen_other.pod != seen.pod;
            if concerns && !seen.cpus.is_disjoint(&seen_other.cpus) {
                let shared: CpuSet = &seen.cpus & &seen_other.cpus;
                faults.push(format!("{name} and {other} both have {shared}"));
            }
        }
    }
    faults
}
