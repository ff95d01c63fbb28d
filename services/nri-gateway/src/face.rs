//! `oxalyst.gateway.v1`: translates, asks the roster, translates back.

use std::time::Duration;

use actix::Addr;
use oxalyst_proto::gateway::v1::gateway_server::Gateway;
use oxalyst_proto::gateway::v1::{
    AppliedContainer, DiagnoseReply, DiagnoseRequest, HandOverReply, HandOverRequest, ListContainersReply,
    ListContainersRequest,
};
use oxalyst_proto::runtime::v1::ContainerState;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use crate::diagnosis::Diagnosis;
use crate::kernel::Kernel;
use crate::roster::{Listing, Refused, Roster, Troubles};

/// An answer waits for the kernel's files no longer than this; it is given without them.
const LOOK_DEADLINE: Duration = Duration::from_millis(500);

/// The gRPC face.
#[derive(Debug)]
pub struct Face {
    /// What runs.
    pub roster: Addr<Roster>,
    /// What holds.
    pub kernel: Kernel,
    /// Whether a session is synchronised.
    pub synchronised: watch::Receiver<bool>,
    /// Last heard name of the runtime.
    pub runtime: watch::Receiver<String>,
    /// What stands in the way.
    pub diagnosis: Diagnosis,
    /// Told true when a successor asked.
    pub handed_over: watch::Sender<bool>,
}

// === impl Face ===

impl Face {
    /// The same containers with what the kernel holds each to, now: between two comparisons, somebody else may have changed it.
    async fn measured(&self, listed: Vec<(AppliedContainer, String)>) -> Vec<AppliedContainer> {
        let (mut containers, cgroups): (Vec<_>, Vec<_>) = listed.into_iter().unzip();
        match self.kernel.attainable(cgroups, LOOK_DEADLINE).await {
            Ok(attainable) => {
                for (container, (told, frozen)) in containers.iter_mut().zip(attainable) {
                    // No runtime tells a plugin that it paused a container.
                    if frozen == Some(true) && container.state() == ContainerState::Running {
                        container.state = ContainerState::Paused.into();
                    }
                    container.effective_cpus = told.cpus.map(|cpus| cpus.to_string());
                    container.max_milli_cpu = told.milli_cpu;
                }
            }
            Err(e) => tracing::debug!(error = %e, "answered without what the kernel's files say"),
        }
        containers
    }
}

#[tonic::async_trait]
impl Gateway for Face {
    async fn list_containers(
        &self,
        _: Request<ListContainersRequest>,
    ) -> Result<Response<ListContainersReply>, Status> {
        let stopping = |_| Status::unavailable("the gateway is stopping");
        let containers = self.measured(self.roster.send(Listing).await.map_err(stopping)?).await;
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
        let told = self.roster.send(Troubles).await.ok();
        Ok(Response::new(DiagnoseReply { findings: self.diagnosis.findings(told).await }))
    }
}
