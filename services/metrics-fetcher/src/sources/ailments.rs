//! What ails what a source tells, though it answers: told once, and once when it is over.

use std::time::Duration;

/// Of one pass.
#[derive(Debug, Default)]
pub(super) struct Ailments {
    /// Values that were older than the source may deliver.
    pub(super) late: usize,
    /// Blocks that told of an earlier time than before.
    pub(super) went_back: usize,
    /// By how much it was ahead of the clock here, the most.
    pub(super) ahead: Option<Duration>,
    /// What is not of the kind that it should be: a text in place of a number, a CPU without a number.
    pub(super) malformed: usize,
    /// The metric of the first of them.
    pub(super) misshapen: Option<&'static str>,
    /// Values that cannot be.
    pub(super) nonsense: usize,
    /// The first of them: the metric, and what was said.
    pub(super) example: Option<(&'static str, f64)>,
}

/// Which ailments were told.
#[derive(Debug, Default)]
pub(super) struct Told {
    late: bool,
    went_back: bool,
    ahead: bool,
    nonsense: bool,
    malformed: bool,
}

// === impl Ailments ===

impl Ailments {
    /// One value that cannot be.
    pub(super) fn wrong(&mut self, metric: &'static str, value: f64) {
        self.nonsense += 1;
        self.example.get_or_insert((metric, value));
    }

    /// Something of the wrong kind.
    pub(super) fn malformed(&mut self, metric: &'static str) {
        self.malformed += 1;
        self.misshapen.get_or_insert(metric);
    }

    /// The worst of it, for people; nothing of late values, which say so themselves.
    pub(super) fn text(&self) -> Option<String> {
        if let (None, Some(metric)) = (self.example, self.misshapen) {
            return Some(format!(
                "{} values are not of their kind, one of them of {metric}: those before hold, and age",
                self.malformed
            ));
        }
        match (self.example, self.went_back, self.ahead) {
            (Some((metric, value)), ..) => Some(format!(
                "{} values cannot be, {metric} is said to be {value}: those before hold, and age",
                self.nonsense
            )),
            (None, 1.., _) => {
                Some("it tells of an earlier time than before: what it told then holds, and ages".to_owned())
            }
            (None, 0, Some(ahead)) => Some(format!(
                "its clock is {} s ahead: what it tells counts from when it was first read",
                ahead.as_secs()
            )),
            (None, 0, None) => None,
        }
    }
}

// === impl Told ===

impl Told {
    /// One log line for each change.
    pub(super) fn news(&mut self, source: &str, now: &Ailments) {
        match change(&mut self.nonsense, now.nonsense > 0) {
            Some(true) => {
                let (metric, value) = now.example.unwrap_or_default();
                tracing::warn!(
                    source,
                    values = now.nonsense,
                    metric,
                    value,
                    "it tells values that cannot be; those before hold, and age"
                );
            }
            Some(false) => tracing::info!(source, "all its values can be again"),
            None => {}
        }
        match change(&mut self.malformed, now.malformed > 0) {
            Some(true) => {
                let (values, metric) = (now.malformed, now.misshapen.unwrap_or_default());
                tracing::warn!(
                    source,
                    values,
                    metric,
                    "it tells values that are not of their kind; those before hold, and age"
                );
            }
            Some(false) => tracing::info!(source, "all its values are of their kind again"),
            None => {}
        }
        match change(&mut self.went_back, now.went_back > 0) {
            Some(true) => tracing::warn!(
                source,
                "it tells of an earlier time than before; what it told then holds, and ages"
            ),
            Some(false) => tracing::info!(source, "its time goes on again"),
            None => {}
        }
        match (change(&mut self.ahead, now.ahead.is_some()), now.ahead) {
            (Some(true), Some(by)) => {
                let seconds = by.as_secs();
                tracing::warn!(
                    source,
                    seconds,
                    "its clock is ahead; what it tells counts from when it was first read"
                );
            }
            (Some(false), _) => tracing::info!(source, "its clock agrees with the one here again"),
            _ => {}
        }
        match change(&mut self.late, now.late > 0) {
            Some(true) => tracing::warn!(
                source,
                values = now.late,
                "it tells values older than it may; they are told with their age"
            ),
            Some(false) => tracing::info!(source, "its values are current again"),
            None => {}
        }
    }
}

/// What it is now, if it was not so before.
fn change(told: &mut bool, now: bool) -> Option<bool> {
    (std::mem::replace(told, now) != now).then_some(now)
}
