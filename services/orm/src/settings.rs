//! What the allocator can be told.

use std::path::PathBuf;
use std::time::Duration;

use oxalyst_settings::{Common, HasCommon};
use serde::{Deserialize, Serialize};

/// Settings of the service `orm`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// What every service can be told.
    pub common: Common,
    /// Folder of the ledger. It belongs to this process alone.
    pub ledger_dir: PathBuf,
    /// CPUs kept for `system_cores`, in Linux list format: `0-1,8`. None by default.
    pub reserved_cpus: String,
    /// Seconds for which a pod may be absent from the runtime's list before its set is freed. 1 to 3600.
    pub absent_grace_s: u64,
    /// Seconds between looks at which CPUs are online and which pods have been absent for too long. 1 to 60.
    pub watch_period_s: u64,
    /// Folder of Katalyst's state files, which are taken over into a ledger that is new; `None`: nothing is taken over.
    pub import_katalyst_dir: Option<PathBuf>,
}

/// A setting out of its range.
#[derive(Debug, thiserror::Error)]
#[error("settings of orm: {key} is {given}: it must lie within {range}")]
pub struct OutOfRange {
    key: &'static str,
    given: u64,
    range: &'static str,
}

// === impl Settings ===

impl Default for Settings {
    fn default() -> Self {
        Self {
            common: Common::default(),
            ledger_dir: PathBuf::from("/var/lib/oxalyst/orm"),
            reserved_cpus: String::new(),
            absent_grace_s: 30,
            watch_period_s: 5,
            import_katalyst_dir: None,
        }
    }
}

impl HasCommon for Settings {
    fn common(&self) -> &Common {
        &self.common
    }
}

impl Settings {
    /// Checks the ranges.
    ///
    /// # Errors
    /// The first setting that is out of its range.
    pub fn check(&self) -> Result<(), OutOfRange> {
        let within = |key, given: u64, low, high, range| {
            if (low..=high).contains(&given) { Ok(()) } else { Err(OutOfRange { key, given, range }) }
        };
        within("absent_grace_s", self.absent_grace_s, 1, 3600, "1 to 3600")?;
        within("watch_period_s", self.watch_period_s, 1, 60, "1 to 60")
    }

    /// [`Settings::absent_grace_s`] as a duration.
    pub fn absent_grace(&self) -> Duration {
        Duration::from_secs(self.absent_grace_s)
    }

    /// [`Settings::watch_period_s`] as a duration.
    pub fn watch_period(&self) -> Duration {
        Duration::from_secs(self.watch_period_s)
    }
}
