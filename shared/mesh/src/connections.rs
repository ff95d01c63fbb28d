//! The connections of one listener: how many there may be, and when one ends that nobody uses any more.
//!
//! A living client of HTTP/2 answers pings, whatever it waits for. So one rule fits all: a connection from which nothing came for
//! long is of no use to anyone, be its client stopped, gone without a word, or idle on HTTP/1.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

/// How long a client of HTTP/2 may take to answer a ping, in periods of pings.
const ANSWER_PINGS: u32 = 2;

/// After so many periods of pings without a byte a connection ends. Together with the default period it is longer than the half
/// minute for which peers are known to stand still and go on.
const SILENT_PINGS: u32 = 3;

/// What may be on its way to this process unread, in bytes: of one stream and of one connection.
const WINDOW: u32 = 1 << 20;

/// Calls of one connection that may have been given up before this process came to them; with more the connection ends. A process
/// that stood still finds all that was given up meanwhile, from clients that mean no harm and have streams to lose.
const GIVEN_UP: usize = 1024;

/// What holds for the connections of a listener.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// How many may be open at once.
    pub(crate) most: usize,
    /// How often a client of HTTP/2 is asked whether it lives.
    pub(crate) ping: Duration,
}

/// An open connection that notes whether anything came.
struct Heard<I> {
    io: I,
    any: Arc<AtomicBool>,
}

/// Serves `router` to whoever connects to `listener`, as many at once as `limits` allow, until `stop` is true; then waits for open calls to end.
/// Who comes while all places are taken finds the connection closed.
pub(crate) async fn serve<L>(mut listener: L, router: Router, limits: Limits, mut stop: watch::Receiver<bool>)
where
    L: Listener,
{
    let Limits { most, ping } = limits;
    let room = Arc::new(Semaphore::new(most));
    let mut full = false;
    let mut open = JoinSet::new();
    let stopped = stop.clone();
    let mut stopping = pin!(asked(&mut stop));
    loop {
        let (io, _) = tokio::select! {
            () = &mut stopping => break,
            Some(_) = open.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        let Ok(place) = Arc::clone(&room).try_acquire_owned() else {
            if !full {
                tracing::warn!(
                    most,
                    "all connections are taken, more are closed: end a client, or raise common.max_connections"
                );
            }
            full = true;
            continue;
        };
        // Not at the first free place: a crowd at the door would be told at each step.
        if full && room.available_permits() >= most / 8 {
            tracing::info!(most, "connections are accepted again");
            full = false;
        }
        let (router, stopped) = (router.clone(), stopped.clone());
        open.spawn(async move {
            connection(io, router, ping, stopped).await;
            drop(place);
        });
    }
    drop(listener);
    while open.join_next().await.is_some() {}
}

/// One connection to its end.
async fn connection<I>(io: I, router: Router, ping: Duration, mut stop: watch::Receiver<bool>)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let any = Arc::new(AtomicBool::new(false));
    let io = TokioIo::new(Heard { io, any: Arc::clone(&any) });
    let mut builder = Builder::new(TokioExecutor::new());
    // HTTP/1 gets no timer: with one, hyper ends connections that ask nothing for half a minute.
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(ping)
        .keep_alive_timeout(ping * ANSWER_PINGS)
        .max_pending_accept_reset_streams(GIVEN_UP)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW);
    let mut serving = pin!(builder.serve_connection(io, TowerToHyperService::new(router)));
    let mut silent = pin!(silent(&any, ping));
    let ended = tokio::select! {
        ended = serving.as_mut() => ended,
        () = &mut silent => return tracing::debug!("ended a connection from which nothing came"),
        () = asked(&mut stop) => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(error, "a connection ended");
    }
}

/// Resolves once the process is asked to stop.
async fn asked(stop: &mut watch::Receiver<bool>) {
    // An error means that the sender is gone, which is a stop as well.
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Resolves once nothing has come for long. Counts ticks, not time: a process that was itself stopped blames nobody for it.
async fn silent(any: &AtomicBool, ping: Duration) {
    let mut tick = tokio::time::interval(ping);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tick.tick().await;
    let mut ticks = 0;
    while ticks < SILENT_PINGS {
        tick.tick().await;
        ticks = if any.swap(false, Ordering::Relaxed) { 0 } else { ticks + 1 };
    }
}

// === impl Heard ===

impl<I: AsyncRead + Unpin> AsyncRead for Heard<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buf))?;
        if buf.filled().len() > before {
            self.any.store(true, Ordering::Relaxed);
        }
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Heard<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
