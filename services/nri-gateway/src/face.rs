//! `oxalyst.gateway.v1`: translates, asks the roster, translates back.

use actix::Addr;
use oxalyst_proto::gateway::v1::gateway_server::Gateway;
use oxalyst_proto::gateway::v1::{
    DiagnoseReply, DiagnoseRequest, HandOverReply, HandOverRequest, ListContainersReply,
    ListContainersRequest,
};
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use crate::diagnosis::Diagnosis;
use crate::roster::{Listing, Refused, Roster};

/// The gRPC face.
#[derive(Debug)]
pub struct Face {
    /// What runs.
    pub roster: Addr<Roster>,
    /// Whether a session is synchronised.
    pub synchronised: watch::Receiver<bool>,
    /// Last heard name of the runtime.
    pub runtime: watch::Receiver<String>,
    /// What stands in the way.
    pub diagnosis: Diagnosis,
    /// Told true when a successor asked.
    pub handed_over: watch::Sender<bool>,
}

#[tonic::async_trait]
impl Gateway for Face {
    async fn list_containers(
        &self,
        _: Request<ListContainersRequest>,
    ) -> Result<Response<ListContainersReply>, Status> {
        let stopping = |_| Status::unavailable("the gateway is stopping");
        let containers = self.roster.send(Listing).await.map_err(stopping)?;
        let refused = self.roster.send(Refused).await.map_err(stopping)?;
        Ok(Response::new(ListContainersReply {
            connected: *self.synchronised.borrow(),
            runtime: self.runtime.borrow().clone(),
            containers,
            refused,
            mode: self.diagnosis.way().name().to_owned(),
        }))
    }

    async fn hand_over(&self, request: Request<HandOverRequest>) -> Result<Response<HandOverReply>, Status> {
        let HandOverRequest { pid, version } = request.into_inner();
        tracing::info!(pid, %version, "hands over to another gateway");
        self.handed_over.send_replace(true);
        Ok(Response::new(HandOverReply { pid: std::process::id() }))
    }

    async fn diagnose(&self, _: Request<DiagnoseRequest>) -> Result<Response<DiagnoseReply>, Status> {
        Ok(Response::new(DiagnoseReply { findings: self.diagnosis.findings().await }))
    }
}
