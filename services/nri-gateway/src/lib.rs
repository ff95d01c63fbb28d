//! The gateway: the one process that speaks NRI with the container runtime and writes cgroups.
//!
//! Rooms: [`session`] (connects for ever), [`hooks`] (answers the runtime's calls), [`roster`] (owns what runs and what was
//! applied), [`orm`] (asks for decisions, follows them), [`mender`] (makes what runs agree with them), [`written`] (past the
//! runtime), [`kernel`] (the cpuset files), [`bypass`] (the same without a runtime that tells), [`hands`] (whose turn it is), [`owner`] (which of two gateways),
//! [`diagnosis`] (what stands in the way),
//! [`duties`] (releases and reconciliations), [`meta_link`] (tells the meta-server). Pure: [`adjustment`], [`placements`],
//! [`pinning`], [`policy`], [`refuse_at`], [`translate`], [`updates`].

pub mod adjustment;
pub mod bypass;
pub mod diagnosis;
pub mod duties;
pub mod face;
mod few;
pub mod hands;
pub mod hooks;
pub mod kernel;
pub mod mender;
pub mod meta_link;
pub mod metrics;
pub mod orm;
pub mod owner;
pub mod pinning;
pub mod placements;
pub mod policy;
pub mod refuse_at;
pub mod roster;
pub mod session;
pub mod settings;
pub mod translate;
pub mod updates;
mod version;
pub mod written;

use std::error::Error;
use std::future::Future;
use std::sync::Arc;

use actix::Actor;
use oxalyst_mesh::Mesh;
use oxalyst_proto::gateway::v1::gateway_server::GatewayServer;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic::service::Routes;

use settings::Mode;
pub use settings::Settings;

/// Name of the service.
pub const SERVICE: &str = "nri-gateway";

/// The whole process, until it is asked to stop. Of two, one serves, and the other waits until that hands over or ends.
///
/// # Errors
/// A setting out of its range, or a socket that cannot be had.
pub async fn gateway(settings: Settings, mesh: Mesh) -> Result<(), Box<dyn Error>> {
    settings.check()?;
    owner::serve(settings, mesh, oxalyst_mesh::stop_asked()?).await
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
    owner::serve(settings, mesh, stop).await
}

/// Starts every task; gives what is to be served.
fn start(settings: Settings, mesh: &Mesh) -> Started {
    let metrics = metrics::Metrics::new(&mesh.registry);
    let orm_stream = mesh.readiness.condition("orm-stream", "waits for the orm's placements");
    let orm = orm::Orm::new(oxalyst_mesh::connect(&mesh.run_dir, "orm"));
    let (feed, feed_outlet) = meta_link::feed();
    let rules = roster::Rules { idle: settings.idle_reclaimed, flips: settings.drift_limit };
    let roster = roster::Roster::new(orm.placements(), feed, metrics.clone(), rules).start();
    let kernel = kernel::Kernel::new(mesh.host_root.clone());
    let (duties, duties_outlet) = duties::duties();
    let nudge = mender::Nudge::default();
    let hands = hands::Hands::new(&mesh.host_root, mesh.facts.clone(), metrics.clone());
    let (synchronised, is_synchronised) = watch::channel(false);
    let (knows, is_known) = watch::channel(false);
    let (runtime, runtime_name) = watch::channel(String::new());
    let settings = Arc::new(settings);
    let calls = owner::Calls::default();
    let diagnosis = diagnosis::Diagnosis::new(
        mesh.host_root.clone(),
        settings.clone(),
        hands.clone(),
        mesh.facts.clone(),
    );
    let mut tasks = JoinSet::new();

    let look_kernel = kernel.clone();
    let meta = oxalyst_mesh::connect(&mesh.run_dir, "meta-server");
    tasks.spawn(orm::follow(orm.clone(), orm_stream));
    tasks.spawn(meta_link::report(feed_outlet, roster.clone(), meta.clone()));
    tasks.spawn(duties::perform(
        duties_outlet,
        orm.clone(),
        roster.clone(),
        kernel.clone(),
        is_known,
        metrics.clone(),
    ));
    if settings.mode != Mode::Nri {
        let condition = mesh.readiness.condition("bypass", "looks for pods in the tree of cgroups");
        let bypass = bypass::Bypass {
            settings: settings.clone(),
            hands: hands.clone(),
            roster: roster.clone(),
            kernel: kernel.clone(),
            orm: orm.clone(),
            duties: duties.clone(),
            knows: knows.clone(),
            meta,
            metrics: metrics.clone(),
            facts: mesh.facts.clone(),
        };
        tasks.spawn(bypass::run(bypass, condition));
    }
    if settings.mode != Mode::Bypass {
        let condition = mesh.readiness.condition("nri-session", "waits for the container runtime");
        let kernel_files = mesh.readiness.condition("kernel-files", "nothing was compared yet");
        kernel_files.fulfilled();
        let tools = mender::Tools {
            kernel_files: Arc::new(kernel_files),
            roster: roster.clone(),
            kernel: kernel.clone(),
            duties: duties.clone(),
            decided: orm.changed(),
            nudge: nudge.clone(),
            metrics: metrics.clone(),
            facts: mesh.facts.clone(),
            period: settings.reconcile_period(),
        };
        let hooks = hooks::HooksContext {
            settings,
            orm,
            roster: roster.clone(),
            kernel,
            duties,
            nudge,
            metrics,
            calls: calls.clone(),
            diagnosis: diagnosis.clone(),
            newer_events: Arc::new(hooks::NEWER.len().into()),
        };
        let context = session::SessionContext {
            hooks,
            tools,
            synchronised,
            knows,
            hands: hands.clone(),
            runtime,
            facts: mesh.facts.clone(),
        };
        tasks.spawn(session::run(context, condition));
    }
    let (handed_over, is_handed_over) = watch::channel(false);
    let face = face::Face {
        roster,
        kernel: look_kernel,
        synchronised: is_synchronised,
        runtime: runtime_name,
        diagnosis,
        handed_over,
    };
    Started { routes: Routes::new(GatewayServer::new(face)), tasks, calls, handed_over: is_handed_over }
}

/// What serves, and what ends it.
struct Started {
    routes: Routes,
    tasks: JoinSet<()>,
    calls: owner::Calls,
    /// Told true when a successor asked.
    handed_over: watch::Receiver<bool>,
}
