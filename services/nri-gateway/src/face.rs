//! `oxalyst.gateway.v1`: translates, asks the roster, translates back.

use actix::Addr;
use oxalyst_proto::gateway::v1::gateway_server::Gateway;
use oxalyst_proto::gateway::v1::{ListContainersReply, ListContainersRequest};
use tokio::sync::watch;
use tonic::{Request, Response, Status};

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
        }))
    }
}
