use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::registry::Metric;

/// The metrics of one process. Names carry base units (`_seconds`, `_bytes`, `_total`); labels come from closed sets.
#[derive(Debug, Clone)]
pub struct Registry {
    inner: Arc<Mutex<prometheus_client::registry::Registry>>,
}

// === impl Registry ===

impl Default for Registry {
    fn default() -> Self {
        Self { inner: Arc::new(Mutex::new(prometheus_client::registry::Registry::with_prefix("oxalyst"))) }
    }
}

impl Registry {
    /// Registers `metric` as `oxalyst_<name>` and gives it back, to be kept by whoever moves it.
    pub fn register<M: Metric + Clone>(&self, name: &str, help: &str, metric: M) -> M {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).register(name, help, metric.clone());
        metric
    }
}

/// All metrics in the OpenMetrics text format.
pub fn encode(registry: &Registry) -> String {
    let mut text = String::new();
    let inner = registry.inner.lock().unwrap_or_else(PoisonError::into_inner);
    // Writing into a String cannot fail but for a metric's own encoder; what was written so far is still of use.
    if let Err(e) = prometheus_client::encoding::text::encode(&mut text, &inner) {
        tracing::error!(error = %e, "a metric could not be encoded");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::metrics::counter::Counter;

    #[test]
    fn a_registered_counter_is_encoded_with_prefix_and_suffix() {
        let registry = Registry::default();
        let counter: Counter = registry.register("ledger_commits", "Durable commits", Counter::default());
        counter.inc();
        assert!(encode(&registry).contains("oxalyst_ledger_commits_total 1"));
    }
}
