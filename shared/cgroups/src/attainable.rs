//! What the processes of a cgroup can have of the CPUs at most, whatever was asked for it.

use std::path::Path;

use oxalyst_topology::CpuSet;

use crate::cpuset::CpusetFiles;
use crate::error::Error;
use crate::hierarchy::{Controller, Hierarchy};
use crate::knob::read_text;
use crate::parse::{cpu_max, cpu_quota};
use crate::path::CgroupPath;

/// The bounds that the kernel holds a cgroup to. What it does not tell is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attainable {
    /// CPUs on which its processes can run: `cpuset.cpus.effective` on v2, never the asked list, which may name more than the
    /// cgroups above it hold; on v1 `cpuset.effective_cpus`, on kernels without it `cpuset.cpus`. Never empty.
    pub cpus: Option<CpuSet>,
    /// CPU time of one second, in thousandths of a CPU: the number of those CPUs or, where that is less, the smallest quota per
    /// period of the cgroup and of those above it, rounded down. `None` where either cannot be read.
    pub milli_cpu: Option<u64>,
}

// === impl Attainable ===

impl Attainable {
    /// Reads the files of `path`.
    pub fn read(hierarchy: &Hierarchy, path: &CgroupPath) -> Self {
        let cpus = effective(hierarchy, path).filter(|cpus| !cpus.is_empty());
        let by_cpus = cpus.as_ref().and_then(|cpus| u64::try_from(cpus.len()).ok()?.checked_mul(1000));
        let milli_cpu =
            by_cpus.zip(quota(hierarchy, path)).map(|(most, quota)| quota.map_or(most, |q| q.min(most)));
        Self { cpus, milli_cpu }
    }
}

fn effective(hierarchy: &Hierarchy, path: &CgroupPath) -> Option<CpuSet> {
    let state = CpusetFiles::open(hierarchy, path).and_then(|files| files.read()).ok()?;
    // On v1 a child's list is always within its parent's: what was asked for holds, but for CPUs that went offline.
    let list = state.effective_cpus.or_else(|| (!hierarchy.is_unified()).then_some(state.cpus))?;
    list.parse().ok()
}

/// The smallest quota per period from the cgroup upwards, thousandths of a CPU; the inner `None`: there is no limit.
fn quota(hierarchy: &Hierarchy, path: &CgroupPath) -> Option<Option<u64>> {
    let mount = hierarchy.mount(Controller::Cpu).ok()?;
    let own = path.under(mount);
    let mut least = quota_of(&own, hierarchy.is_unified()).ok().flatten()?;
    for above in own.ancestors().skip(1).take_while(|above| above.starts_with(mount)) {
        let theirs = match quota_of(above, hierarchy.is_unified()) {
            Ok(theirs) => theirs?,
            // The root of a tree has no limit and no such file.
            Err(e) if e.is_gone() => None,
            Err(_) => return None,
        };
        least = least.into_iter().chain(theirs).min();
    }
    Some(least)
}

