//! The newest snapshot, immutable: a pass replaces it, readers take it without waiting.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::sync::watch;

use crate::catalogue::Scope;
use crate::cells::{Cells, Layout};
use crate::clock::Now;
use crate::history::Histories;
use crate::pushed::Pushed;
use crate::sample::Ages;

/// Which part of a machine or of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Instance {
    /// The whole.
    #[default]
    Whole,
    /// A CPU or a NUMA node.
    Number(u32),
    /// A device, an interface, a volume.
    Name(Box<str>),
}

/// Who is measured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Id {
    /// The runtime's id; empty for all but containers.
    pub container_id: String,
    /// The pod's UID; empty where there is none, and where it is not known.
    pub pod_uid: String,
    /// The cgroup, with a leading slash; empty where there is none.
    pub cgroup: String,
    /// Which part.
    pub instance: Instance,
}

/// What tells subjects apart, whatever source knows them.
pub type Key<'a> = (Scope, &'a str, &'a Instance);

/// One subject and what is known of it.
#[derive(Clone, Debug)]
pub struct Subject {
    /// What it is.
    pub scope: Scope,
    /// Who.
    pub id: Arc<Id>,
    /// By place in the catalogue.
    pub cells: Cells,
    /// When it was found removed.
    pub removed: Option<Now>,
    /// When it was read last.
    pub read: Option<Now>,
    /// The pass of its source that read it.
    pub cycle: u64,
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
    /// CPU time that it took, where that is known.
    pub cpu: Option<Duration>,
    /// Descriptors kept open.
    pub open_files: usize,
    /// Files that could not be read or understood.
    pub failed_files: usize,
    /// One of them, as an example; of a pass over cgroups one of theirs.
    pub failure: Option<Arc<str>>,
    /// One of `/proc` and sysfs.
    pub node_failure: Option<Arc<str>>,
    /// What ails the source as a whole; `None` while healthy.
    pub trouble: Option<Arc<str>>,
    /// Cgroups that went away so far.
    pub removed: u64,
    /// Reads that were given up because they hung, so far.
    pub late: u64,
}

/// Everything that cgroups and `/proc` tell at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// One tree for all controllers (v2), or one each (v1 and hybrid); `None` before a tree was seen.
    pub unified: Option<bool>,
    /// Beside the trees of v1 there is one of v2.
    pub hybrid: bool,
    /// The node.
    pub node: Arc<Subject>,
    /// Its parts, and the cgroups above the pods with theirs.
    pub parts: Vec<Arc<Subject>>,
    /// Containers; removed ones for a while.
    pub containers: Vec<Arc<Subject>>,
    /// Parts of containers.
    pub container_parts: Vec<Arc<Subject>>,
    /// The pass it comes from.
    pub pass: PassReport,
}

/// What one source beside cgroups and `/proc` tells. Its subjects are sorted by [`Subject::key`].
#[derive(Clone, Debug)]
pub struct Layer {
    /// Name of the source.
    pub source: Source,
    /// From one pass to the next.
    pub period: Duration,
    /// Ages that hold where a request names none.
    pub ages: Ages,
    /// Sorted.
    pub subjects: Vec<Arc<Subject>>,
    /// Its newest pass.
    pub pass: PassReport,
    /// Values that were older than the source may deliver, so far.
    pub stale_total: u64,
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// cgroup files, `/proc`, sysfs.
    Kernel,
    /// malachite.
    Malachite,
    /// The kubelet's statistics.
    Kubelet,
    /// malachite's sensors and frequencies, which have a period of their own.
    Realtime,
    /// The monitoring groups of resctrl that others have made.
    Resctrl,
    /// The processor's own counters.
    Perf,
    /// What the kernel tells of tasks by CGROUPSTATS.
    Tasks,
}

/// Holds what is newest of each source.
#[derive(Debug)]
pub struct Store {
    newest: ArcSwap<Snapshot>,
    layers: [ArcSwapOption<Layer>; Source::LAYERS.len()],
    /// What others push.
    pub pushed: Pushed,
    /// Counts publications: whoever waits for news sees that there are some, never how many he missed.
    news: watch::Sender<u64>,
    /// Short histories of the rows that are marked so.
    pub histories: Histories,
}

/// All sources at one moment.
#[derive(Clone, Debug)]
pub struct View {
    /// cgroups and `/proc`.
    pub kernel: Arc<Snapshot>,
    /// Those that are set up.
    pub layers: Vec<Arc<Layer>>,
}

// === impl Instance ===

impl fmt::Display for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => Ok(()),
            Self::Number(n) => n.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

// === impl Subject ===

impl Subject {
    /// A subject of which nothing is known yet.
    pub fn unknown(scope: Scope, id: Id) -> Self {
        Self::laid_out(scope, id, Layout::full(scope))
    }

