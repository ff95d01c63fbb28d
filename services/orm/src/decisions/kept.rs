//! The ring in memory: what is asked for is answered from here.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oxalyst_proto::orm::v1::{Decision, DecisionEntry, recording_frame::Frame};

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
}

// === impl Limits ===

impl Limits {
    /// Whether nothing more belongs into this segment.
    pub(super) fn is_full(&self, segment: &Segment) -> bool {
        segment.steps >= (self.records / SEGMENTS).max(1) || segment.bytes >= (self.bytes / SEGMENTS).max(1)
    }

    /// Whether the ring passes them once its last segment is full.
    fn are_passed(&self, segments: &VecDeque<Segment>) -> bool {
        let before_last = segments.len().saturating_sub(1);
        let (steps, bytes) = segments
            .iter()
            .take(before_last)
            .fold((0, 0), |(steps, bytes), own| (steps + own.steps, bytes + own.bytes));
        before_last > 0
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

    /// At most so many decisions, the newest first: about the pod of this uid or `namespace/name`, or told to have
    /// changed its CPUs (empty: any), refusals only if
    /// that is asked for.
    pub fn list(&self, pod: &str, refused_only: bool, limit: usize) -> Vec<DecisionEntry> {
        let is_asked = |told: &Decision| {
            let touched = told
                .affected
                .iter()
                .any(|other| other.pod_uid == pod || pod == format!("{}/{}", other.namespace, other.name));
            let named = touched
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
