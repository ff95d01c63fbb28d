//! Decisions: pages for people, lines for many of them, and objects with stable keys.

use std::path::Path;

use oxalyst_planner::decision::{Recording, Replay, line, page};
use oxalyst_proto::orm::v1::recording_frame::Frame;
use oxalyst_proto::orm::v1::{
    Decision, DecisionAsked, DecisionAskedContainer, DecisionCandidate, DecisionContainer, DecisionEntry,
    DecisionMerge, DecisionResource,
};
use serde::Serialize;
use serde_json::{Value, json};

use super::{paragraphs, told};
use crate::duration::rfc3339;
use crate::table::Table;

/// How decisions are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// All of each.
    Pages,
    /// A line each.
    Lines,
}

/// Decisions, the newest first.
#[derive(Debug, Serialize)]
pub(crate) struct DecisionsView {
    pub(crate) decisions: Vec<Value>,
    #[serde(skip)]
    entries: Vec<DecisionEntry>,
    #[serde(skip)]
    form: Form,
}

/// A recording that was written.
#[derive(Debug, Serialize)]
pub(crate) struct RecordView {
    pub(crate) file: String,
    pub(crate) bytes: usize,
    pub(crate) steps: usize,
    pub(crate) states: usize,
}

/// A recording that was decided anew.
#[derive(Debug, Serialize)]
pub(crate) struct ReplayView {
    pub(crate) file: String,
    pub(crate) steps: u64,
    pub(crate) differing: Vec<DifferenceView>,
}

#[derive(Debug, Serialize)]
pub(crate) struct DifferenceView {
    pub(crate) step: u64,
    pub(crate) recorded: Value,
    pub(crate) now: Value,
    #[serde(skip)]
    text: String,
}

// === impl DecisionsView ===

impl DecisionsView {
    pub(crate) fn new(entries: Vec<DecisionEntry>, form: Form) -> Self {
        Self { decisions: entries.iter().map(entry).collect(), entries, form }
    }

    pub(crate) fn render(&self) -> String {
        match self.form {
            Form::Pages => {
                paragraphs(&self.entries.iter().map(|entry| page(entry, &time)).collect::<Vec<_>>())
            }
            Form::Lines => self.lines(),
        }
    }

    fn lines(&self) -> String {
        let mut table = Table::new(&["TIME", "POD", "WHAT", "OUTCOME", "RULE", "TIMES", "WHY"]);
        for entry in &self.entries {
            let Some(told) = &entry.decision else { continue };
            let at = entry.envelope.as_ref().and_then(|envelope| rfc3339(envelope.time_unix_ms));
            let pod = match (told.name.as_str(), told.pod_uid.as_str()) {
                ("", uid) => uid.to_owned(),
                (name, _) => format!("{}/{name}", told.namespace),
            };
            let (outcome, rule, why) = match &told.refused {
                Some(refused) => (refused.reason.clone(), refused.rule.clone(), refused.message.clone()),
                None => (told.outcome.clone(), told.placed_by.clone(), String::new()),
            };
            let times = entry.times.to_string();
            table.row(vec![at.unwrap_or_default(), pod, told.kind.clone(), outcome, rule, times, why]);
        }
        if table.is_empty() { "no decisions are kept\n".to_owned() } else { table.render() }
    }
}

fn time(unix_ms: i64) -> String {
    rfc3339(unix_ms).unwrap_or_default()
}

// === impl RecordView ===

impl RecordView {
    pub(crate) fn new(path: &Path, recording: &Recording, bytes: usize) -> Self {
        let count = |which: fn(&Frame) -> bool| recording.frames.iter().filter(|frame| which(frame)).count();
        Self {
            file: path.display().to_string(),
            bytes,
            steps: count(|frame| matches!(frame, Frame::Step(_))),
            states: count(|frame| matches!(frame, Frame::Snapshot(_))),
        }
    }

    pub(crate) fn render(&self) -> String {
        let Self { file, bytes, steps, states } = self;
        format!("{file}: {steps} decisions and {states} states, {bytes} bytes\n")
    }
}

// === impl ReplayView ===

impl ReplayView {
    pub(crate) fn new(path: &Path, replay: Replay) -> Self {
        let differing = replay.differences.into_iter().map(|difference| DifferenceView {
            step: difference.number,
            text: diff(&difference.recorded, &difference.planned),
            recorded: decision(&difference.recorded),
            now: decision(&difference.planned),
        });
        Self { file: path.display().to_string(), steps: replay.steps, differing: differing.collect() }
    }

    pub(crate) fn render(&self) -> String {
        let Self { file, steps, differing } = self;
        let mut text = format!("{file}: {steps} decisions planned anew, {} differ\n", differing.len());
        for difference in differing {
            text += &format!("\nstep {}\n{}", difference.step, difference.text);
        }
        text
    }
}

/// The lines that only one of two pages has, in their order; where the pages are alike, what else differs.
fn diff(recorded: &Decision, now: &Decision) -> String {
    let page_of = |decision: &Decision| {
        page(&DecisionEntry { decision: Some(decision.clone()), ..DecisionEntry::default() }, &time)
    };
    let (was, is) = (page_of(recorded), page_of(now));
    let only = |sign: char, these: &str, others: &str| -> String {
        let lines = these.lines().filter(|line| !others.lines().any(|other| other == *line));
        lines.map(|line| format!("{sign} {line}\n")).collect()
    };
    match only('-', &was, &is) + &only('+', &is, &was) {
        same if same.is_empty() => format!("- {recorded:?}\n+ {now:?}\n"),
        lines => format!("  {}\n{lines}", line(recorded)),
    }
}

