use std::future::Future;
use std::io;
use std::time::Duration;

use tokio::sync::watch;
use tonic::service::Routes;

use crate::{Bound, Mesh, connections, http};

/// How long open calls may take to end once the process is asked to stop. Streams never end by themselves.
const DRAIN: Duration = Duration::from_millis(500);

impl Bound {
    /// Serves `routes` and what every process serves, until the process is asked to stop (SIGTERM, SIGINT).
    ///
    /// # Errors
    /// Only what the system says of the sockets or signals.
    pub async fn serve(self, routes: Routes) -> io::Result<()> {
        self.serve_until(routes, stop_asked()?).await
    }

    /// As [`Bound::serve`], until `stop` resolves.
    ///
    /// # Errors
    /// Only what the system says of the sockets.
    pub async fn serve_until(self, routes: Routes, stop: impl Future<Output = ()>) -> io::Result<()> {
        let Self { listener, mesh, lock } = self;
        let (health, health_service) = tonic_health::server::health_reporter();
        tokio::spawn(report_health(mesh.clone(), health));
        let grpc = routes.add_service(mesh.introspection()).add_service(health_service);
        let web = http::router(mesh.clone());
        let everything = grpc.prepare().into_axum_router().merge(web.clone());

        let (stopping, stopped) = watch::channel(false);
        let mut tasks =
            vec![tokio::spawn(connections::serve(listener, everything, mesh.limits, stopped.clone()))];
        if let Some(address) = mesh.http_listen {
            let listener = tokio::net::TcpListener::bind(address).await.map_err(|e| {
                io::Error::new(e.kind(), format!("cannot listen on common.http_listen {address}: {e}"))
            })?;
            tasks.push(tokio::spawn(connections::serve(listener, web, mesh.limits, stopped)));
        }
        tracing::info!(service = mesh.service, version = mesh.version, "serving");
        stop.await;
        tracing::info!(service = mesh.service, "stopping");
        // The receivers live in the tasks; if all have ended there is nothing to tell.
        let _ = stopping.send(true);
        for task in tasks {
            let abort = task.abort_handle();
            if tokio::time::timeout(DRAIN, task).await.is_err() {
                abort.abort();
            }
        }
        // Only now may a successor take the socket.
        drop(lock);
        Ok(())
    }
}

async fn report_health(mesh: Mesh, health: tonic_health::server::HealthReporter) {
    let mut ready = mesh.readiness.watch();
    loop {
        let status = match *ready.borrow_and_update() {
            true => tonic_health::ServingStatus::Serving,
            false => tonic_health::ServingStatus::NotServing,
        };
        health.set_service_status("", status).await;
        if ready.changed().await.is_err() {
            return;
        }
    }
}

/// Resolves when the process is asked to stop (SIGTERM, SIGINT).
///
/// # Errors
/// What the system says of the signals.
pub fn stop_asked() -> io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
    })
}
