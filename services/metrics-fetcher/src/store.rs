//! The newest snapshot, immutable: a pass replaces it, readers take it without waiting.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;

use crate::catalogue::{self, Scope};
use crate::clock::Now;
use crate::sample::{Absent, Cell};

/// Who is measured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Id {
    /// The runtime's id; empty for the node.
    pub container_id: String,
    /// The pod's UID; empty for the node, and where it is not known.
    pub pod_uid: String,
    /// The cgroup, with a leading slash; empty for the node.
    pub cgroup: String,
}

/// One subject and what is known of it.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Who.
    pub id: Arc<Id>,
    /// In the order of [`catalogue::of`] its scope.
    pub cells: Box<[Cell]>,
    /// When it was found removed.
    pub removed: Option<Now>,
}

/// What came of the newest pass.
#[derive(Clone, Debug, Default)]
pub struct PassReport {
    /// Passes so far.
    pub number: u64,
    /// When it ended; `None` before the first.
    pub finished: Option<Now>,
    /// How long it took.
    pub took: Duration,
    /// Descriptors kept open.
    pub open_files: usize,
    /// Files that could not be read or understood.
    pub failed_files: usize,
    /// One of them, as an example.
    pub failure: Option<Arc<str>>,
    /// What ails the source as a whole; `None` while healthy.
    pub trouble: Option<Arc<str>>,
}

/// Everything that is known at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// One tree for all controllers (v2), or one each (v1 and hybrid); `None` before a tree was seen.
    pub unified: Option<bool>,
    /// The node.
    pub node: Arc<Subject>,
    /// Containers; removed ones for a while.
    pub containers: Vec<Arc<Subject>>,
    /// The pass it comes from.
    pub pass: PassReport,
}

/// Holds the newest snapshot.
#[derive(Debug, Default)]
pub struct Store {
    newest: ArcSwap<Snapshot>,
}

// === impl Subject ===

impl Subject {
    /// A subject of which nothing is known yet.
    pub fn unknown(scope: Scope, id: Id) -> Self {
        let cells = catalogue::of(scope).iter().map(|_| Cell::absent(Absent::NotYet)).collect();
        Self { id: Arc::new(id), cells, removed: None }
    }
}

// === impl Snapshot ===

impl Default for Snapshot {
    fn default() -> Self {
        let node = Arc::new(Subject::unknown(Scope::Node, Id::default()));
        Self { unified: None, node, containers: Vec::new(), pass: PassReport::default() }
    }
}

impl Snapshot {
    /// Name of the source of containers' samples.
    pub fn cgroup_source(&self) -> &'static str {
        if self.unified == Some(true) { "cgroup-v2" } else { "cgroup-v1" }
    }
}

// === impl Store ===

impl Store {
    /// The newest snapshot.
    pub fn load(&self) -> Arc<Snapshot> {
        self.newest.load_full()
    }

    /// Replaces it.
    pub fn publish(&self, snapshot: Snapshot) {
        self.newest.store(Arc::new(snapshot));
    }

    /// Says what ails the source, leaving everything else as it is.
    pub fn publish_trouble(&self, trouble: Arc<str>) {
        let mut snapshot = Snapshot::clone(&self.newest.load());
        snapshot.pass.trouble = Some(trouble);
        self.publish(snapshot);
    }
}
