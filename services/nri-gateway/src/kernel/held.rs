//! What a container holds: what its own files ask for, as far as the cgroups above it let that hold.

use oxalyst_cgroups::{CgroupPath, Confined, CpusetFile, CpusetState, Hierarchy, offline};
use oxalyst_topology::CpuSet;

use crate::placements::Cpuset;

/// What it holds, and what of its own it cannot have although nobody wrote so.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    /// What counts as its set: what holds where somebody narrowed a cgroup above it, else what its own files ask for, or, where
    /// they ask for nothing (v2), what holds.
    pub(super) cpuset: Cpuset,
    /// What no write can mend: CPUs that are offline, or that another cgroup's partition has.
    pub(super) lacks: Vec<String>,
}

// === impl Held ===

impl Held {
    /// From the container's own files and, where those do not hold, from the files above.
    pub(super) fn of(
        hierarchy: &Hierarchy,
        path: &CgroupPath,
        state: CpusetState,
        wanted: Option<&Cpuset>,
    ) -> Self {
        let CpusetState { cpus, mems, effective_cpus, effective_mems } = state;
        let mut held = Self::default();
        held.cpuset.cpus = held.part(hierarchy, path, CpusetFile::Cpus, cpus, effective_cpus);
        held.cpuset.mems = held.part(hierarchy, path, CpusetFile::Mems, mems, effective_mems);
        match wanted {
            Some(wanted) => held.without_offline(hierarchy, path, &wanted.cpus),
            None => held.lacks.clear(),
        }
        held
    }

    fn part(
        &mut self,
        hierarchy: &Hierarchy,
        path: &CgroupPath,
        file: CpusetFile,
        asked: String,
        effective: Option<String>,
    ) -> String {
        let effective = effective.unwrap_or_default();
        if asked.is_empty() {
            return effective;
        }
        match Confined::read(hierarchy, path, file, &asked, &effective) {
            None => asked,
            Some(Confined::Above { .. }) => effective,
            Some(Confined::Withheld { missing, offline, partition }) => {
                let what = match file {
                    CpusetFile::Cpus => format!("CPUs {missing} of {path}"),
                    CpusetFile::Mems => format!("memory nodes {missing} of {path}"),
                };
                self.lacks.push(match partition {
                    _ if !offline.is_empty() => format!("CPUs {offline} of {path} are offline"),
                    Some(at) => format!("{what} are held by the partition {}", at.display()),
                    None => format!(
                        "{what} are withheld by the kernel: by a cgroup above that is not seen here, or a partition"
                    ),
                });
                asked
            }
        }
    }

