//! What stands in the way, and what to do about it.

use oxalyst_proto::gateway::v1::{DiagnoseReply, Finding};
use oxalyst_proto::mesh::v1::Status;
use serde::Serialize;

use super::{Told, told};
use crate::peers::PeerError;
use crate::table::Table;

/// Every check.
#[derive(Debug, Serialize)]
pub(crate) struct DoctorView {
    /// Nothing is a fault.
    pub(crate) well: bool,
    pub(crate) findings: Vec<FindingView>,
}

/// One check.
#[derive(Debug, Serialize)]
pub(crate) struct FindingView {
    /// A stable name.
    pub(crate) check: String,
    /// "ok", "warning", "fault", "unknown".
    pub(crate) verdict: String,
    pub(crate) detail: String,
    pub(crate) remedy: Option<String>,
}

// === impl DoctorView ===

impl DoctorView {
    /// What the services wait for, then what the gateway found between the mesh and the runtime.
    pub(crate) fn new(
        services: Vec<(&str, Result<Status, PeerError>)>,
        found: Result<DiagnoseReply, PeerError>,
    ) -> Self {
        let mut findings: Vec<_> =
            services.into_iter().flat_map(|(name, status)| found_in(name, status)).collect();
        match found {
            Ok(reply) => findings.extend(reply.findings.into_iter().map(FindingView::from)),
            Err(e) => findings.push(FindingView {
                check: "runtime".to_owned(),
                verdict: "unknown".to_owned(),
                detail: e.to_string(),
                remedy: None,
            }),
        }
        Self { well: findings.iter().all(|f| f.verdict != "fault"), findings }
    }

    pub(crate) fn told(&self) -> Told {
        Told::well_if(self.well && self.findings.iter().all(|f| f.check != "runtime"))
    }

    /// `wide`: nothing is cut.
    pub(crate) fn render(&self, wide: bool) -> String {
        let header = ["CHECK", "VERDICT", "DETAIL", "REMEDY"];
        let mut table = if wide { Table::whole(&header) } else { Table::new(&header) };
        for f in &self.findings {
            let remedy = f.remedy.clone().unwrap_or_default();
            table.row(vec![f.check.clone(), f.verdict.clone(), f.detail.clone(), remedy]);
        }
        table.render()
    }
}

/// Whether the service is well, and what its facts say that is not.
fn found_in(name: &str, status: Result<Status, PeerError>) -> Vec<FindingView> {
    let machine = status.as_ref().ok().and_then(|status| status.facts.get("machine")).cloned();
    let machine = machine.filter(|told| told != "ok").map(|detail| FindingView {
        check: "machine".to_owned(),
        verdict: "fault".to_owned(),
        detail,
        remedy: Some(
            "make /sys readable below common.host_root: until then CPUs that come or go are not noticed"
                .to_owned(),
        ),
    });
    let refusals = status.as_ref().ok().and_then(|status| status.facts.get("refusals")).cloned();
    let refusals = refusals.filter(|told| told != "few").map(|detail| FindingView {
        check: "refusals".to_owned(),
        verdict: "warning".to_owned(),
        detail,
        remedy: Some(
            "oxctl explain --refused says which pods and why; keep their controller from this node (a taint, fewer replicas), or make room"
                .to_owned(),
        ),
    });
    let import = status.as_ref().ok().and_then(|status| status.facts.get("import.katalyst")).cloned();
    let import = import.filter(|told| told.starts_with("incomplete")).map(|detail| FindingView {
        check: "import".to_owned(),
        verdict: "warning".to_owned(),
        detail,
        remedy: Some(
            "repair the file (copy it anew, once Katalyst's agent is stopped) and restart the orm; or leave import_katalyst_dir out"
                .to_owned(),
        ),
    });
    std::iter::once(service(name, status)).chain(machine).chain(refusals).chain(import).collect()
}

fn service(name: &str, status: Result<Status, PeerError>) -> FindingView {
    let (verdict, detail) = match status {
        Ok(status) if status.ready => ("ok", format!("version {}", status.version)),
        Ok(status) => {
            let waits = status.pending.iter().map(|p| match p.detail.as_str() {
                "" => p.name.clone(),
                detail => format!("{}: {detail}", p.name),
            });
            ("fault", waits.collect::<Vec<_>>().join("; "))
        }
        Err(e) => ("fault", e.to_string()),
    };
    FindingView { check: name.to_owned(), verdict: verdict.to_owned(), detail, remedy: None }
}

