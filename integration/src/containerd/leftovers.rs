//! What a containerd can leave on a machine outside of its folder, and how to be rid of it: processes in our pods' cgroups,
//! mounts, cgroup folders, and the folders of the shims' sockets and of runc's state, whose places are compiled in.
//!
//! There is something to do after each sandbox that NRI refused: containerd 2.1 answers the refusal, forgets the sandbox,
//! and leaves its pause process running.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rustix::mount::{UnmountFlags, unmount};

const CGROUP_ROOT: &str = "/sys/fs/cgroup";
/// What a kubelet has above its pods; only removed where we made it.
const KUBEPODS: [&str; 3] = ["kubepods/burstable", "kubepods/besteffort", "kubepods"];
/// Where a shim lets runc keep its state.
const RUNC_STATE: &str = "/run/containerd/runc/k8s.io";
/// Compiled into the shim, deepest first.
const SHIM_FOLDERS: [&str; 4] = ["/run/containerd/s", RUNC_STATE, "/run/containerd/runc", "/run/containerd"];

/// Folders outside of our own that a containerd makes and that are not there now.
pub(super) fn absent_folders() -> Vec<PathBuf> {
    let cgroups = KUBEPODS.iter().flat_map(|dir| hierarchies().into_iter().map(move |root| root.join(dir)));
    SHIM_FOLDERS.iter().map(PathBuf::from).chain(cgroups).filter(|path| !path.exists()).collect()
}

/// Processes in `cgroups`, which are ours.
pub(super) fn processes(cgroups: &BTreeSet<PathBuf>) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    for root in hierarchies() {
        for cgroup in cgroups {
            collect(&root.join(cgroup), &mut found);
        }
    }
    found
}

fn collect(dir: &Path, found: &mut BTreeSet<u32>) {
    let procs = std::fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    found.extend(procs.lines().filter_map(|line| line.parse::<u32>().ok()));
    for child in folders(dir) {
        collect(&child, found);
    }
}

/// What is still there of a containerd in `folder` and of its pods' `cgroups`, in words.
pub(super) fn found(folder: &Path, cgroups: &BTreeSet<PathBuf>) -> Vec<String> {
    let mut left: Vec<String> =
        mounts_below(folder).iter().map(|at| format!("mount {}", at.display())).collect();
    left.extend(runc_states(folder).iter().map(|at| format!("runc state {}", at.display())));
    let roots = hierarchies();
    let all = cgroups.iter().flat_map(|cgroup| roots.iter().map(move |root| root.join(cgroup)));
    left.extend(all.filter(|path| path.exists()).map(|path| format!("cgroup {}", path.display())));
    left
}

/// What is mounted below `folder`, ascending.
fn mounts_below(folder: &Path) -> BTreeSet<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    points.filter(|point| point.starts_with(folder) && point != folder).collect()
}

/// Unmounts whatever is mounted below `folder`, deepest first.
pub(super) fn unmount_below(folder: &Path) {
    for point in mounts_below(folder).iter().rev() {
        // Busy ones go as soon as their last user ends.
        let _ = unmount(point, UnmountFlags::DETACH);
    }
}

/// Removes `cgroups` and what is below them in every hierarchy.
pub(super) fn remove_cgroups(cgroups: &BTreeSet<PathBuf>) {
    for root in hierarchies() {
        for cgroup in cgroups {
            remove_tree(&root.join(cgroup));
        }
    }
}

/// Removes runc's state of containers whose root lies below `folder`.
pub(super) fn remove_runc_state(folder: &Path) {
    for state in runc_states(folder) {
        // What cannot be removed is found afterwards.
        let _ = std::fs::remove_dir_all(&state);
    }
}

fn runc_states(folder: &Path) -> Vec<PathBuf> {
    let root = format!("\"rootfs\":\"{}/", folder.display());
    let ours = |state: &PathBuf| {
        std::fs::read_to_string(state.join("state.json")).is_ok_and(|text| text.contains(&root))
    };
    folders(Path::new(RUNC_STATE)).into_iter().filter(ours).collect()
}

/// Cgroups, below each hierarchy's root, of the containers whose root lies below `folder`: those of pods that somebody else
/// started in this containerd too.
pub(super) fn container_cgroups(folder: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for state in runc_states(folder) {
        let text = std::fs::read_to_string(state.join("state.json")).unwrap_or_default();
        let state: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        let paths = state["cgroup_paths"].as_object().into_iter().flat_map(|paths| paths.values());
        for path in paths.filter_map(|path| path.as_str()).map(Path::new) {
            let below =
                hierarchies().iter().find_map(|root| path.strip_prefix(root).ok().map(Path::to_path_buf));
            // Never a whole hierarchy, nor what others share: a container's own has a parent.
            found.extend(below.filter(|below| below.components().count() > 1));
        }
    }
    found
}

/// The pods' cgroups around `containers`, in every hierarchy.
pub(super) fn pod_folders(containers: &BTreeSet<PathBuf>) -> Vec<PathBuf> {
    let of_pod = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with("pod");
    let pods: BTreeSet<&Path> = containers
        .iter()
        .filter_map(|container| container.parent())
        .filter(|pod| pod.file_name().is_some_and(of_pod))
        .collect();
    hierarchies().iter().flat_map(|root| pods.iter().map(|pod| root.join(pod))).collect()
}

/// Removes those of `folders` that are empty.
pub(super) fn remove_empty(folders: &[PathBuf]) {
    for folder in folders {
        let _ = std::fs::remove_dir(folder);
    }
}

/// A cgroup folder has files that cannot be removed; they go with it.
fn remove_tree(dir: &Path) {
    for child in folders(dir) {
        remove_tree(&child);
    }
    let _ = std::fs::remove_dir(dir);
}

fn folders(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()).collect()
}

/// Roots of all hierarchies: one with v2 alone, one for each controller with v1.
fn hierarchies() -> Vec<PathBuf> {
    let root = PathBuf::from(CGROUP_ROOT);
    if root.join("cgroup.controllers").exists() { vec![root] } else { folders(&root) }
}
