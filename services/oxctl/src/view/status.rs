//! Every service: is it there, is it ready, what does it wait for.

use std::collections::BTreeMap;

use oxalyst_proto::mesh::v1::Status;
use serde::Serialize;

use super::{Told, cell, paragraphs};
use crate::duration;
use crate::peers::PeerError;
use crate::table::Table;

/// The whole node.
#[derive(Debug, Serialize)]
pub(crate) struct StatusView {
    /// All services are ready.
    pub(crate) ready: bool,
    pub(crate) services: Vec<ServiceView>,
}

/// One service.
#[derive(Debug, Serialize)]
pub(crate) struct ServiceView {
    pub(crate) service: String,
    pub(crate) state: ServiceState,
    pub(crate) version: Option<String>,
    pub(crate) pid: Option<u32>,
    pub(crate) started: Option<String>,
    pub(crate) up_ms: Option<u64>,
    pub(crate) pending: Vec<PendingView>,
    pub(crate) facts: BTreeMap<String, String>,
    /// Why it gave no answer, and what to do.
    pub(crate) error: Option<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct PendingView {
    pub(crate) name: String,
    pub(crate) detail: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ServiceState {
    Ready,
    NotReady,
    /// Nothing listens on its socket.
    Absent,
    /// Something listens and does not answer as it should.
    Failing,
}

// === impl StatusView ===

impl StatusView {
    pub(crate) fn new(replies: Vec<(&str, Result<Status, PeerError>)>, now_unix_ms: i64) -> Self {
        let services: Vec<_> =
            replies.into_iter().map(|(name, reply)| ServiceView::new(name, reply, now_unix_ms)).collect();
        Self { ready: services.iter().all(|s| s.state == ServiceState::Ready), services }
    }

    /// Nothing is told where no service answered.
    pub(crate) fn told(&self) -> Told {
        if self.services.iter().all(|s| s.error.is_some()) {
            Told::Nothing
        } else {
            Told::well_if(self.ready)
        }
    }

    pub(crate) fn render(&self) -> String {
        let mut table = Table::new(&["SERVICE", "STATE", "VERSION", "PID", "UP", "WAITS FOR"]);
        let mut facts = Table::new(&["SERVICE", "FACT", "VALUE"]);
        for s in &self.services {
            let waits = s.pending.iter().map(PendingView::line).collect::<Vec<_>>().join("; ");
            table.row(vec![
                s.service.clone(),
                s.state.as_str().to_owned(),
                cell(s.version.as_ref()),
                s.pid.map(|p| p.to_string()).unwrap_or_default(),
                s.up_ms.map(duration::short).unwrap_or_default(),
                s.error.clone().unwrap_or(waits),
            ]);
            for (fact, value) in &s.facts {
                facts.row(vec![s.service.clone(), fact.clone(), value.clone()]);
            }
        }
        let facts = if facts.is_empty() { String::new() } else { facts.render() };
        paragraphs(&[table.render(), facts])
    }
}

// === impl ServiceView ===

impl ServiceView {
    fn new(name: &str, reply: Result<Status, PeerError>, now_unix_ms: i64) -> Self {
        match reply {
            Ok(status) => Self {
                service: name.to_owned(),
                state: if status.ready { ServiceState::Ready } else { ServiceState::NotReady },
                version: super::told(&status.version),
                pid: (status.pid > 0).then_some(status.pid),
                started: duration::rfc3339(status.started_unix_ms),
                up_ms: u64::try_from(now_unix_ms - status.started_unix_ms)
                    .ok()
                    .filter(|_| status.started_unix_ms > 0),
                pending: status.pending.into_iter().map(PendingView::from).collect(),
                facts: status.facts.into_iter().collect(),
                error: None,
            },
            Err(error) => Self {
                service: name.to_owned(),
                state: if error.is_absent() { ServiceState::Absent } else { ServiceState::Failing },
                version: None,
                pid: None,
                started: None,
                up_ms: None,
                pending: Vec::new(),
                facts: BTreeMap::new(),
                error: Some(error.to_string()),
            },
        }
    }
}

// === impl PendingView ===

impl PendingView {
    fn line(&self) -> String {
        match self.detail.as_str() {
            "" => self.name.clone(),
            detail => format!("{} ({detail})", self.name),
        }
    }
}

impl From<oxalyst_proto::mesh::v1::Pending> for PendingView {
    fn from(pending: oxalyst_proto::mesh::v1::Pending) -> Self {
        Self { name: pending.name, detail: pending.detail }
    }
}

// === impl ServiceState ===

impl ServiceState {
    fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::NotReady => "not ready",
            Self::Absent => "absent",
            Self::Failing => "failing",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxalyst_proto::mesh::v1::Pending;

    fn orm(pending: Vec<Pending>) -> Status {
        Status {
            service: "orm".into(),
            version: "0.1.0".into(),
            started_unix_ms: 1_700_000_000_000,
            ready: pending.is_empty(),
            pending,
            facts: [("ledger.generation".to_owned(), "42".to_owned())].into(),
            pid: 7,
        }
    }

    fn absent() -> PeerError {
        PeerError::Absent { service: "reporter".into(), path: "/run/oxalyst/reporter.sock".into() }
    }

    #[test]
    fn ready_services_are_ready_and_facts_stand_below() {
        let view = StatusView::new(vec![("orm", Ok(orm(vec![])))], 1_700_000_065_000);
        assert!(view.ready);
        assert_eq!(
            view.render(),
            "SERVICE  STATE  VERSION  PID  UP    WAITS FOR\n\
             orm      ready  0.1.0    7    1m5s  -\n\
             \n\
             SERVICE  FACT               VALUE\n\
             orm      ledger.generation  42\n"
        );
    }

    #[test]
    fn what_is_pending_or_absent_is_said_with_what_to_do() {
        let pending = Pending { name: "ledger".into(), detail: "replaying".into() };
        let view = StatusView::new(
            vec![("orm", Ok(orm(vec![pending]))), ("reporter", Err(absent()))],
            1_700_000_000_000,
        );
        assert!(!view.ready);
        let text = view.render();
        assert!(text.contains("not ready"), "{text}");
        assert!(text.contains("ledger (replaying)"), "{text}");
        assert!(text.contains("/run/oxalyst/reporter.sock: is the service running?"), "{text}");
    }

    #[test]
    fn json_keys_are_stable_and_absence_is_null() {
        let view = StatusView::new(vec![("reporter", Err(absent()))], 0);
        let json = serde_json::to_value(&view).unwrap();
        assert_eq!(json["services"][0]["state"], "absent");
        assert_eq!(json["services"][0]["version"], serde_json::Value::Null);
        let keys: Vec<&str> = json["services"][0].as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(
            keys,
            ["error", "facts", "pending", "pid", "service", "started", "state", "up_ms", "version"]
        );
    }
}
