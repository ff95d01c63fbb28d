//! JSON of a source, folded into cells by the catalogue's paths.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::cgroup::measure;
use crate::catalogue::{Field, Remote, Scope};
use crate::cells::Layout;
use crate::clock::Now;
use crate::derive::derive;
use crate::rate::{Counter, Identity};
use crate::sample::{Absent, Reading};
use crate::store::{Id, Instance, Source, Subject};

/// From here on a number stands for "no limit".
const UNLIMITED: f64 = 9.2e18;
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
    told_in: u64,
}

/// What a source told so far.
#[derive(Debug)]
pub(super) struct Fold {
    source: Source,
    /// An older value counts as late.
    late: Duration,
    held: BTreeMap<Owner, Held>,
    /// The monotonic clock less the date.
    offset_ns: Option<i64>,
    since: Now,
    now: Now,
    cycle: u64,
    pub(super) stale_total: u64,
    /// In this pass.
    pub(super) late_values: usize,
}

// === impl Fold ===

impl Fold {
    pub(super) fn new(source: Source, late: Duration) -> Self {
        Self {
            source,
            late,
            held: BTreeMap::new(),
            offset_ns: None,
            since: Now::default(),
            now: Now::default(),
            cycle: 0,
            stale_total: 0,
            late_values: 0,
        }
    }

    /// A pass begins.
    pub(super) fn begin(&mut self, now: Now) {
        let offset = signed(now.monotonic_ns).saturating_sub(now.unix_ns);
        if self.offset_ns.is_none_or(|before| before.abs_diff(offset) > JUMP_NS.unsigned_abs()) {
            // Intervals between source times from before and after the jump mean nothing.
            (self.offset_ns, self.since) = (Some(offset), now);
        }
        (self.now, self.cycle, self.late_values) = (now, self.cycle + 1, 0);
    }

    /// Takes what is told of one subject; `unified` tells the form of malachite's answer.
    pub(super) fn take(&mut self, scope: Scope, id: Id, unified: bool, blocks: &[Block<'_>]) {
        let (_, owner, instance) = id.key(scope);
        let key = (scope, owner.to_owned(), instance.clone());
        let layout = Layout::of(scope, self.source, unified);
        let held = self.held.entry(key).or_insert_with(|| Held {
            counters: vec![None; layout.rows().len()],
            subject: Arc::new(Subject::laid_out(scope, id, layout)),
            told_in: 0,
        });
        held.told_in = self.cycle;
        let before = Arc::clone(&held.subject);
        let next = Arc::make_mut(&mut held.subject);
        (next.read, next.cycle) = (Some(self.now), self.cycle);
        let identity = Identity { device: 0, inode: 0, first_seen: self.since };
        let cells = before.cells.held().iter().zip(&mut held.counters).zip(next.cells.held_mut());
        for (metric, ((cell, counter), next)) in before.cells.layout().rows().iter().zip(cells) {
            let [v1, v2] = metric.malachite;
            let remote = match self.source {
                Source::Kubelet => metric.kubelet,
                _ if unified => v2,
                _ => v1,
            };
            *next = match remote {
                // What is never told has no cell.
                Remote::Never(_) | Remote::Inputs => continue,
                Remote::At(field) => match told(field, blocks) {
                    Err(absent) => cell.after(Err(absent)),
                    Ok((value, unix_ns)) => {
                        let at = at(unix_ns, self.now, self.offset_ns);
                        if self.now.since(at) > self.late {
                            self.stale_total += 1;
                            self.late_values += 1;
                        }
                        measure(field.kind, cell, counter, Reading::level(value, at), identity)
                    }
                },
            };
        }
        derive(scope, &before.cells, &mut next.cells);
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

fn told(field: Field, blocks: &[Block<'_>]) -> Result<(f64, i64), Absent> {
    let (name, rest) = field.path.split_once('/').unwrap_or((field.path, ""));
    let block = blocks.iter().find(|b| b.name == name).ok_or(Absent::NotTold)?;
    let value = block.value.pointer(&format!("/{rest}")).and_then(Value::as_f64).ok_or(Absent::NotTold)?;
    if !(0.0..UNLIMITED).contains(&value) {
        return Err(Absent::Unlimited);
    }
    Ok((value * field.scale, block.unix_ns.filter(|t| *t > 0).ok_or(Absent::NoSourceTime)?))
}

/// A source's date on the clock that never jumps; what lies in the future is true now.
fn at(unix_ns: i64, now: Now, offset_ns: Option<i64>) -> Now {
    let monotonic = unix_ns.saturating_add(offset_ns.unwrap_or(0));
    let monotonic_ns = u64::try_from(monotonic).unwrap_or(0).min(now.monotonic_ns);
    Now { monotonic_ns, unix_ns }
}

fn signed(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}
