//! The ring in memory: what is asked for is answered from here.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oxalyst_proto::orm::v1::{Decision, DecisionEntry, recording_frame::Frame};
use tokio::sync::watch;

use super::segment::Segment;

/// Parts that the ring is made of: the oldest goes as a whole.
const SEGMENTS: usize = 4;

/// How large the ring may become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Decisions.
    pub records: usize,
    /// Bytes of its files.
    pub bytes: usize,
}

/// The decisions that are kept. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Decisions {
    segments: Arc<Mutex<VecDeque<Segment>>>,
    lost: Arc<AtomicU64>,
    /// Handed on to be written since the start.
    taken: Arc<AtomicU64>,
    /// Of these, written.
    written: Arc<watch::Sender<u64>>,
    /// Appends to the ring's files since the start.
    appends: Arc<AtomicU64>,
}

// === impl Limits ===

impl Limits {
    /// Whether nothing more belongs into this segment. Its steps take at least as much as the state that it begins with: with many
    /// pods that state is large, and to write it anew every few steps would leave room for few, and no time.
    pub(super) fn is_full(&self, segment: &Segment) -> bool {
        let bytes = (self.bytes / SEGMENTS).max(1).max(segment.opening.saturating_mul(2));
        segment.steps >= (self.records / SEGMENTS).max(1) || segment.bytes >= bytes
    }

    /// Whether the ring passes them once its last segment is full. The one before the last always stays: the last may have just begun.
    fn are_passed(&self, segments: &VecDeque<Segment>) -> bool {
        let before_last = segments.len().saturating_sub(1);
        let (steps, bytes) = segments
            .iter()
            .take(before_last)
            .fold((0, 0), |(steps, bytes), own| (steps + own.steps, bytes + own.bytes));
        before_last > 1
            && (steps + self.records / SEGMENTS > self.records || bytes + self.bytes / SEGMENTS > self.bytes)
    }
}

// === impl Decisions ===

impl Decisions {
    // No code that holds the lock can panic half way through a change.
    pub(super) fn segments(&self) -> MutexGuard<'_, VecDeque<Segment>> {
        self.segments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops the oldest segments that pass the limits, and names them.
    pub(super) fn drop_oldest(&self, limits: Limits) -> Vec<u64> {
        let mut segments = self.segments();
        let mut dropped = Vec::new();
        while limits.are_passed(&segments) {
            dropped.extend(segments.pop_front().map(|segment| segment.number));
        }
        dropped
    }

