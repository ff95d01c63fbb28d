//! Why it was decided so, what would be decided, and what would be decided now.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use oxalyst_planner::decision::{Given, Recording, RecordingError, Replay, Step, decide};
use oxalyst_planner::pods::PodRequest;
use oxalyst_proto::orm::v1::{
    Decision, DecisionEntry, ListDecisionsRequest, RecordingFrame, recording_frame::Frame,
};

use crate::args::{ExplainArgs, Output, WhatIfArgs};
use crate::ask::{AskError, answer, now_unix_ms};
use crate::duration::rfc3339;
use crate::manifest::{Manifest, ManifestError, pair};
use crate::peers::{PeerError, Peers};
use crate::recorded::{self, RecordedError};
use crate::view::decisions::{DecisionsView, Form, RecordView, ReplayView};
use crate::view::{Answer, Told};

/// Decisions looked through for those about one pod.
const LOOKED_THROUGH: u32 = 10_000;

/// Decisions looked through for pods of a name: each is told whole.
const NAMES_LOOKED_THROUGH: u32 = 500;

/// Why nothing could be told.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReasonError {
    #[error("no decision about pod {pod} is kept: {held}")]
    Unknown { pod: String, held: String },
    #[error("more than one namespace has a pod {pod}: {}; name one of them", .named.join(", "))]
    Ambiguous { pod: String, named: Vec<String> },
    #[error("the pod's manifest {}: {source}", path.display())]
    Manifest { path: PathBuf, source: ManifestError },
    #[error("{0}")]
    Flags(#[from] ManifestError),
    #[error("reading the pod's manifest {}: {source}", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Recorded(#[from] RecordedError),
}

/// What is kept of decisions, and what is not.
#[derive(Debug, Clone, Copy, Default)]
struct Kept {
    lost: u64,
    waiting: u64,
    oldest_unix_ms: i64,
}

pub(crate) async fn explain(peers: &Peers, args: &ExplainArgs, output: Output) -> Result<Answer, AskError> {
    let pod = named(peers, args.pod.clone().unwrap_or_default()).await?;
    let limit = if pod.is_empty() { args.limit } else { LOOKED_THROUGH };
    let asked = ListDecisionsRequest { pod: pod.clone(), refused_only: args.refused, limit };
    let reply = peers.decisions(asked).await?;
    let problems = match reply.lost {
        0 => Vec::new(),
        lost => vec![format!("orm could not keep {lost} decisions: too many came at once")],
    };
    let kept = Kept { lost: reply.lost, waiting: reply.waiting, oldest_unix_ms: reply.oldest_unix_ms };
    let mut decisions = reply.decisions;
    if pod.is_empty() {
        let view =
            DecisionsView::new(decisions, if output == Output::Wide { Form::Pages } else { Form::Lines });
        return answer(&view, output, |_| view.render(), problems, Told::Well);
    }
    if !args.all {
        decisions = last(decisions, &pod);
    }
    decisions.truncate(usize::try_from(args.limit).unwrap_or(usize::MAX));
    if decisions.is_empty() {
        return Err(ReasonError::Unknown { held: held(peers, &pod, args.refused, kept).await?, pod }.into());
    }
    let view = DecisionsView::new(decisions, Form::Pages);
    answer(&view, output, |_| view.render(), problems, Told::Well)
}

/// A pod without a namespace, by the namespace that has one of this name; as it is where none has, for it may be a uid.
async fn named(peers: &Peers, pod: String) -> Result<String, AskError> {
    if pod.is_empty() || pod.contains('/') {
        return Ok(pod);
    }
    let asked = ListDecisionsRequest { limit: NAMES_LOOKED_THROUGH, ..ListDecisionsRequest::default() };
    let (decided, state) = tokio::join!(peers.decisions(asked), peers.state());
    let decided = decided?.decisions.into_iter().filter_map(|entry| entry.decision);
    let decided = decided.map(|told| (told.pod_uid, told.namespace, told.name));
    let held = state?.pods.into_iter().map(|own| (own.pod_uid, own.namespace, own.name));
    of_name(decided.chain(held), pod)
}

