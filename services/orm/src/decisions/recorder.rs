//! What is decided becomes a record, behind the back of those who decide.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use oxalyst_mesh::Facts;
use oxalyst_planner::decision::{Given, Step, decide, ended_elsewhere, refused, snapshot};
use oxalyst_planner::plan::Refusal;
use oxalyst_planner::pods::{Released, Rules, State};
use oxalyst_proto::orm::v1::{
    Decision, DecisionEnvelope, EndedSandboxes, RecordedStep, recording_frame::Frame,
};
use oxalyst_topology::Machine;

use super::files::Files;
use super::kept::{Decisions, Limits};
use super::segment::Segment;

/// Decisions that may wait to be written: a burst of pods. What comes on top of it is lost, and counted.
const WAITING: usize = 4096;
/// The same for one that brings the state that it was made on, as the first does after some were lost: each is a whole state to
/// hold, and to write.
const WITH_STATE: usize = 256;
/// Decisions that are written at once, where so many wait.
const BATCH: usize = 256;
/// After the disk has failed it is left alone for so long.
const PAUSE: Duration = Duration::from_secs(10);
const FACT: &str = "decisions.fault";

/// Something that was decided, with all that it followed from.
#[derive(Debug)]
pub struct Noted {
    /// The ledger's generation before.
    pub generation: u64,
    /// What was held before.
    pub before: State,
    /// What is held now.
    pub after: State,
    /// Where.
    pub machine: Arc<Machine>,
    /// By which rules.
    pub rules: Arc<Rules>,
    /// What happened.
    pub step: Step,
    /// Why what was planned was not done; `None`: it was.
    pub overruled: Option<Refusal>,
    /// When, for how long, for whom.
    pub envelope: DecisionEnvelope,
}

/// What waits to be written. States share what is alike, and yet a thousand of them would be a thousand times what changes: a
/// decision brings one only where it is not what the decision before has led to, which planning that again tells as well.
#[derive(Debug)]
struct Waiting {
    generation: u64,
    before: Option<State>,
    machine: Arc<Machine>,
    rules: Arc<Rules>,
    step: Step,
    overruled: Option<Refusal>,
    envelope: DecisionEnvelope,
}

/// Takes what is decided and never waits. When dropped it waits until what it has taken is written.
#[derive(Debug)]
pub struct Recorder {
    notes: Option<SyncSender<Box<Waiting>>>,
    /// What the last decision that was taken has led to; `None`: none was, or one was lost since.
    led_to: Option<State>,
    thread: Option<JoinHandle<()>>,
    decisions: Decisions,
}

/// The thread's own.
struct Writer {
    decisions: Decisions,
    limits: Limits,
    files: Files,
    file: Option<File>,
    /// After this the disk is tried again.
    paused_until: Option<Instant>,
    next_segment: u64,
    next_step: u64,
    /// What the last step has led to, and so what the next one is planned on if nothing else has happened.
    reached: Option<(State, Arc<Machine>, Arc<Rules>)>,
    /// What is held after the last decision, written or counted.
    held: Option<State>,
    /// What is to be appended to the file.
    unwritten: Vec<u8>,
    facts: Facts,
}

// === impl Recorder ===

impl Recorder {
    /// Reads what is kept in the folder, and goes on with it. A folder that cannot be used is no reason not to decide: decisions
    /// are then kept in memory only, and the fact `decisions.fault` says why.
    pub fn open(dir: PathBuf, limits: Limits, decisions: Decisions, facts: Facts) -> Self {
        let mut writer = Writer {
            decisions: decisions.clone(),
            limits,
            files: Files::new(dir),
            file: None,
            paused_until: None,
            next_segment: 1,
            next_step: 1,
            reached: None,
            held: None,
            unwritten: Vec::new(),
            facts,
        };
        writer.facts.set(FACT, "none");
        writer.take_up();
        let (notes, waiting) = sync_channel(WAITING);
        let thread =
            std::thread::Builder::new().name("decisions".to_owned()).spawn(move || writer.run(&waiting));
        match thread {
            Ok(thread) => Self { notes: Some(notes), led_to: None, thread: Some(thread), decisions },
            Err(error) => {
                tracing::error!(%error, "no thread for the decisions: they are not kept");
                Self { notes: None, led_to: None, thread: None, decisions }
            }
        }
    }

    /// Takes a decision, or counts it as lost.
    pub fn note(&mut self, noted: Noted) {
        let Noted { generation, before, after, machine, rules, step, overruled, envelope } = noted;
        let follows = self.led_to.as_ref() == Some(&before);
        let most = if follows { WAITING } else { WITH_STATE };
        self.led_to = None;
        let Some(notes) = self.notes.as_ref().filter(|_| self.decisions.has_room(most as u64)) else {
            return self.decisions.lose();
        };
        let before = (!follows).then_some(before);
        let step = step.pared();
        self.decisions.take();
        let waiting = Waiting { generation, before, machine, rules, step, overruled, envelope };
        match notes.try_send(Box::new(waiting)) {
            Ok(()) => self.led_to = Some(after),
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => self.decisions.take_back(),
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.notes = None;
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            tracing::error!("the thread that writes the decisions panicked");
        }
    }
}

// === impl Writer ===

impl Writer {
    fn take_up(&mut self) {
        let found = match self.files.read() {
            Ok(found) => found,
            Err(error) => return self.disk_fails(&error),
        };
        for fault in &found.faults {
            tracing::warn!("decisions: {fault}; put aside, going on with what is sound");
        }
        if let Some(fault) = found.faults.first() {
            self.facts.set(FACT, format!("{fault}; put aside"));
        }
        self.next_segment = found.newest + 1;
        let steps =
            found.segments.iter().flat_map(|segment| &segment.frames).filter_map(|frame| match frame {
                Frame::Step(step) => Some(step.number + 1),
                _ => None,
            });
        self.next_step = steps.max().unwrap_or(1);
        self.decisions.segments().extend(found.segments);
        self.drop_oldest();
    }

