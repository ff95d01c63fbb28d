//! The calls to the services, each with a deadline.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use oxalyst_proto::gateway::v1::gateway_client::GatewayClient;
use oxalyst_proto::gateway::v1::{
    DiagnoseReply, DiagnoseRequest, ListContainersReply, ListContainersRequest,
};
use oxalyst_proto::mesh::v1::introspection_client::IntrospectionClient;
use oxalyst_proto::mesh::v1::{GetStatusRequest, Status};
use oxalyst_proto::meta::v1::meta_client::MetaClient;
use oxalyst_proto::meta::v1::{GetNodeRequest, Node};
use oxalyst_proto::metrics::v1::metrics_client::MetricsClient;
use oxalyst_proto::metrics::v1::{
    ListMetricsReply, ListMetricsRequest, ListSourcesReply, ListSourcesRequest, QueryReply, QueryRequest,
};
use oxalyst_proto::orm::v1::allocator_client::AllocatorClient;
use oxalyst_proto::orm::v1::decisions_client::DecisionsClient;
use oxalyst_proto::orm::v1::{
    Decision, DecisionStep, GetStateRequest, GetTopologyRequest, ListDecisionsReply, ListDecisionsRequest,
    RecordRequest, RecordingFrame, State, Topology, WhatIfRequest,
};
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Streaming};

const DEADLINE: Duration = Duration::from_secs(2);

/// The services of one node, by their sockets.
#[derive(Debug)]
pub(crate) struct Peers {
    run_dir: PathBuf,
}

