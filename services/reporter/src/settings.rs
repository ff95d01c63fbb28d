//! What an operator can set.

use std::path::PathBuf;
use std::time::Duration;

use oxalyst_settings::{Common, HasCommon};
use serde::{Deserialize, Serialize};

/// Settings of the reporter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// What every service has.
    pub common: Common,
    /// Name of the node in the cluster; absent: as the meta-server tells it.
    pub node_name: Option<String>,
    /// Kubeconfig of the API server to report to, read anew after a failure.
    pub kubeconfig: Option<PathBuf>,
    /// Reports to the API server of the cluster that this process runs in, as its service account. `kubeconfig` goes first.
    pub in_cluster: bool,
    /// Where the object is written as YAML if there is no API server; absent: `<run_dir>/kcnr.yaml`.
    pub file: Option<PathBuf>,
    /// Takes fields over that another field manager owns with other values, instead of reporting a conflict.
    pub force_ownership: bool,
    /// Least milliseconds between two publications, and between two rounds of questions to the peers: what changes meanwhile goes
    /// out together.
    pub spacing_ms: u64,
    /// Milliseconds between looks at the published object, in case somebody changed or deleted it.
    pub check_period_ms: u64,
    /// Milliseconds between looks at the machine and the allocator beyond those that their changes cause.
    pub refresh_period_ms: u64,
}

// === impl Settings ===

impl Default for Settings {
    fn default() -> Self {
        Self {
            common: Common::default(),
            node_name: None,
            kubeconfig: None,
            in_cluster: false,
            file: None,
            force_ownership: false,
            spacing_ms: 1_000,
            check_period_ms: 300_000,
            refresh_period_ms: 60_000,
        }
    }
}

impl HasCommon for Settings {
    fn common(&self) -> &Common {
        &self.common
    }
}

impl Settings {
    /// Least time between two publications.
    pub fn spacing(&self) -> Duration {
        Duration::from_millis(self.spacing_ms)
    }

    /// Time between looks at the published object, at least a second.
    pub fn check_period(&self) -> Duration {
        Duration::from_millis(self.check_period_ms.max(1_000))
    }

    /// Time between looks at the machine, at least a second.
    pub fn refresh_period(&self) -> Duration {
        Duration::from_millis(self.refresh_period_ms.max(1_000))
    }
}
