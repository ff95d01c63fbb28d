//! All that goes on for plugins while the service runs.

use actix::Actor as _;
use futures::future::join4;
use oxalyst_mesh::Mesh;
use tokio::task::JoinHandle;

use super::{Plugins, Registry, catch_up_for_ever, remove_for_ever, serve_registration, watch};
use crate::allocations::PluginNames;
use crate::allocator::Face;
use crate::settings::Settings;

/// Awaits plugins on both ways, looks after those that have come, tells them of pods that are gone, and asks them
/// what could not be asked earlier; until it is aborted. Those
/// whose resources pods have already are expected back.
pub async fn attend(settings: &Settings, mesh: &Mesh, face: &Face, plugins: &Plugins) -> JoinHandle<()> {
    if let Ok(names) = face.ask(PluginNames).await {
        plugins.expect(names);
    }
    let registry = Registry::new(plugins.clone(), settings.watch_period()).start();
    let (register, watched) = settings.plugin_dirs();
    let (facts, period) = (mesh.facts.clone(), settings.watch_period());
    let (face, plugins) = (face.clone(), plugins.clone());
    actix::spawn(async move {
        join4(
            serve_registration(register, registry.clone(), facts.clone()),
            watch(watched, registry, plugins.clone(), facts),
            remove_for_ever(face.clone(), plugins.clone(), period),
            catch_up_for_ever(face, plugins, period),
        )
        .await;
    })
}
