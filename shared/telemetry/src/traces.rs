use opentelemetry::trace::{TraceContextExt as _, TracerProvider as _};
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracerProvider, Tracer};
use tracing_opentelemetry::{OpenTelemetryLayer, OpenTelemetrySpanExt as _};
use tracing_subscriber::Registry;

use crate::Error;

pub(crate) fn provider(service: &'static str, url: &str) -> Result<SdkTracerProvider, Error> {
    let exporter = SpanExporter::builder()
        .with_tonic()
        .with_endpoint(url)
        .build()
        .map_err(|e| Error::Endpoint { given: url.to_owned(), what: e.to_string() })?;
    let resource = Resource::builder().with_service_name(service).build();
    Ok(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build())
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
