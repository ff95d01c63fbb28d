//! One pass: is the tree still the same, who is there, read everything, publish.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use oxalyst_cgroups::{CgroupPath, Hierarchy};

use super::descriptors::{Descriptors, Slot};
use super::discovery::Place;
use super::errand::{Errand, Hands, Progress, Whom, numa_file};
use super::lost::Lost;
use super::scout::{Found, Named, Roll, Scout, Search, Tree};
use super::tops::top_cgroups;
use super::tracked::Tracked;
use crate::catalogue::Scope;
use crate::clock::{Clock, Now};
use crate::contents::File;
use crate::machine::Machine;
use crate::rate::Identity;
use crate::store::{Id, PassReport, Snapshot, Subject};
use crate::trees::Trees;

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
/// the state: `Pass::begin` with its search and `Pass::searched`, then for each `Pass::next` its errand and `Pass::take`, then `Pass::end`.
#[derive(Debug)]
pub struct Pass {
    settings: PassSettings,
    clock: Arc<dyn Clock>,
    host_root: Arc<Path>,
    hierarchy: Option<Arc<Hierarchy>>,
    /// Of the newest tree that was seen, even if it is gone.
    trees: Option<Trees>,
    /// Between searches.
    scout: Option<Scout>,
    /// A thread that hangs in a search, and what is said of it.
    lost_scout: Option<(Arc<Progress>, Arc<str>)>,
    lost: Lost,
    descriptors: Descriptors,
    /// Sorted by path.
    containers: Vec<Member>,
    removed: Vec<Arc<Subject>>,
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
    /// Nobody knows yet who is there.
    searching: bool,
    /// Subjects that are done.
    done: usize,
    failed_files: usize,
    failure: Option<Arc<str>>,
    /// Of the node's own files.
    node_failure: Option<Arc<str>>,
    vanished: Vec<Arc<CgroupPath>>,
}

// === impl UnderWay ===