impl From<Finding> for FindingView {
    fn from(finding: Finding) -> Self {
        Self {
            remedy: told(&finding.remedy),
            check: finding.check,
            verdict: finding.verdict,
            detail: finding.detail,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn absent() -> PeerError {
        PeerError::Absent { service: "orm".into(), path: "/run/oxalyst/orm.sock".into() }
    }

    #[test]
    fn a_fault_is_not_well_and_its_remedy_stands_beside_it() {
        let finding = Finding {
            check: "nri-enabled".into(),
            verdict: "fault".into(),
            detail: "NRI is off".into(),
            remedy: "set disable = false".into(),
        };
        let view = DoctorView::new(vec![], Ok(DiagnoseReply { findings: vec![finding] }));
        assert_eq!((view.well, view.told()), (false, Told::InPart));
        assert!(view.render(false).contains("set disable = false"), "{}", view.render(false));
    }

    #[test]
    fn wide_cuts_nothing() {
        let (detail, remedy) = ("x".repeat(400), "y".repeat(1_500));
        let finding = Finding { detail: detail.clone(), remedy: remedy.clone(), ..Finding::default() };
        let view = DoctorView::new(vec![], Ok(DiagnoseReply { findings: vec![finding] }));
        assert!(view.render(true).contains(&detail) && view.render(true).contains(&remedy));
        assert!(!view.render(false).contains(&detail), "the usual columns stay readable");
    }

    #[test]
    fn a_machine_that_cannot_be_read_is_a_fault_of_its_own() {
        let orm = |machine: &str| Status {
            service: "orm".into(),
            ready: true,
            facts: [("machine".to_owned(), machine.to_owned())].into(),
            ..Status::default()
        };
        let told = "unreadable since 2026-01-01T00:00:00Z: cpu/online";
        let view = DoctorView::new(vec![("orm", Ok(orm(told)))], Ok(DiagnoseReply::default()));
        assert_eq!((view.well, view.findings.len()), (false, 2));
        assert!(view.render(false).contains(told), "{}", view.render(false));
        let view = DoctorView::new(vec![("orm", Ok(orm("ok")))], Ok(DiagnoseReply::default()));
        assert_eq!((view.well, view.findings.len()), (true, 1));
    }

    #[test]
    fn a18_pods_that_are_refused_again_and_again_are_a_warning_with_what_to_do() {
        let orm = |refusals: &str| Status {
            service: "orm".into(),
            ready: true,
            facts: [("refusals".to_owned(), refusals.to_owned())].into(),
            ..Status::default()
        };
        let told = "since 2026-01-01T00:00:00Z pods are refused here again and again: wait 20 s";
        let view = DoctorView::new(vec![("orm", Ok(orm(told)))], Ok(DiagnoseReply::default()));
        let finding = &view.findings[1];
        assert_eq!((view.well, finding.verdict.as_str(), finding.detail.as_str()), (true, "warning", told));
        assert!(finding.remedy.as_ref().unwrap().contains("a taint"), "{finding:?}");
        let view = DoctorView::new(vec![("orm", Ok(orm("few")))], Ok(DiagnoseReply::default()));
        assert_eq!(view.findings.len(), 1);
    }

    #[test]
    fn an_import_that_is_not_complete_is_a_warning_with_what_to_do() {
        let orm = |import: &str| Status {
            service: "orm".into(),
            ready: true,
            facts: [("import.katalyst".to_owned(), import.to_owned())].into(),
            ..Status::default()
        };
        let told =
            "incomplete: cpu_plugin_state cannot be understood: EOF; it is tried again at the next start";
        let view = DoctorView::new(vec![("orm", Ok(orm(told)))], Ok(DiagnoseReply::default()));
        let finding = &view.findings[1];
        assert_eq!((view.well, finding.verdict.as_str(), finding.detail.as_str()), (true, "warning", told));
        assert!(finding.remedy.as_ref().unwrap().contains("repair the file"), "{finding:?}");
        let done = "7 pods taken over, 2 of them with CPUs of their own";
        let view = DoctorView::new(vec![("orm", Ok(orm(done)))], Ok(DiagnoseReply::default()));
        assert_eq!(view.findings.len(), 1);
    }

    #[test]
    fn a_warning_is_well_and_a_gateway_that_is_away_is_not_the_whole_story() {
        let warning =
            Finding { check: "cpu-managers".into(), verdict: "warning".into(), ..Finding::default() };
        let view = DoctorView::new(vec![], Ok(DiagnoseReply { findings: vec![warning] }));
        assert_eq!(view.told(), Told::Well);
        let view = DoctorView::new(vec![("orm", Err(absent()))], Err(absent()));
        assert_eq!((view.findings.len(), view.told()), (2, Told::InPart));
    }
}
