//! JSON of a source, folded into cells by the catalogue's paths.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::ailments::Ailments;
use super::cgroup::{growth, level};
use super::dates::{Dated, Dates, Telling, signed};
use crate::catalogue::{COUNTER_END, Field, Metric, Remote, Scope};
use crate::cells::Layout;
use crate::clock::{Clock, Now};
use crate::derive::derive;
use crate::rate::{Counter, Identity};
use crate::sample::{Absent, Cell, Reading};
use crate::store::{Id, Instance, Source, Subject};

/// From here on, up to [`MOST`], a number of a limit stands for "no limit": the kernel rounds it down to whole pages.
const UNLIMITED: f64 = 9.2e18;
/// No number of 64 bits is larger.
const MOST: f64 = 1.9e19;
/// The date was set if it moves by more than this against the clock that never jumps.
const JUMP_NS: i64 = 500_000_000;

/// One document or block, by the name under which the catalogue's paths begin.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block<'a> {
    pub(super) name: &'static str,
    pub(super) value: &'a Value,
    /// When it was true, nanoseconds since the Unix epoch; `None` if it does not say.
    pub(super) unix_ns: Option<i64>,
}

type Owner = (Scope, String, Instance);

#[derive(Debug)]
struct Held {
    subject: Arc<Subject>,
    counters: Vec<Option<Counter>>,
    dates: Dates,
    told_in: u64,
}

/// What a source told so far.
#[derive(Debug)]
pub(super) struct Fold {
    source: Source,
    /// An older value counts as late.
    late: Duration,
    held: BTreeMap<Owner, Held>,
    /// Asked when something is taken, for a pass may take long; without it all is taken at the beginning of the pass.
    clock: Option<Arc<dyn Clock>>,
    /// The monotonic clock less the date.
    offset_ns: Option<i64>,
    since: Now,
    now: Now,
    cycle: u64,
    pub(super) stale_total: u64,
    /// Of this pass.
    pub(super) ailments: Ailments,
}

// === impl Fold ===

impl Fold {
    pub(super) fn new(source: Source, late: Duration) -> Self {
        Self {
            source,
            late,
            held: BTreeMap::new(),
            clock: None,
            offset_ns: None,
            since: Now::default(),
            now: Now::default(),
            cycle: 0,
            stale_total: 0,
            ailments: Ailments::default(),
        }
    }

    /// The same, with a clock that tells when each subject is taken.
    pub(super) fn with_clock(self, clock: Arc<dyn Clock>) -> Self {
        Self { clock: Some(clock), ..self }
    }

    /// A pass begins.
    pub(super) fn begin(&mut self, now: Now) {
        self.keep_time(now);
        (self.cycle, self.ailments) = (self.cycle + 1, Ailments::default());
    }

    fn tick(&mut self) {
        if let Some(now) = self.clock.as_ref().map(|clock| clock.now()) {
            self.keep_time(now);
        }
    }

    fn keep_time(&mut self, now: Now) {
        let offset = signed(now.monotonic_ns).saturating_sub(now.unix_ns);
        if self.offset_ns.is_none_or(|before| before.abs_diff(offset) > JUMP_NS.unsigned_abs()) {
            // Intervals between source times from before and after the jump mean nothing.
            (self.offset_ns, self.since) = (Some(offset), now);
        }
        self.now = now;
    }

