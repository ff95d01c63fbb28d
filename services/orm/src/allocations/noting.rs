//! What is decided is handed on to be remembered.

use std::time::Instant;

use actix::{Handler, Message, MessageResult};
use oxalyst_planner::decision::{Given, Step, decide, snapshot};
use oxalyst_planner::plan::Refusal;
use oxalyst_planner::pods::State;
use oxalyst_proto::orm::v1 as orm;

use super::Allocations;
use crate::clock;
use crate::decisions::Noted;

/// When a request came, and whose trace it belongs to.
#[derive(Debug, Clone)]
pub struct Occasion {
    arrived: Instant,
    trace_id: String,
}

/// What would be decided. Nothing is committed, and nothing is remembered of it.
#[derive(Debug, Message)]
#[rtype(result = "orm::Decision")]
pub struct WhatIf {
    /// What would happen.
    pub step: Step,
}

/// Everything that planning looks at.
#[derive(Debug, Message)]
#[rtype(result = "orm::StateSnapshot")]
pub struct Snapshot;

// === impl Occasion ===

impl Occasion {
    /// Now, on nobody's behalf.
    pub fn now() -> Self {
        Self::traced(String::new())
    }

    /// Now, for the trace of this id; empty: none.
    pub fn traced(trace_id: String) -> Self {
        Self { arrived: Instant::now(), trace_id }
    }

    fn envelope(self) -> orm::DecisionEnvelope {
        orm::DecisionEnvelope {
            time_unix_ms: clock::unix_ms(),
            duration_us: u64::try_from(self.arrived.elapsed().as_micros()).unwrap_or(u64::MAX),
            trace_id: self.trace_id,
        }
    }
}

// === impl Allocations ===

impl Allocations {
    /// Hands on a step that was planned on `before` when the ledger had this generation, and has led to what is held now.
    pub(super) fn note(
        &mut self,
        (before, generation): (State, u64),
        step: Step,
        overruled: Option<Refusal>,
        occasion: Occasion,
    ) {
        self.recorder.note(Noted {
            generation,
            before,
            after: self.state.clone(),
            machine: self.machine.clone(),
            rules: self.rules.clone(),
            step,
            overruled,
            envelope: occasion.envelope(),
        });
    }
}

impl Handler<WhatIf> for Allocations {
    type Result = MessageResult<WhatIf>;

    fn handle(&mut self, WhatIf { step }: WhatIf, _: &mut Self::Context) -> Self::Result {
        let given = Given {
            state: &self.state,
            machine: &self.machine,
            rules: &self.rules,
            generation: self.ledger.generation(),
            overruled: None,
        };
        MessageResult(decide(given, &step).decision)
    }
}

impl Handler<Snapshot> for Allocations {
    type Result = MessageResult<Snapshot>;

    fn handle(&mut self, _: Snapshot, _: &mut Self::Context) -> Self::Result {
        MessageResult(orm::StateSnapshot {
            generation: self.ledger.generation(),
            ..snapshot(&self.state, &self.machine, &self.rules)
        })
    }
}
