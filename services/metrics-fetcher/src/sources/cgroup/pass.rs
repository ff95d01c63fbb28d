//! One pass: is the tree still the same, who is there, read everything, publish.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use oxalyst_cgroups::{CgroupPath, Error, Hierarchy};

use super::descriptors::{Descriptors, LONGEST_WAIT, Slot};
use super::discovery::{Discovery, Place, place_of};
use super::errand::{Errand, Hands, Progress, Whom, numa_file};
use super::tops::top_cgroups;
use super::tracked::Tracked;
use crate::catalogue::Scope;
use crate::clock::{Clock, Now};
use crate::contents::File;
use crate::machine::Machine;
use crate::rate::Identity;
use crate::store::{Id, PassReport, Snapshot, Subject};

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

/// A cgroup that is read in every pass.
#[derive(Debug)]
struct Member {
    path: Arc<CgroupPath>,
    place: Place,
    tracked: Tracked,
}

/// The state between passes, and how far the present one is.
///
/// [`Pass::run`] makes a whole pass. Its steps are apart so that a thread can read the files of a subject without holding
/// the state: `Pass::begin`, then for each `Pass::next` its errand and `Pass::take`, then `Pass::end`.
#[derive(Debug)]
pub struct Pass {
    settings: PassSettings,
    clock: Arc<dyn Clock>,
    host_root: Arc<Path>,
    hierarchy: Option<Arc<Hierarchy>>,
    /// Of the newest tree that was seen, even if it is gone.
    unified: Option<bool>,
    discovery: Discovery,
    descriptors: Descriptors,
    /// Sorted by path.
    containers: Vec<Member>,
    removed: Vec<Arc<Subject>>,
    named: Vec<Named>,
    /// Of the named ones those that no walk finds.
    extra: BTreeMap<CgroupPath, Place>,
    node: Tracked,
    /// The cgroups above the pods.
    tops: Vec<Member>,
    machine: Arc<Machine>,
    /// Files of each NUMA node.
    numa_slots: BTreeMap<u32, Vec<Slot>>,
    hands: Option<Hands>,
    number: u64,
    removed_total: u64,
    late_total: u64,
    /// Of the present pass.
    under_way: UnderWay,
}

/// How far a pass is.
#[derive(Debug, Default)]
struct UnderWay {
    began: Now,
    /// Of the thread that began it; nothing once another took over.
    cpu_began: Option<Duration>,
    trouble: Option<Arc<str>>,
    /// Subjects that are done.
    done: usize,
    failed_files: usize,
    failure: Option<Arc<str>>,
    vanished: Vec<Arc<CgroupPath>>,
}

// === impl Pass ===

impl Pass {
    /// Nothing is read before the first [`Pass::run`].
    pub fn new(settings: PassSettings, clock: Arc<dyn Clock>) -> Self {
        let nowhere = Identity { device: 0, inode: 0, first_seen: Now::default() };
        Self {
            host_root: settings.host_root.as_path().into(),
            settings,
            clock,
            hierarchy: None,
            unified: None,
            discovery: Discovery::default(),
            descriptors: Descriptors::within_limit(),
            containers: Vec::new(),
            removed: Vec::new(),
            named: Vec::new(),
            extra: BTreeMap::new(),
            node: Tracked::new(Scope::Node, nowhere, Id::default(), false),
            tops: Vec::new(),
            machine: Arc::default(),
            numa_slots: BTreeMap::new(),
            hands: None,
            number: 0,
            removed_total: 0,
            late_total: 0,
            under_way: UnderWay::default(),
        }
    }

    /// One pass over everything that is there, and over what `named` adds to it.
    ///
    /// It never fails: a tree that cannot be read leaves all that was known, ageing, with the trouble beside it.
    pub fn run(&mut self, named: &[Named]) -> Snapshot {
        let (mut hands, progress) = (self.begin(named), Progress::default());
        while let Some(mut errand) = self.next() {
            errand.run(&mut hands, &progress);
            self.take(errand, &mut hands);
        }
        self.end(hands)
    }

