//! The cpuset of a cgroup among its parents and children.

use std::fs;
use std::path::{Path, PathBuf};

use oxalyst_topology::CpuSet;

use crate::error::Error;
use crate::hierarchy::{Controller, Hierarchy};
use crate::knob::{not_held, read_text, write_text};
use crate::nested::{Descendant, Family, Member};
use crate::path::CgroupPath;

/// Plans made anew after a refusal: between a look at the tree and the write, somebody else may have changed it.
const ATTEMPTS: usize = 3;

/// Cgroups below one that are taken along; beyond it, a container makes cgroups without end.
const BELOW: usize = 512;

/// Which of the two files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpusetFile {
    /// `cpuset.cpus`.
    Cpus,
    /// `cpuset.mems`.
    Mems,
}

/// Sets a cgroup's CPUs or memory nodes to `list` (Linux list format), in whatever order the tree asks for, and reads it back.
/// Gives the files that were written, none where it was so already.
///
/// Cgroups above are widened where they would not hold it, but only from the kubelet's own (`kubepods`) downwards. On v1 those
/// below follow: the kernel does not let a parent have less than a child.
///
/// # Errors
/// [`Error::EmptyList`], [`Error::NoController`], what the kernel answered after three attempts, or [`Error::NotHeld`] where it
/// says something else afterwards, or where a cgroup above `kubepods` allows less.
pub fn set_cpuset(
    hierarchy: &Hierarchy,
    path: &CgroupPath,
    file: CpusetFile,
    list: &str,
) -> Result<Vec<PathBuf>, Error> {
    let mount = hierarchy.mount(Controller::Cpuset)?;
    let own = path.under(mount);
    let wanted = parsed(&own.join(file.name()), list)?;
    if wanted.is_empty() {
        return Err(Error::EmptyList { path: own.join(file.name()) });
    }
    fs::metadata(&own).map_err(|e| Error::io("stat", &own, e))?;
    if !own.join(file.name()).exists() {
        return Err(Error::NoController { controller: Controller::Cpuset.name(), path: own });
    }
    let mut attempt = 1;
    loop {
        match once(hierarchy, mount, path, file, &wanted) {
            // The tree changed meanwhile, or a child used what was taken away: another look may find a legal order.
            Err(e) if e.is_refusal() && attempt < ATTEMPTS => attempt += 1,
            outcome => return outcome,
        }
    }
}

/// One look at the tree and the writes that follow from it.
fn once(
    hierarchy: &Hierarchy,
    mount: &Path,
    path: &CgroupPath,
    file: CpusetFile,
    wanted: &CpuSet,
) -> Result<Vec<PathBuf>, Error> {
    let own = path.under(mount);
    let mut above = Vec::new();
    let mut around = None;
    for (dir, is_pods) in ancestors(mount, path) {
        let at = dir.join(file.name());
        let set = match read_text(&at) {
            Ok(text) => parsed(&at, &text)?,
            // The root of v2 has no such file, nor has a cgroup for which the controller is not enabled.
            Err(e) if e.is_gone() => continue,
            Err(e) => return Err(e),
        };
        if is_pods {
            above.push(Member { at, set });
        } else if hierarchy.is_unified() && set.is_empty() {
            // What holds is what holds above.
        } else if !wanted.is_subset(&set) {
            return Err(not_held(&at, &wanted.to_string(), &set.to_string()));
        } else if !hierarchy.is_unified() {
            around = Some(set);
        }
    }
    let mut below = Vec::new();
    if !hierarchy.is_unified() {
        descend(&own, file, None, &mut below)?;
    }
    let at = own.join(file.name());
    let set = parsed(&at, &read_text(&at)?)?;
    let family = Family { around, above, own: Member { at: at.clone(), set }, below };
    let mut written = Vec::new();
    for write in family.writes(wanted) {
        write_text(&write.at, &write.set.to_string())?;
        written.push(write.at);
    }
    if !written.is_empty() {
        let now = read_text(&at)?;
        if parsed(&at, &now)? != *wanted {
            return Err(not_held(&at, &wanted.to_string(), &now));
        }
    }
    Ok(written)
}

/// The cgroups above, the outermost first, and whether each is the kubelet's.
pub(crate) fn ancestors(mount: &Path, path: &CgroupPath) -> Vec<(PathBuf, bool)> {
    let mut dirs = vec![(mount.to_path_buf(), false)];
    let mut is_pods = false;
    let mut at = mount.to_path_buf();
    let parts: Vec<&str> = path.as_str().split('/').filter(|p| !p.is_empty()).collect();
    for part in parts.iter().take(parts.len().saturating_sub(1)) {
        at.push(part);
        is_pods |= part.split(['.', '-']).any(|word| word == "kubepods");
        dirs.push((at.clone(), is_pods));
    }
    dirs
}

fn descend(
    dir: &Path,
    file: CpusetFile,
    parent: Option<usize>,
    found: &mut Vec<Descendant<PathBuf>>,
) -> Result<(), Error> {
    let entries = fs::read_dir(dir).map_err(|e| Error::io("list", dir, e))?;
    for child in entries.filter_map(Result::ok).filter(|e| e.file_type().is_ok_and(|t| t.is_dir())) {
        let child = child.path();
        let at = child.join(file.name());
        let set = match read_text(&at) {
            Ok(text) => parsed(&at, &text)?,
            Err(e) if e.is_gone() => continue,
            Err(e) => return Err(e),
        };
        if found.len() >= BELOW {
            return Ok(());
        }
        let place = found.len();
        found.push(Descendant { member: Member { at, set }, parent });
        descend(&child, file, Some(place), found)?;
    }
    Ok(())
}

