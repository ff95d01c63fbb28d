//! What of an allocation can be put into effect, where, and by which way: one table, pure.
//!
//! The path through NRI and the path past it are both driven by [`TABLE`], so that they cannot disagree. What it does not serve
//! is reported, never dropped.

mod files;
mod nri;
mod placed;
mod wish;

pub use files::{FileWrite, Target, Writes, writes};
pub use nri::{adjustment, update};
use oxalyst_cgroups::Controller;
pub use placed::others;
pub use wish::{Unusable, Value, Wish};

/// A part of an allocation, named as the allocation names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Property {
    CpusetCpus,
    CpusetMems,
    CpuShares,
    CpuQuota,
    CpuPeriod,
    CpuBurst,
    CpuIdle,
    MemoryLimit,
    MemoryMin,
    MemoryLow,
    MemoryHigh,
    MemorySwap,
    Hugepages,
    Pids,
    Unified,
    OomScoreAdj,
    Env,
    Annotations,
}

/// What its value looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Linux list format.
    List,
    /// A whole number within these bounds; "max" or -1 where `unlimited`.
    Number {
        /// Least.
        min: i64,
        /// Most.
        max: i64,
        /// Whether there may be no limit.
        unlimited: bool,
    },
    /// Named numbers: `HugepageLimits/2MB`.
    Numbers,
    /// Named texts: `Env/NAME`.
    Texts,
}

/// Where NRI has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Field {
    CpuCpus,
    CpuMems,
    CpuShares,
    CpuQuota,
    CpuPeriod,
    MemoryLimit,
    MemoryReservation,
    MemorySwap,
    HugepageLimits,
    PidsLimit,
    /// An entry of `unified`, which only cgroup v2 has.
    UnifiedKey(&'static str),
    /// All of `unified`.
    Unified,
    OomScoreAdj,
    Env,
    Annotations,
}

/// A file of the kernel. `*` in its name stands for the name of the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knob {
    /// In the container's cgroup.
    Cgroup(Controller, &'static str),
    /// Of each of its processes, in `/proc/PID`.
    Process(&'static str),
}

/// How something is put into effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The runtime is told, and the kernel's file read afterwards.
    Told,
    /// The kernel's file is written directly, once there is a cgroup.
    Written,
    /// Impossible here: it is reported.
    Nowhere,
}

/// When, and by which path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// In the answer to CreateContainer.
    Create,
    /// In an update of a container that exists.
    Update,
    /// Past the runtime.
    Bypass,
}

/// Whose ways differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Runtime {
    /// Also stands for one that is not known: it takes the least.
    #[default]
    Containerd,
    /// CRI-O.
    Crio,
}

/// To whom one speaks, and about what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dialect {
    /// The runtime.
    pub runtime: Runtime,
    /// Whether the kernel's tree is v2. Where nobody knows yet, it is taken for v1: what is not told then is written.
    pub unified: bool,
}

/// The ways of the two runtimes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ways {
    /// Of containerd.
    pub containerd: Way,
    /// Of CRI-O.
    pub crio: Way,
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// What.
    pub property: Property,
    /// Its name in an allocation (`oci_property_name`).
    pub name: &'static str,
    /// Its value.
    pub shape: Shape,
    /// Where NRI has it.
    pub field: Field,
    /// Its file on cgroup v1 (and hybrid).
    pub v1: Option<Knob>,
    /// Its file on cgroup v2.
    pub v2: Option<Knob>,
    /// When a container is created.
    pub create: Ways,
    /// When it exists.
    pub update: Ways,
}

const TOLD: Ways = Ways { containerd: Way::Told, crio: Way::Told };
/// containerd answers success and does nothing (at creation 1.7 alone; 2.x would).
const CRIO_ONLY: Ways = Ways { containerd: Way::Written, crio: Way::Told };
/// Of an answer to CreateContainer, NRI's own library hands on neither reservation nor swap to any runtime.
const WRITTEN: Ways = Ways { containerd: Way::Written, crio: Way::Written };
const NOWHERE: Ways = Ways { containerd: Way::Nowhere, crio: Way::Nowhere };
const BYTES: Shape = Shape::Number { min: 0, max: i64::MAX, unlimited: true };

const fn cpu(file: &'static str) -> Option<Knob> {
    Some(Knob::Cgroup(Controller::Cpu, file))
}

const fn memory(file: &'static str) -> Option<Knob> {
    Some(Knob::Cgroup(Controller::Memory, file))
}

const fn number(min: i64, max: i64, unlimited: bool) -> Shape {
    Shape::Number { min, max, unlimited }
}

