//! What a reading thread does while it holds nothing but its own: the files of one subject.
//!
//! A read may hang (a stuck device, a file system in user space). Whatever the thread has with it is then lost with it:
//! the descriptors of one subject, never the state of the pass.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use oxalyst_cgroups::parse::NumaMemory;
use oxalyst_cgroups::{CgroupPath, Hierarchy};

use super::descriptors::{Descriptors, Slot};
use crate::catalogue::Scope;
use crate::clock::{Clock, Now};
use crate::contents::{Contents, File, Reading as Parsing, Row};
use crate::machine::Machine;
use crate::sample::Absent;
use crate::store::{Id, Instance};
use crate::trees::Trees;

/// What one file gave.
pub(super) type Outcome = Result<Contents, Absent>;

/// Whose files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whom {
    /// Of a NUMA node; what they say is the node's to take.
    Numa(u32),
    Node,
    /// By place among the cgroups above the pods.
    Top(usize),
    /// By place among the containers.
    Container(usize),
}

/// The files of one subject, on their way.
#[derive(Debug)]
pub(super) struct Errand {
    pub(super) whom: Whom,
    pub(super) id: Arc<Id>,
    pub(super) cgroup: Option<Arc<CgroupPath>>,
    pub(super) slots: Vec<Slot>,
    /// Before the first read.
    pub(super) at: Now,
    /// Some file seems to be gone.
    pub(super) gone: bool,
    /// Nothing may be tried that is not known to answer: enough threads hang.
    pub(super) wary: bool,
}

/// Where a thread is, for whoever watches it.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Reads begun so far in the upper bits, place of the file in the lower eight.
    step: AtomicU64,
    /// The folder that is being listed.
    folder: Mutex<PathBuf>,
    given_up: AtomicBool,
    returned: AtomicBool,
}

/// What a reading thread has to itself.
#[derive(Debug)]
pub(super) struct Hands {
    pub(super) trees: Trees,
    pub(super) pass: u64,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) machine: Arc<Machine>,
    pub(super) hierarchy: Option<Arc<Hierarchy>>,
    pub(super) host_root: Arc<Path>,
    pub(super) descriptors: Descriptors,
    pub(super) buffer: Vec<u8>,
    /// What was told by parts and waits for its subject to take it.
    pub(super) rows: Vec<Row>,
    pub(super) numa: Vec<NumaMemory>,
    /// By the file's slot.
    pub(super) outcomes: Vec<Option<Outcome>>,
    pub(super) failed_files: usize,
    pub(super) failure: Option<Arc<str>>,
}

// === impl Hands ===

impl Hands {
    /// Whether a file that may count nothing was read in this errand, and counts.
    fn tells(&self, file: File) -> bool {
        matches!(self.outcomes.get(file.slot()), Some(Some(Ok(Contents::ReadWritten(..)))))
    }

    /// A file says what cannot be.
    pub(super) fn nonsense(&mut self, metric: &str, value: f64, id: &Id) {
        self.failed_files += 1;
        self.failure.get_or_insert_with(|| {
            let whose = if id.cgroup.is_empty() { String::new() } else { format!(" (cgroup {})", id.cgroup) };
            format!("{metric} is said to be {value}, which cannot be{whose}").into()
        });
    }
}

// === impl Progress ===

impl Progress {
    pub(super) fn begin(&self, file: usize) {
        let reads = self.step.load(Ordering::Relaxed) >> 8;
        let file = u64::try_from(file).unwrap_or(0) & 0xff;
        self.step.store((reads + 1) << 8 | file, Ordering::Relaxed);
    }

    /// A folder is about to be listed, or something in it looked at.
    pub(super) fn list(&self, folder: &Path) {
        self.begin(0);
        let mut listed = self.folder.lock().unwrap_or_else(PoisonError::into_inner);
        if *listed != folder {
            folder.clone_into(&mut listed);
        }
    }

    /// The folder that is being listed.
    pub(super) fn folder(&self) -> PathBuf {
        self.folder.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes with every read that begins.
    pub(super) fn step(&self) -> u64 {
        self.step.load(Ordering::Relaxed)
    }

    /// The place of the file that is being read.
    pub(super) fn file(&self) -> usize {
        usize::try_from(self.step() & 0xff).unwrap_or(0)
    }

    /// The thread is to read nothing more.
    pub(super) fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
    }

    /// The thread that was given up has come back.
    pub(super) fn come_back(&self) {
        self.returned.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_come_back(&self) -> bool {
        self.returned.load(Ordering::Relaxed)
    }
}

// === impl Whom ===

impl Whom {
    /// The files, with the place of each.
    pub(super) fn files(self) -> &'static [File] {
        const NUMA: [File; File::NUMA.len()] = {
            let [(first, _), (second, _)] = File::NUMA;
            [first, second]
        };
        match self {
            Self::Numa(_) => &NUMA,
            Self::Node => &File::NODE,
            Self::Top(_) | Self::Container(_) => &File::CONTAINER,
        }
    }

    /// Name of a file, for errors; `None` if this version has no such file.
    pub(super) fn name_of(self, file: File, trees: Trees) -> Option<&'static str> {
        match self {
            Self::Numa(_) => File::NUMA.iter().find(|(f, _)| *f == file).map(|(_, name)| *name),
            Self::Node => file.of_node(),
            Self::Top(_) | Self::Container(_) => file.of_container(trees.is_v2(file)).map(|(_, name)| name),
        }
    }

    fn parts(self) -> Scope {
        match self {
            Self::Numa(_) => Scope::Numa,
            Self::Top(_) => Scope::CgroupNuma,
            Self::Node | Self::Container(_) => Scope::ContainerNuma,
        }
    }
}

