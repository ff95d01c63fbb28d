//! Of two gateways that mean to serve one node, one does: while it is updated, the old one hands over to the new one.
//!
//! The lock beside the mesh's socket decides. A new gateway that finds it taken asks the holder to hand over; the holder answers
//! the call that it has in hand, ends its session, gives up its socket, and waits as the new one did, without asking: it serves
//! again only if its successor ends. What started in between is found in the successor's first synchronisation.

use std::error::Error;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use oxalyst_mesh::{BindError, Bound, Mesh};
use oxalyst_proto::gateway::v1::HandOverRequest;
use oxalyst_proto::gateway::v1::gateway_client::GatewayClient;
use tokio::time::Instant;

use crate::{SERVICE, Settings, Started, start};

/// How often the lock is tried.
const LOOK: Duration = Duration::from_millis(50);

/// How long one that handed over leaves the lock to its successor.
const YIELD: Duration = Duration::from_secs(1);

/// How often the holder is asked.
const ASK: Duration = Duration::from_secs(5);

/// How long the holder may take to answer.
const ANSWER: Duration = Duration::from_secs(1);

/// How long calls of the runtime may take to be answered once the session is to end.
const DRAIN: Duration = Duration::from_millis(500);

/// For the answer to reach the socket.
const SENT: Duration = Duration::from_millis(20);

/// Counts calls of the runtime that are being answered. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Calls {
    open: Arc<AtomicUsize>,
}

/// One call. It ends when this is dropped.
#[derive(Debug)]
pub struct Calling {
    open: Arc<AtomicUsize>,
}

// === impl Calls ===

impl Calls {
    /// A call begins.
    pub fn begin(&self) -> Calling {
        self.open.fetch_add(1, Ordering::Relaxed);
        Calling { open: self.open.clone() }
    }

    /// Until none is open, at the latest after [`DRAIN`].
    async fn done(&self) {
        let until = Instant::now() + DRAIN;
        while self.open.load(Ordering::Relaxed) > 0 && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Drop for Calling {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Serves, one tenure after another, until `stop` resolves.
pub(crate) async fn serve(
    settings: Settings,
    mut mesh: Mesh,
    stop: impl Future<Output = ()>,
) -> Result<(), Box<dyn Error>> {
    tokio::pin!(stop);
    let mut asks = true;
    loop {
        let bound = tokio::select! {
            bound = own(&mesh, asks) => bound?,
            () = &mut stop => return Ok(()),
        };
        let Started { routes, mut tasks, calls, mut handed_over } = start(settings.clone(), &mesh);
        let mut stopped = false;
        let end = async {
            tokio::select! {
                () = &mut stop => stopped = true,
                // The sender lives as long as what is served.
                _ = handed_over.wait_for(|handed| *handed) => {}
            }
            calls.done().await;
            tokio::time::sleep(SENT).await;
            tasks.shutdown().await;
        };
        bound.serve_until(routes, end).await?;
        if stopped {
            return Ok(());
        }
        asks = false;
        // Another tenure tells of itself, not of the one before.
        mesh = Mesh::new(SERVICE, mesh.version, &settings.common);
    }
}

/// The socket, once nobody else has it.
async fn own(mesh: &Mesh, asks: bool) -> Result<Bound, BindError> {
    let mut asked: Option<Instant> = None;
    let mut told = false;
    if !asks {
        tokio::time::sleep(YIELD).await;
    }
    loop {
        match mesh.bind() {
            Err(BindError::InUse { socket, .. }) => {
                if !told {
                    tracing::info!(socket = %socket.display(), asks, "another gateway serves this node: waits for it");
                    told = true;
                }
                if asks && asked.is_none_or(|at| at.elapsed() >= ASK) {
                    ask(mesh).await;
                    asked = Some(Instant::now());
                }
                tokio::time::sleep(LOOK).await;
            }
            outcome => return outcome,
        }
    }
}

/// Asks the holder to hand over. One that does not know the question, or does not answer, is waited for.
async fn ask(mesh: &Mesh) {
    let mut client = GatewayClient::new(oxalyst_mesh::connect(&mesh.run_dir, SERVICE));
    let request = HandOverRequest { pid: std::process::id(), version: mesh.version.to_owned() };
    match tokio::time::timeout(ANSWER, client.hand_over(request)).await {
        Ok(Ok(reply)) => tracing::info!(pid = reply.into_inner().pid, "the other gateway hands over"),
        Ok(Err(status)) => tracing::warn!(reason = status.message(), "the other gateway does not hand over"),
        Err(_) => tracing::warn!("the other gateway does not answer: it is waited for until it ends"),
    }
}