/// From uid, namespace and name of every pod that is known.
fn of_name(known: impl Iterator<Item = (String, String, String)>, pod: String) -> Result<String, AskError> {
    let mut named = BTreeSet::new();
    for (uid, namespace, name) in known {
        if uid == pod {
            return Ok(pod);
        }
        if name == pod {
            named.insert(format!("{namespace}/{name}"));
        }
    }
    match named.len() {
        0 => Ok(pod),
        1 => Ok(named.into_iter().collect()),
        _ => Err(ReasonError::Ambiguous { pod, named: named.into_iter().collect() }.into()),
    }
}

/// The last decision that was about where the pod runs; else the last one of all.
fn last(decisions: Vec<DecisionEntry>, pod: &str) -> Vec<DecisionEntry> {
    let about = |entry: &DecisionEntry| {
        let told = entry.decision.as_ref();
        told.is_some_and(|told| told.asked.is_some() && is_about(told, pod))
    };
    let at = decisions.iter().position(about).unwrap_or(0);
    decisions.into_iter().skip(at).take(1).collect()
}

fn is_about(told: &Decision, pod: &str) -> bool {
    told.pod_uid == pod || format!("{}/{}", told.namespace, told.name) == pod
}

/// Why there is nothing about the pod.
async fn held(peers: &Peers, pod: &str, refused_only: bool, kept: Kept) -> Result<String, PeerError> {
    let state = peers.state().await?;
    let named = |uid: &str, namespace: &str, name: &str| uid == pod || pod == format!("{namespace}/{name}");
    let own = state.pods.iter().find(|own| named(&own.pod_uid, &own.namespace, &own.name));
    let since = own.map(|own| own.since_unix_ms);
    if refused_only && since.is_some() {
        let asked = ListDecisionsRequest { pod: pod.to_owned(), limit: 1, ..ListDecisionsRequest::default() };
        if !peers.decisions(asked).await?.decisions.is_empty() {
            return Ok(
                "what is kept about it are no refusals; leave out --refused to see why it runs where it runs"
                    .to_owned(),
            );
        }
    }
    Ok(nothing_about(since, kept))
}

/// `since`: when the pod was placed; `None`: it is not held.
fn nothing_about(since: Option<i64>, kept: Kept) -> String {
    let Kept { lost, waiting, oldest_unix_ms } = kept;
    if waiting > 0 {
        return format!("{waiting} decisions are made and not written yet: ask again in a moment");
    }
    let Some(since) = since else {
        let lost = match lost {
            0 => String::new(),
            lost => format!(
                "; or what was decided of it is among the {lost} decisions that were lost because too many came at once"
            ),
        };
        return format!(
            "this node holds no such pod either; name it as NAMESPACE/NAME or by its uid, and see `oxctl explain` for the pods of \
             which decisions are kept{lost}"
        );
    };
    let why = if oldest_unix_ms > 0 && since < oldest_unix_ms {
        let oldest = rfc3339(oldest_unix_ms).unwrap_or_default();
        format!(
            "was placed before the oldest decision that is kept ({oldest}); settings decisions_max_records and decisions_max_bytes \
             say how much is kept"
        )
    } else if lost > 0 {
        format!(
            "what was decided of it is among the {lost} decisions that were lost because too many came at once"
        )
    } else {
        "was taken in while it ran already".to_owned()
    };
    format!("the pod is held: {why}; `oxctl pods -o wide` shows where it runs")
}

pub(crate) async fn what_if(peers: &Peers, args: &WhatIfArgs, output: Output) -> Result<Answer, AskError> {
    let pod = asked(args)?;
    let step = Step::AdmitSpec(pod);
    let decision = match &args.recorded {
        None => peers.what_if(step.encode()).await?,
        Some(path) => on_record(path, &step)?,
    };
    let told = Told::well_if(decision.refused.is_none());
    let entry = DecisionEntry { decision: Some(decision), times: 1, ..DecisionEntry::default() };
    let view = DecisionsView::new(vec![entry], Form::Pages);
    answer(&view, output, |_| view.render(), Vec::new(), told)
}

fn on_record(path: &Path, step: &Step) -> Result<Decision, ReasonError> {
    let replay = replayed(&recorded::read(path)?, path)?;
    let given = Given {
        state: &replay.world.state,
        machine: &replay.world.machine,
        rules: &replay.world.rules,
        generation: replay.generation,
        overruled: None,
    };
    Ok(decide(given, step).decision)
}