    /// Where all that lacks of what is wanted is offline, it has what it can have. v1 takes CPUs that go offline out of every
    /// file, and refuses to take them back.
    fn without_offline(&mut self, hierarchy: &Hierarchy, path: &CgroupPath, wanted: &str) {
        let has = &mut self.cpuset.cpus;
        if has.is_empty() || has == wanted {
            return;
        }
        let (Ok(has_now), Ok(mut lost)) = (has.parse::<CpuSet>(), wanted.parse::<CpuSet>()) else { return };
        let within = has_now.is_subset(&lost);
        lost -= &has_now;
        if within && !lost.is_empty() && offline(hierarchy, &lost) == lost {
            self.lacks.push(format!("CPUs {lost} of {path} are offline"));
            wanted.clone_into(has);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxalyst_cgroups::Controller;
    use oxalyst_cgroups::fixture::{Fixture, Layout};

    const CGROUPS: [&str; 4] = ["", "kubepods", "kubepods/pod1", "kubepods/pod1/c"];

    /// A machine whose cgroups all have the CPUs 0 to 7 and the memory nodes 0 and 1, and its fixture.
    fn machine(layout: Layout) -> (tempfile::TempDir, Fixture) {
        let dir = tempfile::tempdir().unwrap();
        let fixture = Fixture::create(dir.path(), layout).unwrap();
        let cpu = dir.path().join("sys/devices/system/cpu");
        std::fs::create_dir_all(&cpu).unwrap();
        std::fs::write(cpu.join("online"), "0-7\n").unwrap();
        for cgroup in CGROUPS {
            fixture.cgroup(&CgroupPath::new(cgroup).unwrap()).unwrap();
            set(&fixture, layout, cgroup, CpusetFile::Cpus, ("0-7", "0-7"));
            set(&fixture, layout, cgroup, CpusetFile::Mems, ("0-1", "0-1"));
        }
        (dir, fixture)
    }

    fn set(fixture: &Fixture, layout: Layout, cgroup: &str, file: CpusetFile, text: (&str, &str)) {
        let effective = match (layout, file) {
            (Layout::V1, CpusetFile::Cpus) => "cpuset.effective_cpus",
            (Layout::V1, CpusetFile::Mems) => "cpuset.effective_mems",
            (Layout::V2, CpusetFile::Cpus) => "cpuset.cpus.effective",
            (Layout::V2, CpusetFile::Mems) => "cpuset.mems.effective",
        };
        let path = CgroupPath::new(cgroup).unwrap();
        for (name, text) in [(file.name(), text.0), (effective, text.1)] {
            fixture.set(Controller::Cpuset, &path, name, &format!("{text}\n")).unwrap();
        }
    }

    fn held(dir: &tempfile::TempDir, wanted: &str) -> (String, String, Vec<String>) {
        let hierarchy = Hierarchy::detect(dir.path()).unwrap();
        let path = CgroupPath::new("kubepods/pod1/c").unwrap();
        let state = oxalyst_cgroups::CpusetFiles::open(&hierarchy, &path).unwrap().read().unwrap();
        let wanted = Cpuset { cpus: wanted.into(), mems: "0-1".into() };
        let Held { cpuset, lacks } = Held::of(&hierarchy, &path, state, Some(&wanted));
        (cpuset.cpus, cpuset.mems, lacks)
    }

    #[test]
    fn what_holds_under_a_narrowed_cgroup_is_held_on_both_versions() {
        for layout in [Layout::V1, Layout::V2] {
            let (dir, fixture) = machine(layout);
            set(&fixture, layout, "kubepods/pod1/c", CpusetFile::Cpus, ("2-3", "2-3"));
            assert_eq!(held(&dir, "2-3"), ("2-3".into(), "0-1".into(), vec![]));
            set(&fixture, layout, "kubepods/pod1", CpusetFile::Cpus, ("2", "2"));
            set(&fixture, layout, "kubepods/pod1/c", CpusetFile::Cpus, ("2-3", "2"));
            set(&fixture, layout, "kubepods/pod1", CpusetFile::Mems, ("1", "1"));
            set(&fixture, layout, "kubepods/pod1/c", CpusetFile::Mems, ("0-1", "1"));
            assert_eq!(held(&dir, "2-3"), ("2".into(), "1".into(), vec![]), "{layout:?}");
        }
    }

    #[test]
    fn an_empty_file_of_v2_inherits_what_holds() {
        let (dir, fixture) = machine(Layout::V2);
        set(&fixture, Layout::V2, "kubepods/pod1/c", CpusetFile::Cpus, ("", "4-5"));
        assert_eq!(held(&dir, "4-5").0, "4-5");
    }

    #[test]
    fn a20_an_offline_cpu_is_told_and_is_nobodys_write() {
        for layout in [Layout::V1, Layout::V2] {
            let (dir, fixture) = machine(layout);
            std::fs::write(dir.path().join("sys/devices/system/cpu/online"), "0-2,4-7\n").unwrap();
            let asked = if layout == Layout::V1 { "2" } else { "2-3" };
            set(&fixture, layout, "kubepods/pod1", CpusetFile::Cpus, ("0-7", "0-2,4-7"));
            set(&fixture, layout, "kubepods/pod1/c", CpusetFile::Cpus, (asked, "2"));
            let (cpus, _, lacks) = held(&dir, "2-3");
            assert_eq!(cpus, "2-3", "{layout:?}");
            assert!(
                lacks.len() == 1 && lacks[0].contains("CPUs 3 of /kubepods/pod1/c are offline"),
                "{lacks:?}"
            );
        }
    }

    #[test]
    fn what_a_partition_has_is_told_and_is_nobodys_write() {
        let (dir, fixture) = machine(Layout::V2);
        let taker = CgroupPath::new("taker").unwrap();
        fixture.cgroup(&taker).unwrap();
        fixture.set(Controller::Cpuset, &taker, "cpuset.cpus.partition", "isolated\n").unwrap();
        set(&fixture, Layout::V2, "taker", CpusetFile::Cpus, ("3", "3"));
        set(&fixture, Layout::V2, "kubepods/pod1", CpusetFile::Cpus, ("", "0-2,4-7"));
        set(&fixture, Layout::V2, "kubepods/pod1/c", CpusetFile::Cpus, ("2-3", "2"));
        let (cpus, _, lacks) = held(&dir, "2-3");
        assert_eq!(cpus, "2-3");
        assert!(lacks[0].contains("partition") && lacks[0].contains("taker"), "{lacks:?}");
    }
}
