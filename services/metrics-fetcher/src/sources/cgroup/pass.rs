//! One pass: is the tree still the same, who is there, read everything, publish.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use oxalyst_cgroups::parse::NumaMemory;
use oxalyst_cgroups::{CgroupPath, Error, Hierarchy};

use super::descriptors::{Descriptors, Slot};
use super::discovery::{Discovery, Place, place_of};
use super::tracked::{Context, Tracked, read};
use crate::catalogue::Scope;
use crate::clock::{Clock, Now};
use crate::contents::{File, Row};
use crate::machine::Machine;
use crate::rate::Identity;
use crate::store::{Id, Instance, PassReport, Snapshot, Subject};

/// CPUs come and go seldom: where they sit is read anew every so many passes.
const MACHINE_EVERY: u64 = 60;

/// How passes are made.
#[derive(Clone, Debug)]
pub struct PassSettings {
    /// Where `/proc` and `/sys` are found.
    pub host_root: PathBuf,
    /// Cgroups below which `kubepods` is looked for.
    pub roots: Vec<CgroupPath>,
    /// How long a removed container stays known.
    pub forget: Duration,
    /// Cgroups that are measured beside containers, where they exist.
    pub cgroups: Vec<CgroupPath>,
}

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

/// The state between passes. [`Pass::run`] blocks on files.
#[derive(Debug)]
pub struct Pass {
    settings: PassSettings,
    clock: Arc<dyn Clock>,
    hierarchy: Option<Hierarchy>,
    /// Of the newest tree that was seen, even if it is gone.
    unified: Option<bool>,
    discovery: Discovery,
    descriptors: Descriptors,
    containers: BTreeMap<CgroupPath, (Place, Tracked)>,
    removed: Vec<Arc<Subject>>,
    named: Vec<Named>,
    /// Of the named ones those that no walk finds.
    extra: BTreeMap<CgroupPath, Place>,
    node: Tracked,
    /// The cgroups above the pods.
    tops: BTreeMap<CgroupPath, (Place, Tracked)>,
    machine: Machine,
    /// Files of each NUMA node.
    numa_slots: BTreeMap<u32, [Slot; File::NUMA.len()]>,
    buffer: Vec<u8>,
    rows: Vec<Row>,
    numa: Vec<NumaMemory>,
    number: u64,
    removed_total: u64,
}

// === impl Pass ===

impl Pass {
    /// Nothing is read before the first [`Pass::run`].
    pub fn new(settings: PassSettings, clock: Arc<dyn Clock>) -> Self {
        let nowhere = Identity { device: 0, inode: 0, first_seen: Now::default() };
        Self {
            settings,
            clock,
            hierarchy: None,
            unified: None,
            discovery: Discovery::default(),
            descriptors: Descriptors::within_limit(),
            containers: BTreeMap::new(),
            removed: Vec::new(),
            named: Vec::new(),
            extra: BTreeMap::new(),
            node: Tracked::new(Scope::Node, nowhere, Id::default(), false),
            tops: BTreeMap::new(),
            machine: Machine::default(),
            numa_slots: BTreeMap::new(),
            buffer: Vec::new(),
            rows: Vec::new(),
            numa: Vec::new(),
            number: 0,
            removed_total: 0,
        }
    }

    /// One pass over everything that is there, and over what `named` adds to it.
    ///
    /// It never fails: a tree that cannot be read leaves all that was known, ageing, with the trouble beside it.
    pub fn run(&mut self, named: &[Named]) -> Snapshot {
        self.number += 1;
        let began = self.clock.now();
        if self.number % MACHINE_EVERY == 1 {
            self.machine = Machine::read(&self.settings.host_root);
        }
        let trouble = self.look(named).err().map(|e| {
            self.drop_tree();
            Arc::<str>::from(e.to_string())
        });
        let (failed_files, failure) = self.read_all(trouble.is_none());
        let finished = self.clock.now();
        let live = |id: &str| self.containers.values().any(|(_, t)| t.subject.id.container_id == id);
        let forget = self.settings.forget;
        self.removed.retain(|s| {
            s.removed.is_some_and(|since| finished.since(since) <= forget) && !live(&s.id.container_id)
        });
        let containers =
            self.containers.values().map(|(_, t)| &t.subject).chain(&self.removed).cloned().collect();
        Snapshot {
            unified: self.unified,
            node: Arc::clone(&self.node.subject),
            parts: {
                let tops = self
                    .tops
                    .values()
                    .flat_map(|(_, t)| std::iter::once(&t.subject).chain(t.parts.subjects()));
                self.node.parts.subjects().chain(tops).cloned().collect()
            },
            containers,
            container_parts: self
                .containers
                .values()
                .flat_map(|(_, t)| t.parts.subjects())
                .cloned()
                .collect(),
            pass: PassReport {
                number: self.number,
                finished: Some(finished),
                took: finished.since(began),
                open_files: self.descriptors.kept(),
                failed_files,
                failure,
                trouble,
                removed: self.removed_total,
            },
        }
    }

