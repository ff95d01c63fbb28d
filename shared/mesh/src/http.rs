use std::fmt::Write as _;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;

use crate::Mesh;

/// `/livez`, `/readyz` and `/metrics`.
pub(crate) fn router(mesh: Mesh) -> Router {
    Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(mesh)
}

async fn readyz(State(mesh): State<Mesh>, RawQuery(query): RawQuery) -> impl IntoResponse {
    let pending = mesh.readiness.pending();
    let code = if pending.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let mut text = if pending.is_empty() { "ok\n".to_owned() } else { "not ready\n".to_owned() };
    if query.is_some_and(|q| q.split('&').any(|part| part == "verbose" || part.starts_with("verbose="))) {
        for (name, detail) in pending {
            // Writing into a String cannot fail.
            let _ = writeln!(text, "[pending] {name}: {detail}");
        }
    }
    (code, text)
}

async fn metrics(State(mesh): State<Mesh>) -> impl IntoResponse {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], oxalyst_telemetry::encode(&mesh.registry))
}
