//! Logs, traces and the metrics registry behind one door, so that no service knows which library carries them.

mod levels;
mod metrics;
mod panics;
mod traces;

pub use metrics::{Registry, encode};
pub use traces::current_trace_id;

use oxalyst_settings::{Common, LogFormat};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer, Registry as Subscriber};

/// Keeps telemetry running; dropping it sends what is still held back.
#[must_use = "dropping it ends the export of traces"]
#[derive(Debug)]
pub struct Guard {
    traces: Option<opentelemetry_sdk::trace::SdkTracerProvider>,
}

/// Why telemetry could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `common.log` is no filter.
    #[error(
        "common.log {given:?} is not a log filter: {what}: write a level such as info, or warn,orm=debug"
    )]
    Filter {
        /// As given.
        given: String,
        /// What is wrong with it.
        what: String,
    },
    /// `common.otlp_endpoint` cannot be used.
    #[error("common.otlp_endpoint {given:?}: {what}")]
    Endpoint {
        /// As given.
        given: String,
        /// What is wrong with it.
        what: String,
    },
    /// Another subscriber is installed already.
    #[error("telemetry was started twice in one process")]
    Twice,
}

/// Starts logging to standard error and, where an endpoint is set, exporting traces. Call it within a tokio runtime.
///
/// From here on a panic is logged and ends the process: a half-dead service would be worse than a restarted one.
///
/// # Errors
/// A filter or an endpoint that cannot be used.
pub fn init(service: &'static str, settings: &Common) -> Result<Guard, Error> {
    let filter =
        levels::filter(&settings.log).map_err(|what| Error::Filter { given: settings.log.clone(), what })?;
    let traces = settings.otlp_endpoint.as_deref().map(|url| traces::provider(service, url)).transpose()?;
    let spans = traces.as_ref().map(traces::layer);
    let lines: Box<dyn Layer<Subscriber> + Send + Sync> = match settings.log_format {
        LogFormat::Text => {
            tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(false).boxed()
        }
        LogFormat::Json => tracing_subscriber::fmt::layer().with_writer(std::io::stderr).json().boxed(),
    };
    tracing_subscriber::registry()
        .with(lines.and_then(spans).with_filter(filter))
        .try_init()
        .map_err(|_| Error::Twice)?;
    panics::abort_on_panic();
    Ok(Guard { traces })
}

// === impl Guard ===

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(provider) = self.traces.take()
            && let Err(e) = provider.shutdown()
        {
            tracing::warn!(error = %e, "the last traces could not be sent");
        }
    }
}
