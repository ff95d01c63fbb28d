//! By which way what runs is changed outside of any call of the runtime: pure.
//!
//! containerd before 2.4 takes two locks in one order where a plugin calls UpdateContainers, and in the other where it tells plugins
//! of a pod or a container. Where both happen at once, neither ends: no pod starts or stops any more until containerd is
//! restarted (containerd/containerd#13733). Nobody outside can know when it is safe, so it is not called at all.

use crate::version;

/// The way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Updates {
    /// UpdateContainers of the runtime, and the kernel's files where that does not help.
    #[default]
    Runtime,
    /// The kernel's files alone. The runtime's own notes follow with its next update of the container, which the gateway answers.
    Files,
}

/// The first version of containerd that may be called at any time.
const MENDED: (u64, u64, u64) = (2, 4, 0);

// === impl Updates ===

impl Updates {
    /// For a runtime of this name and version, as it tells them when it configures a plugin. A containerd whose version cannot be
    /// read may be one that stalls.
    pub fn of(runtime: &str, version: &str) -> Self {
        let stalls = || version::triple(version).is_none_or(|version| version < MENDED);
        if runtime == "containerd" && stalls() { Self::Files } else { Self::Runtime }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_containerd_that_may_stall_is_not_called() {
        for version in ["1.7.24~ds1", "v2.1.9", "2.3.3", "v2.2.0-rc.1", "8fbc3d1", ""] {
            assert_eq!(Updates::of("containerd", version), Updates::Files, "{version}");
        }
        for version in ["v2.4.0", "2.4.1+unknown", "3.0"] {
            assert_eq!(Updates::of("containerd", version), Updates::Runtime, "{version}");
        }
        assert_eq!(Updates::of("cri-o", "1.34.0"), Updates::Runtime);
    }
}
