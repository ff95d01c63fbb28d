//! The one place that reads the wall clock; plans get the time as a field of their request.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Milliseconds since the Unix epoch.
pub fn unix_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// A time as people read it, in UTC.
pub fn rfc3339(unix_ms: i64) -> String {
    let since = u64::try_from(unix_ms).unwrap_or_default();
    jiff::Timestamp::try_from(UNIX_EPOCH + Duration::from_millis(since))
        .map_or_else(|_| unix_ms.to_string(), |time| time.to_string())
}