fn parsed(path: &Path, list: &str) -> Result<CpuSet, Error> {
    list.trim().parse().map_err(|_| not_held(path, "a list such as 0-3,8", list.trim()))
}

// === impl CpusetFile ===

impl CpusetFile {
    /// The kernel's name of the file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpus => "cpuset.cpus",
            Self::Mems => "cpuset.mems",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Fixture, Layout};

    fn tree(layout: Layout, paths: &[(&str, &str)]) -> (tempfile::TempDir, Hierarchy) {
        let dir = tempfile::tempdir().unwrap();
        let fixture = Fixture::create(dir.path(), layout).unwrap();
        for (path, cpus) in paths {
            let path = CgroupPath::new(path).unwrap();
            fixture.cgroup(&path).unwrap();
            fixture.set(Controller::Cpuset, &path, "cpuset.cpus", &format!("{cpus}\n")).unwrap();
        }
        let hierarchy = Hierarchy::detect(dir.path()).unwrap();
        (dir, hierarchy)
    }

    fn cpus(hierarchy: &Hierarchy, path: &str) -> String {
        let dir = hierarchy.dir(Controller::Cpuset, &CgroupPath::new(path).unwrap()).unwrap();
        read_text(&dir.join("cpuset.cpus")).unwrap()
    }

    fn set(hierarchy: &Hierarchy, path: &str, list: &str) -> Result<usize, Error> {
        let path = CgroupPath::new(path).unwrap();
        set_cpuset(hierarchy, &path, CpusetFile::Cpus, list).map(|written| written.len())
    }

    #[test]
    fn c01_a_pod_that_is_too_narrow_is_widened_first_on_both_versions() {
        for layout in [Layout::V1, Layout::V2] {
            let (_dir, h) = tree(layout, &[("kubepods/pod1", "0-7"), ("kubepods/pod1/c", "0-3")]);
            assert_eq!(set(&h, "kubepods/pod1/c", "4-11").unwrap(), 2, "{layout:?}");
            assert_eq!(cpus(&h, "kubepods/pod1"), "0-11");
            assert_eq!(cpus(&h, "kubepods/pod1/c"), "4-11");
            assert_eq!(set(&h, "kubepods/pod1/c", "4-11").unwrap(), 0, "nothing changed");
        }
    }

    #[test]
    fn c01_cgroups_within_a_container_follow_it_on_v1_and_stay_on_v2() {
        for (layout, inner, small) in [(Layout::V1, "0-1", "0"), (Layout::V2, "0-3", "0,3")] {
            let paths =
                [("kubepods/pod1/c", "0-3"), ("kubepods/pod1/c/a", "0-3"), ("kubepods/pod1/c/b", "0,3")];
            let (_dir, h) = tree(layout, &paths);
            set(&h, "kubepods/pod1/c", "0-1").unwrap();
            let held = (cpus(&h, "kubepods/pod1/c/a"), cpus(&h, "kubepods/pod1/c/b"));
            assert_eq!(held, (inner.to_owned(), small.to_owned()), "{layout:?}");
        }
    }

    #[test]
    fn what_lies_above_the_kubelets_cgroups_is_not_touched_but_named() {
        let (_dir, h) = tree(Layout::V2, &[("kubelet", "0-1"), ("kubelet/kubepods/pod1/c", "0")]);
        let error = set(&h, "kubelet/kubepods/pod1/c", "0-3").unwrap_err().to_string();
        assert!(error.contains("kubelet/cpuset.cpus") && error.contains("0-1"), "{error}");
        assert_eq!((cpus(&h, "kubelet"), cpus(&h, "kubelet/kubepods/pod1/c")), ("0-1".into(), "0".into()));
    }

    #[test]
    fn c02_an_empty_list_is_refused_before_the_kernel_sees_it() {
        let (_dir, h) = tree(Layout::V1, &[("kubepods/pod1/c", "0")]);
        assert!(matches!(set(&h, "kubepods/pod1/c", ""), Err(Error::EmptyList { .. })));
        assert_eq!(cpus(&h, "kubepods/pod1/c"), "0");
        assert!(set(&h, "kubepods/pod1/gone", "0").unwrap_err().is_gone());
    }

    #[test]
    fn c02_what_is_empty_above_is_filled_first_on_v1_and_left_on_v2() {
        for (layout, filled) in [(Layout::V1, "0-7"), (Layout::V2, "")] {
            let paths = [("", "0-7"), ("kubepods", ""), ("kubepods/pod1", ""), ("kubepods/pod1/c", "")];
            let (_dir, h) = tree(layout, &paths);
            set(&h, "kubepods/pod1/c", "1-2").unwrap();
            assert_eq!(cpus(&h, "kubepods/pod1/c"), "1-2");
            assert_eq!([cpus(&h, "kubepods"), cpus(&h, "kubepods/pod1")], [filled, filled], "{layout:?}");
        }
        let (_dir, h) = tree(Layout::V1, &[("", "0-7"), ("kubelet", ""), ("kubelet/kubepods/pod1/c", "")]);
        let error = set(&h, "kubelet/kubepods/pod1/c", "1").unwrap_err().to_string();
        assert!(error.contains("kubelet/cpuset.cpus"), "what is not the kubelet's is named: {error}");
    }

    #[test]
    fn c07_a_controller_that_was_taken_away_is_named() {
        let (dir, h) = tree(Layout::V2, &[("kubepods/pod1/c", "0")]);
        fs::remove_file(dir.path().join("sys/fs/cgroup/kubepods/pod1/c/cpuset.cpus")).unwrap();
        let error = set(&h, "kubepods/pod1/c", "1").unwrap_err().to_string();
        assert!(
            error.contains("cpuset is not available") && error.contains("cgroup.subtree_control"),
            "{error}"
        );
    }
}
