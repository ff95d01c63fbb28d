//! Tells the cluster what the node has, what is given out, and to whom: one CustomNodeResource per node.
//!
//! `observe` asks the allocator and the meta-server, [`kcnr`] builds the object out of their answers (pure), [`publisher`]
//! brings it to its [`target`] (an API server, or a file where there is none), only when it differs from what is there.

pub mod kcnr;
mod observe;
pub mod publisher;
pub mod settings;
pub mod target;

pub use settings::Settings;

use std::error::Error;

use actix::Actor as _;
use oxalyst_mesh::Mesh;
use tonic::service::Routes;

use crate::publisher::Publisher;
use crate::target::Target;

/// Name of the service: its socket, its settings, its metrics.
pub const SERVICE: &str = "reporter";

/// Why the object says nothing of CPU and memory for reclaimed pods, so that nobody waits for it to change.
const RECLAIMED: &str =
    "not published: how much pods may reclaim is for an advisor to say, and this node has none";

/// Runs the service until it is asked to stop.
///
/// # Errors
/// What keeps it from starting: a socket in use.
pub async fn run(settings: Settings, mesh: Mesh) -> Result<(), Box<dyn Error>> {
    let bound = mesh.bind()?;
    let target = Target::of(&settings);
    mesh.facts.set("target", &target);
    mesh.facts.set("reclaimed", RECLAIMED);
    let publisher = Publisher::new(&mesh, target, settings.spacing(), settings.check_period()).start();
    actix::spawn(observe::run(mesh, settings, publisher));
    bound.serve(Routes::default()).await?;
    Ok(())
}
