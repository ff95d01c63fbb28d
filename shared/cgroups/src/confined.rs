//! Why the processes of a cgroup run elsewhere than its own cpuset file says.

use std::fs;
use std::path::{Path, PathBuf};

use oxalyst_topology::CpuSet;

use crate::cpuset_tree::{CpusetFile, ancestors};
use crate::hierarchy::{Controller, Hierarchy};
use crate::knob::read_text;
use crate::path::CgroupPath;

/// Folders that are looked at for a partition.
const LOOKED_AT: usize = 4_096;

/// What keeps a cgroup from the CPUs (or memory nodes) that its own file names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Confined {
    /// A cgroup above names less: somebody wrote it.
    Above {
        /// Its file. Where several are too narrow, the outermost.
        at: PathBuf,
        /// What that says.
        set: CpuSet,
    },
    /// No file above says so.
    Withheld {
        /// What is named and not had.
        missing: CpuSet,
        /// Those of `missing` that are offline. Always empty for memory nodes.
        offline: CpuSet,
        /// A partition of another cgroup (`cpuset.cpus.partition` is "root" or "isolated") that has some of them.
        partition: Option<PathBuf>,
    },
}

// === impl Confined ===

impl Confined {
    /// Compares what `file` of the cgroup asks for with what holds, both in the kernel's list format. `None` where nothing keeps it
    /// from what it asks for, where nothing is asked for, and where the two and what holds for the parent do not fit together,
    /// which they do but while somebody writes them, and in a container that makes partitions of its own.
    pub fn read(
        hierarchy: &Hierarchy,
        path: &CgroupPath,
        file: CpusetFile,
        asked: &str,
        effective: &str,
    ) -> Option<Self> {
        if asked.is_empty() || effective.is_empty() || asked == effective {
            return None;
        }
        let (asked, effective): (CpuSet, CpuSet) = (asked.parse().ok()?, effective.parse().ok()?);
        let mut missing = asked.clone();
        missing -= &effective;
        if missing.is_empty() {
            return None;
        }
        let mount = hierarchy.mount(Controller::Cpuset).ok()?;
        let own = path.under(mount);
        let of_parent = set_of(&own.parent()?.join(effective_name(hierarchy, file)))?;
        // As the kernel has it: what is asked for within what holds for the parent, or all of that where nothing is left.
        let mut left = asked.clone();
        left &= &of_parent;
        if effective != if left.is_empty() { of_parent } else { left } {
            return None;
        }
        for (dir, _) in ancestors(mount, path) {
            let at = dir.join(file.name());
            if let Some(set) = set_of(&at).filter(|set| !set.is_empty() && !asked.is_subset(set)) {
                return Some(Self::Above { at, set });
            }
        }
        let (offline, partition) = match file {
            CpusetFile::Cpus => (offline(hierarchy, &missing), partition(mount, path, &missing)),
            CpusetFile::Mems => (CpuSet::default(), None),
        };
        Some(Self::Withheld { missing, offline, partition })
    }
}

/// Those of `cpus` that are not online; none where the machine does not say which are.
pub fn offline(hierarchy: &Hierarchy, cpus: &CpuSet) -> CpuSet {
    let host = hierarchy.root().ancestors().nth(3);
    let online = host.and_then(|host| set_of(&host.join("sys/devices/system/cpu/online")));
    let mut offline = cpus.clone();
    match online {
        Some(online) => offline -= &online,
        None => offline = CpuSet::default(),
    }
    offline
}

/// A partition beside one of the cgroups from `path` upwards that has some of `cpus`.
fn partition(mount: &Path, path: &CgroupPath, cpus: &CpuSet) -> Option<PathBuf> {
    let own = path.under(mount);
    let above = own.ancestors().skip(1).take_while(|above| above.starts_with(mount));
    let beside = above.filter_map(|above| fs::read_dir(above).ok()).flatten().filter_map(Result::ok);
    let dirs = beside.take(LOOKED_AT).map(|entry| entry.path());
    let has_some = |dir: &PathBuf| {
        let is_partition = read_text(&dir.join("cpuset.cpus.partition"))
            .is_ok_and(|kind| ["root", "isolated"].contains(&kind.as_str()));
        is_partition && !own.starts_with(dir) && {
            let mut common = set_of(&dir.join("cpuset.cpus.effective")).unwrap_or_default();
            common &= cpus;
            !common.is_empty()
        }
    };
    dirs.into_iter().find(has_some)
}

fn effective_name(hierarchy: &Hierarchy, file: CpusetFile) -> &'static str {
    match (hierarchy.is_unified(), file) {
        (true, CpusetFile::Cpus) => "cpuset.cpus.effective",
        (true, CpusetFile::Mems) => "cpuset.mems.effective",
        (false, CpusetFile::Cpus) => "cpuset.effective_cpus",
        (false, CpusetFile::Mems) => "cpuset.effective_mems",
    }
}

