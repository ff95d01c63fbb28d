use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::hierarchy::Hierarchy;
use crate::path::{CgroupPath, Driver};

/// How deep pods may lie below a kubepods root: one level of QoS class, and one to spare.
const DEPTH: usize = 3;

/// How deep a nested root of pods is looked for.
const ROOT_DEPTH: usize = 4;

/// Folders that are looked at for it.
const ROOTS_LOOKED_AT: usize = 4_096;

/// A container (or a pod's sandbox, which looks the same from outside) found by the names of its directories.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Found {
    /// Where it lies.
    pub path: CgroupPath,
    /// The pod's UID, with dashes, as the API knows it.
    pub pod_uid: String,
    /// The runtime's id, without prefixes.
    pub container_id: String,
}

/// A pod found by the name of its directory, whether containers lie in it or not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FoundPod {
    /// Where it lies.
    pub path: CgroupPath,
    /// The pod's UID, with dashes, as the API knows it.
    pub pod_uid: String,
}

/// What a walk found.
#[derive(Clone, Debug, Default)]
pub struct Walk {
    /// Ordered by path.
    pub found: Vec<Found>,
    /// Every pod, ordered by path.
    pub pods: Vec<FoundPod>,
    /// Folders whose entries were listed: while none of them changes, another walk finds the same.
    pub listed: Vec<Listed>,
}

/// A folder that a walk listed, and what it looked like just before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The folder.
    pub path: PathBuf,
    /// Before the listing: a change in between shows as a difference.
    pub stamp: Stamp,
}

/// What of a folder changes when entries come or go. Kernfs counts subfolders in the link count and may leave the
/// time as it was; most other file systems keep the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    inode: u64,
    links: u64,
    modified: (i64, i64),
}

// === impl Stamp ===