    /// Begins a pass: is the tree still the same, and who is there.
    pub(super) fn begin(&mut self, named: &[Named]) -> Hands {
        self.number += 1;
        self.under_way =
            UnderWay { began: self.clock.now(), cpu_began: self.clock.thread_cpu(), ..UnderWay::default() };
        if self.number % MACHINE_EVERY == 1 {
            self.machine = Arc::new(Machine::read(&self.host_root));
            let (nodes, descriptors) = (self.machine.nodes(), &mut self.descriptors);
            self.numa_slots.retain(|node, slots| {
                let there = nodes.contains(node);
                if !there {
                    slots.iter_mut().for_each(|slot| descriptors.close(slot));
                }
                there
            });
        }
        self.under_way.trouble = self.look(named).err().map(|e| {
            self.drop_tree();
            Arc::<str>::from(e.to_string())
        });
        let found = fs::metadata(self.host_root.join("proc")).map(|m| (m.dev(), m.ino())).unwrap_or_default();
        if found != (self.node.identity.device, self.node.identity.inode) {
            self.node.close(&mut self.descriptors);
            self.node.identity = Identity { device: found.0, inode: found.1, first_seen: self.clock.now() };
        }
        self.hands()
    }

    /// What a thread needs to go on with the pass that is under way.
    pub(super) fn hands(&mut self) -> Hands {
        let before = self.hands.take();
        let (buffer, rows, numa, outcomes) =
            before.map(|h| (h.buffer, h.rows, h.numa, h.outcomes)).unwrap_or_default();
        Hands {
            unified: self.unified == Some(true),
            pass: self.number,
            clock: Arc::clone(&self.clock),
            machine: Arc::clone(&self.machine),
            hierarchy: self.hierarchy.clone(),
            host_root: Arc::clone(&self.host_root),
            descriptors: self.descriptors.clone(),
            buffer,
            rows,
            numa,
            outcomes,
            failed_files: 0,
            failure: None,
        }
    }

    /// The next subject's files; `None` once all were read. NUMA nodes come before the node, which takes what they tell.
    pub(super) fn next(&mut self) -> Option<Errand> {
        let whom = self.whom()?;
        let fresh = || whom.files().iter().map(|_| Slot::Closed).collect();
        Some(match whom {
            Whom::Numa(node) => Errand {
                whom,
                id: Arc::default(),
                cgroup: None,
                slots: self.numa_slots.insert(node, Vec::new()).unwrap_or_else(fresh),
                at: Now::default(),
                gone: false,
            },
            Whom::Node => self.node.errand(whom, None),
            Whom::Top(_) | Whom::Container(_) => {
                let member = self.member(whom)?;
                let path = Arc::clone(&member.path);
                member.tracked.errand(whom, Some(path))
            }
        })
    }

    /// Takes what an errand brought.
    pub(super) fn take(&mut self, errand: Errand, hands: &mut Hands) {
        let (whom, gone) = (errand.whom, errand.gone);
        match whom {
            Whom::Numa(node) => drop(self.numa_slots.insert(node, errand.slots)),
            Whom::Node => self.node.take(errand, hands),
            Whom::Top(_) | Whom::Container(_) => {
                if let Some(member) = self.member(whom) {
                    member.tracked.take(errand, hands);
                    if gone && matches!(whom, Whom::Container(_)) {
                        let path = Arc::clone(&member.path);
                        self.under_way.vanished.push(path);
                    }
                }
            }
        }
        self.under_way.done += 1;
        self.under_way.failed_files += std::mem::take(&mut hands.failed_files);
        if let Some(failure) = hands.failure.take() {
            self.under_way.failure.get_or_insert(failure);
        }
    }

