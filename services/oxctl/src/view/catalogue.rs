//! What can be measured, and by whom.

use oxalyst_proto::metrics::v1::{ListMetricsReply, ListSourcesReply};
use serde::Serialize;

use super::told;
use crate::duration;
use crate::table::Table;

/// Every metric.
#[derive(Debug, Serialize)]
pub(crate) struct ListView {
    pub(crate) metrics: Vec<InfoView>,
}

#[derive(Debug, Serialize)]
pub(crate) struct InfoView {
    pub(crate) name: String,
    pub(crate) unit: String,
    /// Best first.
    pub(crate) sources: Vec<String>,
    pub(crate) never: Vec<NeverView>,
    pub(crate) history: bool,
    /// Its name in OpenTelemetry's conventions.
    pub(crate) otel_name: Option<String>,
    pub(crate) help: String,
}

/// A source that never tells it.
#[derive(Debug, Serialize)]
pub(crate) struct NeverView {
    pub(crate) source: String,
    pub(crate) reason: String,
}

/// Every source.
#[derive(Debug, Serialize)]
pub(crate) struct SourcesView {
    pub(crate) sources: Vec<SourceView>,
}

#[derive(Debug, Serialize)]
pub(crate) struct SourceView {
    pub(crate) name: String,
    pub(crate) period_ms: u64,
    /// `None`: no pass has ended.
    pub(crate) last_pass_unix_ms: Option<i64>,
    pub(crate) last_pass_us: u64,
    pub(crate) subjects: u64,
    pub(crate) open_files: u64,
    pub(crate) stale_total: u64,
    pub(crate) removed_total: u64,
    pub(crate) late_reads_total: u64,
    /// The service is not ready without it.
    pub(crate) required: bool,
    /// `None`: not known.
    pub(crate) deadline_ms: Option<u64>,
    pub(crate) error: Option<String>,
}

// === impl ListView ===

impl ListView {
    pub(crate) fn new(reply: ListMetricsReply) -> Self {
        let info = |m: oxalyst_proto::metrics::v1::MetricInfo| InfoView {
            name: m.name,
            unit: m.unit,
            sources: m.sources,
            never: m
                .availability
                .into_iter()
                .filter(|a| !a.available)
                .map(|a| NeverView { source: a.source, reason: a.reason })
                .collect(),
            history: m.history,
            otel_name: told(&m.otel_name),
            help: m.help,
        };
        Self { metrics: reply.metrics.into_iter().map(info).collect() }
    }

    pub(crate) fn render(&self, wide: bool) -> String {
        let mut header = vec!["METRIC", "UNIT", "SOURCES", "HISTORY", "WHAT"];
        if wide {
            header.push("NEVER");
        }
        let mut table = Table::new(&header);
        for m in &self.metrics {
            let history = if m.history { "10m" } else { "" };
            let mut row =
                vec![m.name.clone(), m.unit.clone(), m.sources.join(","), history.to_owned(), m.help.clone()];
            if wide {
                let never = m.never.iter().map(|n| format!("{}: {}", n.source, n.reason));
                row.push(never.collect::<Vec<_>>().join("; "));
            }
            table.row(row);
        }
        table.render()
    }
}

// === impl SourcesView ===

impl SourcesView {
    pub(crate) fn new(reply: ListSourcesReply) -> Self {
        let source = |s: oxalyst_proto::metrics::v1::SourceInfo| SourceView {
            name: s.name,
            period_ms: s.period_ms,
            last_pass_unix_ms: (s.last_pass_unix_ms > 0).then_some(s.last_pass_unix_ms),
            last_pass_us: s.last_pass_us,
            subjects: s.subjects,
            open_files: s.open_files,
            stale_total: s.stale_total,
            removed_total: s.removed_total,
            late_reads_total: s.late_reads_total,
            required: s.required,
            deadline_ms: (s.deadline_ms > 0).then_some(s.deadline_ms),
            error: told(&s.error),
        };
        Self { sources: reply.sources.into_iter().map(source).collect() }
    }

    /// Whether none has an error.
    pub(crate) fn well(&self) -> bool {
        self.sources.iter().all(|s| s.error.is_none())
    }

    pub(crate) fn render(&self) -> String {
        let mut table = Table::new(&[
            "SOURCE",
            "PERIOD",
            "DEADLINE",
            "PASS",
            "SUBJECTS",
            "OPEN-FILES",
            "STALE",
            "REMOVED",
            "REQUIRED",
            "ERROR",
        ]);
        for s in &self.sources {
            let pass = s.last_pass_unix_ms.map(|_| format!("{}us", s.last_pass_us)).unwrap_or_default();
            table.row(vec![
                s.name.clone(),
                duration::short(s.period_ms),
                s.deadline_ms.map(duration::short).unwrap_or_default(),
                pass,
                s.subjects.to_string(),
                s.open_files.to_string(),
                s.stale_total.to_string(),
                s.removed_total.to_string(),
                if s.required { "yes" } else { "" }.to_owned(),
                s.error.clone().unwrap_or_default(),
            ]);
        }
        table.render()
    }
}
