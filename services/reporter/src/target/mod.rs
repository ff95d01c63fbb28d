//! Where the object goes.

mod cluster;
mod file;

pub use cluster::{Cluster, ClusterSource};
pub use file::YamlFile;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use oxalyst_kube_types::CustomNodeResource;

use crate::Settings;

/// Where the object goes.
pub enum Target {
    /// To an API server.
    Cluster(Box<Cluster>),
    /// Into a file, where there is no API server.
    File(YamlFile),
}

/// A part of the object that is written by itself: the status is a sub-resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Metadata and spec. Writing it makes the object if there is none.
    Spec,
    /// The status.
    Status,
}

/// Why the object could not be published.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// No usable way to the API server.
    #[error("no way to the API server by {from}: {what}")]
    Config {
        /// The kubeconfig, or the service account.
        from: String,
        /// What is wrong.
        what: String,
    },
    /// No answer in time.
    #[error("the API server at {server} did not answer within {} s", .deadline.as_secs())]
    Late {
        /// The server.
        server: String,
        /// The deadline.
        deadline: Duration,
    },
    /// Another field manager owns one of our fields with another value.
    #[error(
        "conflict over {object} at {server}: {what}: let the other writer go, or set force_ownership to take its fields over"
    )]
    Conflict {
        /// The object.
        object: String,
        /// The server.
        server: String,
        /// Which field, and whose.
        what: String,
    },
    /// The server does not know the resource, or the object vanished between two writes.
    #[error(
        "{server} knows no {object}: {what}: is the CRD customnoderesources.node.katalyst.kubewharf.io installed?"
    )]
    Absent {
        /// The object.
        object: String,
        /// The server.
        server: String,
        /// What came back.
        what: String,
    },
    /// The server refused.
    #[error("{server} refused {object}: HTTP {code}: {what}")]
    Refused {
        /// The object.
        object: String,
        /// The server.
        server: String,
        /// HTTP status.
        code: u16,
        /// What came back.
        what: String,
    },
    /// The server could not be reached, or broke off.
    #[error("cannot reach the API server at {server}: {what}")]
    Unreachable {
        /// The server.
        server: String,
        /// What came back.
        what: String,
    },
    /// The file cannot be written.
    #[error("cannot {doing} {path}: {what}: check the setting file and the folder's permissions", path = path.display())]
    File {
        /// What was being done.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// What came back.
        what: String,
    },
}

// === impl Target ===

impl Target {
    /// The target that the settings name: kubeconfig, else the cluster around, else a file.
    pub fn of(settings: &Settings) -> Self {
        if let Some(path) = &settings.kubeconfig {
            Self::Cluster(Box::new(Cluster::new(
                ClusterSource::Kubeconfig(path.clone()),
                settings.force_ownership,
            )))
        } else if settings.in_cluster {
            Self::Cluster(Box::new(Cluster::new(ClusterSource::ServiceAccount, settings.force_ownership)))
        } else {
            let default = || settings.common.run_dir.join("kcnr.yaml");
            Self::File(YamlFile::new(settings.file.clone().unwrap_or_else(default)))
        }
    }

    /// Writes one part of `object`; a file is always written whole. Tells whether anything had to be sent.
    ///
    /// # Errors
    /// [`PublishError`]; the part may be written again at any time.
    pub async fn write(&mut self, part: Part, object: &CustomNodeResource) -> Result<bool, PublishError> {
        match self {
            Self::Cluster(cluster) => cluster.apply(part, object).await.map(|()| true),
            Self::File(file) => file.write(object).await,
        }
    }

    /// Whether what stands there still says what `object` says.
    ///
    /// # Errors
    /// [`PublishError`] if that cannot be told.
    pub async fn holds(&mut self, object: &CustomNodeResource) -> Result<bool, PublishError> {
        match self {
            Self::Cluster(cluster) => cluster.holds(object).await,
            Self::File(file) => file.holds(object).await,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cluster(cluster) => cluster.fmt(f),
            Self::File(file) => write!(f, "file {}", file.path().display()),
        }
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({self})")
    }
}