fn asked(args: &WhatIfArgs) -> Result<PodRequest, ReasonError> {
    let pairs = |texts: &[String]| texts.iter().map(|text| pair(text)).collect::<Result<Vec<_>, _>>();
    let mut manifest = match &args.manifest {
        Some(path) => {
            let text = text(path).map_err(|source| ReasonError::Unreadable { path: path.clone(), source })?;
            Manifest::read(&text).map_err(|source| ReasonError::Manifest { path: path.clone(), source })?
        }
        None => Manifest::of_flags(
            args.qos.as_deref(),
            args.cpu.as_deref(),
            args.memory.as_deref(),
            args.guaranteed,
        )?,
    };
    manifest.annotate(pairs(&args.annotations)?);
    manifest.label(pairs(&args.labels)?);
    manifest.request(now_unix_ms()).map_err(|source| match &args.manifest {
        Some(path) => ReasonError::Manifest { path: path.clone(), source },
        None => ReasonError::Flags(source),
    })
}

fn text(path: &Path) -> std::io::Result<String> {
    if path.as_os_str() != "-" {
        return std::fs::read_to_string(path);
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    Ok(text)
}

pub(crate) async fn record(peers: &Peers, path: &Path, output: Output) -> Result<Answer, AskError> {
    let mut stream = peers.record().await?;
    let mut recording = Recording { written_by: String::new(), frames: Vec::new() };
    let mut is_whole = false;
    while let Some(RecordingFrame { frame }) = peers.next_frame(&mut stream).await? {
        match frame {
            Some(Frame::Head(head)) => recording.written_by = head.written_by,
            Some(Frame::End(end)) => is_whole = end.frames == recording.frames.len() as u64,
            Some(frame) => recording.frames.push(frame),
            // Something that a later orm tells and that cannot be understood here.
            None => {}
        }
    }
    if !is_whole {
        let frames = recording.frames.len();
        return Err(unusable(path, RecordingError::Truncated { offset: 0, frames }).into());
    }
    let bytes = recording.encode();
    recorded::write(path, &bytes).map_err(ReasonError::Recorded)?;
    let view = RecordView::new(path, &recording, bytes.len());
    answer(&view, output, |_| view.render(), Vec::new(), Told::Well)
}

pub(crate) fn replay(path: &Path, output: Output) -> Result<Answer, AskError> {
    let recording = recorded::read(path).map_err(ReasonError::Recorded)?;
    let view = ReplayView::new(path, replayed(&recording, path)?);
    answer(&view, output, |_| view.render(), Vec::new(), Told::well_if(view.differing.is_empty()))
}

fn replayed(recording: &Recording, path: &Path) -> Result<Replay, ReasonError> {
    Replay::of(recording).map_err(|source| unusable(path, source))
}

fn unusable(path: &Path, source: RecordingError) -> ReasonError {
    ReasonError::Recorded(recorded::wrong(path, source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_a_namespace_is_the_one_pod_that_has_it() {
        let known =
            [("u1", "shop", "web"), ("u1", "shop", "web"), ("u2", "shop", "db"), ("u3", "test", "db")];
        let of = |pod: &str| {
            let known = known.map(|(uid, ns, name)| (uid.to_owned(), ns.to_owned(), name.to_owned()));
            of_name(known.into_iter(), pod.to_owned())
        };
        assert_eq!(of("web").unwrap(), "shop/web");
        assert_eq!(of("u2").unwrap(), "u2", "a uid");
        assert_eq!(of("absent").unwrap(), "absent");
        let error = of("db").unwrap_err().to_string();
        assert!(error.contains("shop/db, test/db"), "{error}");
    }

    #[test]
    fn m6_why_nothing_is_kept_is_told_as_it_is() {
        let kept = Kept { lost: 0, waiting: 0, oldest_unix_ms: 1000 };
        assert!(nothing_about(Some(10), kept).contains("before the oldest decision that is kept (1970-"));
        assert!(nothing_about(Some(2000), kept).contains("taken in while it ran"));
        let lost = nothing_about(Some(2000), Kept { lost: 463, ..kept });
        assert!(
            lost.contains("among the 463 decisions that were lost") && !lost.contains("oldest"),
            "{lost}"
        );
        assert!(nothing_about(Some(2000), Kept { waiting: 7, ..kept }).starts_with("7 decisions are made"));
        assert!(nothing_about(None, kept).contains("holds no such pod"));
        assert!(nothing_about(None, Kept { lost: 3, ..kept }).contains("the 3 decisions that were lost"));
    }
}
