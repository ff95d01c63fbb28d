//! In which form the kernel tells of cgroups: by controller on a hybrid.

use oxalyst_cgroups::{CgroupPath, Controller, Hierarchy, Version};
use std::path::PathBuf;

use crate::catalogue::{Metric, Origin};
use crate::contents::File;

/// Which files there are, and in which tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trees {
    /// One tree for each controller.
    #[default]
    V1,
    /// One tree for all.
    V2,
    /// Trees as on v1, and a v2 tree with pressure and with the marked controllers.
    Hybrid([bool; Controller::ALL.len()]),
}

// === impl Trees ===

impl Trees {
    /// Those of a machine.
    pub fn of(hierarchy: &Hierarchy) -> Self {
        match hierarchy.version() {
            Version::V1 => Self::V1,
            Version::V2 => Self::V2,
            Version::Hybrid => Self::Hybrid(Controller::ALL.map(|c| hierarchy.has_moved(c))),
        }
    }

    /// Whether it is a hybrid.
    pub const fn is_hybrid(self) -> bool {
        matches!(self, Self::Hybrid(_))
    }

    /// Whether there is no other tree than one.
    pub const fn is_unified(self) -> bool {
        matches!(self, Self::V2)
    }

    /// Whether a file is that of a v2 tree.
    pub fn is_v2(self, file: File) -> bool {
        match self {
            Self::V1 => false,
            Self::V2 => true,
            // The kernel shows pressure of each cgroup of a v2 tree, whatever controllers it has.
            Self::Hybrid(_)
                if matches!(file, File::CpuPressure | File::MemoryPressure | File::IoPressure) =>
            {
                true
            }
            Self::Hybrid(moved) => {
                let controller = file.of_container(false).or_else(|| file.of_container(true));
                controller.is_some_and(|(c, _)| moved.get(c as usize).copied().unwrap_or(false))
            }
        }
    }

    /// Where a metric comes from.
    pub fn origin(self, metric: &Metric) -> Origin {
        let there = |origin| matches!(origin, Origin::From(file) if self.is_v2(file));
        match self {
            Self::V1 => metric.v1,
            Self::V2 => metric.v2,
            Self::Hybrid(_) if there(metric.v2) || there(metric.v1) => metric.v2,
            Self::Hybrid(_) => metric.v1,
        }
    }

    /// Where a file of a cgroup lies; `None` if there is none such here.
    pub fn file(self, hierarchy: &Hierarchy, cgroup: &CgroupPath, file: File) -> Option<PathBuf> {
        let v2 = self.is_v2(file);
        let (controller, name) = file.of_container(v2)?;
        let tree = match hierarchy.mount(controller) {
            _ if v2 && self.is_hybrid() => hierarchy.unified_mount(),
            Ok(mount) => mount.to_path_buf(),
            // A path that does not exist, and so an error that names it.
            Err(_) => hierarchy.root().join(controller.name()),
        };
        Some(cgroup.under(&tree).join(name))
    }
}