impl UnderWay {
    /// The first failure of each source is told.
    fn failed(&mut self, whom: Whom, why: Arc<str>) {
        match whom {
            Whom::Numa(_) | Whom::Node => self.node_failure.get_or_insert(why),
            Whom::Top(_) | Whom::Container(_) => self.failure.get_or_insert(why),
        };
    }
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
            trees: None,
            scout: None,
            lost_scout: None,
            lost: Lost::default(),
            descriptors: Descriptors::within_limit(),
            containers: Vec::new(),
            removed: Vec::new(),
            node: Tracked::new(Scope::Node, nowhere, Id::default(), Trees::V1),
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
        let progress = Progress::default();
        if let Some(mut search) = self.begin(named) {
            search.run(&progress);
            self.searched(search);
        }
        let mut hands = self.hands();
        while let Some(mut errand) = self.next() {
            errand.run(&mut hands, &progress);
            self.take(errand, &mut hands);
        }
        self.end(hands)
    }

    /// Begins a pass with a search: is the tree still the same, and who is there. It is to be run and given to
    /// [`Pass::searched`]. `None` while an earlier one hangs: then whoever was known is read on.
    pub(super) fn begin(&mut self, named: &[Named]) -> Option<Search> {
        self.number += 1;
        self.under_way =
            UnderWay { began: self.clock.now(), cpu_began: self.clock.thread_cpu(), ..UnderWay::default() };
        let scout = match (self.scout.take(), &self.lost_scout) {
            (Some(scout), _) => scout,
            (None, Some((thread, why))) if !thread.has_come_back() => {
                self.under_way.failed_files = 1;
                self.under_way.failure = Some(Arc::clone(why));
                return None;
            }
            (None, _) => self.new_scout(),
        };
        let machine = self.number % MACHINE_EVERY == 1 || self.lost_scout.take().is_some();
        self.under_way.searching = true;
        let (named, descriptors, pass) = (named.to_vec(), self.descriptors.clone(), self.number);
        Some(Search { scout, named, descriptors, pass, machine, found: Found::default() })
    }

    fn new_scout(&self) -> Scout {
        let tops = top_cgroups(&self.settings.roots, &self.settings.cgroups).into();
        let roots = self.settings.roots.as_slice().into();
        Scout::new(Arc::clone(&self.host_root), roots, tops, self.hierarchy.clone())
    }

    /// What a thread needs to go on with the pass that is under way.
    pub(super) fn hands(&mut self) -> Hands {
        let before = self.hands.take();
        let (buffer, rows, numa, outcomes) =
            before.map(|h| (h.buffer, h.rows, h.numa, h.outcomes)).unwrap_or_default();
        Hands {
            trees: self.trees.unwrap_or_default(),
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
        let (mut errand, new) = match whom {
            Whom::Numa(node) => {
                let before = self.numa_slots.insert(node, Vec::new());
                let new = before.is_none();
                (Errand::new(whom, Arc::default(), None, before.unwrap_or_else(fresh)), new)
            }
            Whom::Node => (self.node.errand(whom, None), self.node.subject.read.is_none()),
            Whom::Top(_) | Whom::Container(_) => {
                let Member { path, tracked, .. } = self.member(whom)?;
                (tracked.errand(whom, Some(Arc::clone(path))), tracked.subject.read.is_none())
            }
        };
        self.lost.before(&mut errand, new);
        Some(errand)
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
            self.under_way.failed(whom, failure);
        }
    }

    /// A read of the present errand has taken longer than `after`: the thread keeps what it has, the file is let alone until
    /// the thread comes back, and the rest of the errand until the next pass: a subject costs a pass one thread.
    pub(super) fn give_up(&mut self, thread: &Arc<Progress>, after: Duration) {
        self.late_total += 1;
        self.under_way.cpu_began = None;
        self.lost.add(thread);
        if std::mem::take(&mut self.under_way.searching) {
            let (folder, ms) = (thread.folder(), after.as_millis());
            let why: Arc<str> = format!(
                "{}: a listing took longer than {ms} ms and was given up; who came or went since is not known",
                folder.display()
            )
            .into();
            self.under_way.failed_files = 1;
            self.under_way.failure = Some(Arc::clone(&why));
            self.lost_scout = Some((Arc::clone(thread), why));
            return;
        }
        let Some(whom) = self.whom() else { return };
        let trees = self.trees.unwrap_or_default();
        let (slots, why) = self.lost.slots(whom, trees, (thread, after), self.number);
        self.under_way.done += 1;
        self.under_way.failed_files += 1;
        self.under_way.failed(whom, why);
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
        let UnderWay { began, cpu_began, trouble, failed_files, failure, node_failure, vanished, .. } =
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
            unified: self.trees.map(Trees::is_unified),
            hybrid: self.trees.is_some_and(Trees::is_hybrid),
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
                node_failure,
                trouble,
                removed: self.removed_total,
                late: self.late_total,
            },
        }
    }

    /// Every file that a pass reads now, for a comparison with the bare reads; empty before the first pass.
    pub fn files(&self) -> Vec<PathBuf> {
        let Some(hierarchy) = &self.hierarchy else { return Vec::new() };
        let trees = Trees::of(hierarchy);
        let containers = self.containers.iter().chain(&self.tops).flat_map(|member| {
            File::CONTAINER.iter().filter_map(|file| {
                if file.huge_kib().is_some_and(|kib| !self.machine.has_huge_pages(kib)) {
                    return None;
                }
                trees.file(hierarchy, &member.path, *file)
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

    /// Takes what was found: the tree, and who is on it.
    pub(super) fn searched(&mut self, search: Search) {
        self.under_way.searching = false;
        let Search { scout, found: Found { proc, machine, replaced, tree }, .. } = search;
        self.scout = Some(scout);
        if let Some(machine) = machine {
            self.settle(machine);
        }
        if replaced {
            self.drop_tree();
        }
        match tree {
            Some(Ok(Tree { hierarchy, roll })) => {
                self.trees = Some(Trees::of(&hierarchy));
                self.hierarchy = Some(hierarchy);
                if let Some(roll) = roll {
                    self.reconcile(roll);
                }
            }
            Some(Err(e)) => {
                if let Some(scout) = &mut self.scout {
                    scout.clear(&mut self.descriptors);
                }
                self.drop_tree();
                self.under_way.trouble = Some(e.to_string().into());
            }
            None => {}
        }
        if proc != (self.node.identity.device, self.node.identity.inode) {
            self.node.close(&mut self.descriptors);
            self.node.identity = Identity { device: proc.0, inode: proc.1, first_seen: self.clock.now() };
        }
    }

    /// Tracks what is there, and lets go of what is not or is another by now.
    fn reconcile(&mut self, Roll { containers: mut places, tops }: Roll) {
        let (now, trees) = (self.clock.now(), self.trees.unwrap_or_default());
        let (mut kept, gone): (Vec<Member>, Vec<Member>) = std::mem::take(&mut self.containers)
            .into_iter()
            .partition(|member| places.get(&*member.path) == Some(&member.place));
        for member in gone {
            self.let_go(member, now);
        }
        self.reconcile_tops(tops, now);
        for member in &kept {
            places.remove(&*member.path);
        }
        for (path, place) in places {
            let cgroup = path.to_string();
            let identity = Identity { device: place.device, inode: place.inode, first_seen: now };
            let (container_id, pod_uid) = (place.container_id.clone(), place.pod_uid.clone());
            let id = Id { container_id, pod_uid, cgroup, ..Id::default() };
            let tracked = Tracked::new(Scope::Container, identity, id, trees);
            kept.push(Member { path: Arc::new(path), place, tracked });
        }
        kept.sort_by(|a, b| a.path.cmp(&b.path));
        self.containers = kept;
    }

    /// Files of NUMA nodes that are no more are closed.
    fn settle(&mut self, machine: Machine) {
        self.machine = Arc::new(machine);
        let (nodes, descriptors) = (self.machine.nodes(), &mut self.descriptors);
        self.numa_slots.retain(|node, slots| {
            let there = nodes.contains(node);
            if !there {
                slots.iter_mut().for_each(|slot| descriptors.close(slot));
            }
            there
        });
    }

    fn let_go(&mut self, mut member: Member, now: Now) {
        member.tracked.close(&mut self.descriptors);
        self.removed.push(removed(&member.tracked, now));
        self.removed_total += 1;
    }

    /// Tracks those of the cgroups above the pods that are there.
    fn reconcile_tops(&mut self, tops: Vec<(CgroupPath, Place)>, now: Now) {
        let trees = self.trees.unwrap_or_default();
        let mut before = std::mem::take(&mut self.tops);
        for (path, place) in tops {
            let at = before.iter().position(|m| *m.path == path && m.place == place);
            let kept = at.map(|at| before.swap_remove(at));
            let tracked = kept.map_or_else(
                || {
                    let identity = Identity { device: place.device, inode: place.inode, first_seen: now };
                    let id = Id { cgroup: path.to_string(), ..Id::default() };
                    Tracked::new(Scope::Cgroup, identity, id, trees)
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
            if let Some(scout) = &mut self.scout {
                scout.distrust();
            }
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
        self.hierarchy = None;
    }
}

fn removed(tracked: &Tracked, now: Now) -> Arc<Subject> {
    Arc::new(Subject { removed: Some(now), ..Subject::clone(&tracked.subject) })
}
