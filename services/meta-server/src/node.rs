//! Facts of the node that do not change while it runs.

use std::io;
use std::path::{Path, PathBuf};

use oxalyst_proto::meta::v1::Node;
use oxalyst_topology::CpuSet;

/// Why the node is unknown.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// Neither a setting nor the host names it.
    #[error("cannot read the host name from {path}: {source}: set node_name", path = path.display())]
    NoName {
        /// The file.
        path: PathBuf,
        /// What came back.
        source: io::Error,
    },
    /// The name is empty.
    #[error("the node has an empty name: set node_name")]
    EmptyName,
}

/// Reads the facts under `host_root`. What cannot be read stays empty or 0, but for the name.
///
/// # Errors
/// [`NodeError`] if the node has no name.
pub fn discover(host_root: &Path, name: Option<&str>) -> Result<Node, NodeError> {
    let name = match name {
        Some(name) => name.trim().to_owned(),
        None => {
            let path = host_root.join("proc/sys/kernel/hostname");
            match std::fs::read_to_string(&path) {
                Ok(text) => text.trim().to_lowercase(),
                Err(source) => return Err(NodeError::NoName { path, source }),
            }
        }
    };
    if name.is_empty() {
        return Err(NodeError::EmptyName);
    }
    let text = |path: &str| {
        std::fs::read_to_string(host_root.join(path)).map(|t| t.trim().to_owned()).unwrap_or_default()
    };
    Ok(Node {
        name,
        kernel: text("proc/sys/kernel/osrelease"),
        memory_bytes: mem_total(&text("proc/meminfo")).unwrap_or_default(),
        cpus: online_cpus(&text("sys/devices/system/cpu/online")).unwrap_or_default(),
        machine_id: text("etc/machine-id"),
        boot_id: text("proc/sys/kernel/random/boot_id"),
        cgroup_version: cgroup_version(&host_root.join("sys/fs/cgroup")),
        kubelet_reservation: None,
        kubelet_reservation_error: String::new(),
    })
}

/// `MemTotal` of `/proc/meminfo` in bytes; the kernel writes KiB.
fn mem_total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
}

fn online_cpus(list: &str) -> Option<u32> {
    list.parse::<CpuSet>().ok().and_then(|set| set.len().try_into().ok())
}

/// 1, 2, 3 for version 1 with an (otherwise unused) version 2 tree beside it, 0 where nothing is mounted.
fn cgroup_version(root: &Path) -> u32 {
    if root.join("cgroup.controllers").exists() {
        2
    } else if root.join("unified/cgroup.controllers").exists() {
        3
    } else if root.join("memory").exists() || root.join("cpu").exists() || root.join("cpuset").exists() {
        1
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn facts_come_from_the_given_root() {
        let root = host(&[
            ("proc/sys/kernel/hostname", "Node-A\n"),
            ("proc/sys/kernel/osrelease", "6.1.0\n"),
            ("proc/meminfo", "MemTotal:       16384 kB\nMemFree: 1 kB\n"),
            ("sys/devices/system/cpu/online", "0-3,6\n"),
            ("etc/machine-id", "m\n"),
            ("proc/sys/kernel/random/boot_id", "b\n"),
            ("sys/fs/cgroup/cgroup.controllers", "cpu\n"),
        ]);
        let node = discover(root.path(), None).unwrap();
        assert_eq!(
            node,
            Node {
                name: "node-a".into(),
                kernel: "6.1.0".into(),
                memory_bytes: 16 << 20,
                cpus: 5,
                machine_id: "m".into(),
                boot_id: "b".into(),
                cgroup_version: 2,
                ..Node::default()
            }
        );
    }

    #[test]
    fn a_set_name_wins_and_unreadable_facts_stay_empty() {
        let root = host(&[]);
        let node = discover(root.path(), Some("n1")).unwrap();
        assert_eq!(node, Node { name: "n1".into(), ..Node::default() });
    }

    #[test]
    fn a_node_without_a_name_is_an_error_that_names_the_setting() {
        let nowhere = discover(host(&[]).path(), None).unwrap_err().to_string();
        assert!(nowhere.contains("node_name") && nowhere.contains("hostname"), "{nowhere}");
        let blank = host(&[("proc/sys/kernel/hostname", "\n")]);
        assert!(matches!(discover(blank.path(), None), Err(NodeError::EmptyName)));
    }

    #[test]
    fn cgroup_layouts_are_told_apart() {
        let hybrid =
            host(&[("sys/fs/cgroup/unified/cgroup.controllers", ""), ("sys/fs/cgroup/memory/tasks", "")]);
        let v1 = host(&[("sys/fs/cgroup/memory/tasks", "")]);
        assert_eq!(cgroup_version(&hybrid.path().join("sys/fs/cgroup")), 3);
        assert_eq!(cgroup_version(&v1.path().join("sys/fs/cgroup")), 1);
        assert_eq!(cgroup_version(Path::new("/nonexistent")), 0);
    }
}
