//! A part of the ring: a state, and the steps that were planned from there on.

use oxalyst_planner::decision::encode_frame;
use oxalyst_proto::orm::v1::{DecisionEntry, RecordedStep, RepeatedStep, recording_frame::Frame};

/// Frames in the order in which they came; the first is a snapshot.
#[derive(Debug, Default)]
pub(super) struct Segment {
    pub(super) number: u64,
    pub(super) frames: Vec<Frame>,
    /// Bytes of the frames in the file.
    pub(super) bytes: usize,
    /// Of these, the bytes of the state that it begins with.
    pub(super) opening: usize,
    /// Steps among the frames.
    pub(super) steps: usize,
}

// === impl Segment ===

impl Segment {
    pub(super) fn new(number: u64) -> Self {
        Self { number, ..Self::default() }
    }

    /// Appends a frame and gives its bytes.
    pub(super) fn push(&mut self, frame: Frame) -> Vec<u8> {
        let bytes = encode_frame(frame.clone());
        self.bytes += bytes.len();
        if self.frames.is_empty() && matches!(frame, Frame::Snapshot(_)) {
            self.opening = bytes.len();
        }
        self.steps += usize::from(matches!(frame, Frame::Step(_)));
        self.frames.push(frame);
        bytes
    }

    fn recorded(&self) -> impl DoubleEndedIterator<Item = &RecordedStep> {
        self.frames.iter().filter_map(|frame| match frame {
            Frame::Step(step) => Some(step),
            _ => None,
        })
    }

    /// When its first step was decided.
    pub(super) fn first_unix_ms(&self) -> Option<i64> {
        self.recorded().find_map(|step| Some(step.envelope.as_ref()?.time_unix_ms))
    }

    /// The steps with how often each was decided alike, the newest first.
    pub(super) fn entries(&self) -> impl Iterator<Item = DecisionEntry> {
        self.recorded().rev().map(|step| self.entry(step))
    }

    fn entry(&self, step: &RecordedStep) -> DecisionEntry {
        let again = self.repeated(step.number);
        let first = step.envelope.as_ref().map_or(0, |envelope| envelope.time_unix_ms);
        DecisionEntry {
            decision: step.decision.clone(),
            envelope: step.envelope.clone(),
            times: 1 + again.map_or(0, |again| again.more),
            last_unix_ms: again.map_or(first, |again| again.time_unix_ms),
        }
    }

    fn repeated(&self, number: u64) -> Option<&RepeatedStep> {
        self.frames.iter().rev().find_map(|frame| match frame {
            Frame::Repeated(again) if again.number == number => Some(again),
            _ => None,
        })
    }

    /// The last step about this pod.
    pub(super) fn last_about(&self, uid: &str) -> Option<&RecordedStep> {
        let about = |step: &&RecordedStep| step.decision.as_ref().is_some_and(|told| told.pod_uid == uid);
        self.recorded().rev().find(about)
    }

    /// Notes that the step of this number was decided alike once more, and gives the bytes to write. What stood there of it before
    /// is not needed any more: the frame has the whole count.
    pub(super) fn repeat(&mut self, number: u64, time_unix_ms: i64) -> Vec<u8> {
        let more = 1 + self.repeated(number).map_or(0, |again| again.more);
        self.frames.retain(|frame| !matches!(frame, Frame::Repeated(again) if again.number == number));
        self.push(Frame::Repeated(RepeatedStep { number, time_unix_ms, more }))
    }
}
