use opentelemetry::trace::{TraceContextExt as _, TracerProvider as _};
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracerProvider, Tracer};
use tracing_opentelemetry::{OpenTelemetryLayer, OpenTelemetrySpanExt as _};
use tracing_subscriber::Registry;

use crate::Error;

pub(crate) fn provider(service: &'static str, url: &str) -> Result<SdkTracerProvider, Error> {
    check(url).map_err(|what| Error::Endpoint { given: url.to_owned(), what: what.to_owned() })?;
    let exporter = SpanExporter::builder()
        .with_tonic()
        .with_endpoint(url)
        .build()
        .map_err(|e| Error::Endpoint { given: url.to_owned(), what: e.to_string() })?;
    let resource = Resource::builder().with_service_name(service).build();
    Ok(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build())
}

/// TLS is not built in: a node's traces go to a collector on the node.
fn check(url: &str) -> Result<(), &'static str> {
    let given = url.to_ascii_lowercase();
    if given.starts_with("https://") {
        return Err(
            "https is not supported: write http://HOST:PORT of a collector that encrypts, such as one on this node",
        );
    }
    match given.strip_prefix("http://") {
        Some(rest) if !rest.is_empty() => Ok(()),
        _ => Err("it is no address of a collector: write http://HOST:PORT, such as http://127.0.0.1:4317"),
    }
}

pub(crate) fn layer(provider: &SdkTracerProvider) -> OpenTelemetryLayer<Registry, Tracer> {
    tracing_opentelemetry::layer().with_tracer(provider.tracer("oxalyst"))
}

/// The trace that the current span belongs to, 32 hexadecimal digits; empty where nothing is traced.
pub fn current_trace_id() -> String {
    let context = tracing::Span::current().context();
    let span = context.span();
    let span = span.span_context();
    if span.is_valid() { span.trace_id().to_string() } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_without_http_is_refused_with_what_to_write() {
        for wrong in ["https://collector:4317", "HTTPS://collector", "collector:4317", "http://", ""] {
            let text = provider("orm", wrong).unwrap_err().to_string();
            assert!(text.starts_with("common.otlp_endpoint") && text.contains("http://HOST:PORT"), "{text}");
        }
        assert_eq!(check("http://127.0.0.1:4317"), Ok(()));
    }
}