/// Why a service gave no answer, and what the operator can do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PeerError {
    #[error("{service} does not listen on {}: is the service running? start it or set --run-dir", path.display())]
    Absent { service: String, path: PathBuf },
    #[error("{service} cannot be reached on {}: {source}: run oxctl as root, or as a user who may write to the socket", path.display())]
    Unreachable { service: String, path: PathBuf, source: io::Error },
    #[error("{service} took the connection on {} and ended it ({source}): it has as many as common.max_connections allows, or it is ending; see its log and try again", path.display())]
    Ended { service: String, path: PathBuf, source: io::Error },
    #[error("{service} did not answer {call} on {} within {} s: it is stopped or overloaded, see its log", path.display(), DEADLINE.as_secs())]
    Late { service: String, path: PathBuf, call: &'static str },
    #[error("{service} does not know {call}: it is of another version than oxctl {}", env!("CARGO_PKG_VERSION"))]
    Unknown { service: String, call: &'static str },
    /// The question was wrong, not the service.
    #[error("{service}: {message}")]
    Refused { service: String, message: String },
    #[error("{service} answered {call} on {} with {code:?}: {message}: see its log", path.display())]
    Failed { service: String, path: PathBuf, call: &'static str, code: Code, message: String },
}

// === impl PeerError ===

impl PeerError {
    /// Nothing listens there, as opposed to a process that is not well.
    pub(crate) fn is_absent(&self) -> bool {
        matches!(self, Self::Absent { .. })
    }
}

// === impl Peers ===

impl Peers {
    pub(crate) fn new(run_dir: &Path) -> Self {
        Self { run_dir: run_dir.to_owned() }
    }

    pub(crate) async fn status(&self, service: &str) -> Result<Status, PeerError> {
        let mut client = IntrospectionClient::new(self.channel(service));
        self.answer(service, "GetStatus", client.get_status(request(GetStatusRequest {}))).await
    }

    pub(crate) async fn state(&self) -> Result<State, PeerError> {
        let client = AllocatorClient::new(self.channel("orm"));
        let mut client = client.max_decoding_message_size(oxalyst_mesh::MESSAGE_LIMIT);
        self.answer("orm", "GetState", client.get_state(request(GetStateRequest::default()))).await
    }

    pub(crate) async fn topology(&self) -> Result<Topology, PeerError> {
        let mut client = AllocatorClient::new(self.channel("orm"));
        self.answer("orm", "GetTopology", client.get_topology(request(GetTopologyRequest {}))).await
    }

    pub(crate) async fn decisions(
        &self,
        asked: ListDecisionsRequest,
    ) -> Result<ListDecisionsReply, PeerError> {
        let mut client = self.reasons();
        self.answer("orm", "ListDecisions", client.list_decisions(request(asked))).await
    }

    pub(crate) async fn what_if(&self, step: DecisionStep) -> Result<Decision, PeerError> {
        let mut client = self.reasons();
        let asked = request(WhatIfRequest { step: Some(step) });
        let reply = self.answer("orm", "WhatIf", client.what_if(asked)).await?;
        Ok(reply.decision.unwrap_or_default())
    }

    /// Opens a stream that has a deadline for each message.
    pub(crate) async fn record(&self) -> Result<Streaming<RecordingFrame>, PeerError> {
        let mut client = self.reasons();
        self.answer("orm", "Record", client.record(Request::new(RecordRequest {}))).await
    }

    /// The next frame; `None` at the end.
    pub(crate) async fn next_frame(
        &self,
        stream: &mut Streaming<RecordingFrame>,
    ) -> Result<Option<RecordingFrame>, PeerError> {
        let (service, path) = ("orm".to_owned(), oxalyst_mesh::socket_path(&self.run_dir, "orm"));
        match tokio::time::timeout(DEADLINE, stream.message()).await {
            Ok(message) => message.map_err(|status| explain(service, path, "Record", &status)),
            Err(_) => Err(PeerError::Late { service, path, call: "Record" }),
        }
    }

    fn reasons(&self) -> DecisionsClient<Channel> {
        DecisionsClient::new(self.channel("orm")).max_decoding_message_size(oxalyst_mesh::MESSAGE_LIMIT)
    }

    pub(crate) async fn containers(&self) -> Result<ListContainersReply, PeerError> {
        let client = GatewayClient::new(self.channel("nri-gateway"));
        let mut client = client.max_decoding_message_size(oxalyst_mesh::MESSAGE_LIMIT);
        let call = client.list_containers(request(ListContainersRequest {}));
        self.answer("nri-gateway", "ListContainers", call).await
    }

    pub(crate) async fn diagnose(&self) -> Result<DiagnoseReply, PeerError> {
        let mut client = GatewayClient::new(self.channel("nri-gateway"));
        self.answer("nri-gateway", "Diagnose", client.diagnose(request(DiagnoseRequest {}))).await
    }

    pub(crate) async fn node(&self) -> Result<Node, PeerError> {
        let mut client = MetaClient::new(self.channel("meta-server"));
        self.answer("meta-server", "GetNode", client.get_node(request(GetNodeRequest::default()))).await
    }

    pub(crate) async fn metrics(&self, query: QueryRequest) -> Result<QueryReply, PeerError> {
        let client = MetricsClient::new(self.channel("metrics-fetcher"));
        let mut client = client.max_decoding_message_size(oxalyst_mesh::MESSAGE_LIMIT);
        self.answer("metrics-fetcher", "Query", client.query(request(query))).await
    }

    pub(crate) async fn list_metrics(&self) -> Result<ListMetricsReply, PeerError> {
        let mut client = MetricsClient::new(self.channel("metrics-fetcher"));
        self.answer("metrics-fetcher", "ListMetrics", client.list_metrics(request(ListMetricsRequest {})))
            .await
    }

    pub(crate) async fn list_sources(&self) -> Result<ListSourcesReply, PeerError> {
        let mut client = MetricsClient::new(self.channel("metrics-fetcher"));
        self.answer("metrics-fetcher", "ListSources", client.list_sources(request(ListSourcesRequest {})))
            .await
    }

    /// Opens a stream that has no deadline once it is open.
    pub(crate) async fn watch_metrics(
        &self,
        query: QueryRequest,
    ) -> Result<Streaming<QueryReply>, PeerError> {
        let client = MetricsClient::new(self.channel("metrics-fetcher"));
        let mut client = client.max_decoding_message_size(oxalyst_mesh::MESSAGE_LIMIT);
        self.answer("metrics-fetcher", "Watch", client.watch(Request::new(query))).await
    }

    /// The next message of such a stream; `None` at its end.
    pub(crate) async fn next(
        &self,
        stream: &mut Streaming<QueryReply>,
    ) -> Result<Option<QueryReply>, PeerError> {
        let path = oxalyst_mesh::socket_path(&self.run_dir, "metrics-fetcher");
        stream.message().await.map_err(|status| explain("metrics-fetcher".to_owned(), path, "Watch", &status))
    }

    fn channel(&self, service: &str) -> Channel {
        oxalyst_mesh::connect(&self.run_dir, service)
    }

    async fn answer<T>(
        &self,
        service: &str,
        call: &'static str,
        answer: impl Future<Output = Result<Response<T>, tonic::Status>>,
    ) -> Result<T, PeerError> {
        let path = oxalyst_mesh::socket_path(&self.run_dir, service);
        let service = service.to_owned();
        // A stopped process accepts the connection and then says nothing, so the deadline is kept on this side.
        match tokio::time::timeout(DEADLINE, answer).await {
            Ok(Ok(reply)) => Ok(reply.into_inner()),
            Ok(Err(status)) => Err(explain(service, path, call, &status)),
            Err(_) => Err(PeerError::Late { service, path, call }),
        }
    }
}

fn request<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(DEADLINE);
    request
}

fn explain(service: String, path: PathBuf, call: &'static str, status: &tonic::Status) -> PeerError {
    if let Some(kind) = io_cause(status) {
        return match kind {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => PeerError::Absent { service, path },
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof => {
                PeerError::Ended { service, path, source: kind.into() }
            }
            kind => PeerError::Unreachable { service, path, source: kind.into() },
        };
    }
    match status.code() {
        Code::DeadlineExceeded | Code::Cancelled => PeerError::Late { service, path, call },
        Code::Unimplemented => PeerError::Unknown { service, call },
        Code::InvalidArgument => PeerError::Refused { service, message: status.message().to_owned() },
        code => PeerError::Failed { service, path, call, code, message: status.message().to_owned() },
    }
}

/// The kind of the I/O error that a failed connection ends in.
fn io_cause(status: &tonic::Status) -> Option<io::ErrorKind> {
    let mut cause = status.source();
    while let Some(error) = cause {
        if let Some(io) = error.downcast_ref::<io::Error>() {
            return Some(io.kind());
        }
        cause = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxalyst_proto::metrics::v1::QueryRequest;

    #[tokio::test]
    async fn a_connection_that_the_service_ends_is_no_matter_of_permission() {
        let dir = tempfile::tempdir().unwrap();
        let listener =
            tokio::net::UnixListener::bind(oxalyst_mesh::socket_path(dir.path(), "metrics-fetcher")).unwrap();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                drop(stream);
            }
        });
        let told = Peers::new(dir.path()).metrics(QueryRequest::default()).await.unwrap_err().to_string();
        assert!(told.contains("common.max_connections") && !told.contains("as root"), "{told}");
    }
}
