//! Looking who is there: the part of a pass that lists folders. It may hang as a read may, and then what is lost with its
//! thread is what was found so far, never the state of the pass: whoever was known is read on.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use oxalyst_cgroups::{CgroupPath, Error, Hierarchy};

use super::descriptors::Descriptors;
use super::discovery::{Discovery, Place, place_of};
use super::errand::Progress;
use crate::machine::Machine;

/// A container whose cgroup somebody told: it may lie where no walk finds it, or be called after something else than
/// the container's id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Where it lies.
    pub path: CgroupPath,
    /// The runtime's id.
    pub container_id: String,
    /// The pod's UID.
    pub pod_uid: String,
}

/// What it needs to know between passes, and what it found in this one.
#[derive(Debug)]
pub(super) struct Scout {
    host_root: Arc<Path>,
    roots: Arc<[CgroupPath]>,
    tops: Arc<[CgroupPath]>,
    hierarchy: Option<Arc<Hierarchy>>,
    discovery: Discovery,
    named: Vec<Named>,
    /// Of the named ones those that no walk finds.
    extra: BTreeMap<CgroupPath, Place>,
}

/// What is asked of it in one pass.
#[derive(Debug)]
pub(super) struct Search {
    pub(super) scout: Scout,
    pub(super) named: Vec<Named>,
    pub(super) descriptors: Descriptors,
    pub(super) pass: u64,
    /// Whether the machine is to be looked at, too.
    pub(super) machine: bool,
    pub(super) found: Found,
}

/// What it found.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Device and inode of `/proc`.
    pub(super) proc: (u64, u64),
    pub(super) machine: Option<Machine>,
    /// The tree that was known is no more.
    pub(super) replaced: bool,
    pub(super) tree: Option<Result<Tree, Error>>,
}

/// The tree of cgroups.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) hierarchy: Arc<Hierarchy>,
    /// Who is on it; nothing if that is as it was.
    pub(super) roll: Option<Roll>,
}

/// Who is on a tree.
#[derive(Debug)]
pub(super) struct Roll {
    pub(super) containers: BTreeMap<CgroupPath, Place>,
    pub(super) tops: Vec<(CgroupPath, Place)>,
}

// === impl Scout ===

impl Scout {
    /// Knows nothing yet but, if some was seen, the tree.
    pub(super) fn new(
        host_root: Arc<Path>,
        roots: Arc<[CgroupPath]>,
        tops: Arc<[CgroupPath]>,
        hierarchy: Option<Arc<Hierarchy>>,
    ) -> Self {
        let (discovery, named, extra) = (Discovery::default(), Vec::new(), BTreeMap::new());
        Self { host_root, roots, tops, hierarchy, discovery, named, extra }
    }

    /// The next search walks, whatever the folders look like.
    pub(super) fn distrust(&mut self) {
        self.discovery.distrust();
    }

    /// Forgets what it found.
    pub(super) fn clear(&mut self, descriptors: &mut Descriptors) {
        self.discovery.clear(descriptors);
        self.extra.clear();
        self.hierarchy = None;
    }
}

// === impl Search ===

impl Search {
    /// Looks. Blocks for as long as the kernel does.
    pub(super) fn run(&mut self, progress: &Progress) {
        let proc: PathBuf = self.scout.host_root.join("proc");
        progress.list(&proc);
        self.found.proc = std::fs::metadata(proc).map(|m| (m.dev(), m.ino())).unwrap_or_default();
        if self.machine {
            progress.list(&self.scout.host_root.join("sys/devices/system/node"));
            self.found.machine = Some(Machine::read(&self.scout.host_root));
        }
        self.found.tree = Some(self.look(progress));
    }

    /// Closes what is open.
    pub(super) fn discard(mut self) {
        self.scout.clear(&mut self.descriptors);
    }

    fn look(&mut self, progress: &Progress) -> Result<Tree, Error> {
        let Self { scout, descriptors, .. } = self;
        progress.list(&scout.host_root.join("sys/fs/cgroup"));
        // Descriptors below a root that was renamed or mounted over would read on for ever without an error.
        match scout.hierarchy.as_deref().map(Hierarchy::is_current) {
            Some(Ok(true)) => {}
            Some(Err(e)) => return Err(e),
            Some(Ok(false)) => {
                self.found.replaced = true;
                scout.clear(descriptors);
            }
            None => {}
        }
        let hierarchy = match scout.hierarchy.take() {
            Some(hierarchy) => hierarchy,
            None => Arc::new(Hierarchy::detect(&scout.host_root)?),
        };
        scout.hierarchy = Some(Arc::clone(&hierarchy));
        let mount = hierarchy.any_mount()?.to_path_buf();
        let each = &mut |folder: &Path| progress.list(folder);
        let walked = scout.discovery.refresh(&hierarchy, &scout.roots, self.pass, descriptors, each)?;
        let place = |named: &Named| {
            progress.list(&mount);
            place_of(&mount, &named.path, &named.container_id, &named.pod_uid)
        };
        let extra = self.named.iter().filter(|n| !scout.discovery.has(&n.path));
        let extra: BTreeMap<_, _> = extra.filter_map(|n| Some((n.path.clone(), place(n)?))).collect();
        if !walked && extra == scout.extra && self.named == scout.named {
            return Ok(Tree { hierarchy, roll: None });
        }
        (scout.extra, scout.named) = (extra, std::mem::take(&mut self.named));
        let mut containers = scout.discovery.places(&mount, each);
        containers.extend(scout.extra.iter().map(|(path, place)| (path.clone(), place.clone())));
        for Named { path, container_id, pod_uid } in &scout.named {
            if let Some(place) = containers.get_mut(path) {
                (place.container_id, place.pod_uid) = (container_id.clone(), pod_uid.clone());
            }
        }
        let tops = scout.tops.iter().filter_map(|top| {
            progress.list(&mount);
            Some((top.clone(), place_of(&mount, top, "", "")?))
        });
        Ok(Tree { roll: Some(Roll { containers, tops: tops.collect() }), hierarchy })
    }
}
