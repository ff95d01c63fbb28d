//! Knows the node's pods and the node.
//!
//! Two sources tell of pods: the kubelet (its `/pods`, where one is configured) and the container runtime (through the
//! gateway's stream). Each is kept whole until it tells something newer; they are merged by UID for readers. A source that
//! falls silent keeps what it told, and its age shows.

mod face;
pub mod kubelet;
mod listed;
pub mod node;
pub mod pods;
pub mod runtime;
pub mod settings;
mod table;

pub use face::Face;
pub use listed::{Listed, Published};
pub use settings::Settings;
pub use table::{KubeletListed, PodTable, RuntimeLost, RuntimeTold};

use std::error::Error;
use std::sync::Arc;

use actix::Actor as _;
use oxalyst_mesh::Mesh;
use oxalyst_proto::meta::v1::meta_server::MetaServer;
use tokio::sync::Notify;
use tonic::service::Routes;

/// Name of the service: its socket, its settings, its metrics.
pub const SERVICE: &str = "meta-server";

/// Runs the service until it is asked to stop.
///
/// # Errors
/// What keeps it from starting: a socket in use, unusable settings, a node without a name.
pub async fn run(settings: Settings, mesh: Mesh) -> Result<(), Box<dyn Error>> {
    let bound = mesh.bind()?;
    let node = node::discover(&mesh.host_root, settings.node_name.as_deref())?;
    mesh.facts.set("node", &node.name);

    let wanted = Arc::new(Notify::new());
    let kubelet = settings.kubelet.client()?;
    let published = Published::default();
    let table = PodTable::new(&mesh, published.clone(), kubelet.as_ref().map(|_| wanted.clone())).start();
    let reservation = kubelet.clone().map(kubelet::Reservation::new);
    if let Some(client) = kubelet {
        mesh.facts.set("kubelet", client.endpoint());
        actix::spawn(kubelet::poll(client, settings.kubelet.period(), wanted, table.clone()));
    }
    let face = Face::new(table, published, node, reservation);
    let server = MetaServer::new(face).max_decoding_message_size(oxalyst_mesh::MESSAGE_LIMIT);
    bound.serve(Routes::new(server)).await?;
    Ok(())
}
