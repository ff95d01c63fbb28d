//! Whether the processes of a cgroup are stopped by the freezer.

use crate::hierarchy::Hierarchy;
use crate::knob::read_text;
use crate::path::CgroupPath;

/// Whether all its processes are frozen, by whatever cgroup: `cgroup.events` (v2), `freezer.state` (v1). `None` where neither says.
pub fn is_frozen(hierarchy: &Hierarchy, path: &CgroupPath) -> Option<bool> {
    if hierarchy.is_unified() {
        let events = read_text(&path.under(hierarchy.root()).join("cgroup.events")).ok()?;
        let frozen = events.lines().find_map(|line| line.strip_prefix("frozen "))?;
        return Some(frozen.trim() == "1");
    }
    let state = read_text(&path.under(&hierarchy.root().join("freezer")).join("freezer.state")).ok()?;
    Some(state == "FROZEN")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Fixture, Layout};

    #[test]
    fn each_version_says_it_in_its_own_way_and_silence_is_not_no() {
        for (layout, file, frozen, thawed) in [
            (Layout::V1, "freezer/pods/c/freezer.state", "FROZEN\n", "THAWED\n"),
            (Layout::V2, "pods/c/cgroup.events", "populated 1\nfrozen 1\n", "populated 1\nfrozen 0\n"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let fixture = Fixture::create(dir.path(), layout).unwrap();
            let (hierarchy, path) =
                (Hierarchy::detect(dir.path()).unwrap(), CgroupPath::new("pods/c").unwrap());
            assert_eq!(is_frozen(&hierarchy, &path), None, "{layout:?}");
            let file = fixture.root().join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, frozen).unwrap();
            assert_eq!(is_frozen(&hierarchy, &path), Some(true), "{layout:?}");
            std::fs::write(&file, thawed).unwrap();
            assert_eq!(is_frozen(&hierarchy, &path), Some(false), "{layout:?}");
        }
    }
}
