use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::UNIX_EPOCH;

use oxalyst_proto::mesh::v1::introspection_server::{Introspection, IntrospectionServer};
use oxalyst_proto::mesh::v1::{GetStatusRequest, Pending, Status};
use tonic::{Request, Response};

use crate::Mesh;

/// Facts that a process tells an operator, a short text each.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    facts: Arc<Mutex<BTreeMap<String, String>>>,
}

// === impl Facts ===

impl Facts {
    /// Tells (or corrects) one fact.
    pub fn set(&self, name: &str, value: impl ToString) {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), value.to_string());
    }

    /// All facts now.
    pub fn all(&self) -> BTreeMap<String, String> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

// === impl Mesh ===

impl Mesh {
    /// What [`Introspection`] answers.
    pub fn status(&self) -> Status {
        let since_epoch = self.started.duration_since(UNIX_EPOCH).unwrap_or_default();
        let pending = self.readiness.pending();
        Status {
            service: self.service.to_owned(),
            version: self.version.to_owned(),
            started_unix_ms: i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX),
            ready: pending.is_empty(),
            pending: pending
                .into_iter()
                .map(|(name, detail)| Pending { name: name.to_owned(), detail })
                .collect(),
            facts: self.facts.all(),
            pid: std::process::id(),
        }
    }

    pub(crate) fn introspection(&self) -> IntrospectionServer<Face> {
        IntrospectionServer::new(Face { mesh: self.clone() })
    }
}

/// The gRPC face of a process's status.
#[derive(Debug)]
pub(crate) struct Face {
    mesh: Mesh,
}

#[tonic::async_trait]
impl Introspection for Face {
    async fn get_status(&self, _: Request<GetStatusRequest>) -> Result<Response<Status>, tonic::Status> {
        Ok(Response::new(self.mesh.status()))
    }
}
