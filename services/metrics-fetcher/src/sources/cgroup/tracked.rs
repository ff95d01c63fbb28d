//! One subject between passes: its descriptors, the last reading of each of its counters, what is known of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use oxalyst_cgroups::parse::NumaMemory;

use super::descriptors::{Descriptors, Slot};
use super::part::Parts;
use crate::catalogue::{Kind, Metric, Origin, Scope, Told};
use crate::cells::Layout;
use crate::clock::{Clock, Now};
use crate::contents::{Contents, File, Reading as Parsing, Row};
use crate::derive::derive;
use crate::machine::Machine;
use crate::rate::{Counter, Identity, Rate, rate};
use crate::sample::{Absent, Cell, Reading};
use crate::store::{Id, Source, Subject};

/// A subject that is read in every pass.
#[derive(Debug)]
pub(super) struct Tracked {
    pub(super) identity: Identity,
    pub(super) subject: Arc<Subject>,
    /// What its files tell of single CPUs, NUMA nodes and devices.
    pub(super) parts: Parts,
    /// The one before: once no snapshot holds it any more its memory is used again. Giving it back to the allocator
    /// and taking it anew costs page faults in every pass.
    spare: Option<Arc<Subject>>,
    scope: Scope,
    slots: Vec<Slot>,
    /// One for each rate of the scope; `None`: it has no base yet.
    counters: Box<[Option<Counter>]>,
}

/// What a pass shares among its subjects.
#[derive(Debug)]
pub(super) struct Context<'a> {
    pub(super) unified: bool,
    pub(super) pass: u64,
    pub(super) clock: &'a dyn Clock,
    pub(super) machine: &'a Machine,
    pub(super) descriptors: &'a mut Descriptors,
    pub(super) buffer: &'a mut Vec<u8>,
    /// What was told by parts and waits for [`Tracked::collect`] to take it.
    pub(super) rows: &'a mut Vec<Row>,
    pub(super) numa: &'a mut Vec<NumaMemory>,
    pub(super) failed_files: usize,
    pub(super) failure: Option<Arc<str>>,
}

/// What one file gave.
pub(super) type Outcome = Result<Contents, Absent>;

// === impl Tracked ===

impl Tracked {
    /// Of a machine whose containers live in one tree, or not.
    pub(super) fn new(scope: Scope, identity: Identity, id: Id, unified: bool) -> Self {
        let layout = Layout::of(scope, Source::Kernel, unified);
        let files = match scope {
            Scope::Node => File::NODE.len(),
            _ => File::CONTAINER.len(),
        };
        Self {
            identity,
            subject: Arc::new(Subject::laid_out(scope, id, layout)),
            parts: Parts::default(),
            spare: None,
            scope,
            slots: (0..files).map(|_| Slot::Closed).collect(),
            counters: bases(layout),
        }
    }

    pub(super) fn close(&mut self, descriptors: &mut Descriptors) {
        for slot in &mut self.slots {
            descriptors.close(slot);
        }
    }

    /// Reads every file once and fills the cells; true if some file seems to be gone. `path` gives a file's path and
    /// is asked only to open it. Rows that are in the context already are taken as told by a part of this subject.
    pub(super) fn collect(&mut self, context: &mut Context<'_>, path: impl Fn(File) -> PathBuf) -> bool {
        let files: &[File] = match self.scope {
            Scope::Node => &File::NODE,
            _ => &File::CONTAINER,
        };
        let numa_scope = match self.scope {
            Scope::Cgroup => Scope::CgroupNuma,
            _ => Scope::ContainerNuma,
        };
        let mut gone = false;
        // One reading of the clock serves all files of a subject: it stands before the first, which is the one of CPU
        // time, so that rates are exact and no age is ever understated.
        let at = context.clock.now();
        let mut outcomes: [Option<Outcome>; File::CONTAINER.len()] = std::array::from_fn(|_| None);
        for ((file, slot), outcome) in files.iter().zip(&mut self.slots).zip(&mut outcomes) {
            let Some(name) = name_of(*file, context.unified) else { continue };
            *outcome = Some(read(
                (*file, name),
                slot,
                context,
                numa_scope,
                || path(*file),
                &self.subject.id,
                &mut gone,
            ));
        }
        let mut next = self.spare.take().unwrap_or_else(|| Arc::clone(&self.subject));
        // Copies only if some reader still holds the snapshot before the last.
        let subject = Arc::make_mut(&mut next);
        (subject.read, subject.cycle) = (Some(at), context.pass);
        let rows = self.subject.cells.layout().rows().iter().zip(self.subject.cells.held());
        let mut counters = self.counters.iter_mut();
        for ((metric, cell), next) in rows.zip(subject.cells.held_mut()) {
            let counter = if metric.kind.is_rate() { counters.next() } else { None };
            *next = match metric.origin(context.unified) {
                // What is never told has no cell.
                Origin::Never(_) | Origin::Inputs => continue,
                Origin::From(file) => {
                    let outcome = outcomes.get(file.slot()).and_then(Option::as_ref);
                    fill(metric, cell, counter, outcome, at, self.identity)
                }
            };
        }
        derive(self.scope, &self.subject.cells, &mut subject.cells);
        self.spare = Some(std::mem::replace(&mut self.subject, next));
        self.parts.take(context, &self.subject.id, at, self.identity);
        gone
    }
}