/// Everything that can be put into effect.
pub const TABLE: [Row; 18] = [
    Row {
        property: Property::CpusetCpus,
        name: "CpusetCpus",
        shape: Shape::List,
        field: Field::CpuCpus,
        v1: Some(Knob::Cgroup(Controller::Cpuset, "cpuset.cpus")),
        v2: Some(Knob::Cgroup(Controller::Cpuset, "cpuset.cpus")),
        create: TOLD,
        update: TOLD,
    },
    Row {
        property: Property::CpusetMems,
        name: "CpusetMems",
        shape: Shape::List,
        field: Field::CpuMems,
        v1: Some(Knob::Cgroup(Controller::Cpuset, "cpuset.mems")),
        v2: Some(Knob::Cgroup(Controller::Cpuset, "cpuset.mems")),
        create: TOLD,
        update: TOLD,
    },
    Row {
        property: Property::CpuShares,
        name: "CpuShares",
        shape: number(2, 262_144, false),
        field: Field::CpuShares,
        v1: cpu("cpu.shares"),
        v2: cpu("cpu.weight"),
        create: TOLD,
        update: TOLD,
    },
    Row {
        property: Property::CpuQuota,
        name: "CpuQuota",
        shape: number(1, i64::MAX, true),
        field: Field::CpuQuota,
        v1: cpu("cpu.cfs_quota_us"),
        v2: cpu("cpu.max"),
        create: TOLD,
        update: TOLD,
    },
    Row {
        property: Property::CpuPeriod,
        name: "CpuPeriod",
        shape: number(1_000, 1_000_000, false),
        field: Field::CpuPeriod,
        v1: cpu("cpu.cfs_period_us"),
        v2: cpu("cpu.max"),
        create: TOLD,
        update: TOLD,
    },
    Row {
        property: Property::CpuBurst,
        name: "CpuBurst",
        shape: number(0, i64::MAX, false),
        field: Field::UnifiedKey("cpu.max.burst"),
        v1: cpu("cpu.cfs_burst_us"),
        v2: cpu("cpu.max.burst"),
        create: TOLD,
        update: TOLD,
    },
    Row {
        property: Property::CpuIdle,
        name: "CpuIdle",
        shape: number(0, 1, false),
        field: Field::UnifiedKey("cpu.idle"),
        v1: cpu("cpu.idle"),
        v2: cpu("cpu.idle"),
        create: TOLD,
        update: CRIO_ONLY,
    },
    Row {
        property: Property::MemoryLimit,
        name: "MemoryLimitInBytes",
        shape: BYTES,
        field: Field::MemoryLimit,
        v1: memory("memory.limit_in_bytes"),
        v2: memory("memory.max"),
        create: TOLD,
        update: TOLD,
    },
    Row {
        property: Property::MemoryMin,
        name: "MemoryMinInBytes",
        shape: BYTES,
        field: Field::UnifiedKey("memory.min"),
        v1: None,
        v2: memory("memory.min"),
        create: TOLD,
        update: TOLD,
    },
    Row {
        property: Property::MemoryLow,
        name: "MemoryLowInBytes",
        shape: BYTES,
        field: Field::MemoryReservation,
        v1: memory("memory.soft_limit_in_bytes"),
        v2: memory("memory.low"),
        create: WRITTEN,
        update: CRIO_ONLY,
    },
    Row {
        property: Property::MemoryHigh,
        name: "MemoryHighInBytes",
        shape: BYTES,
        field: Field::UnifiedKey("memory.high"),
        v1: None,
        v2: memory("memory.high"),
        create: TOLD,
        update: TOLD,
    },
    Row {
        property: Property::MemorySwap,
        name: "MemorySwapLimitInBytes",
        shape: BYTES,
        field: Field::MemorySwap,
        v1: memory("memory.memsw.limit_in_bytes"),
        v2: memory("memory.swap.max"),
        create: WRITTEN,
        update: CRIO_ONLY,
    },
    // containerd's `disable_hugetlb_controller`, true by default, drops them from creations and updates without a word.
    Row {
        property: Property::Hugepages,
        name: "HugepageLimits",
        shape: Shape::Numbers,
        field: Field::HugepageLimits,
        v1: Some(Knob::Cgroup(Controller::Hugetlb, "hugetlb.*.limit_in_bytes")),
        v2: Some(Knob::Cgroup(Controller::Hugetlb, "hugetlb.*.max")),
        create: CRIO_ONLY,
        update: CRIO_ONLY,
    },
    Row {
        property: Property::Pids,
        name: "PidsLimit",
        shape: number(1, i64::MAX, true),
        field: Field::PidsLimit,
        v1: Some(Knob::Cgroup(Controller::Pids, "pids.max")),
        v2: Some(Knob::Cgroup(Controller::Pids, "pids.max")),
        create: CRIO_ONLY,
        update: CRIO_ONLY,
    },
    Row {
        property: Property::Unified,
        name: "Unified",
        shape: Shape::Texts,
        field: Field::Unified,
        v1: None,
        v2: Some(Knob::Cgroup(Controller::Cpu, "*")),
        create: TOLD,
        update: TOLD,
    },
    Row {
        property: Property::OomScoreAdj,
        name: "OomScoreAdj",
        shape: number(-1_000, 1_000, false),
        field: Field::OomScoreAdj,
        v1: Some(Knob::Process("oom_score_adj")),
        v2: Some(Knob::Process("oom_score_adj")),
        create: CRIO_ONLY,
        update: WRITTEN,
    },
    Row {
        property: Property::Env,
        name: "Env",
        shape: Shape::Texts,
        field: Field::Env,
        v1: None,
        v2: None,
        create: TOLD,
        update: NOWHERE,
    },
    Row {
        property: Property::Annotations,
        name: "Annotations",
        shape: Shape::Texts,
        field: Field::Annotations,
        v1: None,
        v2: None,
        create: TOLD,
        update: NOWHERE,
    },
];