    /// The same, with room only for what its source tells.
    pub fn laid_out(scope: Scope, id: Id, layout: &'static Layout) -> Self {
        let cells = Cells::unknown(layout);
        Self { scope, id: Arc::new(id), cells, removed: None, read: None, cycle: 0 }
    }

    /// What tells it from all others.
    pub fn key(&self) -> Key<'_> {
        self.id.key(self.scope)
    }
}

// === impl Id ===

impl Id {
    /// What tells it from all others of its scope and of other scopes.
    pub fn key(&self, scope: Scope) -> Key<'_> {
        let owner = match scope {
            Scope::Container | Scope::ContainerNuma => self.container_id.as_str(),
            Scope::Cgroup | Scope::CgroupNuma => self.cgroup.as_str(),
            Scope::Volume => self.pod_uid.as_str(),
            _ => "",
        };
        (scope, owner, &self.instance)
    }
}

// === impl Snapshot ===

impl Default for Snapshot {
    fn default() -> Self {
        let node = Arc::new(Subject::unknown(Scope::Node, Id::default()));
        Self {
            unified: None,
            hybrid: false,
            node,
            parts: Vec::new(),
            containers: Vec::new(),
            container_parts: Vec::new(),
            pass: PassReport::default(),
        }
    }
}

impl Snapshot {
    /// Name of the source of containers' samples.
    pub fn cgroup_source(&self) -> &'static str {
        if self.unified == Some(true) { "cgroup-v2" } else { "cgroup-v1" }
    }

    /// All subjects: the node, its parts, containers and theirs.
    pub fn subjects(&self) -> impl Iterator<Item = &Arc<Subject>> {
        std::iter::once(&self.node).chain(&self.parts).chain(&self.containers).chain(&self.container_parts)
    }
}

// === impl Layer ===

impl Layer {
    /// The subject of a key.
    pub fn find(&self, key: Key<'_>) -> Option<&Arc<Subject>> {
        self.subjects.binary_search_by(|s| s.key().cmp(&key)).ok().and_then(|i| self.subjects.get(i))
    }
}

// === impl Source ===

impl Source {
    /// Those beside cgroups and `/proc`.
    pub const LAYERS: [Self; 6] =
        [Self::Malachite, Self::Kubelet, Self::Realtime, Self::Resctrl, Self::Perf, Self::Tasks];

    /// As samples say it; cgroups and `/proc` have names of their own.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "cgroup",
            Self::Malachite => "malachite",
            Self::Kubelet => "kubelet",
            Self::Realtime => "malachite-realtime",
            Self::Resctrl => "resctrl",
            Self::Perf => "perf",
            Self::Tasks => "cgroupstats",
        }
    }
}

// === impl Store ===

impl Default for Store {
    fn default() -> Self {
        Self {
            newest: ArcSwap::default(),
            layers: std::array::from_fn(|_| ArcSwapOption::empty()),
            pushed: Pushed::default(),
            news: watch::Sender::new(0),
            histories: Histories::default(),
        }
    }
}

impl Store {
    /// The newest snapshot of cgroups and `/proc`.
    pub fn load(&self) -> Arc<Snapshot> {
        self.newest.load_full()
    }

    /// The newest of all sources.
    pub fn view(&self) -> View {
        View {
            kernel: self.load(),
            layers: self.layers.iter().filter_map(ArcSwapOption::load_full).collect(),
        }
    }

    /// Replaces the snapshot of cgroups and `/proc`.
    pub fn publish(&self, snapshot: Snapshot) {
        self.newest.store(Arc::new(snapshot));
        self.tell_news();
    }

    /// Replaces what a source tells.
    pub fn publish_layer(&self, layer: Layer) {
        let place = Source::LAYERS.iter().position(|source| *source == layer.source);
        if let Some(held) = place.and_then(|place| self.layers.get(place)) {
            held.store(Some(Arc::new(layer)));
            self.tell_news();
        }
    }

    /// Something was published.
    pub fn tell_news(&self) {
        self.news.send_modify(|n| *n += 1);
    }

    /// Changes whenever something is published.
    pub fn news(&self) -> watch::Receiver<u64> {
        self.news.subscribe()
    }

    /// Another read was given up; told at once, for the pass that it belongs to may take long.
    pub fn publish_late(&self) {
        let mut snapshot = Snapshot::clone(&self.newest.load());
        snapshot.pass.late += 1;
        self.publish(snapshot);
    }

    /// Says what ails the source, leaving everything else as it is.
    pub fn publish_trouble(&self, trouble: Arc<str>) {
        let mut snapshot = Snapshot::clone(&self.newest.load());
        snapshot.pass.trouble = Some(trouble);
        self.publish(snapshot);
    }
}
