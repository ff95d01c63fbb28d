//! The gRPC face of the decisions.

use std::pin::Pin;
use std::time::Duration;

use futures::Stream;
use oxalyst_planner::decision::{Step, VERSION};
use oxalyst_planner::pods;
use oxalyst_proto::orm::v1::decisions_server::Decisions as Contract;
use oxalyst_proto::orm::v1::{
    ListDecisionsReply, ListDecisionsRequest, RecordRequest, RecordingEnd, RecordingFrame, RecordingHead,
    WhatIfReply, WhatIfRequest, recording_frame::Frame,
};
use tonic::{Request, Response, Status};

use super::Decisions;
use crate::allocations::{Snapshot, WhatIf};
use crate::allocator;

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
        let mut frames = self.decisions.frames();
        frames.push(Frame::Snapshot(now));
        let written_by = concat!("orm ", env!("CARGO_PKG_VERSION")).to_owned();
        let head = Frame::Head(RecordingHead { version: VERSION, written_by });
        let end = Frame::End(RecordingEnd { frames: frames.len() as u64 });
        let all = std::iter::once(head).chain(frames).chain([end]);
        let messages = all.map(|frame| Ok(RecordingFrame { frame: Some(frame) }));
        Ok(Response::new(Box::pin(tokio_stream::iter(messages))))
    }
}