    fn run(mut self, notes: &Receiver<Box<Waiting>>) {
        while let Ok(first) = notes.recv() {
            let mut count = 0;
            for waiting in std::iter::once(first).chain(notes.try_iter()).take(BATCH) {
                self.record(*waiting);
                count += 1;
            }
            self.append();
            self.decisions.wrote(count);
        }
    }

    fn record(&mut self, waiting: Waiting) {
        let Waiting { generation, before, machine, rules, step, overruled, envelope } = waiting;
        let Some(before) = before.or_else(|| self.held.take()) else { return self.decisions.lose() };
        let given = Given {
            state: &before,
            machine: &machine,
            rules: &rules,
            generation,
            overruled: overruled.as_ref(),
        };
        let decided = decide(given, &step);
        if let Some(number) = self.refused_alike(&decided.decision) {
            let at = envelope.time_unix_ms;
            self.held = Some(before);
            return self.write(|segment| segment.repeat(number, at));
        }
        self.make_room();
        self.bring_to(&before, &machine, &rules);
        let recorded = RecordedStep {
            number: self.next_step,
            generation,
            step: Some(step.encode()),
            overruled: overruled.as_ref().map(refused),
            decision: Some(decided.decision),
            envelope: Some(envelope),
        };
        self.next_step += 1;
        self.write(|segment| segment.push(Frame::Step(recorded)));
        let after = decided.plan.map_or(before, |plan| plan.after);
        self.held = Some(after.clone());
        self.reached = Some((after, machine, rules));
    }

    /// The number of the last decision about the same pod, if it was the same refusal and stands in the segment being written.
    fn refused_alike(&self, decision: &Decision) -> Option<u64> {
        let refused = decision.refused.as_ref()?;
        let segments = self.decisions.segments();
        let segment = segments.back().filter(|segment| self.goes_on(segment))?;
        let last = segment.last_about(&decision.pod_uid)?;
        let same = last.decision.as_ref()?.refused.as_ref() == Some(refused);
        same.then_some(last.number)
    }

    /// Whether the segment is this process's own and has room. While the disk fails it grows in memory, until that is tried again.
    fn goes_on(&self, segment: &Segment) -> bool {
        let writable = self.file.is_some() || self.paused_until.is_some_and(|end| Instant::now() < end);
        segment.number + 1 == self.next_segment
            && self.reached.is_some()
            && writable
            && !self.limits.is_full(segment)
    }

    /// Begins a segment if the last one cannot be gone on with.
    fn make_room(&mut self) {
        if self.decisions.segments().back().is_some_and(|segment| self.goes_on(segment)) {
            return;
        }
        let number = self.next_segment;
        self.append();
        self.next_segment += 1;
        self.reached = None;
        self.decisions.segments().push_back(Segment::new(number));
        match self.files.create(number) {
            Ok(file) => {
                self.file = Some(file);
                if self.paused_until.take().is_some() {
                    tracing::info!("decisions can be written again");
                    self.facts.set(FACT, "none");
                }
            }
            Err(error) => self.disk_fails(&error),
        }
        self.drop_oldest();
    }

    /// Writes down what the step is planned on, if it is not what the last step has led to.
    fn bring_to(&mut self, before: &State, machine: &Arc<Machine>, rules: &Arc<Rules>) {
        let frame = match &mut self.reached {
            Some((state, on, by)) if on == machine && by == rules => {
                let ended = difference(&state.released, &before.released);
                if let Some(ended) = &ended {
                    ended_elsewhere(&mut state.released, ended);
                }
                if state == before {
                    ended.map(Frame::Ended)
                } else {
                    Some(Frame::Snapshot(snapshot(before, machine, rules)))
                }
            }
            _ => Some(Frame::Snapshot(snapshot(before, machine, rules))),
        };
        if let Some(frame) = frame {
            self.write(|segment| segment.push(frame));
        }
    }

    fn write(&mut self, append: impl FnOnce(&mut Segment) -> Vec<u8>) {
        let bytes = self.decisions.segments().back_mut().map(append).unwrap_or_default();
        self.unwritten.extend_from_slice(&bytes);
    }

    /// Appends to the file what was written since: one call for all of it.
    fn append(&mut self) {
        let bytes = std::mem::take(&mut self.unwritten);
        if bytes.is_empty() {
            return;
        }
        self.decisions.appended();
        let written = self.file.as_mut().map(|file| file.write_all(&bytes));
        if let Some(Err(error)) = written {
            self.disk_fails(&error);
        }
    }

    fn disk_fails(&mut self, error: &io::Error) {
        if self.paused_until.is_none() {
            tracing::warn!(%error, "decisions cannot be written: they are kept in memory meanwhile");
        }
        self.facts.set(FACT, format!("kept in memory only: {error}"));
        self.file = None;
        self.paused_until = Some(Instant::now() + PAUSE);
    }

    fn drop_oldest(&mut self) {
        for number in self.decisions.drop_oldest(self.limits) {
            if let Err(error) = self.files.remove(number) {
                tracing::warn!(%error, number, "a part of the decisions that is no longer kept cannot be removed");
            }
        }
    }
}

/// What makes one memory of ended sandboxes the other; `None`: they are the same.
fn difference(from: &Released, to: &Released) -> Option<EndedSandboxes> {
    if from == to {
        return None;
    }
    let without = |these: &Released, others: &Released| {
        these.iter().filter(|id| !others.contains(id)).map(str::to_owned).collect()
    };
    Some(EndedSandboxes { forgotten: without(from, to), remembered: without(to, from) })
}