    /// A read of the present errand has taken longer than `after`: the thread keeps what it has, the file is let alone until
    /// the thread comes back, and the errand is to be run anew.
    pub(super) fn give_up(&mut self, thread: &Arc<Progress>, after: Duration) {
        let Some(whom) = self.whom() else { return };
        self.late_total += 1;
        self.under_way.cpu_began = None;
        let (place, unified) = (thread.file(), self.unified == Some(true));
        let name = whom.files().get(place).and_then(|file| whom.name_of(*file, unified)).unwrap_or_default();
        let why = format!("{name}: a read took longer than {} ms and was given up", after.as_millis());
        let mut slots: Vec<Slot> = whom.files().iter().map(|_| Slot::Closed).collect();
        if let Some(slot) = slots.get_mut(place) {
            let again = self.number + LONGEST_WAIT;
            *slot = Slot::Hung { why: why.into(), thread: Arc::clone(thread), again };
        }
        match whom {
            Whom::Numa(node) => drop(self.numa_slots.insert(node, slots)),
            Whom::Node => self.node.replace(slots),
            Whom::Top(_) | Whom::Container(_) => {
                if let Some(member) = self.member(whom) {
                    member.tracked.replace(slots);
                }
            }
        }
    }

    /// Whose files are to be read, or are being read.
    fn whom(&self) -> Option<Whom> {
        let (numa, tops) = (self.machine.nodes(), self.tops.len());
        let mut place = self.under_way.done;
        if let Some(node) = numa.get(place) {
            return Some(Whom::Numa(*node));
        }
        place -= numa.len();
        if place == 0 {
            return Some(Whom::Node);
        }
        place -= 1;
        let tree = self.hierarchy.is_some() && self.under_way.trouble.is_none();
        if !tree || place >= tops + self.containers.len() {
            return None;
        }
        Some(if place < tops { Whom::Top(place) } else { Whom::Container(place - tops) })
    }

    fn member(&mut self, whom: Whom) -> Option<&mut Member> {
        match whom {
            Whom::Top(place) => self.tops.get_mut(place),
            Whom::Container(place) => self.containers.get_mut(place),
            Whom::Numa(_) | Whom::Node => None,
        }
    }