// === impl Row ===

impl Row {
    /// The row of a property.
    pub fn of(property: Property) -> Option<&'static Self> {
        TABLE.iter().find(|row| row.property == property)
    }

    /// The row of a name in an allocation.
    pub fn named(name: &str) -> Option<&'static Self> {
        TABLE.iter().find(|row| row.name == name)
    }

    /// The kernel's file.
    pub fn knob(&self, unified: bool) -> Option<Knob> {
        if unified { self.v2 } else { self.v1 }
    }

    /// How it is put into effect.
    pub fn way(&self, moment: Moment, runtime: Runtime, unified: bool) -> Way {
        let ways = match moment {
            Moment::Create => self.create,
            Moment::Update => self.update,
            Moment::Bypass => WRITTEN,
        };
        let way = match runtime {
            Runtime::Containerd => ways.containerd,
            Runtime::Crio => ways.crio,
        };
        // runc refuses a container that names `unified` on v1.
        let of_v2 = matches!(self.field, Field::Unified | Field::UnifiedKey(_));
        match way {
            Way::Told if !of_v2 || unified => Way::Told,
            Way::Told | Way::Written if self.knob(unified).is_some() => Way::Written,
            _ => Way::Nowhere,
        }
    }
}

// === impl Runtime ===

impl Runtime {
    /// By the name that it tells in Configure.
    pub fn named(name: &str) -> Self {
        if name.eq_ignore_ascii_case("cri-o") || name.eq_ignore_ascii_case("crio") {
            Self::Crio
        } else {
            Self::Containerd
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_property_has_one_row_and_every_name_one_property() {
        for (n, row) in TABLE.iter().enumerate() {
            assert!(std::ptr::eq(Row::of(row.property).unwrap(), row) || TABLE[n].name == row.name);
            assert_eq!(TABLE.iter().filter(|r| r.property == row.property || r.name == row.name).count(), 1);
        }
        assert!(Row::named("Rubbish").is_none());
    }

    #[test]
    fn unified_is_never_told_on_v1_and_nothing_is_written_that_has_no_file() {
        for row in &TABLE {
            for (moment, runtime) in [
                (Moment::Create, Runtime::Containerd),
                (Moment::Update, Runtime::Containerd),
                (Moment::Update, Runtime::Crio),
                (Moment::Bypass, Runtime::Containerd),
            ] {
                for unified in [true, false] {
                    let way = row.way(moment, runtime, unified);
                    if way == Way::Written {
                        assert!(row.knob(unified).is_some(), "{row:?}");
                    }
                    if moment == Moment::Bypass {
                        assert_ne!(way, Way::Told, "{row:?}");
                    }
                    if matches!(row.field, Field::Unified | Field::UnifiedKey(_)) && !unified {
                        assert_ne!(way, Way::Told, "{row:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_containerd_drops_from_updates_is_written() {
        for property in [Property::MemoryLow, Property::MemorySwap, Property::Pids, Property::OomScoreAdj] {
            let row = Row::of(property).unwrap();
            assert_eq!(row.way(Moment::Update, Runtime::Containerd, true), Way::Written, "{property:?}");
            assert_eq!(row.way(Moment::Create, Runtime::Containerd, true), Way::Written, "{property:?}");
        }
        assert_eq!(Runtime::named("cri-o"), Runtime::Crio);
        assert_eq!(Runtime::named("another"), Runtime::Containerd);
    }
}
