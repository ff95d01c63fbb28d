//! What the gateway can be told.

use std::path::PathBuf;
use std::time::Duration;

use oxalyst_settings::{Common, HasCommon};
use serde::{Deserialize, Serialize};

use crate::refuse_at::RefuseAt;

/// Bytes of a socket's path (`sun_path` of unix(7)).
const LONGEST_SOCKET: usize = 107;

/// Every key, with its default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// What every service has.
    pub common: Common,
    /// The runtime's NRI socket, a path of this process (not below `common.host_root`).
    pub nri_socket: PathBuf,
    /// Name under which the plugin registers.
    pub plugin_name: String,
    /// Two digits; plugins are called in ascending order. High by default: see `docs/nri.md`.
    pub plugin_index: String,
    /// How long a hook of the runtime may wait for the orm, milliseconds, 10 to 1,500 (the runtime gives up at 2,000).
    pub hook_deadline_ms: u64,
    /// What a hook answers when the orm does not in time.
    pub on_deadline: OnDeadline,
    /// In which call a pod is refused.
    pub refuse_at: RefuseAt,
    /// Between two comparisons of everything that runs with what was decided, milliseconds, at least 100.
    pub reconcile_period_ms: u64,
    /// How decisions are applied.
    pub mode: Mode,
    /// In mode `auto`: how long there may be no session before bypass mode begins, milliseconds, 100 to 3,600,000.
    pub bypass_after_ms: u64,
    /// In bypass mode: between two looks at the tree of cgroups, milliseconds, 50 to 60,000.
    pub bypass_scan_ms: u64,
    /// Reclaimed containers get `cpu.idle`: whoever else wants the CPU has it first.
    pub idle_reclaimed: bool,
    /// Changes of a container's cpuset by somebody else after which it is mended once a reconcile period, 1 to 1,000.
    pub drift_limit: u32,
}

/// How decisions are applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Through the container runtime alone.
    Nri,
    /// To the kernel's files alone; pods are known from the meta-server and the tree of cgroups.
    Bypass,
    /// Through the runtime, and past it as long as that does not answer.
    #[default]
    Auto,
}

/// What a hook answers when the orm does not in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnDeadline {
    /// Lets it start: on the last known share pool, or unpinned; marked, and mended as soon as the orm is heard.
    Open,
    /// Refuses it, but for the mesh's own pods, static pods and `system_cores`.
    Closed,
}

/// A value out of its range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// The index is no index.
    #[error("plugin_index is {0:?}, it must be two digits such as \"90\"")]
    Index(String),
    /// The name is no name.
    #[error("plugin_name is empty: give the plugin a name")]
    Name,
    /// The socket cannot be one.
    #[error("nri_socket is {given:?}, which {why}: give the runtime's socket, such as /var/run/nri/nri.sock")]
    Socket {
        /// As given.
        given: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Never, or practically so.
    #[error("drift_limit is {0}, it must lie between 1 and 1000")]
    DriftLimit(u32),
    /// Too short or too long.
    #[error("{key} is {given} ms, it must lie between {min} and {max}")]
    Millis {
        /// The key.
        key: &'static str,
        /// As given.
        given: u64,
        /// Least.
        min: u64,
        /// Most.
        max: u64,
    },
}

// === impl Settings ===

impl Default for Settings {
    fn default() -> Self {
        Self {
            common: Common::default(),
            nri_socket: PathBuf::from("/var/run/nri/nri.sock"),
            plugin_name: "oxalyst".to_owned(),
            plugin_index: "90".to_owned(),
            hook_deadline_ms: 300,
            on_deadline: OnDeadline::Open,
            refuse_at: RefuseAt::Auto,
            reconcile_period_ms: 5_000,
            mode: Mode::default(),
            bypass_after_ms: 10_000,
            bypass_scan_ms: 1_000,
            idle_reclaimed: false,
            drift_limit: 5,
        }
    }
}

impl HasCommon for Settings {
    fn common(&self) -> &Common {
        &self.common
    }
}

impl Settings {
    /// Checks ranges, and where `nri_socket` is one that it can be: another file in its place may be replaced by the runtime's socket
    /// yet, a folder is none.
    ///
    /// # Errors
    /// The first value that is out of its range.
    pub fn check(&self) -> Result<(), SettingsError> {
        let index = self.plugin_index.as_bytes();
        if index.len() != 2 || !index.iter().all(u8::is_ascii_digit) {
            return Err(SettingsError::Index(self.plugin_index.clone()));
        }
        if self.plugin_name.is_empty() {
            return Err(SettingsError::Name);
        }
        let given = &self.nri_socket;
        let socket = |why| Err(SettingsError::Socket { given: given.clone(), why });
        if !given.is_absolute() {
            return socket("is not absolute");
        }
        if given.file_name().is_none() || given.as_os_str().as_encoded_bytes().ends_with(b"/") {
            return socket("names no file");
        }
        if given.is_dir() {
            return socket("is a folder");
        }
        if given.as_os_str().len() > LONGEST_SOCKET {
            return socket("is longer than a socket's path can be");
        }
        let range = |key, given, min, max| match (min..=max).contains(&given) {
            true => Ok(()),
            false => Err(SettingsError::Millis { key, given, min, max }),
        };
        range("hook_deadline_ms", self.hook_deadline_ms, 10, 1_500)?;
        range("reconcile_period_ms", self.reconcile_period_ms, 100, 3_600_000)?;
        range("bypass_after_ms", self.bypass_after_ms, 100, 3_600_000)?;
        range("bypass_scan_ms", self.bypass_scan_ms, 50, 60_000)?;
        match self.drift_limit {
            1..=1_000 => Ok(()),
            given => Err(SettingsError::DriftLimit(given)),
        }
    }

    /// How long a hook may wait for the orm.
    pub fn hook_deadline(&self) -> Duration {
        Duration::from_millis(self.hook_deadline_ms)
    }

    /// Between two comparisons of everything.
    pub fn reconcile_period(&self) -> Duration {
        Duration::from_millis(self.reconcile_period_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_within_their_ranges() {
        assert_eq!(Settings::default().check(), Ok(()));
    }

    #[test]
    fn a_socket_that_cannot_be_one_is_named_at_the_start() {
        let folder = tempfile::tempdir().unwrap();
        let long = format!("/{}", "x".repeat(LONGEST_SOCKET));
        for (given, why) in [
            ("nri.sock", "not absolute"),
            ("", "not absolute"),
            ("/", "names no file"),
            ("/run/nri/", "names no file"),
            (folder.path().to_str().unwrap(), "is a folder"),
            (long.as_str(), "longer"),
        ] {
            let settings = Settings { nri_socket: given.into(), ..Settings::default() };
            let error = settings.check().unwrap_err().to_string();
            assert!(error.contains("nri_socket") && error.contains(why), "{given}: {error}");
        }
    }

    #[test]
    fn what_is_out_of_range_is_named() {
        let index = Settings { plugin_index: "9".into(), ..Settings::default() };
        assert!(index.check().unwrap_err().to_string().contains("plugin_index"));
        let slow = Settings { hook_deadline_ms: 2_000, ..Settings::default() };
        assert!(slow.check().unwrap_err().to_string().contains("hook_deadline_ms is 2000 ms"));
    }
}