    /// Ends a pass.
    pub(super) fn end(&mut self, hands: Hands) -> Snapshot {
        self.hands = Some(hands);
        let UnderWay { began, cpu_began, trouble, failed_files, failure, vanished, .. } =
            std::mem::take(&mut self.under_way);
        self.bury(&vanished);
        let finished = self.clock.now();
        let cpu = cpu_began.and_then(|before| self.clock.thread_cpu()?.checked_sub(before));
        let live = |id: &str| self.containers.iter().any(|m| m.tracked.subject.id.container_id == id);
        let forget = self.settings.forget;
        self.removed.retain(|s| {
            s.removed.is_some_and(|since| finished.since(since) <= forget) && !live(&s.id.container_id)
        });
        let containers =
            self.containers.iter().map(|m| &m.tracked.subject).chain(&self.removed).cloned().collect();
        Snapshot {
            unified: self.unified,
            node: Arc::clone(&self.node.subject),
            parts: {
                let own = |m: &'_ Member| -> Vec<_> {
                    std::iter::once(&m.tracked.subject).chain(m.tracked.parts.subjects()).cloned().collect()
                };
                let tops: Vec<Arc<Subject>> = self.tops.iter().flat_map(own).collect();
                self.node.parts.subjects().cloned().chain(tops).collect()
            },
            containers,
            container_parts: self
                .containers
                .iter()
                .flat_map(|m| m.tracked.parts.subjects())
                .cloned()
                .collect(),
            pass: PassReport {
                number: self.number,
                finished: Some(finished),
                took: finished.since(began),
                cpu,
                open_files: self.descriptors.kept(),
                failed_files,
                failure,
                trouble,
                removed: self.removed_total,
                late: self.late_total,
            },
        }
    }

    /// Every file that a pass reads now, for a comparison with the bare reads; empty before the first pass.
    pub fn files(&self) -> Vec<PathBuf> {
        let Some(hierarchy) = &self.hierarchy else { return Vec::new() };
        let containers = self.containers.iter().chain(&self.tops).flat_map(|member| {
            File::CONTAINER.iter().filter_map(|file| {
                let (controller, name) = file.of_container(hierarchy.is_unified())?;
                Some(hierarchy.dir(controller, &member.path).ok()?.join(name))
            })
        });
        let node = File::NODE.iter().filter_map(|f| Some(self.settings.host_root.join(f.of_node()?)));
        let numa = self
            .machine
            .nodes()
            .iter()
            .flat_map(|n| File::NUMA.map(|(_, name)| numa_file(&self.host_root, *n, name)));
        containers.chain(node).chain(numa).collect()
    }

    /// Sees to it that the tree is the present one and that everybody on it is tracked.
    fn look(&mut self, named: &[Named]) -> Result<(), Error> {
        // Descriptors below a root that was renamed or mounted over would read on for ever without an error.
        match self.hierarchy.as_deref().map(Hierarchy::is_current) {
            Some(Ok(true)) => {}
            Some(Err(e)) => return Err(e),
            Some(Ok(false)) => self.drop_tree(),
            None => {}
        }
        let hierarchy = match self.hierarchy.take() {
            Some(hierarchy) => hierarchy,
            None => Arc::new(Hierarchy::detect(&self.settings.host_root)?),
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
        let (mut kept, gone): (Vec<Member>, Vec<Member>) = std::mem::take(&mut self.containers)
            .into_iter()
            .partition(|member| places.get(&*member.path) == Some(&member.place));
        for member in gone {
            self.let_go(member, now);
        }
        self.reconcile_tops(mount, now);
        for member in &kept {
            places.remove(&*member.path);
        }
        for (path, place) in places {
            let cgroup = path.to_string();
            let identity = Identity { device: place.device, inode: place.inode, first_seen: now };
            let (container_id, pod_uid) = (place.container_id.clone(), place.pod_uid.clone());
            let id = Id { container_id, pod_uid, cgroup, ..Id::default() };
            let tracked = Tracked::new(Scope::Container, identity, id, unified);
            kept.push(Member { path: Arc::new(path), place, tracked });
        }
        kept.sort_by(|a, b| a.path.cmp(&b.path));
        self.containers = kept;
    }

    fn let_go(&mut self, mut member: Member, now: Now) {
        member.tracked.close(&mut self.descriptors);
        self.removed.push(removed(&member.tracked, now));
        self.removed_total += 1;
    }

    /// Tracks those of the cgroups above the pods that are there.
    fn reconcile_tops(&mut self, mount: &Path, now: Now) {
        let unified = self.unified == Some(true);
        let known = top_cgroups(&self.settings.roots, &self.settings.cgroups);
        let mut before = std::mem::take(&mut self.tops);
        for path in known {
            let Some(place) = place_of(mount, &path, "", "") else { continue };
            let at = before.iter().position(|m| *m.path == path && m.place == place);
            let kept = at.map(|at| before.swap_remove(at));
            let tracked = kept.map_or_else(
                || {
                    let identity = Identity { device: place.device, inode: place.inode, first_seen: now };
                    let id = Id { cgroup: path.to_string(), ..Id::default() };
                    Tracked::new(Scope::Cgroup, identity, id, unified)
                },
                |member| member.tracked,
            );
            self.tops.push(Member { path: Arc::new(path), place, tracked });
        }
        for mut member in before {
            member.tracked.close(&mut self.descriptors);
        }
    }

    /// Lets go at once of those whose folder is gone; the others are looked at by a walk before the next reading.
    fn bury(&mut self, vanished: &[Arc<CgroupPath>]) {
        let Some(hierarchy) = self.hierarchy.clone() else { return };
        let Ok(mount) = hierarchy.any_mount() else { return };
        let now = self.clock.now();
        for cgroup in vanished {
            self.discovery.distrust();
            if cgroup.under(mount).is_dir() {
                continue;
            }
            if let Ok(at) = self.containers.binary_search_by(|m| m.path.cmp(cgroup)) {
                let member = self.containers.remove(at);
                self.let_go(member, now);
            }
        }
    }

    /// Closes everything that is open on a tree that is no more; what was read stays.
    fn drop_tree(&mut self) {
        for member in self.containers.iter_mut().chain(&mut self.tops) {
            member.tracked.close(&mut self.descriptors);
        }
        self.node.close(&mut self.descriptors);
        self.discovery.clear(&mut self.descriptors);
        self.hierarchy = None;
        self.extra.clear();
    }
}

fn removed(tracked: &Tracked, now: Now) -> Arc<Subject> {
    Arc::new(Subject { removed: Some(now), ..Subject::clone(&tracked.subject) })
}
