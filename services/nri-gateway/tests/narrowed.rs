//! Somebody narrows a cgroup above a container, whose own file stays as it was: on imitated trees of every version.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod support;

use nri_gateway::settings::Mode;
use oxalyst_cgroups::fixture::{Fixture, Layout};
use oxalyst_cgroups::{CgroupPath, Controller};
use oxalyst_topology::CpuSet;
use support::bypass::{Plain, listed};
use support::until;

const CONTAINER: &str = "kubepods/podd/d1";

/// From the root to the container.
const CHAIN: [&str; 4] = ["", "kubepods", "kubepods/podd", CONTAINER];

/// Which tree: the third is v1 with a v2 tree for processes alone beside it.
const MACHINES: [(Layout, bool); 3] = [(Layout::V1, false), (Layout::V2, false), (Layout::V1, true)];

struct Machine {
    node: Plain,
    fixture: Fixture,
    layout: Layout,
}

impl Machine {
    /// A dedicated container that runs on its CPU.
    async fn settled((layout, hybrid): (Layout, bool), drift_limit: u32) -> Self {
        let mut node = Plain::new(Mode::Bypass);
        node.settings.drift_limit = drift_limit;
        let fixture = node.tree(layout, &[CONTAINER]);
        fixture.cgroup(&CgroupPath::default()).unwrap();
        if hybrid {
            let unified = fixture.root().join("unified");
            std::fs::create_dir_all(&unified).unwrap();
            std::fs::write(unified.join("cgroup.controllers"), "\n").unwrap();
        }
        let mut machine = Self { node, fixture, layout };
        machine.write("", "0-3");
        machine.holds();
        machine.node.meta.set(vec![listed("d", "dedicated_cores", "d1")]);
        machine.node.start();
        machine.node.runs_on(CONTAINER, "3").await;
        machine.holds();
        machine.unmarked().await;
        machine
    }

    fn write(&self, cgroup: &str, cpus: &str) {
        self.file(cgroup, "cpuset.cpus", cpus);
    }

    fn file(&self, cgroup: &str, file: &str, text: &str) {
        let path = CgroupPath::new(cgroup).unwrap();
        self.fixture.set(Controller::Cpuset, &path, file, &format!("{text}\n")).unwrap();
    }

    /// Does the kernel's work: what is asked for within what holds for the parent, or all of that.
    fn holds(&self) {
        let name = match self.layout {
            Layout::V1 => "cpuset.effective_cpus",
            Layout::V2 => "cpuset.cpus.effective",
        };
        let mut above: CpuSet = "0-3".parse().unwrap();
        for cgroup in CHAIN {
            let mut own: CpuSet = self.node.reads(cgroup, "cpuset.cpus").parse().unwrap();
            own &= &above;
            if !own.is_empty() {
                above = own;
            }
            self.file(cgroup, name, &above.to_string());
        }
    }

    async fn marks(&self) -> Option<Vec<String>> {
        Some(self.node.applied("d1").await?.marks)
    }

    async fn marked(&self, mark: &str) {
        until(mark, async || self.marks().await?.contains(&mark.to_owned()).then_some(())).await;
    }

    /// The container runs on its CPU and nothing is to be said of it.
    async fn unmarked(&self) {
        until("no mark", async || {
            self.holds();
            let d1 = self.node.applied("d1").await?;
            (d1.kernel_cpus.as_deref() == Some("3") && d1.marks.is_empty()).then_some(())
        })
        .await;
    }
}

#[actix::test]
async fn a_pod_that_somebody_narrows_is_drift_and_is_widened() {
    for machine in MACHINES {
        let mut machine = Machine::settled(machine, 1).await;
        machine.write("kubepods/podd", "0");
        machine.holds();
        // Once is enough here to be kept in mind: the mark stays when the pod is widened.
        machine.marked("contended").await;
        until("the pod is widened", async || {
            let pod: CpuSet = machine.node.reads("kubepods/podd", "cpuset.cpus").parse().unwrap();
            pod.contains(3).then_some(())
        })
        .await;
        assert_eq!(machine.node.reads(CONTAINER, "cpuset.cpus"), "3", "its own file was right all along");
        machine.unmarked().await;
        machine.node.stop_first().await;
    }
}

#[actix::test]
async fn what_is_narrowed_above_the_pods_is_told_and_not_fought() {
    for machine in MACHINES {
        let mut machine = Machine::settled(machine, 5).await;
        machine.write("", "0-2");
        machine.holds();
        machine.marked("drift").await;
        machine.marked("not-adjusted").await;
        machine.node.lacks("bypass", "cgroup/").await;
        machine.node.lacks("bypass", "cpuset.cpus").await;
        for (cgroup, cpus) in [("", "0-2"), (CONTAINER, "3")] {
            assert_eq!(machine.node.reads(cgroup, "cpuset.cpus"), cpus, "{cgroup:?} is not written");
        }
        machine.write("", "0-3");
        machine.unmarked().await;
        machine.node.stop_first().await;
    }
}

#[actix::test]
async fn a20_a_cpu_that_is_offline_is_told_and_is_no_drift() {
    for machine in MACHINES {
        let mut machine = Machine::settled(machine, 1).await;
        let online = machine.node.host_root().join("sys/devices/system/cpu/online");
        std::fs::create_dir_all(online.parent().unwrap()).unwrap();
        std::fs::write(&online, "0-2\n").unwrap();
        let effective = match machine.layout {
            Layout::V1 => "cpuset.effective_cpus",
            Layout::V2 => "cpuset.cpus.effective",
        };
        // From the container upwards: until all are written, they do not fit together and say nothing.
        for cgroup in CHAIN.iter().rev() {
            machine.file(cgroup, effective, "0-2");
        }
        machine.marked("not-adjusted").await;
        assert_eq!(machine.marks().await.unwrap(), ["not-adjusted"], "nobody wrote anything");
        std::fs::write(&online, "0-3\n").unwrap();
        machine.unmarked().await;
        machine.node.stop_first().await;
    }
}
