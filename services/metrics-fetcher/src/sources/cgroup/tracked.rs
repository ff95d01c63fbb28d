//! One subject between passes: its descriptors, the last reading of each of its counters, what is known of it.

use std::sync::Arc;

use oxalyst_cgroups::CgroupPath;

use super::descriptors::{Descriptors, Slot};
use super::errand::{Errand, Hands, Outcome, Whom};
use super::part::Parts;
use crate::catalogue::{self, COUNTER_END, Kind, Metric, Origin, Scope, Told};
use crate::cells::Layout;
use crate::clock::Now;
use crate::contents::{Contents, File};
use crate::derive::derive;
use crate::rate::{Counter, Identity, Rate, rate};
use crate::sample::{Absent, Cell, Reading};
use crate::store::{Id, Subject};
use crate::trees::Trees;

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
    /// CPU time used, when the bases of its shares were read: time in user mode, time in the kernel. The kernel divides it at
    /// its clock tick, and a share may look larger than the whole.
    wholes: [Option<(Now, f64)>; 2],
}

// === impl Tracked ===

impl Tracked {
    /// Of a machine with such trees.
    pub(super) fn new(scope: Scope, identity: Identity, id: Id, trees: Trees) -> Self {
        let layout = Layout::of_kernel(scope, trees);
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
            wholes: [None; 2],
        }
    }

    pub(super) fn close(&mut self, descriptors: &mut Descriptors) {
        for slot in &mut self.slots {
            descriptors.close(slot);
        }
    }

    /// Its files, for a thread to read them.
    pub(super) fn errand(&mut self, whom: Whom, cgroup: Option<Arc<CgroupPath>>) -> Errand {
        let slots = std::mem::take(&mut self.slots);
        Errand::new(whom, Arc::clone(&self.subject.id), cgroup, slots)
    }

    /// Files with nothing open, but for the one whose read hangs.
    pub(super) fn replace(&mut self, slots: Vec<Slot>) {
        self.slots = slots;
    }

    /// Fills the cells with what an errand brought. Rows that were told by parts are taken as parts of this subject.
    pub(super) fn take(&mut self, errand: Errand, hands: &mut Hands) {
        self.slots = errand.slots;
        let at = errand.at;
        let mut next = self.spare.take().unwrap_or_else(|| Arc::clone(&self.subject));
        // Copies only if some reader still holds the snapshot before the last.
        let subject = Arc::make_mut(&mut next);
        (subject.read, subject.cycle) = (Some(at), hands.pass);
        let rows = self.subject.cells.layout().rows().iter().zip(self.subject.cells.held());
        let mut counters = self.counters.iter_mut();
        let (whole, mut wholes) = (cpu_time(hands), self.wholes.iter_mut());
        for ((metric, cell), next) in rows.zip(subject.cells.held_mut()) {
            let mut counter = if metric.kind.is_rate() { counters.next() } else { None };
            *next = match hands.trees.origin(metric) {
                // What a version never tells has no cell, but on a hybrid.
                Origin::Inputs => continue,
                Origin::Never(why) => never(cell, why),
                Origin::From(file) => {
                    let outcome = hands.outcomes.get(file.slot()).and_then(Option::as_ref);
                    let share = self.scope != Scope::Node && matches!(metric.kind, Kind::Ticks);
                    let known = if share { wholes.next() } else { None };
                    let base = counter.as_deref().and_then(Option::as_ref).map(|base| base.at);
                    let most =
                        most_of(known.as_deref().copied().flatten(), base, whole.map(|whole| (at, whole)));
                    let next = fill(metric, cell, counter.as_deref_mut(), outcome, (at, most), self.identity);
                    if let (Some(known), Some(Some(Counter { at: base, .. }))) = (known, counter.as_deref())
                        && *base == at
                    {
                        *known = whole.map(|whole| (at, whole));
                    }
                    next
                }
            };
            if let Some(Absent::OutOfRange(value)) = next.absent {
                hands.nonsense(metric.name, value, &subject.id);
            }
        }
        derive(self.scope, &self.subject.cells, &mut subject.cells);
        self.spare = Some(std::mem::replace(&mut self.subject, next));
        self.parts.take(hands, &self.subject.id, at, self.identity);
    }
}

