//! One socket: a task that reads and writes it, the calls that wait on it, and the reason why it ended.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::client::Client;
use crate::demux::{Demux, Incoming, ProtocolError};
use crate::frame::{ConnId, frames_of};
use crate::message::{Kind, MAX_MESSAGE, Response, encode};
use crate::server::{Call, Inbox};
use crate::status::{Code, Status};

/// Calls of the peer that may wait for the handler. A correct runtime has one in flight; one that tells a burst of events at once
/// must not lose the connection, nor any of them, over it: what does not fit stays in the socket until there is room.
pub const INBOX: usize = 4096;

/// Bytes in which they may wait together: the largest message always fits an empty inbox.
pub const INBOX_BYTES: usize = 4 * MAX_MESSAGE;

/// Messages that may wait to be written.
pub const OUTBOX: usize = 64;

/// How long one write may take before the peer counts as dead.
pub const WRITE_STALL: Duration = Duration::from_secs(10);

const READ_BUFFER: usize = 64 << 10;

/// Why a trunk ended.
#[derive(Debug, thiserror::Error)]
pub enum TrunkError {
    /// The peer closed it between two messages.
    #[error("the peer closed the connection")]
    Closed,
    /// The peer closed it in the middle of a message.
    #[error("the peer closed the connection in the middle of a message")]
    Truncated,
    /// This end closed it.
    #[error("this end closed the connection")]
    ClosedHere,
    /// The peer sent what no correct peer sends.
    #[error("protocol error: {0}")]
    Protocol(#[from] ProtocolError),
    /// The peer does not read what it is sent.
    #[error("the peer does not read: a write made no progress for {} s or {OUTBOX} messages wait", WRITE_STALL.as_secs())]
    Stalled,
    /// The socket failed.
    #[error("the socket failed: {0}")]
    Io(#[from] std::io::Error),
}

/// A running trunk; dropping it closes the socket.
#[derive(Debug)]
pub struct Trunk {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

/// What the task, the clients and the servers of one trunk share.
#[derive(Debug)]
pub(crate) struct Shared {
    calls: Mutex<Calls>,
    ended: watch::Sender<Option<Arc<TrunkError>>>,
}

/// Calls that wait for their answers.
#[derive(Debug)]
pub(crate) struct Calls {
    pub(crate) next_stream: u32,
    pub(crate) waiting: HashMap<u32, oneshot::Sender<Vec<u8>>>,
}

/// Ends the calls with the trunk, however its task ends.
struct EndGuard(Arc<Shared>);

// === impl Trunk ===

impl Trunk {
    /// Starts on a connected socket: this end serves `serves` and calls on the other connection.
    pub fn start<S>(socket: S, serves: ConnId) -> (Self, Client, Inbox)
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let calls_on = match serves {
            ConnId::Plugin => ConnId::Runtime,
            ConnId::Runtime => ConnId::Plugin,
        };
        let shared = Arc::new(Shared {
            calls: Mutex::new(Calls { next_stream: 1, waiting: HashMap::new() }),
            ended: watch::Sender::new(None),
        });
        let (outbox, outgoing) = mpsc::channel(OUTBOX);
        let (inbox, incoming) = mpsc::channel(INBOX);
        let client = Client::new(shared.clone(), outbox.clone(), calls_on);
        let room = Arc::new(Semaphore::new(INBOX_BYTES));
        let router = Router { shared: shared.clone(), serves, inbox, room, outbox: outbox.clone() };
        let guard = EndGuard(shared.clone());
        let task = tokio::spawn(async move {
            let (reader, writer) = tokio::io::split(socket);
            let reason = tokio::select! {
                reason = read(reader, &router) => reason,
                reason = write(writer, outgoing) => reason,
            };
            guard.0.end(reason);
        });
        (Self { shared, task }, client, Inbox::new(incoming, outbox, serves))
    }

    /// Waits for the end and tells its reason.
    pub async fn ended(&self) -> Arc<TrunkError> {
        self.shared.ended().await
    }

    /// The reason, if it has ended.
    pub fn end_reason(&self) -> Option<Arc<TrunkError>> {
        self.shared.end_reason()
    }

    /// Closes the socket; calls in flight fail.
    pub fn close(&self) {
        self.shared.end(TrunkError::ClosedHere);
        self.task.abort();
    }
}

impl Drop for Trunk {
    fn drop(&mut self) {
        self.close();
    }
}

// === impl Shared ===

impl Shared {
    pub(crate) fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn end_reason(&self) -> Option<Arc<TrunkError>> {
        self.ended.borrow().clone()
    }

    pub(crate) async fn ended(&self) -> Arc<TrunkError> {
        let mut ended = self.ended.subscribe();
        match ended.wait_for(Option::is_some).await.map(|r| r.clone()) {
            Ok(Some(reason)) => reason,
            _ => Arc::new(TrunkError::ClosedHere),
        }
    }

    /// The first reason stands. Dropping the waiting senders wakes their callers.
    fn end(&self, reason: TrunkError) {
        self.ended.send_if_modified(|ended| {
            let first = ended.is_none();
            if first {
                *ended = Some(Arc::new(reason));
            }
            first
        });
        self.calls().waiting.clear();
    }
}

// === impl EndGuard ===

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.end(TrunkError::ClosedHere);
    }
}