/// Reads one file through its slot.
pub(super) fn read(
    (file, name): (File, &'static str),
    slot: &mut Slot,
    context: &mut Context<'_>,
    numa_scope: Scope,
    path: impl FnOnce() -> PathBuf,
    id: &Id,
    gone: &mut bool,
) -> Outcome {
    let bytes = context.descriptors.read(slot, Path::new(name), path, context.pass, context.buffer);
    let told = context.rows.len();
    let contents = match bytes {
        Ok(bytes) => {
            let mut parsing = Parsing {
                unified: context.unified,
                machine: context.machine,
                numa_scope,
                rows: &mut *context.rows,
                numa: &mut *context.numa,
            };
            file.parse(&mut parsing, bytes).map_err(|e| format!("{name}: {e}"))
        }
        // A root cgroup lacks what other cgroups have.
        Err(fault) if fault.absent && (file.is_optional() || numa_scope == Scope::CgroupNuma) => {
            return Err(Absent::NotHere);
        }
        Err(fault) => {
            *gone |= fault.gone;
            Err(fault.what.to_string())
        }
    };
    contents.map_err(|what| {
        // Half of a file is no file.
        context.rows.truncate(told);
        let what: Arc<str> =
            if id.cgroup.is_empty() { what.into() } else { format!("{what} (cgroup {})", id.cgroup).into() };
        context.failed_files += 1;
        context.failure.get_or_insert_with(|| Arc::clone(&what));
        Absent::Unreadable(what)
    })
}

/// Name of a file in this version, for errors; `None` if there is no such file.
fn name_of(file: File, unified: bool) -> Option<&'static str> {
    file.of_node().or_else(|| file.of_container(unified).map(|(_, name)| name))
}

/// Bases of the rates of a subject, none known.
pub(super) fn bases(layout: &Layout) -> Box<[Option<Counter>]> {
    layout.rows().iter().filter(|m| m.kind.is_rate()).map(|_| None).collect()
}

/// One cell after this pass. A level has no `base`.
pub(super) fn fill(
    metric: &Metric,
    cell: &Cell,
    base: Option<&mut Option<Counter>>,
    outcome: Option<&Outcome>,
    at: Now,
    identity: Identity,
) -> Cell {
    let Some(contents) = outcome else { return cell.after(Err(Absent::NotYet)) };
    let (value, clamped) = match contents.as_ref().map(metric.take) {
        Ok(Told::Value(value)) => (value, false),
        Ok(Told::Clamped(value)) => (value, true),
        Ok(Told::Unlimited) => return cell.after(Err(Absent::Unlimited)),
        Ok(Told::Nothing) => return cell.after(Err(Absent::NotTold)),
        Err(absent) => return cell.after(Err(absent.clone())),
    };
    let reading = Reading { value, at, interval_ns: 0, clamped };
    match base {
        Some(base) => measure(metric.kind, cell, base, reading, identity),
        None => cell.after(Ok(reading)),
    }
}

/// A cell after a reading of a level or of a counter.
pub(crate) fn measure(
    kind: Kind,
    cell: &Cell,
    base: &mut Option<Counter>,
    reading: Reading,
    identity: Identity,
) -> Cell {
    if !kind.is_rate() {
        return cell.after(Ok(reading));
    }
    let counter = Counter { identity, value: reading.value, at: reading.at };
    let rate = rate(base.as_ref(), &counter, kind.least_interval());
    if rate != Rate::TooClose {
        *base = Some(counter);
    }
    match rate {
        Rate::First => cell.after(Err(Absent::FirstReading)),
        Rate::Reset => cell.after(Err(Absent::Reset)),
        Rate::TooClose if cell.last.is_none() => cell.after(Err(Absent::FirstReading)),
        Rate::TooClose => cell.clone(),
        Rate::PerSecond { value, interval } => {
            let interval_ns = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
            cell.after(Ok(Reading { value, interval_ns, ..reading }))
        }
    }
}