/// A cell of what is never told, though another machine of this version tells it.
pub(super) fn never(cell: &Cell, why: &'static str) -> Cell {
    match cell.absent {
        Some(Absent::Never(_)) => cell.clone(),
        _ => cell.after(Err(Absent::Never(Arc::new(why.to_owned())))),
    }
}

/// Bases of the rates of a subject, none known.
pub(super) fn bases(layout: &Layout) -> Box<[Option<Counter>]> {
    layout.rows().iter().filter(|m| m.kind.is_rate()).map(|_| None).collect()
}

/// CPU time used by a cgroup so far, seconds.
fn cpu_time(hands: &Hands) -> Option<f64> {
    let told = |file: File| hands.outcomes.get(file.slot())?.as_ref()?.as_ref().ok();
    let file = if hands.trees.is_v2(File::CpuStat) { File::CpuStat } else { File::CpuUsage };
    told(file).and_then(catalogue::cpu_time)
}

/// The most that a share can have grown a second since `base`: what the whole did.
fn most_of(before: Option<(Now, f64)>, base: Option<Now>, now: Option<(Now, f64)>) -> f64 {
    let Some(((then, before), (at, now))) = before.zip(now) else { return f64::INFINITY };
    let interval = at.since(then);
    if base != Some(then) || interval.is_zero() || now < before {
        return f64::INFINITY;
    }
    (now - before) / interval.as_secs_f64()
}

/// One cell after this pass, and no more than that of a rate. A level has no `base`.
pub(super) fn fill(
    metric: &Metric,
    cell: &Cell,
    base: Option<&mut Option<Counter>>,
    outcome: Option<&Outcome>,
    (at, most): (Now, f64),
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
    let reading = Reading { value, at, interval_s: 0.0, clamped };
    match base {
        Some(base) => {
            let identity = match contents {
                // Another file that counts the same is another counter.
                Ok(Contents::ReadWritten(_, _, by)) if by.in_place_of().is_some() => {
                    Identity { device: !identity.device, inode: *by as u64, ..identity }
                }
                _ => identity,
            };
            let counter = Counter { identity, value: reading.value, at: reading.at };
            let most = metric.most_growth(contents.as_ref().ok()).min(most);
            growth(metric, metric.kind, cell, base, reading, counter, most)
        }
        None => level(metric, cell, reading),
    }
}

/// A cell after a reading of a level.
pub(crate) fn level(metric: &Metric, cell: &Cell, reading: Reading) -> Cell {
    cell.after(if metric.can_be(reading.value) {
        Ok(reading)
    } else {
        Err(Absent::OutOfRange(reading.value))
    })
}

/// A cell after a reading of a counter. One that no counter can have, and one that makes a rate that cannot be, are no reading:
/// the one before stays the base. A rate beyond what there is at `most` is brought to that: the counter and the clock are read
/// one after the other, and the counter grows in steps.
pub(crate) fn growth(
    metric: &Metric,
    kind: Kind,
    cell: &Cell,
    base: &mut Option<Counter>,
    reading: Reading,
    counter: Counter,
    most: f64,
) -> Cell {
    if !(0.0..COUNTER_END).contains(&counter.value) {
        return cell.after(Err(Absent::OutOfRange(counter.value)));
    }
    let rate = rate(base.as_ref(), &counter, kind.least_interval());
    if let Rate::PerSecond { value, .. } = rate
        && !metric.can_be(value)
    {
        return cell.after(Err(Absent::OutOfRange(value)));
    }
    if rate != Rate::TooClose {
        *base = Some(counter);
    }
    match rate {
        Rate::First => cell.after(Err(Absent::FirstReading)),
        Rate::Reset => cell.after(Err(Absent::Reset)),
        Rate::TooClose if cell.last.is_none() => cell.after(Err(Absent::FirstReading)),
        Rate::TooClose => cell.clone(),
        Rate::PerSecond { value, interval } => {
            let clamped = reading.clamped || value > most;
            let interval_s = interval.as_secs_f32();
            cell.after(Ok(Reading { value: value.min(most), interval_s, clamped, ..reading }))
        }
    }
}
