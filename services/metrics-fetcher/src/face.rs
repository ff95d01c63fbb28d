//! The gRPC face: asks, translates, answers.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use oxalyst_proto::metrics::v1 as proto;
use oxalyst_proto::metrics::v1::metrics_server::{Metrics, MetricsServer};
use tokio_stream::{Stream, wrappers::WatchStream};
use tonic::{Request, Response, Status};

use crate::aggregate::aggregate;
use crate::clock::Clock;
use crate::names::Directory;
use crate::pushed::PushError;
use crate::query::{self, Terms};
use crate::settings::SetUp;
use crate::sources::cgroup::Schedule;
use crate::store::Store;
use crate::watchers::{Watcher, Watchers};
use crate::{catalogue, history};

/// Answers from the newest snapshot; never waits for a pass.
#[derive(Debug, Clone)]
pub struct Face {
    /// What was measured.
    pub store: Arc<Store>,
    /// Who is who.
    pub names: Arc<Directory>,
    /// The present moment.
    pub clock: Arc<dyn Clock>,
    /// What holds for every answer.
    pub terms: Terms,
    /// When cgroups and `/proc` are read.
    pub schedule: Schedule,
    /// The other sources.
    pub set_up: Arc<[SetUp]>,
    /// Who watches.
    pub watchers: Watchers,
}

// === impl Face ===

impl Face {
    fn samples(&self, request: &proto::QueryRequest) -> Result<proto::QueryReply, Status> {
        let now = self.clock.now();
        let known = self.names.load();
        let mut samples = query::samples(&self.store.view(), &known, request, now, self.terms)
            .map_err(|e| Status::invalid_argument(e.to_string()))?;
        // What is pushed has a slash in its name. To look at it is to copy it.
        if request.metrics.is_empty() || request.metrics.iter().any(|name| name.contains('/')) {
            samples.extend(query::pushed(&self.store.pushed.told(now), &known, request, now));
        }
        Ok(proto::QueryReply { samples, now_unix_ms: now.unix_ms() })
    }

    /// As a service for the mesh's socket.
    pub fn into_service(self) -> MetricsServer<Self> {
        MetricsServer::new(self)
    }
}

#[tonic::async_trait]
impl Metrics for Face {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<proto::QueryReply, Status>> + Send>>;

    async fn query(
        &self,
        request: Request<proto::QueryRequest>,
    ) -> Result<Response<proto::QueryReply>, Status> {
        self.samples(request.get_ref()).map(Response::new)
    }

    async fn watch(
        &self,
        request: Request<proto::QueryRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let (face, request) = (self.clone(), request.into_inner());
        let watcher = self.watchers.join().map_err(|e| Status::resource_exhausted(e.to_string()))?;
        // A name that is in no catalogue is told at once.
        face.samples(&proto::QueryRequest { ids: vec![String::new()], ..request.clone() })?;
        let news = WatchStream::new(self.store.news());
        Ok(Response::new(Box::pin(Replies { face, request, watcher, news })))
    }

    async fn aggregate(
        &self,
        request: Request<proto::AggregateRequest>,
    ) -> Result<Response<proto::AggregateReply>, Status> {
        let by = request.get_ref().aggregation();
        if by == proto::Aggregation::Unspecified {
            return Err(Status::invalid_argument("aggregation must be SUM or AVERAGE"));
        }
        let unit = catalogue::find(&request.get_ref().metric).map(|(_, metric)| metric.unit.name());
        let proto::AggregateRequest { metric, ids, instances, max_age_ms, .. } = request.into_inner();
        let query = proto::QueryRequest { metrics: vec![metric], ids, max_age_ms, ..Default::default() };
        let samples = self.samples(&query)?.samples;
        let wanted = |s: &&proto::Sample| instances.is_empty() || instances.contains(&s.instance);
        let mut reply = aggregate(samples.iter().filter(wanted), by)
            .map_err(|e| Status::failed_precondition(e.to_string()))?;
        if let Some(unit) = unit {
            unit.clone_into(&mut reply.unit);
        }
        Ok(Response::new(reply))
    }

    async fn history(
        &self,
        request: Request<proto::HistoryRequest>,
    ) -> Result<Response<proto::HistoryReply>, Status> {
        let proto::HistoryRequest { metric, container_id, window_ms } = request.into_inner();
        let Some((place, _)) = catalogue::find(&metric).filter(|(_, m)| m.history) else {
            return Err(Status::invalid_argument(format!(
                "no history is kept of {metric:?}: ListMetrics tells of which there is one"
            )));
        };
        let window = window_ms.map_or(history::WINDOW, Duration::from_millis);
        let summary = self.store.histories.summary(&container_id, place, window, self.clock.now());
        Ok(Response::new(summary.map_or_else(proto::HistoryReply::default, |s| proto::HistoryReply {
            points: s.points as u64,
            average: s.average,
            maximum: s.maximum,
            p50: s.p50,
            p90: s.p90,
            p99: s.p99,
            oldest_unix_ns: s.oldest.unix_ns,
        })))
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
        let mut sources = query::sources(&self.store.view(), self.schedule, &self.set_up);
        sources.extend(self.store.pushed.told(self.clock.now()).iter().map(query::pushing));
        Ok(Response::new(proto::ListSourcesReply { sources }))
    }

    async fn push(&self, request: Request<proto::PushRequest>) -> Result<Response<proto::PushReply>, Status> {
        let held = self.store.pushed.take(request.into_inner(), self.clock.now()).map_err(|e| match e {
            PushError::Full { .. } => Status::resource_exhausted(e.to_string()),
            _ => Status::invalid_argument(e.to_string()),
        })?;
        self.store.tell_news();
        Ok(Response::new(proto::PushReply { held: held as u64 }))
    }
}

/// What one watcher gets. Nothing is made before the transport has room for it.
struct Replies {
    face: Face,
    request: proto::QueryRequest,
    watcher: Watcher,
    /// It holds one number: who is slow finds the newest, and the sampler never waits.
    news: WatchStream<u64>,
}

// === impl Replies ===

impl Stream for Replies {
    type Item = Result<proto::QueryReply, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { face, request, watcher, news } = &mut *self;
        loop {
            let (publication, answer) = match watcher.amid() {
                Some(amid) => amid,
                None => {
                    let Some(publication) = ready!(Pin::new(&mut *news).poll_next(cx)) else {
                        return Poll::Ready(None);
                    };
                    match face.watchers.answer(request, publication, || face.samples(request)) {
                        Ok(answer) => (publication, answer),
                        Err(status) => return Poll::Ready(Some(Err(status))),
                    }
                }
            };
            if let Some(reply) = watcher.next(publication, &answer) {
                return Poll::Ready(Some(Ok(reply)));
            }
        }
    }
}