/// What one folder says; the outer `None`: nothing that can be understood.
fn quota_of(dir: &Path, unified: bool) -> Result<Option<Option<u64>>, Error> {
    let (quota_us, period_us) = if unified {
        match cpu_max(read_text(&dir.join("cpu.max"))?.as_bytes()) {
            Ok(max) => (max.quota_us, max.period_us),
            Err(_) => return Ok(None),
        }
    } else {
        let quota = cpu_quota(read_text(&dir.join("cpu.cfs_quota_us"))?.as_bytes());
        let period = read_text(&dir.join("cpu.cfs_period_us"))?.parse();
        match (quota, period) {
            (Ok(quota), Ok(period)) => (quota, period),
            _ => return Ok(None),
        }
    };
    Ok(match quota_us {
        None => Some(None),
        Some(quota) => quota.saturating_mul(1000).checked_div(period_us).map(Some),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Fixture, Layout};

    struct Machine {
        _dir: tempfile::TempDir,
        fixture: Fixture,
        hierarchy: Hierarchy,
        layout: Layout,
    }

    impl Machine {
        fn new(layout: Layout) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let fixture = Fixture::create(dir.path(), layout).unwrap();
            for path in ["kubepods", "kubepods/pod1", "kubepods/pod1/c"] {
                fixture.cgroup(&CgroupPath::new(path).unwrap()).unwrap();
            }
            let hierarchy = Hierarchy::detect(dir.path()).unwrap();
            let machine = Self { _dir: dir, fixture, hierarchy, layout };
            machine.effective("kubepods/pod1/c", "0-15");
            machine
        }

        fn set(&self, controller: Controller, path: &str, file: &str, text: &str) {
            self.fixture
                .set(controller, &CgroupPath::new(path).unwrap(), file, &format!("{text}\n"))
                .unwrap();
        }

        fn effective(&self, path: &str, cpus: &str) {
            let file = match self.layout {
                Layout::V1 => "cpuset.effective_cpus",
                Layout::V2 => "cpuset.cpus.effective",
            };
            self.set(Controller::Cpuset, path, file, cpus);
        }

        fn quota(&self, path: &str, quota_us: u64, period_us: u64) {
            match self.layout {
                Layout::V1 => {
                    self.set(Controller::Cpu, path, "cpu.cfs_quota_us", &quota_us.to_string());
                    self.set(Controller::Cpu, path, "cpu.cfs_period_us", &period_us.to_string());
                }
                Layout::V2 => self.set(Controller::Cpu, path, "cpu.max", &format!("{quota_us} {period_us}")),
            }
        }

        fn remove(&self, controller: Controller, file: &str) {
            let path = CgroupPath::new("kubepods/pod1/c").unwrap();
            std::fs::remove_file(self.fixture.dir(controller, &path).join(file)).unwrap();
        }

        fn told(&self) -> (Option<String>, Option<u64>) {
            let told = Attainable::read(&self.hierarchy, &CgroupPath::new("kubepods/pod1/c").unwrap());
            (told.cpus.map(|cpus| cpus.to_string()), told.milli_cpu)
        }
    }

    fn says(cpus: &str, milli_cpu: u64) -> (Option<String>, Option<u64>) {
        (Some(cpus.to_owned()), Some(milli_cpu))
    }

    #[test]
    fn c14_fewer_cpus_than_the_quota_bound_the_cpu_time() {
        for layout in [Layout::V1, Layout::V2] {
            let machine = Machine::new(layout);
            assert_eq!(machine.told(), says("0-15", 16_000), "no quota: {layout:?}");
            machine.quota("kubepods/pod1/c", 800_000, 100_000);
            assert_eq!(machine.told(), says("0-15", 8_000), "{layout:?}");
            machine.effective("kubepods/pod1/c", "4,9");
            assert_eq!(machine.told(), says("4,9", 2_000), "{layout:?}");
            machine.quota("kubepods/pod1/c", 25_000, 50_000);
            assert_eq!(machine.told(), says("4,9", 500), "{layout:?}");
            machine.quota("kubepods/pod1", 1_000, 300_000);
            assert_eq!(machine.told(), says("4,9", 3), "the pod's is smaller, rounded down: {layout:?}");
        }
    }

    #[test]
    fn c14_a_parent_narrower_than_its_child_counts_and_the_asked_list_does_not() {
        let machine = Machine::new(Layout::V2);
        machine.set(Controller::Cpuset, "kubepods/pod1/c", "cpuset.cpus", "0-7");
        machine.set(Controller::Cpuset, "kubepods/pod1", "cpuset.cpus", "6-9");
        machine.effective("kubepods/pod1/c", "6-7");
        assert_eq!(machine.told(), says("6-7", 2_000));
        machine.remove(Controller::Cpuset, "cpuset.cpus.effective");
        assert_eq!(machine.told(), (None, None), "what was asked for says nothing");
    }

    #[test]
    fn an_older_kernel_of_v1_tells_what_was_asked_for() {
        let machine = Machine::new(Layout::V1);
        machine.remove(Controller::Cpuset, "cpuset.effective_cpus");
        assert_eq!(machine.told(), (None, None), "an empty list is nothing that a process runs on");
        machine.set(Controller::Cpuset, "kubepods/pod1/c", "cpuset.cpus", "1-3");
        assert_eq!(machine.told(), says("1-3", 3_000));
    }

    #[test]
    fn what_cannot_be_read_is_absent_and_not_zero() {
        for (layout, file) in [(Layout::V1, "cpu.cfs_period_us"), (Layout::V2, "cpu.max")] {
            let machine = Machine::new(layout);
            machine.set(Controller::Cpu, "kubepods/pod1/c", file, "nonsense");
            machine.quota("kubepods/pod1", 100_000, 100_000);
            if layout == Layout::V1 {
                machine.set(Controller::Cpu, "kubepods/pod1/c", "cpu.cfs_quota_us", "5000");
            }
            assert_eq!(machine.told(), (Some("0-15".to_owned()), None), "{layout:?}");
            machine.remove(Controller::Cpu, file);
            assert_eq!(machine.told(), (Some("0-15".to_owned()), None), "{layout:?}");
            machine.effective("kubepods/pod1/c", "x");
            assert_eq!(machine.told(), (None, None), "{layout:?}");
        }
    }
}
