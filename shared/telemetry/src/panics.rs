/// Logs a panic as one line and ends the process, whatever thread it happened on.
pub(crate) fn abort_on_panic() {
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        let what = info.payload_as_str().unwrap_or("no message");
        tracing::error!(place, what, "panic: the process ends, its container is to be restarted");
        std::process::abort();
    }));
}
