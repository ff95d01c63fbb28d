//! The gateway: the one process that speaks NRI with the container runtime and writes cgroups.
//!
//! Rooms: [`session`] (connects for ever), [`hooks`] (answers the runtime's calls), [`roster`] (owns what runs and what was
//! applied), [`orm`] (asks for decisions, follows them), [`mender`] (makes what runs agree with them), [`kernel`] (the cpuset
//! files), [`duties`] (releases and reconciliations), [`meta_link`] (tells the meta-server). Pure: [`adjustment`], [`placements`],
//! [`pinning`], [`policy`], [`refuse_at`], [`translate`].

pub mod adjustment;
pub mod duties;
pub mod face;
pub mod hooks;
pub mod kernel;
pub mod mender;
pub mod meta_link;
pub mod metrics;
pub mod orm;
pub mod pinning;
pub mod placements;
pub mod policy;
pub mod refuse_at;
pub mod roster;
pub mod session;
pub mod settings;
pub mod translate;

use std::error::Error;
use std::future::Future;
use std::sync::Arc;

use actix::Actor;
use oxalyst_mesh::Mesh;
use oxalyst_proto::gateway::v1::gateway_server::GatewayServer;
use tokio::sync::watch;
use tonic::service::Routes;

pub use settings::Settings;

/// Name of the service.
pub const SERVICE: &str = "nri-gateway";

/// The whole process, until it is asked to stop.
///
/// # Errors
/// A setting out of its range, or a socket that cannot be had.
pub async fn gateway(settings: Settings, mesh: Mesh) -> Result<(), Box<dyn Error>> {
    settings.check()?;
    let bound = mesh.bind()?;
    let routes = start(settings, &mesh);
    bound.serve(routes).await?;
    Ok(())
}

/// As [`gateway`], until `stop` resolves.
///
/// # Errors
/// As [`gateway`].
pub async fn gateway_until(
    settings: Settings,
    mesh: Mesh,
    stop: impl Future<Output = ()>,
) -> Result<(), Box<dyn Error>> {
    settings.check()?;
    let bound = mesh.bind()?;
    let routes = start(settings, &mesh);
    bound.serve_until(routes, stop).await?;
    Ok(())
}

/// Starts every task; gives what is to be served.
fn start(settings: Settings, mesh: &Mesh) -> Routes {
    let metrics = metrics::Metrics::new(&mesh.registry);
    let orm_stream = mesh.readiness.condition("orm-stream", "waits for the orm's placements");
    let nri_session = mesh.readiness.condition("nri-session", "waits for the container runtime");
    let orm = orm::Orm::new(oxalyst_mesh::connect(&mesh.run_dir, "orm"));
    let (feed, feed_outlet) = meta_link::feed();
    let roster = roster::Roster::new(orm.placements(), feed, metrics.clone()).start();
    let kernel = kernel::Kernel::new(mesh.host_root.clone());
    let (duties, duties_outlet) = duties::duties();
    let nudge = mender::Nudge::default();
    let (synchronised, is_synchronised) = watch::channel(false);
    let (runtime, runtime_name) = watch::channel(String::new());

    let meta = oxalyst_mesh::connect(&mesh.run_dir, "meta-server");
    tokio::spawn(orm::follow(orm.clone(), orm_stream));
    tokio::spawn(meta_link::report(feed_outlet, roster.clone(), meta));
    tokio::spawn(duties::perform(
        duties_outlet,
        orm.clone(),
        roster.clone(),
        kernel.clone(),
        is_synchronised.clone(),
        metrics.clone(),
    ));
    let tools = mender::Tools {
        roster: roster.clone(),
        kernel: kernel.clone(),
        duties: duties.clone(),
        decided: orm.changed(),
        nudge: nudge.clone(),
        metrics: metrics.clone(),
        period: settings.reconcile_period(),
    };
    let hooks = hooks::HooksContext {
        settings: Arc::new(settings),
        orm,
        roster: roster.clone(),
        kernel,
        duties,
        nudge,
        metrics,
    };
    let context = session::SessionContext { hooks, tools, synchronised, runtime, facts: mesh.facts.clone() };
    tokio::spawn(session::run(context, nri_session));
    let face = face::Face { roster, synchronised: is_synchronised, runtime: runtime_name };
    Routes::new(GatewayServer::new(face))
}
