//! What a containerd has outside of its folder, remembered in it.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;

use super::leftovers;
use crate::process::{end_stranger, send, with_argument};

/// What a containerd has outside of its folder. Also kept in the folder, for whoever removes it after its owner's death.
#[derive(Debug, Default)]
pub(crate) struct Outside {
    /// Cgroup folders of pods and containers, below each hierarchy's root.
    cgroups: BTreeSet<PathBuf>,
    /// Folders that were not there before.
    created: Vec<PathBuf>,
}

const CGROUPS: &str = "cgroups.list";
const CREATED: &str = "created.list";

/// Ends and removes the containerd in `folder` that has no owner any more. Nothing where there is none.
pub fn clear(folder: &Path) {
    if !folder.join("config.toml").exists() {
        return;
    }
    for pid in with_argument(folder.join("config.toml").as_os_str()) {
        end_stranger(pid, Signal::KILL, Duration::from_secs(10));
    }
    // What is left is found by the next run.
    let _ = Outside::read(folder).sweep(folder);
}

// === impl Outside ===

impl Outside {
    pub(crate) fn new(folder: &Path) -> std::io::Result<Self> {
        let created = leftovers::absent_folders();
        let lines: Vec<String> = created.iter().map(|path| format!("{}\n", path.display())).collect();
        std::fs::write(folder.join(CREATED), lines.concat())?;
        Ok(Self { cgroups: BTreeSet::new(), created })
    }

    fn read(folder: &Path) -> Self {
        let lines = |name: &str| -> Vec<PathBuf> {
            let text = std::fs::read_to_string(folder.join(name)).unwrap_or_default();
            text.lines().map(PathBuf::from).collect()
        };
        Self { cgroups: lines(CGROUPS).into_iter().collect(), created: lines(CREATED) }
    }

    pub(crate) fn add(&mut self, folder: &Path, cgroups: impl IntoIterator<Item = PathBuf>) {
        for cgroup in cgroups {
            let line = format!("{}\n", cgroup.display());
            if self.cgroups.insert(cgroup) {
                let file = std::fs::File::options().create(true).append(true).open(folder.join(CGROUPS));
                // Needed only after a violent death.
                let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
            }
        }
    }

    /// Ends and removes by force what a regular removal has left; nothing, normally. Returns what is still there.
    pub(crate) fn sweep(&mut self, folder: &Path) -> Vec<String> {
        self.add(folder, leftovers::container_cgroups(folder));
        for pid in leftovers::processes(&self.cgroups) {
            end_stranger(pid, Signal::KILL, Duration::from_secs(5));
        }
        let socket = folder.join("containerd.sock");
        // A shim ends by itself once its containers are gone; one that does not is told to.
        for pid in with_argument(socket.as_os_str()) {
            if !end_stranger(pid, Signal::TERM, Duration::from_secs(2)) {
                send(pid, Signal::KILL);
            }
        }
        leftovers::unmount_below(folder);
        leftovers::remove_runc_state(folder);
        leftovers::remove_cgroups(&self.cgroups);
        let pods = leftovers::pod_folders(&self.cgroups);
        leftovers::remove_empty(&pods);
        leftovers::remove_empty(&self.created);
        let mut left = leftovers::found(folder, &self.cgroups);
        left.extend(pods.iter().filter(|pod| pod.exists()).map(|pod| format!("cgroup {}", pod.display())));
        left.extend(with_argument(socket.as_os_str()).iter().map(|pid| format!("shim {pid}")));
        left
    }
}