/// Where incoming messages go.
struct Router {
    shared: Arc<Shared>,
    serves: ConnId,
    inbox: mpsc::Sender<Call>,
    /// A permit for each byte that may still wait in the inbox.
    room: Arc<Semaphore>,
    outbox: mpsc::Sender<Vec<u8>>,
}

// === impl Router ===

impl Router {
    /// Hands a message on. Only a call waits, for room: the handler, which never waits for the reader, makes it, and a refusal
    /// would be the answer to a pod that nobody has looked at.
    async fn route(&self, message: Incoming) -> Result<(), TrunkError> {
        let stream = message.header.stream;
        match (message.header.kind, message.conn == self.serves) {
            (Kind::Request, true) => match self.keep(stream, message.body).await {
                Some(()) => Ok(()),
                None => self.refuse(
                    message.conn,
                    stream,
                    Code::ResourceExhausted,
                    "nobody answers calls any more",
                ),
            },
            (Kind::Request, false) => self.refuse(
                message.conn,
                stream,
                Code::Unimplemented,
                "this end of the connection only calls",
            ),
            (Kind::Response, false) => {
                // A late answer, whose caller has gone, has no entry any more.
                if let Some(caller) = self.shared.calls().waiting.remove(&stream) {
                    let _ = caller.send(message.body);
                }
                Ok(())
            }
            (Kind::Response, true) | (Kind::Data, _) => Ok(()),
        }
    }

    /// Puts a call where the handler finds it, as soon as there is room for it; `None`: nobody takes calls any more.
    async fn keep(&self, stream: u32, body: Vec<u8>) -> Option<()> {
        let bytes = u32::try_from(body.len()).ok()?;
        let room = Arc::clone(&self.room).acquire_many_owned(bytes).await.ok()?;
        self.inbox.send(Call { stream, body, _room: room }).await.ok()
    }

    fn refuse(&self, conn: ConnId, stream: u32, code: Code, why: &str) -> Result<(), TrunkError> {
        let answer = encode(Kind::Response, stream, &Response::of(Err(Status::new(code, why))));
        self.outbox.try_send(frames_of(conn, &answer)).map_err(|_| TrunkError::Stalled)
    }
}

async fn read(mut socket: impl AsyncRead + Unpin, router: &Router) -> TrunkError {
    let mut demux = Demux::default();
    let mut buffer = vec![0; READ_BUFFER];
    loop {
        let read = match socket.read(&mut buffer).await {
            Ok(0) if demux.at_boundary() => return TrunkError::Closed,
            Ok(0) => return TrunkError::Truncated,
            Ok(n) => n,
            Err(e) => return TrunkError::Io(e),
        };
        let mut bytes = buffer.get(..read).unwrap_or_default();
        loop {
            match demux.push(&mut bytes) {
                Ok(None) => break,
                Ok(Some(message)) => {
                    if let Err(reason) = router.route(message).await {
                        return reason;
                    }
                }
                Err(e) => return TrunkError::Protocol(e),
            }
        }
    }
}

async fn write(mut socket: impl AsyncWrite + Unpin, mut outgoing: mpsc::Receiver<Vec<u8>>) -> TrunkError {
    while let Some(frames) = outgoing.recv().await {
        match tokio::time::timeout(WRITE_STALL, socket.write_all(&frames)).await {
            Ok(Ok(())) => {}
            Ok(Err(e)) => return TrunkError::Io(e),
            Err(_) => return TrunkError::Stalled,
        }
    }
    TrunkError::ClosedHere
}
