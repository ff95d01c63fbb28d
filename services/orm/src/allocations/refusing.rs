//! The answer to a pod that is refused, and what is added to it where many are.

use oxalyst_planner::plan::Refusal;
use oxalyst_planner::pods::SandboxRequest;
use oxalyst_proto::orm::v1 as orm;

use super::Allocations;
use super::handlers::Admitted;
use crate::refusals::{Advice, Noted};
use crate::{clock, wire};

/// Fact that tells whether pods are refused again and again.
const FACT: &str = "refusals";

impl Allocations {
    pub(super) fn refusing(&mut self, request: &SandboxRequest, refusal: &Refusal) -> Admitted {
        tracing::info!(
            uid = request.pod_uid,
            pod = format!("{}/{}", request.namespace, request.name),
            reason = %refusal.reason,
            "refused: {refusal}"
        );
        self.metrics.refused(refusal.reason);
        let mut told = wire::refusal(refusal);
        // The decision is the same as ever; what is added is for whoever brings the pod.
        if let Some(advice) = self.advised(refusal) {
            told.message = format!("{}; {}", told.message, advice.sentence());
        }
        orm::AdmitReply {
            generation: self.ledger.generation(),
            outcome: Some(orm::admit_reply::Outcome::Refused(told)),
            changed: Vec::new(),
            pools: self.pools(),
        }
    }

    fn advised(&mut self, refusal: &Refusal) -> Option<Advice> {
        match self.refusals.note(refusal.reason, clock::unix_ms()) {
            Noted::Few => None,
            Noted::Same(advice) => Some(advice),
            Noted::More(advice) => {
                tracing::warn!(wait_s = advice.wait_s, "{}", advice.sentence());
                self.tell_advice(Some(advice));
                Some(advice)
            }
        }
    }

    /// Takes the advice back once it has been quiet.
    pub(super) fn calm_down(&mut self) {
        if self.refusals.calm_down(clock::unix_ms()) {
            tracing::info!("pods are not refused again and again any more");
            self.tell_advice(None);
        }
    }

    pub(super) fn tell_advice(&self, advice: Option<Advice>) {
        self.metrics.refusal_wait(advice.map_or(0, |advice| advice.wait_s));
        match advice {
            None => self.facts.set(FACT, "few"),
            Some(advice) => {
                let since = clock::rfc3339(advice.since_unix_ms());
                self.facts.set(FACT, format!("since {since} {}", advice.sentence()));
            }
        }
    }
}