impl Stamp {
    /// The stamp of a folder, from its metadata.
    pub fn of(metadata: &fs::Metadata) -> Self {
        Self {
            inode: metadata.ino(),
            links: metadata.nlink(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }
}

/// Finds every container below `kubepods` and `kubepods.slice` of each of `roots` (the root cgroup: an empty path; a
/// kubelet with `--cgroup-root=/x` needs `x`). Folders that vanish meanwhile are no error, absent roots neither.
///
/// # Errors
/// [`Error::Io`] with operation "list" for any other refusal.
pub fn walk(hierarchy: &Hierarchy, roots: &[CgroupPath]) -> Result<Walk, Error> {
    walk_telling(hierarchy, roots, &mut |_| {})
}

/// The same; `each` hears of every folder before it is listed, so that whoever watches knows which listing hangs.
///
/// # Errors
/// As [`walk`].
pub fn walk_telling(
    hierarchy: &Hierarchy,
    roots: &[CgroupPath],
    each: &mut dyn FnMut(&Path),
) -> Result<Walk, Error> {
    let mount = hierarchy.any_mount()?.to_path_buf();
    let mut walk = Walk::default();
    for root in roots {
        // Its listing tells when kubepods appears.
        let path = root.under(&mount);
        each(&path);
        if let Ok(metadata) = fs::metadata(&path) {
            walk.listed.push(Listed { path, stamp: Stamp::of(&metadata) });
        }
        for (tree, driver) in pod_trees(root)? {
            pods(&mount, &tree, (driver, DEPTH), &mut walk, each)?;
        }
    }
    walk.found.sort();
    walk.found.dedup();
    walk.pods.sort();
    walk.pods.dedup();
    Ok(walk)
}

/// Where `kubepods` may lie: the root, and every cgroup that holds one. A node that is itself a container (kind, k3d) has it
/// deeper, `kubelet/kubepods` or `kubelet.slice/kubelet-kubepods.slice`.
///
/// # Errors
/// [`Error::NoHierarchy`], as [`walk`].
pub fn pod_roots(hierarchy: &Hierarchy) -> Result<Vec<CgroupPath>, Error> {
    let mount = hierarchy.any_mount()?;
    let mut roots = vec![CgroupPath::default()];
    let mut level = vec![CgroupPath::default()];
    let mut looked = 0;
    for _ in 0..ROOT_DEPTH {
        let mut below = Vec::new();
        for at in level {
            let Ok(entries) = fs::read_dir(at.under(mount)) else { continue };
            for entry in entries.filter_map(Result::ok) {
                let (Ok(name), Ok(true)) =
                    (entry.file_name().into_string(), entry.file_type().map(|t| t.is_dir()))
                else {
                    continue;
                };
                looked += 1;
                if looked > ROOTS_LOOKED_AT || name.split(['.', '-']).any(|word| word == "kubepods") {
                    continue;
                }
                let path = at.join(&name)?;
                if pod_trees(&path)?.iter().any(|(tree, _)| tree.under(mount).is_dir()) {
                    roots.push(path.clone());
                }
                below.push(path);
            }
        }
        below.sort();
        level = below;
    }
    roots.sort();
    Ok(roots)
}

/// The trees of pods that may lie below a root.
fn pod_trees(root: &CgroupPath) -> Result<Vec<(CgroupPath, Driver)>, Error> {
    let mut trees =
        vec![(root.join("kubepods")?, Driver::Cgroupfs), (root.join("kubepods.slice")?, Driver::Systemd)];
    // Within a slice, the name of each slice below begins with its name.
    if let Some(stem) = root.as_str().rsplit('/').next().and_then(|last| last.strip_suffix(".slice")) {
        trees.push((root.join(&format!("{stem}-kubepods.slice"))?, Driver::Systemd));
    }
    Ok(trees)
}

fn pods(
    mount: &Path,
    at: &CgroupPath,
    (driver, depth): (Driver, usize),
    walk: &mut Walk,
    each: &mut dyn FnMut(&Path),
) -> Result<(), Error> {
    for name in children(mount, at, walk, each)? {
        let below = at.join(&name)?;
        match pod_uid(&name, driver) {
            Some(uid) => {
                walk.pods.push(FoundPod { path: below.clone(), pod_uid: uid.clone() });
                for name in children(mount, &below, walk, each)? {
                    if let Some(id) = container_id(&name, driver) {
                        let path = below.join(&name)?;
                        walk.found.push(Found { path, pod_uid: uid.clone(), container_id: id.to_owned() });
                    }
                }
            }
            None if depth > 1 => pods(mount, &below, (driver, depth - 1), walk, each)?,
            None => {}
        }
    }
    Ok(())
}

fn children(
    mount: &Path,
    at: &CgroupPath,
    walk: &mut Walk,
    each: &mut dyn FnMut(&Path),
) -> Result<Vec<String>, Error> {
    let dir = at.under(mount);
    each(&dir);
    let mut names = Vec::new();
    let listing =
        fs::metadata(&dir).map(|m| Stamp::of(&m)).and_then(|stamp| Ok((stamp, fs::read_dir(&dir)?)));
    let (stamp, entries) = match listing {
        Ok(listing) => listing,
        Err(e) if crate::kept::is_dead(&e) => return Ok(names),
        Err(e) => return Err(Error::io("list", &dir, e)),
    };
    for entry in entries {
        match entry {
            // The type comes with the listing: no stat for each of a cgroup's fifty files.
            Ok(entry) if entry.file_type().is_ok_and(|t| t.is_dir()) => {
                if let Ok(name) = entry.file_name().into_string() {
                    names.push(name);
                }
            }
            Ok(_) => {}
            Err(e) if crate::kept::is_dead(&e) => break,
            Err(e) => return Err(Error::io("list", &dir, e)),
        }
    }
    walk.listed.push(Listed { path: dir, stamp });
    Ok(names)
}

/// The UID in a pod's directory name: `pod<uid>`, or `kubepods[-<qos>]-pod<uid with underscores>.slice`.
fn pod_uid(name: &str, driver: Driver) -> Option<String> {
    let uid = match driver {
        Driver::Cgroupfs => name.strip_prefix("pod")?.to_owned(),
        Driver::Systemd => {
            let stem = name.strip_suffix(".slice")?;
            let (_, uid) = stem.split_once("-pod")?;
            // systemd reserves the dash for nesting, so the kubelet writes underscores.
            uid.replace('_', "-")
        }
    };
    (!uid.is_empty()).then_some(uid)
}

/// The id in a container's directory name: bare, `crio-<id>`, `kata_<id>`, or `<runtime>-<id>.scope`.
fn container_id(name: &str, driver: Driver) -> Option<&str> {
    let stem = match driver {
        Driver::Cgroupfs => name,
        Driver::Systemd => name.strip_suffix(".scope")?,
    };
    // CRI-O's monitor process is not of the pod.
    if stem.starts_with("crio-conmon-") || stem.starts_with("conmon-") {
        return None;
    }
    let id = ["cri-containerd-", "crio-", "docker-", "kata_"]
        .iter()
        .find_map(|p| stem.strip_prefix(p))
        .unwrap_or(stem);
    (!id.is_empty() && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Fixture, Layout};

    const UID: &str = "6a1f6e0c-1111-2222-3333-444455556666";
    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn found(layout: Layout, paths: &[String]) -> Vec<(String, String)> {
        let dir = tempfile::tempdir().unwrap();
        let fixture = Fixture::create(dir.path(), layout).unwrap();
        for path in paths {
            fixture.cgroup(&CgroupPath::new(path).unwrap()).unwrap();
        }
        let hierarchy = Hierarchy::detect(dir.path()).unwrap();
        let walk = walk(&hierarchy, &[CgroupPath::default()]).unwrap();
        walk.found.into_iter().map(|f| (f.pod_uid, f.container_id)).collect()
    }

    #[test]
    fn every_naming_gives_uid_and_id() {
        let underscored = UID.replace('-', "_");
        let table = [
            format!("kubepods/pod{UID}/{ID}"),
            format!("kubepods/besteffort/pod{UID}/{ID}"),
            format!("kubepods/burstable/pod{UID}/crio-{ID}"),
            format!("kubepods/burstable/pod{UID}/kata_{ID}"),
            format!("kubepods.slice/kubepods-pod{underscored}.slice/cri-containerd-{ID}.scope"),
            format!(
                "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{underscored}.slice/crio-{ID}.scope"
            ),
            format!(
                "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{underscored}.slice/docker-{ID}.scope"
            ),
        ];
        for path in table {
            for layout in [Layout::V1, Layout::V2] {
                assert_eq!(
                    found(layout, std::slice::from_ref(&path)),
                    [(UID.to_owned(), ID.to_owned())],
                    "{path} {layout:?}"
                );
            }
        }
    }

    #[test]
    fn monitors_and_cgroups_inside_of_containers_are_no_containers() {
        let paths = [
            format!("kubepods/pod{UID}/crio-conmon-{ID}"),
            format!("kubepods/pod{UID}/{ID}/init.scope"),
            "kubepods/burstable".to_owned(),
            "system.slice/containerd.service".to_owned(),
        ];
        assert_eq!(found(Layout::V2, &paths), [(UID.to_owned(), ID.to_owned())]);
    }

    #[test]
    fn a_node_without_pods_has_none_and_its_root_is_watched() {
        let dir = tempfile::tempdir().unwrap();
        Fixture::create(dir.path(), Layout::V2).unwrap();
        let hierarchy = Hierarchy::detect(dir.path()).unwrap();
        let walk = walk(&hierarchy, &[CgroupPath::default()]).unwrap();
        assert!(walk.found.is_empty());
        let before = walk.listed.clone();
        assert_eq!(before.len(), 1);
        assert_eq!(before[0].path, dir.path().join("sys/fs/cgroup"));
        std::fs::create_dir(before[0].path.join("kubepods")).unwrap();
        let now = Stamp::of(&std::fs::metadata(&before[0].path).unwrap());
        assert_ne!(before[0].stamp, now, "a new folder shows");
    }

    #[test]
    fn c10_pods_of_a_node_that_is_a_container_are_found_by_both_drivers() {
        let underscored = UID.replace('-', "_");
        for (path, root) in [
            (format!("kubelet/kubepods/burstable/pod{UID}/{ID}"), "kubelet"),
            (format!("docker/abc/kubelet/kubepods/pod{UID}/{ID}"), "docker/abc/kubelet"),
            (
                format!(
                    "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/\
                     kubelet-kubepods-besteffort-pod{underscored}.slice/cri-containerd-{ID}.scope"
                ),
                "kubelet.slice",
            ),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let fixture = Fixture::create(dir.path(), Layout::V2).unwrap();
            fixture.cgroup(&CgroupPath::new(&path).unwrap()).unwrap();
            let hierarchy = Hierarchy::detect(dir.path()).unwrap();
            let roots = pod_roots(&hierarchy).unwrap();
            assert_eq!(roots.iter().map(CgroupPath::as_str).collect::<Vec<_>>(), ["", root], "{path}");
            let walk = walk(&hierarchy, &roots).unwrap();
            assert_eq!(walk.found.len(), 1, "{path}");
            assert_eq!((walk.found[0].pod_uid.as_str(), walk.found[0].container_id.as_str()), (UID, ID));
            assert_eq!(walk.pods[0].pod_uid, UID);
        }
    }

    #[test]
    fn what_a_driver_names_is_what_a_walk_finds() {
        let underscored = UID.replace('-', "_");
        for name in [
            format!("/kubepods/burstable/pod{UID}/{ID}"),
            format!("kubepods-burstable-pod{underscored}.slice:cri-containerd:{ID}"),
        ] {
            let (path, _) = CgroupPath::of_container(&name).unwrap();
            assert_eq!(
                found(Layout::V1, &[path.as_str().to_owned()]),
                [(UID.to_owned(), ID.to_owned())],
                "{name}"
            );
        }
    }
}