    /// Takes what is told of one subject; `unified` tells the form of malachite's answer.
    pub(super) fn take(&mut self, scope: Scope, id: Id, unified: bool, blocks: &[Block<'_>]) {
        self.tick();
        let (_, owner, instance) = id.key(scope);
        let key = (scope, owner.to_owned(), instance.clone());
        let layout = Layout::of(scope, self.source, unified);
        let held = self.held.entry(key).or_insert_with(|| Held {
            counters: vec![None; layout.rows().len()],
            subject: Arc::new(Subject::laid_out(scope, id, layout)),
            dates: Dates::default(),
            told_in: 0,
        });
        held.told_in = self.cycle;
        let (now, since, ailments) = (self.now, self.since, &mut self.ailments);
        let offset_ns = self.offset_ns.unwrap_or(0);
        let mut dates = Vec::with_capacity(blocks.len());
        for block in blocks {
            let Some(unix_ns) = block.unix_ns.filter(|t| *t > 0) else { continue };
            let dated = held.dates.take(block.name, unix_ns, now, offset_ns);
            ailments.ahead = ailments.ahead.max(dated.ahead);
            ailments.went_back += usize::from(dated.telling == Telling::WentBack);
            dates.push((block.name, dated));
        }
        let before = Arc::clone(&held.subject);
        let next = Arc::make_mut(&mut held.subject);
        (next.read, next.cycle, next.removed) = (Some(now), self.cycle, None);
        let cells = before.cells.held().iter().zip(&mut held.counters).zip(next.cells.held_mut());
        for (metric, ((cell, counter), next)) in before.cells.layout().rows().iter().zip(cells) {
            let [v1, v2] = metric.malachite;
            let remote = match self.source {
                Source::Kubelet => metric.kubelet,
                _ if unified => v2,
                _ => v1,
            };
            // What is never told has no cell.
            let Remote::At(field) = remote else { continue };
            let value = match told(metric, field, blocks) {
                Ok(value) => value,
                Err(absent) => {
                    if let Absent::OutOfRange(value) = absent {
                        ailments.wrong(metric.name, value);
                    }
                    *next = cell.after(Err(absent));
                    continue;
                }
            };
            let Some((_, dated)) = dates.iter().find(|(name, _)| *name == field.document()) else {
                *next = cell.after(Err(Absent::NoSourceTime));
                continue;
            };
            if now.since(dated.at) > self.late || dated.telling == Telling::WentBack {
                self.stale_total += 1;
                ailments.late += usize::from(dated.telling != Telling::WentBack);
            }
            *next = match dated.telling {
                Telling::WentBack => cell.after(Err(Absent::WentBack)),
                // The same time again is no new reading.
                Telling::Again if cell.last.is_some_and(|last| last.at == dated.at) => {
                    Cell { last: cell.last, absent: None }
                }
                _ if field.kind.is_rate() => {
                    // No interval reaches beyond a clock's being set, be it here or there.
                    let first_seen = since.max(dated.since);
                    let identity = Identity { device: 0, inode: 0, first_seen };
                    let of = Counter { identity, value, at: dated.counted_at };
                    let reading = Reading::level(value, dated.at);
                    growth(metric, field.kind, cell, counter, reading, of, metric.most_growth(None))
                }
                _ => level(metric, cell, Reading::level(value, dated.at)),
            };
            if let Some(Absent::OutOfRange(value)) = next.absent {
                ailments.wrong(metric.name, value);
            }
        }
        derive(scope, &before.cells, &mut next.cells);
    }

    /// When something that others keep was true, beside those that `dates` took before; for intervals it is told since when its
    /// clock and the one here go on without having been set.
    pub(super) fn date(&mut self, dates: &mut Dates, block: &'static str, unix_ns: i64) -> Dated {
        self.tick();
        let dated = dates.take(block, unix_ns, self.now, self.offset_ns.unwrap_or(0));
        Dated { since: dated.since.max(self.since), ..dated }
    }

    /// Whoever was not told of in this pass is gone, as the source says. Only of one that always tells of all.
    pub(super) fn bury(&mut self) {
        let (cycle, now) = (self.cycle, self.now);
        for held in self.held.values_mut().filter(|h| h.told_in != cycle && h.subject.removed.is_none()) {
            Arc::make_mut(&mut held.subject).removed = Some(now);
        }
    }

    /// Forgets whom no pass told of for `passes`.
    pub(super) fn forget(&mut self, passes: u64) {
        let cycle = self.cycle;
        self.held.retain(|_, held| cycle.saturating_sub(held.told_in) <= passes);
    }

    /// Everybody, sorted.
    pub(super) fn subjects(&self) -> Vec<Arc<Subject>> {
        self.held.values().map(|h| Arc::clone(&h.subject)).collect()
    }

    pub(super) fn cycle(&self) -> u64 {
        self.cycle
    }
}

/// What a document holds, in the metric's unit.
fn told(metric: &Metric, field: Field, blocks: &[Block<'_>]) -> Result<f64, Absent> {
    let (name, rest) = field.path.split_once('/').unwrap_or((field.path, ""));
    let block = blocks.iter().find(|b| b.name == name).ok_or(Absent::NotTold)?;
    let value = block.value.pointer(&format!("/{rest}")).and_then(Value::as_f64).ok_or(Absent::NotTold)?;
    #[allow(clippy::float_cmp)] // as the kernel writes it
    if metric.limit && (value == -1.0 || (UNLIMITED..MOST).contains(&value)) {
        return Err(Absent::Unlimited);
    }
    if !(0.0..COUNTER_END).contains(&value) {
        return Err(Absent::OutOfRange(value));
    }
    // A sum of nothing is -0, and no value is.
    Ok(value * field.scale + 0.0)
}
