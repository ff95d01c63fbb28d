//! Calls of the peer, answered one after another in the order they came.

use std::future::Future;

use prost::Message;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::frame::{ConnId, frames_of};
use crate::message::{Kind, MAX_MESSAGE, Request, Response, encode, fits};
use crate::status::{Code, Status};

/// A call that waits for the handler, and the room that it takes meanwhile.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) stream: u32,
    pub(crate) body: Vec<u8>,
    pub(crate) _room: OwnedSemaphorePermit,
}

/// The calls that came in on one connection and were not handled yet.
#[derive(Debug)]
pub struct Inbox {
    incoming: mpsc::Receiver<Call>,
    outbox: mpsc::Sender<Vec<u8>>,
    conn: ConnId,
}

/// Answers calls by service and method.
pub trait Handler: Send {
    /// The encoded answer. A method that is not served is [`unimplemented()`].
    fn call(&mut self, request: Request) -> impl Future<Output = Result<Vec<u8>, Status>> + Send;
}

/// What an unknown method is answered with; the connection stays.
pub fn unimplemented(request: &Request) -> Status {
    Status::new(Code::Unimplemented, format!("method {}.{} is not served", request.service, request.method))
}

/// The payload as the message that the method takes.
pub fn decode<M: Message + Default>(payload: &[u8]) -> Result<M, Status> {
    M::decode(payload)
        .map_err(|e| Status::new(Code::InvalidArgument, format!("payload cannot be decoded: {e}")))
}

// === impl Inbox ===

impl Inbox {
    pub(crate) fn new(incoming: mpsc::Receiver<Call>, outbox: mpsc::Sender<Vec<u8>>, conn: ConnId) -> Self {
        Self { incoming, outbox, conn }
    }

    /// Answers calls until the trunk ends. A handler that is at work then finishes its work.
    pub async fn serve(mut self, mut handler: impl Handler) {
        while let Some(Call { stream, body, _room }) = self.incoming.recv().await {
            let outcome = match Request::decode(body.as_slice()) {
                _ if stream.is_multiple_of(2) => {
                    Err(Status::new(Code::InvalidArgument, "the stream id of a call must be odd"))
                }
                Ok(request) => handler.call(request).await,
                Err(e) => Err(Status::new(Code::InvalidArgument, format!("request cannot be decoded: {e}"))),
            };
            let mut response = Response::of(outcome);
            if !fits(&response) {
                let len = response.encoded_len();
                let why = format!("the answer has {len} bytes, at most {MAX_MESSAGE} are allowed");
                response = Response::of(Err(Status::new(Code::ResourceExhausted, why)));
            }
            let frames = frames_of(self.conn, &encode(Kind::Response, stream, &response));
            if self.outbox.send(frames).await.is_err() {
                return;
            }
        }
    }
}
