//! What is not as it was decided, container by container.

use super::{Phase, Roster};

/// A container with its marks, none where all is as it should be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trouble {
    /// "namespace/pod/container", or its id where those are not known.
    pub container: String,
    /// Its marks.
    pub marks: Vec<String>,
    /// What of its placement cannot be put into effect, and why.
    pub reports: Vec<String>,
    /// Why its last resize was refused after the runtime had made it; empty: it was not.
    pub resize: String,
}

// === impl Roster ===

impl Roster {
    /// Every container that has not ended.
    pub(super) fn troubles(&self) -> Vec<Trouble> {
        let listed = self.listing().into_iter().map(|(told, _)| told);
        let known = listed.filter_map(|told| Some((self.containers.get(&told.container_id)?, told)));
        let live = known.filter(|(entry, _)| entry.phase != Phase::Stopped);
        live.map(|(entry, told)| {
            let named = !told.pod.is_empty() && !told.name.is_empty();
            let name = || format!("{}/{}/{}", told.namespace, told.pod, told.name);
            Trouble {
                container: if named { name() } else { told.container_id.clone() },
                marks: told.marks.clone(),
                reports: entry.reports.clone(),
                resize: entry.resize_refused.clone().unwrap_or_default(),
            }
        })
        .collect()
    }
}
