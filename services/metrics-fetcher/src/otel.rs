//! Names of metrics in OpenTelemetry's semantic conventions for Kubernetes, containers and systems, for whoever exports.

/// Name and unit there; `None` where the conventions have nothing of that definition.
pub fn name(metric: &str) -> Option<(&'static str, &'static str)> {
    Some(match metric {
        "cpu.usage.container" => ("container.cpu.usage", "{cpu}"),
        "mem.usage.container" => ("container.memory.usage", "By"),
        "mem.workingset.container" => ("container.memory.working_set", "By"),
        "mem.rss.container" => ("container.memory.rss", "By"),
        "mem.limit.container" => ("k8s.container.memory.limit", "By"),
        "cpu.limit.container" => ("k8s.container.cpu.limit", "{cpu}"),
        "available.rootfs.container" => ("container.filesystem.available", "By"),
        "capacity.rootfs.container" => ("container.filesystem.capacity", "By"),
        "used.rootfs.container" => ("container.filesystem.usage", "By"),
        "cpu.usage.system" => ("k8s.node.cpu.usage", "{cpu}"),
        "mem.used.system" => ("k8s.node.memory.usage", "By"),
        "mem.available.system" => ("k8s.node.memory.available", "By"),
        "available.fs.node" => ("k8s.node.filesystem.available", "By"),
        "capacity.fs.node" => ("k8s.node.filesystem.capacity", "By"),
        "used.fs.node" => ("k8s.node.filesystem.usage", "By"),
        "available.volume.pod.container" => ("k8s.volume.available", "By"),
        "capacity.volume.pod.container" => ("k8s.volume.capacity", "By"),
        "inodes.volume.pod.container" => ("k8s.volume.inodes", "{inode}"),
        "free.inodes.volume.pod.container" => ("k8s.volume.inodes.free", "{inode}"),
        "used.inodes.volume.pod.container" => ("k8s.volume.inodes.used", "{inode}"),
        "cpu.load.1min.system" => ("system.cpu.load_average.1m", "{thread}"),
        "cpu.load.5min.system" => ("system.cpu.load_average.5m", "{thread}"),
        "cpu.load.15min.system" => ("system.cpu.load_average.15m", "{thread}"),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::catalogue::{self, Unit};

    #[test]
    fn each_name_is_once_and_its_unit_is_that_of_the_catalogue() {
        let mut seen = BTreeSet::new();
        for metric in catalogue::all() {
            let Some((name, unit)) = name(metric.name) else { continue };
            assert!(seen.insert(name), "{name} twice");
            match metric.unit {
                Unit::Bytes => assert_eq!(unit, "By", "{name}"),
                Unit::Cores => assert_eq!(unit, "{cpu}", "{name}"),
                Unit::Count => assert!(unit.starts_with('{') && unit != "{cpu}", "{name}"),
                other => panic!("{name}: {other:?} has no unit there"),
            }
        }
        assert_eq!(seen.len(), 23, "a name above is in no catalogue");
    }
}
