//! The gRPC face: translates, asks, translates back.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use actix::Addr;
use futures::{Stream, StreamExt as _};
use oxalyst_proto::meta::v1::meta_server::Meta;
use oxalyst_proto::meta::v1::{
    GetNodeRequest, ListPodsRequest, Node, PodList, ReportRuntimeReply, RuntimeEvent, WatchPodsRequest,
};
use tokio_stream::wrappers::WatchStream;
use tonic::{Request, Response, Status, Streaming};

use crate::kubelet::Reservation;
use crate::table::{RuntimeLost, RuntimeTold, Superseded, unix_ms};
use crate::{Listed, PodTable, Published};

/// After each synchronisation with the runtime the gateway ends its stream and begins another: only an end that none follows
/// within this time is worth a word.
const NEXT_STREAM: Duration = Duration::from_secs(1);

/// Serves `oxalyst.meta.v1.Meta`.
#[derive(Debug)]
pub struct Face {
    table: Addr<PodTable>,
    published: Published,
    node: Node,
    reservation: Option<Reservation>,
    streams: AtomicU64,
}

/// Tells the table, whatever way the call ends (a cancelled call is dropped, not returned from), that its stream is over.
struct Ending {
    table: Addr<PodTable>,
    stream: u64,
    why: String,
}

// === impl Face ===

impl Face {
    /// A face of `table`, whose lists appear in `published`; of a node with a kubelet, what that reserves is told as well.
    pub fn new(
        table: Addr<PodTable>,
        published: Published,
        node: Node,
        reservation: Option<Reservation>,
    ) -> Self {
        Self { table, published, node, reservation, streams: AtomicU64::new(0) }
    }
}

#[tonic::async_trait]
impl Meta for Face {
    async fn report_runtime(
        &self,
        request: Request<Streaming<RuntimeEvent>>,
    ) -> Result<Response<ReportRuntimeReply>, Status> {
        let stream = self.streams.fetch_add(1, Ordering::Relaxed) + 1;
        let mut ending = Ending {
            table: self.table.clone(),
            stream,
            why: "the gateway's call was cut off: is nri-gateway up?".to_owned(),
        };
        let mut events = request.into_inner();
        loop {
            let event = match events.message().await {
                Ok(Some(event)) => event,
                Ok(None) => {
                    ending.why = "the gateway ended its stream and began no other".to_owned();
                    tokio::spawn(async move {
                        tokio::time::sleep(NEXT_STREAM).await;
                        drop(ending);
                    });
                    return Ok(Response::new(ReportRuntimeReply {}));
                }
                Err(status) => {
                    ending.why = format!("the gateway's stream broke: {}", status.message());
                    return Err(status);
                }
            };
            let told = RuntimeTold { stream, at_unix_ms: unix_ms(), event };
            match self.table.send(told).await {
                Ok(Ok(())) => {}
                Ok(Err(e @ Superseded::ByNewer)) => return Err(Status::aborted(e.to_string())),
                Ok(Err(e @ Superseded::NoSnapshot)) => return Err(Status::invalid_argument(e.to_string())),
                Err(_) => return Err(Status::unavailable("meta-server is stopping")),
            }
        }
    }

    async fn list_pods(&self, _: Request<ListPodsRequest>) -> Result<Response<PodList>, Status> {
        Ok(Response::new(self.published.list().whole()))
    }

    type WatchPodsStream = Pin<Box<dyn Stream<Item = Result<PodList, Status>> + Send>>;

    async fn watch_pods(
        &self,
        request: Request<WatchPodsRequest>,
    ) -> Result<Response<Self::WatchPodsStream>, Status> {
        let takes_changes = request.into_inner().changes;
        let mut sent: Option<Arc<Listed>> = None;
        let told = WatchStream::new(self.published.watch()).map(move |list: Arc<Listed>| {
            Ok(match sent.replace(Arc::clone(&list)) {
                Some(before) if takes_changes => list.since(&before),
                _ => list.whole(),
            })
        });
        Ok(Response::new(Box::pin(told)))
    }

    async fn get_node(&self, request: Request<GetNodeRequest>) -> Result<Response<Node>, Status> {
        let mut node = self.node.clone();
        if request.into_inner().kubelet_reservation {
            (node.kubelet_reservation, node.kubelet_reservation_error) = match &self.reservation {
                Some(reservation) => reservation.told().await,
                None => (None, "no kubelet is configured: set kubelet.endpoint of meta-server".to_owned()),
            };
        }
        Ok(Response::new(node))
    }
}

// === impl Ending ===

impl Drop for Ending {
    fn drop(&mut self) {
        let lost = RuntimeLost { stream: self.stream, why: std::mem::take(&mut self.why) };
        // Without the mailbox's bound: this message must not be lost, and there is one per stream.
        self.table.do_send(lost);
    }
}