// === impl Errand ===

impl Errand {
    /// The files of `whom`, not read yet.
    pub(super) fn new(whom: Whom, id: Arc<Id>, cgroup: Option<Arc<CgroupPath>>, slots: Vec<Slot>) -> Self {
        Self { whom, id, cgroup, slots, at: Now::default(), gone: false, wary: false }
    }

    /// Reads every file once. Blocks for as long as the kernel does.
    pub(super) fn run(&mut self, hands: &mut Hands, progress: &Progress) {
        // One reading of the clock serves all files of a subject: it stands before the first, which is the one of CPU
        // time, so that rates are exact and no age is ever understated.
        self.at = hands.clock.now();
        hands.outcomes.clear();
        let files = self.whom.files();
        hands.outcomes.resize_with(files.len(), || None);
        let mut slots = std::mem::take(&mut self.slots);
        for (place, (file, slot)) in files.iter().zip(&mut slots).enumerate() {
            let Some(name) = self.whom.name_of(*file, hands.trees) else { continue };
            if file.huge_kib().is_some_and(|kib| !hands.machine.has_huge_pages(kib)) {
                if let Some(place) = hands.outcomes.get_mut(place) {
                    *place = Some(Err(Absent::NotHere));
                }
                continue;
            }
            let first = file.in_place_of();
            if first.is_some_and(|first| hands.tells(first)) {
                continue;
            }
            if self.wary
                && let Some(why) = slot.untried(name)
            {
                let absent = self.failed(why, hands);
                if let Some(place) = hands.outcomes.get_mut(place) {
                    *place = Some(Err(absent));
                }
                continue;
            }
            progress.begin(place);
            if progress.given_up.load(Ordering::Relaxed) {
                break;
            }
            let outcome = self.read((*file, name), slot, hands);
            match (self.whom, outcome) {
                (Whom::Numa(node), Ok(contents)) => {
                    let instance = Instance::Number(node);
                    hands.rows.push(Row { scope: Scope::Numa, instance, file: *file, contents });
                }
                (Whom::Numa(_), Err(_)) => {}
                (_, outcome) if first.is_some() => {
                    // What tells nothing changes nothing of what the first said.
                    if let (Ok(Contents::ReadWritten(..)), Some(place)) =
                        (&outcome, first.and_then(|first| hands.outcomes.get_mut(first.slot())))
                    {
                        *place = Some(outcome);
                    }
                }
                (_, outcome) => {
                    if let Some(place) = hands.outcomes.get_mut(place) {
                        *place = Some(outcome);
                    }
                }
            }
        }
        self.slots = slots;
    }

    /// Closes what is open.
    pub(super) fn discard(mut self, descriptors: &mut Descriptors) {
        self.slots.iter_mut().for_each(|slot| descriptors.close(slot));
    }

    fn read(&mut self, (file, name): (File, &'static str), slot: &mut Slot, hands: &mut Hands) -> Outcome {
        let Hands { descriptors, buffer, hierarchy, host_root, .. } = hands;
        let path =
            || path_of(self.whom, self.cgroup.as_deref(), (file, name), hierarchy.as_deref(), host_root);
        let bytes = descriptors.read(slot, Path::new(name), path, hands.pass, buffer);
        let (told, scope) = (hands.rows.len(), self.whom.parts());
        let contents = match bytes {
            Ok(bytes) => {
                let mut parsing = Parsing {
                    unified: hands.trees.is_v2(file),
                    machine: &hands.machine,
                    numa_scope: scope,
                    rows: &mut hands.rows,
                    numa: &mut hands.numa,
                };
                file.parse(&mut parsing, bytes).map_err(|e| format!("{name}: {e}"))
            }
            // A root cgroup lacks what other cgroups have.
            Err(fault) if fault.absent && (file.is_optional() || scope == Scope::CgroupNuma) => {
                return Err(Absent::NotHere);
            }
            Err(fault) => {
                self.gone |= fault.gone;
                if fault.going && matches!(self.whom, Whom::Top(_) | Whom::Container(_)) {
                    return Err(Absent::Unreadable(Arc::new(self.whose(fault.what.to_string()))));
                }
                Err(fault.what.to_string())
            }
        };
        contents.map_err(|what| {
            // Half of a file is no file.
            hands.rows.truncate(told);
            self.failed(what, hands)
        })
    }

    fn whose(&self, what: String) -> String {
        if self.id.cgroup.is_empty() { what } else { format!("{what} (cgroup {})", self.id.cgroup) }
    }

    fn failed(&self, what: String, hands: &mut Hands) -> Absent {
        let what = self.whose(what);
        hands.failed_files += 1;
        hands.failure.get_or_insert_with(|| what.as_str().into());
        Absent::Unreadable(Arc::new(what))
    }
}

/// Where a file lies.
fn path_of(
    whom: Whom,
    cgroup: Option<&CgroupPath>,
    (file, name): (File, &'static str),
    hierarchy: Option<&Hierarchy>,
    host_root: &Path,
) -> PathBuf {
    match (whom, cgroup, hierarchy) {
        (Whom::Numa(node), ..) => numa_file(host_root, node, name),
        (Whom::Node, ..) => host_root.join(name),
        (_, Some(cgroup), Some(hierarchy)) => container_file(hierarchy, cgroup, file),
        _ => PathBuf::new(),
    }
}

pub(super) fn numa_file(root: &Path, node: u32, name: &str) -> PathBuf {
    root.join(format!("sys/devices/system/node/node{node}")).join(name)
}

fn container_file(hierarchy: &Hierarchy, cgroup: &CgroupPath, file: File) -> PathBuf {
    Trees::of(hierarchy).file(hierarchy, cgroup, file).unwrap_or_default()
}
