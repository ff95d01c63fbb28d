//! Calls to the peer.

use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use tokio::sync::{mpsc, oneshot};

use crate::frame::{ConnId, frames_of};
use crate::message::{Kind, MAX_MESSAGE, Request, Response, encode};
use crate::status::Status;
use crate::trunk::{Shared, TrunkError};

/// The calling end of one connection.
#[derive(Debug)]
pub struct Client {
    shared: Arc<Shared>,
    outbox: mpsc::Sender<Vec<u8>>,
    conn: ConnId,
}

/// Why a call gave no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CallError {
    /// No answer in time.
    #[error("the peer did not answer {method} in {} ms", after.as_millis())]
    Deadline {
        /// Method called.
        method: &'static str,
        /// How long it was waited for.
        after: Duration,
    },
    /// The peer answered with an error.
    #[error("the peer refused {method}: {status}")]
    Refused {
        /// Method called.
        method: &'static str,
        /// What it said.
        status: Status,
    },
    /// The request is larger than ttrpc allows; nothing was sent.
    #[error(
        "{method} would be a message of {len} bytes, at most {MAX_MESSAGE} are allowed: send it in parts"
    )]
    TooLarge {
        /// Method called.
        method: &'static str,
        /// Bytes of the request.
        len: usize,
    },
    /// The answer is not what the method answers.
    #[error("the peer's answer to {method} cannot be decoded: {cause}")]
    Malformed {
        /// Method called.
        method: &'static str,
        /// What is wrong.
        cause: prost::DecodeError,
    },
    /// The trunk ended before the answer.
    #[error("no answer to {method}: {cause}")]
    Ended {
        /// Method called.
        method: &'static str,
        /// Why it ended.
        cause: Arc<TrunkError>,
    },
}

/// Forgets a call whose caller went away.
struct Waiting<'a> {
    shared: &'a Shared,
    stream: u32,
}

// === impl Client ===

impl Client {
    pub(crate) fn new(shared: Arc<Shared>, outbox: mpsc::Sender<Vec<u8>>, conn: ConnId) -> Self {
        Self { shared, outbox, conn }
    }

    /// Calls `method` and waits at most `deadline`, which the peer is told.
    pub async fn call<A: Message + Default>(
        &self,
        service: &str,
        method: &'static str,
        request: &impl Message,
        deadline: Duration,
    ) -> Result<A, CallError> {
        let request = Request {
            service: service.to_owned(),
            method: method.to_owned(),
            payload: request.encode_to_vec(),
            timeout_nano: i64::try_from(deadline.as_nanos()).unwrap_or(i64::MAX),
            metadata: Vec::new(),
        };
        let len = request.encoded_len();
        if len > MAX_MESSAGE {
            return Err(CallError::TooLarge { method, len });
        }
        let answer = match tokio::time::timeout(deadline, self.round_trip(&request)).await {
            Ok(Some(answer)) => answer,
            Ok(None) => return Err(CallError::Ended { method, cause: self.shared.ended().await }),
            Err(_) => return Err(CallError::Deadline { method, after: deadline }),
        };
        let malformed = |cause| CallError::Malformed { method, cause };
        let payload = Response::decode(answer.as_slice())
            .map_err(malformed)?
            .into_outcome()
            .map_err(|status| CallError::Refused { method, status })?;
        A::decode(payload.as_slice()).map_err(malformed)
    }

    /// `None`: the trunk ended.
    async fn round_trip(&self, request: &Request) -> Option<Vec<u8>> {
        let permit = self.outbox.reserve().await.ok()?;
        let (answer_to, answer) = oneshot::channel();
        // Numbered and queued under one lock: a Go peer refuses stream ids that do not increase.
        let _waiting = {
            let mut calls = self.shared.calls();
            let stream = calls.next_stream;
            calls.next_stream = stream.wrapping_add(2);
            calls.waiting.insert(stream, answer_to);
            permit.send(frames_of(self.conn, &encode(Kind::Request, stream, request)));
            Waiting { shared: &self.shared, stream }
        };
        // The trunk may have ended between the queue and the table: then nobody would ever answer.
        if self.shared.end_reason().is_some() {
            return None;
        }
        answer.await.ok()
    }
}

// === impl Waiting ===

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.shared.calls().waiting.remove(&self.stream);
    }
}
