//! All that goes on for plugins while the service runs.

use actix::Actor as _;
use futures::future::join3;
use oxalyst_mesh::Mesh;
use tokio::task::JoinHandle;

use super::{Plugins, Registry, remove_for_ever, serve_registration, watch};
use crate::allocations::PluginNames;
use crate::allocator::Face;
use crate::settings::Settings;

/// Awaits plugins on both ways, looks after those that have come, and tells them of pods that are gone; until it is aborted. Those
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
        join3(
            serve_registration(register, registry.clone(), facts.clone()),
            watch(watched, registry, plugins.clone(), facts),
            remove_for_ever(face, plugins, period),
        )
        .await;
    })
}