    /// Every file that a pass reads now, for a comparison with the bare reads; empty before the first pass.
    pub fn files(&self) -> Vec<PathBuf> {
        let Some(hierarchy) = &self.hierarchy else { return Vec::new() };
        let containers = self.containers.keys().chain(self.tops.keys()).flat_map(|cgroup| {
            File::CONTAINER.iter().filter_map(|file| {
                let (controller, name) = file.of_container(hierarchy.is_unified())?;
                Some(hierarchy.dir(controller, cgroup).ok()?.join(name))
            })
        });
        let node = File::NODE.iter().filter_map(|f| Some(self.settings.host_root.join(f.of_node()?)));
        let numa =
            self.machine.nodes().iter().flat_map(|n| File::NUMA.map(|(_, name)| self.numa_file(*n, name)));
        containers.chain(node).chain(numa).collect()
    }

    fn numa_file(&self, node: u32, name: &str) -> PathBuf {
        numa_file(&self.settings.host_root, node, name)
    }

    /// Sees to it that the tree is the present one and that everybody on it is tracked.
    fn look(&mut self, named: &[Named]) -> Result<(), Error> {
        // Descriptors below a root that was renamed or mounted over would read on for ever without an error.
        match self.hierarchy.as_ref().map(Hierarchy::is_current) {
            Some(Ok(true)) => {}
            Some(Err(e)) => return Err(e),
            Some(Ok(false)) => self.drop_tree(),
            None => {}
        }
        let hierarchy = match self.hierarchy.take() {
            Some(hierarchy) => hierarchy,
            None => Hierarchy::detect(&self.settings.host_root)?,
        };
        let hierarchy = self.hierarchy.insert(hierarchy);
        self.unified = Some(hierarchy.is_unified());
        let mount = hierarchy.any_mount()?.to_path_buf();
        let walked =
            self.discovery.refresh(hierarchy, &self.settings.roots, self.number, &mut self.descriptors)?;
        let extra = named.iter().filter(|n| !self.discovery.has(&n.path));
        let extra: BTreeMap<_, _> = extra
            .filter_map(|n| Some((n.path.clone(), place_of(&mount, &n.path, &n.container_id, &n.pod_uid)?)))
            .collect();
        if walked || extra != self.extra || named != self.named {
            self.extra = extra;
            self.named = named.to_vec();
            self.reconcile(&mount);
        }
        Ok(())
    }

    /// Tracks what is there, and lets go of what is not or is another by now.
    fn reconcile(&mut self, mount: &Path) {
        let (now, unified) = (self.clock.now(), self.unified == Some(true));
        let mut places = self.discovery.places(mount);
        places.extend(self.extra.iter().map(|(path, place)| (path.clone(), place.clone())));
        for Named { path, container_id, pod_uid } in &self.named {
            if let Some(place) = places.get_mut(path) {
                (place.container_id, place.pod_uid) = (container_id.clone(), pod_uid.clone());
            }
        }
        for (path, (place, mut tracked)) in std::mem::take(&mut self.containers) {
            if places.get(&path) == Some(&place) {
                self.containers.insert(path, (place, tracked));
            } else {
                tracked.close(&mut self.descriptors);
                self.removed.push(removed(&tracked, now));
                self.removed_total += 1;
            }
        }
        self.reconcile_tops(mount, now);
        for (path, place) in places {
            let cgroup = path.to_string();
            self.containers.entry(path).or_insert_with(|| {
                let identity = Identity { device: place.device, inode: place.inode, first_seen: now };
                let (container_id, pod_uid) = (place.container_id.clone(), place.pod_uid.clone());
                (
                    place,
                    Tracked::new(
                        Scope::Container,
                        identity,
                        Id { container_id, pod_uid, cgroup, ..Id::default() },
                        unified,
                    ),
                )
            });
        }
    }

    /// Tracks those of the cgroups above the pods that are there.
    fn reconcile_tops(&mut self, mount: &Path, now: Now) {
        let unified = self.unified == Some(true);
        let known = top_cgroups(&self.settings.roots, &self.settings.cgroups);
        let mut before = std::mem::take(&mut self.tops);
        for path in known {
            let Some(place) = place_of(mount, &path, "", "") else { continue };
            let kept = before.remove(&path).filter(|(old, _)| *old == place);
            let tracked = kept.map_or_else(
                || {
                    let identity = Identity { device: place.device, inode: place.inode, first_seen: now };
                    let id = Id { cgroup: path.to_string(), ..Id::default() };
                    Tracked::new(Scope::Cgroup, identity, id, unified)
                },
                |(_, tracked)| tracked,
            );
            self.tops.insert(path, (place, tracked));
        }
        for (_, mut tracked) in before.into_values() {
            tracked.close(&mut self.descriptors);
        }
    }