// === as objects ===

fn entry(entry: &DecisionEntry) -> Value {
    let envelope = entry.envelope.as_ref();
    json!({
        "time": envelope.and_then(|envelope| rfc3339(envelope.time_unix_ms)),
        "duration_us": envelope.map(|envelope| envelope.duration_us),
        "trace_id": envelope.and_then(|envelope| told(&envelope.trace_id)),
        "times": entry.times,
        "last": rfc3339(entry.last_unix_ms),
        "decision": entry.decision.as_ref().map(decision),
    })
}

fn decision(d: &Decision) -> Value {
    json!({
        "kind": d.kind,
        "outcome": d.outcome,
        "pod": { "uid": told(&d.pod_uid), "namespace": told(&d.namespace), "name": told(&d.name), "sandbox_id": told(&d.sandbox_id) },
        "asked": d.asked.as_ref().map(asked),
        "basis": d.basis.as_ref().map(|basis| json!({
            "generation": basis.generation,
            "pods": basis.pods,
            "state": basis.state,
            "machine": basis.machine,
            "rules": basis.rules,
            "cpu_policy": basis.cpu_policy,
            "topology_policy": basis.topology_policy,
            "topology_scope": basis.topology_scope,
        })),
        "free": d.free.iter().map(|free| json!({
            "numa_node": free.node,
            "count": free.cpus,
            "cpus": told(&free.cpuset),
            "memory_bytes": free.memory_bytes,
            "huge_pages": free.huge_pages,
        })).collect::<Vec<_>>(),
        "weighed": d.merges.iter().map(merge).collect::<Vec<_>>(),
        "placed_by": told(&d.placed_by),
        "chosen": d.chosen.iter().map(chosen).collect::<Vec<_>>(),
        "pods": d.pods.iter().map(|pod| json!({
            "uid": pod.pod_uid,
            "namespace": pod.namespace,
            "name": pod.name,
            "sandbox_id": told(&pod.sandbox_id),
            "asked": pod.asked.as_ref().map(asked),
            "placed_by": told(&pod.placed_by),
            "chosen": pod.chosen.iter().map(chosen).collect::<Vec<_>>(),
            "flags": pod.flags,
        })).collect::<Vec<_>>(),
        "pods_more": d.pods_more,
        "weighed_more": d.merges_more,
        "pools": d.pools.iter().map(|pool| json!({
            "name": pool.name,
            "before": told(&pool.before),
            "after": told(&pool.after),
        })).collect::<Vec<_>>(),
        "affected": d.affected.iter().map(|other| json!({
            "uid": other.pod_uid,
            "namespace": other.namespace,
            "name": other.name,
            "cpus_before": told(&other.cpus_before),
            "cpus_after": told(&other.cpus_after),
        })).collect::<Vec<_>>(),
        "affected_more": d.affected_more,
        "flags": d.flags,
        "refused": d.refused.as_ref().map(|refused| json!({
            "reason": refused.reason,
            "rule": refused.rule,
            "message": refused.message,
        })),
    })
}

fn chosen(own: &DecisionContainer) -> Value {
    json!({
        "container": own.name,
        "role": own.role,
        "pool": told(&own.pool),
        "cpus": told(&own.cpus),
        "mems": told(&own.mems),
        "exclusive": own.exclusive,
    })
}

fn asked(asked: &DecisionAsked) -> Value {
    let container = |own: &DecisionAskedContainer| {
        json!({
            "name": own.name,
            "role": own.role,
            "milli_cpu": own.milli_cpu,
            "limit_milli_cpu": own.limit_milli_cpu,
            "memory_bytes": own.memory_bytes,
            "huge_pages": own.huge_pages,
        })
    };
    json!({
        "qos_level": asked.qos_level,
        "class": asked.class,
        "enhancements": asked.enhancements,
        "node_agent": asked.node_agent,
        "milli_cpu": asked.milli_cpu,
        "source": asked.source,
        "containers": asked.containers.iter().map(container).collect::<Vec<_>>(),
    })
}

fn merge(merge: &DecisionMerge) -> Value {
    json!({
        "pod": told(&merge.pod_uid),
        "container": told(&merge.container),
        "admitted": merge.admitted,
        "resources": merge.resources.iter().map(resource).collect::<Vec<_>>(),
    })
}

fn resource(own: &DecisionResource) -> Value {
    let candidate = |one: &DecisionCandidate| {
        json!({
            "numa_nodes": one.nodes,
            "preferred": one.preferred,
            "free_cpus": one.free_cpus,
            "free_memory_bytes": one.free_memory_bytes,
            "verdict": one.verdict,
        })
    };
    json!({
        "resource": own.resource,
        "indifferent": own.indifferent,
        "candidates": own.candidates.iter().map(candidate).collect::<Vec<_>>(),
        "left_out": own.left_out,
        "chosen": own.chosen,
        "chosen_preferred": own.chosen_preferred,
    })
}
