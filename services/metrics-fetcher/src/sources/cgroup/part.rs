//! Single CPUs, NUMA nodes and devices between passes.

use std::sync::Arc;

use super::errand::{Hands, Outcome};
use super::tracked::{bases, fill, never};
use crate::catalogue::{Origin, Scope};
use crate::cells::Layout;
use crate::clock::Now;
use crate::contents::{File, Row};
use crate::derive::derive;
use crate::rate::{Counter, Identity};
use crate::sample::Absent;
use crate::store::{Id, Instance, Subject};
use crate::trees::Trees;

/// A part of which no file told for so many passes is gone: a device that was pulled, a CPU that is offline.
const PATIENCE: u32 = 20;

/// The parts of one subject, sorted.
#[derive(Debug, Default)]
pub(super) struct Parts(Vec<Part>);

#[derive(Debug)]
struct Part {
    subject: Arc<Subject>,
    /// The one before, to be used again as of any [`super::tracked::Tracked`].
    spare: Option<Arc<Subject>>,
    counters: Box<[Option<Counter>]>,
    missed: u32,
}

// === impl Parts ===

impl Parts {
    /// What is known of each.
    pub(super) fn subjects(&self) -> impl Iterator<Item = &Arc<Subject>> {
        self.0.iter().map(|p| &p.subject)
    }

    /// Takes the rows of this pass out of `hands`.
    pub(super) fn take(&mut self, hands: &mut Hands, whole: &Id, at: Now, identity: Identity) {
        if hands.rows.is_empty() && self.0.is_empty() {
            return;
        }
        hands.rows.sort_by(|a, b| (a.scope, &a.instance).cmp(&(b.scope, &b.instance)));
        for part in &mut self.0 {
            part.missed += 1;
        }
        let mut wrong = Vec::new();
        for rows in hands.rows.chunk_by(|a, b| (a.scope, &a.instance) == (b.scope, &b.instance)) {
            let Some(Row { scope, instance, .. }) = rows.first() else { continue };
            let place = match self.0.binary_search_by(|p| p.key().cmp(&(*scope, instance))) {
                Ok(place) => place,
                Err(place) => {
                    let id = Id { instance: instance.clone(), ..whole.clone() };
                    self.0.insert(place, Part::new(*scope, id, hands.trees));
                    place
                }
            };
            if let Some(part) = self.0.get_mut(place)
                && let Some((metric, value)) = part.fill(hands.trees, hands.pass, rows, at, identity)
            {
                wrong.push((metric, value, Arc::clone(&part.subject.id)));
            }
        }
        self.0.retain(|p| p.missed <= PATIENCE);
        hands.rows.clear();
        for (metric, value, id) in wrong {
            hands.nonsense(metric, value, &id);
        }
    }
}

// === impl Part ===

impl Part {
    fn new(scope: Scope, id: Id, trees: Trees) -> Self {
        let layout = Layout::of_kernel(scope, trees);
        let subject = Arc::new(Subject::laid_out(scope, id, layout));
        Self { subject, spare: None, counters: bases(layout), missed: 0 }
    }

    fn key(&self) -> (Scope, &Instance) {
        (self.subject.scope, &self.subject.id.instance)
    }

    /// The first value that cannot be is given back, with the name of its metric.
    fn fill(
        &mut self,
        trees: Trees,
        cycle: u64,
        rows: &[Row],
        at: Now,
        identity: Identity,
    ) -> Option<(&'static str, f64)> {
        self.missed = 0;
        let mut wrong = None;
        let told =
            |file: File| -> Option<Outcome> { Some(Ok(rows.iter().find(|r| r.file == file)?.contents)) };
        let mut next = self.spare.take().unwrap_or_else(|| Arc::clone(&self.subject));
        let before = &self.subject;
        let subject = Arc::make_mut(&mut next);
        (subject.read, subject.cycle) = (Some(at), cycle);
        let rows = before.cells.layout().rows().iter().zip(before.cells.held());
        let mut counters = self.counters.iter_mut();
        for ((metric, cell), next) in rows.zip(subject.cells.held_mut()) {
            let counter = if metric.kind.is_rate() { counters.next() } else { None };
            *next = match trees.origin(metric) {
                // What a version never tells has no cell, but on a hybrid.
                Origin::Inputs => continue,
                Origin::Never(why) => never(cell, why),
                // A file that failed in this pass leaves what it told before, ageing.
                Origin::From(file) => match told(file) {
                    Some(outcome) => {
                        fill(metric, cell, counter, Some(&outcome), (at, f64::INFINITY), identity)
                    }
                    None => cell.clone(),
                },
            };
            if let Some(Absent::OutOfRange(value)) = next.absent {
                wrong.get_or_insert((metric.name, value));
            }
        }
        derive(subject.scope, &before.cells, &mut subject.cells);
        self.spare = Some(std::mem::replace(&mut self.subject, next));
        wrong
    }
}
