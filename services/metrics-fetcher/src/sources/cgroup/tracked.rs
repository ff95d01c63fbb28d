//! One subject between passes: its descriptors, the last reading of each of its counters, what is known of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::descriptors::{Descriptors, Slot};
use crate::catalogue::{self, Kind, Metric, Origin, Scope, Told};
use crate::clock::{Clock, Now};
use crate::contents::{Contents, File};
use crate::rate::{Counter, Identity, Rate, rate};
use crate::sample::{Absent, Cell, Reading};
use crate::store::{Id, Subject};

/// A subject that is read in every pass.
#[derive(Debug)]
pub(super) struct Tracked {
    pub(super) identity: Identity,
    pub(super) subject: Arc<Subject>,
    /// The one before: once no snapshot holds it any more its memory is used again. Giving it back to the allocator
    /// and taking it anew costs page faults in every pass.
    spare: Option<Arc<Subject>>,
    scope: Scope,
    slots: Vec<Slot>,
    /// As many as the scope has metrics; `None` for levels and for rates without a base.
    counters: Vec<Option<Counter>>,
}

/// What a pass shares among its subjects.
#[derive(Debug)]
pub(super) struct Context<'a> {
    pub(super) unified: bool,
    pub(super) pass: u64,
    pub(super) clock: &'a dyn Clock,
    pub(super) descriptors: &'a mut Descriptors,
    pub(super) buffer: &'a mut Vec<u8>,
    pub(super) failed_files: usize,
    pub(super) failure: Option<Arc<str>>,
}

/// What one file gave.
type Outcome = Result<Contents, Absent>;

// === impl Tracked ===

impl Tracked {
    pub(super) fn new(scope: Scope, identity: Identity, id: Id) -> Self {
        let files = match scope {
            Scope::Node => File::NODE.len(),
            Scope::Container => File::CONTAINER.len(),
        };
        Self {
            identity,
            subject: Arc::new(Subject::unknown(scope, id)),
            spare: None,
            scope,
            slots: (0..files).map(|_| Slot::Closed).collect(),
            counters: vec![None; catalogue::of(scope).len()],
        }
    }

    pub(super) fn close(&mut self, descriptors: &mut Descriptors) {
        for slot in &mut self.slots {
            descriptors.close(slot);
        }
    }

    /// Reads every file once and fills the cells; true if some file seems to be gone. `path` gives a file's path and
    /// is asked only to open it.
    pub(super) fn collect(&mut self, context: &mut Context<'_>, path: impl Fn(File) -> PathBuf) -> bool {
        let files: &[File] = match self.scope {
            Scope::Node => &File::NODE,
            Scope::Container => &File::CONTAINER,
        };
        let mut gone = false;
        // One reading of the clock serves all files of a subject: it stands before the first, which is the one of CPU
        // time, so that rates are exact and no age is ever understated.
        let at = context.clock.now();
        let mut outcomes: [Option<Outcome>; File::CONTAINER.len()] = std::array::from_fn(|_| None);
        for ((file, slot), outcome) in files.iter().zip(&mut self.slots).zip(&mut outcomes) {
            *outcome = read(*file, slot, context, &path, &self.subject.id, &mut gone);
        }
        let mut next = self.spare.take().unwrap_or_else(|| Arc::clone(&self.subject));
        // Copies only if some reader still holds the snapshot before the last.
        let cells = &mut Arc::make_mut(&mut next).cells;
        let metrics = catalogue::of(self.scope).iter().zip(&self.subject.cells);
        for (((metric, cell), counter), next) in metrics.zip(&mut self.counters).zip(cells) {
            *next = match metric.origin(context.unified) {
                Origin::Never(why) => Cell::absent(Absent::Never(why)),
                Origin::From(file) => {
                    let outcome = outcomes.get(file.slot()).and_then(Option::as_ref);
                    fill(metric, cell, counter, outcome, at, self.identity)
                }
            };
        }
        self.spare = Some(std::mem::replace(&mut self.subject, next));
        gone
    }
}

fn read(
    file: File,
    slot: &mut Slot,
    context: &mut Context<'_>,
    path: &impl Fn(File) -> PathBuf,
    id: &Id,
    gone: &mut bool,
) -> Option<Outcome> {
    let name = name_of(file, context.unified)?;
    let bytes = context.descriptors.read(slot, Path::new(name), || path(file), context.pass, context.buffer);
    let contents = match bytes {
        Ok(bytes) => file.parse(context.unified, bytes).map_err(|e| format!("{name}: {e}")),
        Err(fault) => {
            *gone |= fault.gone;
            Err(fault.what.to_string())
        }
    };
    let contents = contents.map_err(|what| {
        let what: Arc<str> =
            if id.cgroup.is_empty() { what.into() } else { format!("{what} (cgroup {})", id.cgroup).into() };
        context.failed_files += 1;
        context.failure.get_or_insert_with(|| Arc::clone(&what));
        Absent::Unreadable(what)
    });
    Some(contents)
}

/// Name of a file in this version, for errors; `None` if there is no such file.
fn name_of(file: File, unified: bool) -> Option<&'static str> {
    file.of_node().or_else(|| file.of_container(unified).map(|(_, name)| name))
}

/// One cell after this pass.
fn fill(
    metric: &Metric,
    cell: &Cell,
    base: &mut Option<Counter>,
    outcome: Option<&Outcome>,
    at: Now,
    identity: Identity,
) -> Cell {
    let Some(contents) = outcome else { return cell.after(Err(Absent::NotYet)) };
    let value = match contents.as_ref().map(metric.take) {
        Ok(Told::Value(value)) => value,
        Ok(Told::Unlimited) => return cell.after(Err(Absent::Unlimited)),
        Ok(Told::Nothing) => return cell.after(Err(Absent::NotTold)),
        Err(absent) => return cell.after(Err(absent.clone())),
    };
    if metric.kind == Kind::Level {
        return cell.after(Ok(Reading { value, at, interval: std::time::Duration::ZERO }));
    }
    let counter = Counter { identity, value, at };
    let rate = rate(base.as_ref(), &counter);
    if rate != Rate::TooClose {
        *base = Some(counter);
    }
    match rate {
        Rate::First => cell.after(Err(Absent::FirstReading)),
        Rate::Reset => cell.after(Err(Absent::Reset)),
        Rate::TooClose => cell.clone(),
        Rate::PerSecond { value, interval } => cell.after(Ok(Reading { value, at, interval })),
    }
}