    fn read_all(&mut self, tree: bool) -> (usize, Option<Arc<str>>) {
        let proc = self.settings.host_root.join("proc");
        let found = fs::metadata(&proc).map(|m| (m.dev(), m.ino())).unwrap_or_default();
        if found != (self.node.identity.device, self.node.identity.inode) {
            self.node.close(&mut self.descriptors);
            self.node.identity = Identity { device: found.0, inode: found.1, first_seen: self.clock.now() };
        }
        let mut context = Context {
            unified: self.unified == Some(true),
            pass: self.number,
            clock: self.clock.as_ref(),
            machine: &self.machine,
            descriptors: &mut self.descriptors,
            buffer: &mut self.buffer,
            rows: &mut self.rows,
            numa: &mut self.numa,
            failed_files: 0,
            failure: None,
        };
        let root = &self.settings.host_root;
        read_numa(root, &mut self.numa_slots, &mut context);
        self.node.collect(&mut context, |file| root.join(file.of_node().unwrap_or_default()));
        let mut vanished = Vec::new();
        if let Some(hierarchy) = self.hierarchy.as_ref().filter(|_| tree) {
            for (cgroup, (_, tracked)) in &mut self.tops {
                tracked.collect(&mut context, |file| path_of(hierarchy, cgroup, file));
            }
            for (cgroup, (_, tracked)) in &mut self.containers {
                let gone = tracked.collect(&mut context, |file| path_of(hierarchy, cgroup, file));
                if gone {
                    vanished.push(cgroup.clone());
                }
            }
        }
        let failures = (context.failed_files, context.failure);
        self.bury(&vanished);
        failures
    }

    /// Lets go at once of those whose folder is gone; the others are looked at by a walk before the next reading.
    fn bury(&mut self, vanished: &[CgroupPath]) {
        let Some(Ok(mount)) = self.hierarchy.as_ref().map(Hierarchy::any_mount) else { return };
        let now = self.clock.now();
        for cgroup in vanished {
            self.discovery.distrust();
            if cgroup.under(mount).is_dir() {
                continue;
            }
            if let Some((_, mut tracked)) = self.containers.remove(cgroup) {
                tracked.close(&mut self.descriptors);
                self.removed.push(removed(&tracked, now));
                self.removed_total += 1;
            }
        }
    }

    /// Closes everything that is open on a tree that is no more; what was read stays.
    fn drop_tree(&mut self) {
        for (_, tracked) in self.containers.values_mut().chain(self.tops.values_mut()) {
            tracked.close(&mut self.descriptors);
        }
        self.node.close(&mut self.descriptors);
        self.discovery.clear(&mut self.descriptors);
        self.hierarchy = None;
        self.extra.clear();
    }
}

/// The cgroups above the pods: below each root the kubelet's own three, under both drivers' names, and the given ones;
/// each once, whether it exists or not.
pub fn top_cgroups(roots: &[CgroupPath], given: &[CgroupPath]) -> Vec<CgroupPath> {
    const KUBELET: [&str; 6] = [
        "kubepods",
        "kubepods/burstable",
        "kubepods/besteffort",
        "kubepods.slice",
        "kubepods.slice/kubepods-burstable.slice",
        "kubepods.slice/kubepods-besteffort.slice",
    ];
    let kubelet = roots.iter().flat_map(|root| KUBELET.iter().filter_map(|name| root.join(name).ok()));
    let mut all: Vec<CgroupPath> = kubelet.chain(given.iter().cloned()).collect();
    all.sort();
    all.dedup();
    all
}

/// Reads the files of every NUMA node into rows, for the node to take.
fn read_numa(root: &Path, slots: &mut BTreeMap<u32, [Slot; File::NUMA.len()]>, context: &mut Context<'_>) {
    let machine = context.machine;
    for node in machine.nodes() {
        for ((file, name), slot) in File::NUMA.into_iter().zip(slots.entry(*node).or_default()) {
            let path = || numa_file(root, *node, name);
            let outcome = read((file, name), slot, context, Scope::Numa, path, &Id::default(), &mut false);
            if let Ok(contents) = outcome {
                let instance = Instance::Number(*node);
                context.rows.push(Row { scope: Scope::Numa, instance, file, contents });
            }
        }
    }
    let Context { descriptors, .. } = context;
    slots.retain(|node, slots| {
        let there = machine.nodes().contains(node);
        if !there {
            slots.iter_mut().for_each(|slot| descriptors.close(slot));
        }
        there
    });
}

fn numa_file(root: &Path, node: u32, name: &str) -> PathBuf {
    root.join(format!("sys/devices/system/node/node{node}")).join(name)
}

fn removed(tracked: &Tracked, now: Now) -> Arc<Subject> {
    Arc::new(Subject { removed: Some(now), ..Subject::clone(&tracked.subject) })
}

fn path_of(hierarchy: &Hierarchy, cgroup: &CgroupPath, file: File) -> PathBuf {
    let Some((controller, name)) = file.of_container(hierarchy.is_unified()) else { return PathBuf::new() };
    // An unmounted controller gives a path that does not exist, and so an error that names it.
    let dir = hierarchy.dir(controller, cgroup);
    dir.unwrap_or_else(|_| hierarchy.root().join(controller.name())).join(name)
}