    pub(super) fn lose(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    /// Decisions that were not kept since the start.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Whether one more may wait where `most` may.
    pub(super) fn has_room(&self, most: u64) -> bool {
        self.taken.load(Ordering::SeqCst).saturating_sub(*self.written.borrow()) < most
    }

    #[cfg(test)]
    pub(super) fn appends(&self) -> u64 {
        self.appends.load(Ordering::Relaxed)
    }

    pub(super) fn appended(&self) {
        self.appends.fetch_add(1, Ordering::Relaxed);
    }

    /// One more is handed on to be written.
    pub(super) fn take(&self) {
        self.taken.fetch_add(1, Ordering::SeqCst);
    }

    /// It could not be handed on.
    pub(super) fn take_back(&self) {
        self.taken.fetch_sub(1, Ordering::SeqCst);
        self.lose();
    }

    /// So many of those that were handed on are written.
    pub(super) fn wrote(&self, count: u64) {
        self.written.send_modify(|written| *written += count);
    }

    /// Waits until all that have been handed on by now are written, and gives how many of them still are not after `patience`.
    pub async fn settle(&self, patience: Duration) -> u64 {
        let taken = self.taken.load(Ordering::SeqCst);
        let mut written = self.written.subscribe();
        // Late is no fault here: the number says so.
        let _ = tokio::time::timeout(patience, written.wait_for(|written| *written >= taken)).await;
        taken.saturating_sub(*self.written.borrow())
    }

    /// When the oldest of them was made, milliseconds since the Unix epoch; `None`: there is none.
    pub fn oldest_unix_ms(&self) -> Option<i64> {
        let segments = self.segments();
        segments.iter().find_map(Segment::first_unix_ms)
    }

    /// At most so many decisions, the newest first: about the pod of this uid or `namespace/name`, or told to have
    /// changed its CPUs (empty: any), refusals only if
    /// that is asked for.
    pub fn list(&self, pod: &str, refused_only: bool, limit: usize) -> Vec<DecisionEntry> {
        let is_asked = |told: &Decision| {
            let touched = told
                .affected
                .iter()
                .any(|other| other.pod_uid == pod || pod == format!("{}/{}", other.namespace, other.name));
            let of_several = told
                .pods
                .iter()
                .any(|one| one.pod_uid == pod || pod == format!("{}/{}", one.namespace, one.name));
            let named = touched
                || of_several
                || pod.is_empty()
                || told.pod_uid == pod
                || pod == format!("{}/{}", told.namespace, told.name);
            named && (told.refused.is_some() || !refused_only)
        };
        let segments = self.segments();
        let newest = segments.iter().rev().flat_map(Segment::entries);
        newest.filter(|entry| entry.decision.as_ref().is_some_and(is_asked)).take(limit).collect()
    }

    /// All frames, the oldest first.
    pub fn frames(&self) -> Vec<Frame> {
        self.segments().iter().flat_map(|segment| segment.frames.iter().cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxalyst_proto::orm::v1::{DecisionEnvelope, RecordedStep, StateSnapshot};

    const LIMITS: Limits = Limits { records: 400_000, bytes: 4000 };

    /// Begins with a state of about so many bytes.
    fn segment(number: u64, state: usize) -> Segment {
        let mut segment = Segment::new(number);
        let online = "x".repeat(state);
        segment.push(Frame::Snapshot(StateSnapshot { reserved: online, ..StateSnapshot::default() }));
        segment
    }

    fn step(at: i64) -> Frame {
        let envelope = Some(DecisionEnvelope { time_unix_ms: at, ..DecisionEnvelope::default() });
        Frame::Step(RecordedStep { envelope, ..RecordedStep::default() })
    }

    #[test]
    fn m6_a_state_larger_than_the_limit_leaves_room_for_as_many_bytes_of_steps() {
        let mut segment = segment(1, 10_000);
        let opening = segment.bytes;
        let mut steps = 0;
        while !LIMITS.is_full(&segment) {
            segment.push(step(1));
            steps += 1;
        }
        assert!(segment.bytes >= 2 * opening && steps > 1, "{steps} steps of {} bytes", segment.bytes);
        let segments = VecDeque::from([segment, Segment::new(2)]);
        assert!(!LIMITS.are_passed(&segments), "the only full one stays");
    }

    #[test]
    fn a_small_state_leaves_the_limit_as_it_is() {
        let mut segment = segment(1, 10);
        while !LIMITS.is_full(&segment) {
            segment.push(step(1));
        }
        assert!(segment.bytes < LIMITS.bytes / SEGMENTS + 100, "{}", segment.bytes);
    }

    #[test]
    fn the_oldest_is_told() {
        let decisions = Decisions::default();
        assert_eq!(decisions.oldest_unix_ms(), None);
        let mut first = segment(1, 1);
        first.push(step(7));
        first.push(step(9));
        decisions.segments().push_back(first);
        assert_eq!(decisions.oldest_unix_ms(), Some(7));
    }

    #[tokio::test]
    async fn m6_what_waits_to_be_written_is_waited_for_and_counted() {
        let decisions = Decisions::default();
        decisions.take();
        decisions.take();
        assert_eq!(decisions.settle(Duration::ZERO).await, 2);
        decisions.take_back();
        let (patience, writer) = (Duration::from_secs(20), decisions.clone());
        let written = tokio::spawn(async move { writer.wrote(1) });
        assert_eq!((decisions.settle(patience).await, decisions.lost()), (0, 1));
        written.await.unwrap();
    }
}
