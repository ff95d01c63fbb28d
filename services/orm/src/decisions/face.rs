//! The gRPC face of the decisions.

use std::pin::Pin;
use std::time::Duration;

use futures::Stream;
use oxalyst_planner::decision::{Step, VERSION};
use oxalyst_planner::pods;
use oxalyst_proto::orm::v1::decisions_server::Decisions as Contract;
use oxalyst_proto::orm::v1::{
    ListDecisionsReply, ListDecisionsRequest, RecordRequest, RecordingEnd, RecordingFrame, RecordingHead,
    StateSnapshot, WhatIfReply, WhatIfRequest, recording_frame::Frame,
};
use tonic::{Request, Response, Status};

use super::Decisions;
use crate::allocations::{Snapshot, WhatIf};
use crate::{allocator, uid};

/// Decisions told where no number is asked for.
const USUAL: usize = 100;
/// How long what has been decided already is waited for: who asks waits for two seconds.
const PATIENCE: Duration = Duration::from_secs(1);

/// The face. What is kept is told without asking the allocator, which may be waiting for its disk.
#[derive(Debug, Clone)]
pub struct Face {
    allocator: allocator::Face,
    decisions: Decisions,
}

// === impl Face ===

impl Face {
    /// Tells what is kept here, and asks that allocator.
    pub fn new(allocator: allocator::Face, decisions: Decisions) -> Self {
        Self { allocator, decisions }
    }
}

#[tonic::async_trait]
impl Contract for Face {
    async fn list_decisions(
        &self,
        request: Request<ListDecisionsRequest>,
    ) -> Result<Response<ListDecisionsReply>, Status> {
        let ListDecisionsRequest { pod, refused_only, limit } = request.into_inner();
        let limit = if limit == 0 { USUAL } else { usize::try_from(limit).unwrap_or(usize::MAX) };
        let waiting = self.decisions.settle(PATIENCE).await;
        Ok(Response::new(ListDecisionsReply {
            decisions: self.decisions.list(&pod, refused_only, limit),
            lost: self.decisions.lost(),
            waiting,
            oldest_unix_ms: self.decisions.oldest_unix_ms().unwrap_or_default(),
        }))
    }

    async fn what_if(&self, request: Request<WhatIfRequest>) -> Result<Response<WhatIfReply>, Status> {
        let step = request.into_inner().step.ok_or_else(|| Status::invalid_argument("step is missing"))?;
        let step = Step::decode(&step).map_err(|error| Status::invalid_argument(error.to_string()))?;
        if let Some(Err(fault)) = step.pod_uid().map(uid::check) {
            return Err(Status::invalid_argument(fault.to_string()));
        }
        if !matches!(
            step,
            Step::Admit(_)
                | Step::AdmitSpec(_)
                | Step::Whole(pods::Request::Admit(_) | pods::Request::Resize(_))
        ) {
            let message = format!(
                "it can be asked what an admission or a resize would do, not what a {} would",
                step.kind()
            );
            return Err(Status::invalid_argument(message));
        }
        let decision = self.allocator.ask(WhatIf { step }).await?;
        Ok(Response::new(WhatIfReply { decision: Some(decision) }))
    }

    type RecordStream = Pin<Box<dyn Stream<Item = Result<RecordingFrame, Status>> + Send>>;

    async fn record(&self, _: Request<RecordRequest>) -> Result<Response<Self::RecordStream>, Status> {
        let now = self.allocator.ask(Snapshot).await?;
        let all = recording(&self.decisions, now, PATIENCE).await;
        let messages = all.into_iter().map(|frame| Ok(RecordingFrame { frame: Some(frame) }));
        Ok(Response::new(Box::pin(tokio_stream::iter(messages))))
    }
}

/// All that is kept of what led to the state `now`, which was asked for before, and what is missing of it after `patience`.
async fn recording(decisions: &Decisions, now: StateSnapshot, patience: Duration) -> Vec<Frame> {
    let waiting = decisions.settle(patience).await;
    let written_by = concat!("orm ", env!("CARGO_PKG_VERSION")).to_owned();
    let mut all = vec![Frame::Head(RecordingHead { version: VERSION, written_by })];
    all.extend(decisions.frames());
    all.push(Frame::Snapshot(now));
    let frames = all.len().saturating_sub(1) as u64;
    all.push(Frame::End(RecordingEnd { frames, lost: decisions.lost(), waiting }));
    all
}

#[cfg(test)]
mod tests {
    use super::super::segment::Segment;
    use super::*;
    use oxalyst_proto::orm::v1::RecordedStep;

    fn end(mut recording: Vec<Frame>) -> RecordingEnd {
        match recording.pop() {
            Some(Frame::End(end)) => end,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn m6_a_recording_waits_for_what_was_decided_before_it() {
        let decisions = Decisions::default();
        decisions.take();
        let late = decisions.clone();
        let writer = async move {
            let mut segment = Segment::new(1);
            segment.push(Frame::Step(RecordedStep { number: 7, ..RecordedStep::default() }));
            late.segments().push_back(segment);
            late.wrote(1);
        };
        let asked = recording(&decisions, StateSnapshot::default(), Duration::from_secs(20));
        let (recording, ()) = tokio::join!(asked, writer);
        assert!(recording.iter().any(|frame| matches!(frame, Frame::Step(step) if step.number == 7)));
        assert_eq!(end(recording), RecordingEnd { frames: 2, lost: 0, waiting: 0 });
    }

    #[tokio::test]
    async fn m6_a_recording_tells_what_it_lacks() {
        let decisions = Decisions::default();
        (0..5).for_each(|_| decisions.take());
        decisions.take_back();
        decisions.wrote(1);
        let recording = recording(&decisions, StateSnapshot::default(), Duration::ZERO).await;
        assert_eq!(end(recording), RecordingEnd { frames: 1, lost: 1, waiting: 3 });
    }
}