fn set_of(path: &Path) -> Option<CpuSet> {
    read_text(path).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Fixture, Layout};

    const CGROUPS: [&str; 4] = ["", "kubepods", "kubepods/pod1", "kubepods/pod1/c"];

    /// Which tree: the third is v1 with a v2 tree for processes alone beside it.
    const MACHINES: [(Layout, bool); 3] = [(Layout::V1, false), (Layout::V2, false), (Layout::V1, true)];

    struct Machine {
        dir: tempfile::TempDir,
        fixture: Fixture,
        layout: Layout,
    }

    impl Machine {
        /// Every cgroup has all 8 CPUs.
        fn new((layout, hybrid): (Layout, bool)) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let fixture = Fixture::create(dir.path(), layout).unwrap();
            if hybrid {
                fs::create_dir_all(fixture.root().join("unified")).unwrap();
                fs::write(fixture.root().join("unified/cgroup.controllers"), "\n").unwrap();
            }
            let machine = Self { dir, fixture, layout };
            for cgroup in CGROUPS {
                machine.fixture.cgroup(&CgroupPath::new(cgroup).unwrap()).unwrap();
                machine.set(cgroup, "0-7", "0-7");
            }
            machine
        }

        fn set(&self, cgroup: &str, asked: &str, effective: &str) {
            let path = CgroupPath::new(cgroup).unwrap();
            let name = match self.layout {
                Layout::V1 => "cpuset.effective_cpus",
                Layout::V2 => "cpuset.cpus.effective",
            };
            for (file, text) in [("cpuset.cpus", asked), (name, effective)] {
                self.fixture.set(Controller::Cpuset, &path, file, &format!("{text}\n")).unwrap();
            }
        }

        fn read(&self, asked: &str, effective: &str) -> Option<Confined> {
            let hierarchy = Hierarchy::detect(self.dir.path()).unwrap();
            let path = CgroupPath::new("kubepods/pod1/c").unwrap();
            Confined::read(&hierarchy, &path, CpusetFile::Cpus, asked, effective)
        }

        fn online(&self, cpus: &str) {
            let dir = self.dir.path().join("sys/devices/system/cpu");
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("online"), format!("{cpus}\n")).unwrap();
        }
    }

    fn set(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    #[test]
    fn the_outermost_cgroup_that_is_too_narrow_is_named_on_every_version() {
        for machine in MACHINES {
            let machine = Machine::new(machine);
            assert_eq!(machine.read("0-7", "0-7"), None);
            machine.set("kubepods/pod1", "0-1", "0-1");
            let Some(Confined::Above { at, set: says }) = machine.read("0-3", "0-1") else { panic!() };
            assert!(at.ends_with("kubepods/pod1/cpuset.cpus"), "{at:?}");
            assert_eq!(says, set("0-1"));
            let Some(Confined::Above { .. }) = machine.read("6-7", "0-1") else { panic!("nothing is left") };
            machine.set("kubepods", "0", "0");
            machine.set("kubepods/pod1", "0-1", "0");
            let Some(Confined::Above { at, .. }) = machine.read("0-3", "0") else { panic!() };
            assert!(at.ends_with("kubepods/cpuset.cpus"), "{at:?}");
        }
    }

    #[test]
    fn what_does_not_fit_together_was_read_while_somebody_wrote_it() {
        for machine in MACHINES {
            let machine = Machine::new(machine);
            assert_eq!(machine.read("3", "0-7"), None, "more than is asked for");
            assert_eq!(machine.read("0-3", "0-2"), None, "the parent has them all");
            assert_eq!(machine.read("0-3", "rubbish"), None);
            assert_eq!(machine.read("", "0-1"), None, "nothing is asked for: the parent's holds");
        }
    }

    #[test]
    fn a20_offline_cpus_are_told_apart_from_what_somebody_wrote() {
        for machine in MACHINES {
            let machine = Machine::new(machine);
            machine.online("0-2,4-7");
            machine.set("kubepods/pod1", "0-7", "0-2,4-7");
            let withheld = machine.read("2-3", "2");
            let expected = Confined::Withheld { missing: set("3"), offline: set("3"), partition: None };
            assert_eq!(withheld, Some(expected));
        }
    }

    #[test]
    fn a_partition_beside_a_cgroup_above_is_named() {
        let machine = Machine::new((Layout::V2, false));
        machine.online("0-7");
        let taker = CgroupPath::new("kubepods/taker").unwrap();
        machine.fixture.cgroup(&taker).unwrap();
        machine.set("kubepods/taker", "3", "3");
        machine.set("kubepods/pod1", "", "0-2,4-7");
        let partition = |kind: &str| {
            let text = format!("{kind}\n");
            machine.fixture.set(Controller::Cpuset, &taker, "cpuset.cpus.partition", &text).unwrap();
            match machine.read("2-3", "2") {
                Some(Confined::Withheld { partition, offline, .. }) if offline.is_empty() => partition,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(partition("member"), None);
        assert!(partition("root").is_some_and(|at| at.ends_with("kubepods/taker")));
    }
}
