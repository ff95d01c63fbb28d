//! The gRPC face: asks, translates, answers.

use std::sync::Arc;
use std::time::Duration;

use oxalyst_proto::metrics::v1 as proto;
use oxalyst_proto::metrics::v1::metrics_server::{Metrics, MetricsServer};
use tonic::{Request, Response, Status};

use crate::clock::Clock;
use crate::names::Directory;
use crate::query;
use crate::sample::Ages;
use crate::store::Store;

/// Answers from the newest snapshot; never waits for a pass.
#[derive(Debug, Clone)]
pub struct Face {
    /// What was measured.
    pub store: Arc<Store>,
    /// Who is who.
    pub names: Arc<Directory>,
    /// The present moment.
    pub clock: Arc<dyn Clock>,
    /// Ages that hold where a request names none.
    pub ages: Ages,
    /// Period of the sources.
    pub period: Duration,
}

// === impl Face ===

impl Face {
    /// As a service for the mesh's socket.
    pub fn into_service(self) -> MetricsServer<Self> {
        MetricsServer::new(self)
    }
}

#[tonic::async_trait]
impl Metrics for Face {
    async fn query(
        &self,
        request: Request<proto::QueryRequest>,
    ) -> Result<Response<proto::QueryReply>, Status> {
        let now = self.clock.now();
        let (snapshot, known) = (self.store.load(), self.names.load());
        let samples = query::samples(&snapshot, &known, request.get_ref(), now, self.ages)
            .map_err(|e| Status::invalid_argument(e.to_string()))?;
        Ok(Response::new(proto::QueryReply { samples, now_unix_ms: now.unix_ms() }))
    }

    async fn list_metrics(
        &self,
        _: Request<proto::ListMetricsRequest>,
    ) -> Result<Response<proto::ListMetricsReply>, Status> {
        Ok(Response::new(proto::ListMetricsReply { metrics: query::metrics() }))
    }

    async fn list_sources(
        &self,
        _: Request<proto::ListSourcesRequest>,
    ) -> Result<Response<proto::ListSourcesReply>, Status> {
        let sources = query::sources(&self.store.load(), self.period);
        Ok(Response::new(proto::ListSourcesReply { sources }))
    }
}
