//! Finding containers without listing every folder in every pass.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::SystemTime;

use oxalyst_cgroups::{CgroupPath, Error, Found, Hierarchy, Listed, Stamp, walk_telling};

use super::descriptors::{Descriptors, Slot};
use super::news::News;

/// A walk happens at least every so many passes, even if no folder seems to have changed.
const BACKSTOP: u64 = 12;

/// What is on the node's trees.
#[derive(Debug)]
pub(super) struct Discovery {
    news: News,
    /// Folders of which no news come: they are looked at in every pass.
    mute: Vec<(Listed, Slot)>,
    found: Vec<Found>,
    walked_in: Option<u64>,
}

/// A container's folder as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) container_id: String,
    pub(super) pod_uid: String,
    pub(super) device: u64,
    pub(super) inode: u64,
    /// Where the file system tells it (kernfs does not, and uses no inode twice).
    pub(super) born: Option<SystemTime>,
}

// === impl Discovery ===

impl Default for Discovery {
    fn default() -> Self {
        Self { news: News::new(), mute: Vec::new(), found: Vec::new(), walked_in: None }
    }
}

impl Discovery {
    /// Forgets what was found: the next [`Discovery::refresh`] walks.
    pub(super) fn clear(&mut self, descriptors: &mut Descriptors) {
        for (_, slot) in &mut self.mute {
            descriptors.close(slot);
        }
        self.mute.clear();
        self.found.clear();
        self.walked_in = None;
    }

    /// The next [`Discovery::refresh`] walks, whatever the folders look like.
    pub(super) fn distrust(&mut self) {
        self.walked_in = None;
    }

    /// Walks if a listed folder changed (or it is time to); true if it did.
    pub(super) fn refresh(
        &mut self,
        hierarchy: &Hierarchy,
        roots: &[CgroupPath],
        pass: u64,
        descriptors: &mut Descriptors,
        each: &mut dyn FnMut(&Path),
    ) -> Result<bool, Error> {
        let recent = self.walked_in.is_some_and(|walked| pass.saturating_sub(walked) < BACKSTOP);
        // Asked even where a walk is due anyway: what it finds is no news afterwards.
        let news = self.news.any();
        if recent && !news && self.mute.iter_mut().all(|(listed, slot)| unchanged(listed, slot, descriptors))
        {
            return Ok(false);
        }
        let walk = walk_telling(hierarchy, roots, each)?;
        self.clear(descriptors);
        self.found = walk.found;
        self.walked_in = Some(pass);
        for listed in walk.listed {
            if !self.news.watch(&listed.path) {
                self.mute.push((listed, Slot::Closed));
            } else if !std::fs::metadata(&listed.path).is_ok_and(|m| Stamp::of(&m) == listed.stamp) {
                // It changed between its listing and the first news of it.
                self.walked_in = None;
            }
        }
        Ok(true)
    }

    /// The folders of what was found; those that vanished since are left out.
    pub(super) fn places(&self, mount: &Path, each: &mut dyn FnMut(&Path)) -> BTreeMap<CgroupPath, Place> {
        let place = |found: &Found| {
            each(mount);
            let place = place_of(mount, &found.path, &found.container_id, &found.pod_uid)?;
            Some((found.path.clone(), place))
        };
        self.found.iter().filter_map(place).collect()
    }

    pub(super) fn has(&self, path: &CgroupPath) -> bool {
        self.found.binary_search_by(|f| f.path.cmp(path)).is_ok()
    }
}

/// The folder of a cgroup, if there is one.
pub(super) fn place_of(mount: &Path, path: &CgroupPath, container_id: &str, pod_uid: &str) -> Option<Place> {
    let metadata = fs::metadata(path.under(mount)).ok().filter(fs::Metadata::is_dir)?;
    Some(Place {
        container_id: container_id.to_owned(),
        pod_uid: pod_uid.to_owned(),
        device: metadata.dev(),
        inode: metadata.ino(),
        born: metadata.created().ok(),
    })
}

fn unchanged(listed: &Listed, slot: &mut Slot, descriptors: &mut Descriptors) -> bool {
    if let Slot::Closed = slot
        && let Ok(dir) = File::open(&listed.path)
    {
        match descriptors.keep(dir) {
            Ok(kept) => *slot = kept,
            Err(dir) => return dir.metadata().is_ok_and(|m| Stamp::of(&m) == listed.stamp),
        }
    }
    match slot {
        Slot::Kept(dir) => dir.metadata().is_ok_and(|m| Stamp::of(&m) == listed.stamp),
        _ => false,
    }
}
