//! What the mesh takes of the node's memory.

use super::scene::Scene;
use super::{Fault, Row};

/// The sum of the proportional set sizes of the five services, each told beside it.
pub(super) fn rows(scene: &mut Scene, id: &str, when: &str) -> Result<Vec<Row>, Fault> {
    let mut each = Vec::new();
    for (service, pid) in scene.pids()? {
        each.push((service, pss_mib(pid)?));
    }
    let parts: Vec<String> = each.iter().map(|(service, mib)| format!("{service} {mib:.1}")).collect();
    Ok(vec![Row {
        id: id.to_owned(),
        what: format!("sum of the five services' PSS {when}: {}", parts.join(", ")),
        value: each.iter().map(|(_, mib)| mib).sum(),
        unit: "MiB",
        floor: None,
        budget: if id == "memory-1000" { 128.0 } else { 64.0 },
    }])
}

/// Proportional set size from `/proc/<pid>/smaps_rollup`, in MiB.
pub(super) fn pss_mib(pid: u32) -> Result<f64, Fault> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = std::fs::read_to_string(&path).map_err(|e| format!("read {path}: {e}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()).and_then(|n| n.parse::<f64>().ok());
    Ok(kib.ok_or_else(|| format!("{path} has no Pss"))? / 1024.0)
}
