//! In which call a pod is refused: pure.
//!
//! containerd 2.0 to 2.2.5 keeps a record of a sandbox that a plugin refused, and its pause process. A second one of the same
//! pod makes a second record of the same name, over which its next start fails.

use serde::{Deserialize, Serialize};

use crate::version;

/// What an operator wants.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RefuseAt {
    /// At the sandbox, but for runtimes that are harmed by it.
    #[default]
    Auto,
    /// At the sandbox in any case.
    Sandbox,
    /// At each container in any case.
    Container,
}

/// The call in which a pod is refused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Stage {
    /// RunPodSandbox.
    #[default]
    Sandbox,
    /// CreateContainer; the sandbox runs meanwhile.
    Container,
}

/// The first version of containerd that is harmed, and the first that is not any more.
const HARMED: [(u64, u64, u64); 2] = [(2, 0, 0), (2, 2, 6)];

// === impl RefuseAt ===

impl RefuseAt {
    /// For a runtime of this name and version, as it tells them when it configures a plugin.
    pub fn stage(self, runtime: &str, version: &str) -> Stage {
        match self {
            Self::Sandbox => Stage::Sandbox,
            Self::Container => Stage::Container,
            Self::Auto if runtime == "containerd" && is_harmed(version) => Stage::Container,
            Self::Auto => Stage::Sandbox,
        }
    }
}

/// A containerd whose version cannot be read may be a harmed one.
fn is_harmed(version: &str) -> bool {
    let [first, mended] = HARMED;
    version::triple(version).is_none_or(|version| (first..mended).contains(&version))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_harmed_versions_of_containerd_get_the_sandbox() {
        let stage = |version| RefuseAt::Auto.stage("containerd", version);
        for version in ["v2.0.0", "2.1.9", "v2.2.5", "2.2.0-rc.1", "v2.1.4+unknown", "2.0", "8fbc3d1", ""] {
            assert_eq!(stage(version), Stage::Container, "{version}");
        }
        for version in ["v1.7.28", "1.6", "v2.2.6", "2.2.10", "v2.3.0-beta.0", "3.0.0"] {
            assert_eq!(stage(version), Stage::Sandbox, "{version}");
        }
        assert_eq!(RefuseAt::Auto.stage("cri-o", "2.1.0"), Stage::Sandbox);
    }

    #[test]
    fn the_operators_word_counts_for_every_runtime() {
        assert_eq!(RefuseAt::Sandbox.stage("containerd", "v2.1.9"), Stage::Sandbox);
        assert_eq!(RefuseAt::Container.stage("cri-o", "1.30"), Stage::Container);
    }
}
