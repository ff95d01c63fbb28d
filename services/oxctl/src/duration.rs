//! Times as people read them.

/// The two largest units of a duration: "850ms", "42s", "3m12s", "5h1m", "2d3h".
pub(crate) fn short(ms: u64) -> String {
    let s = ms / 1000;
    let (m, h, d) = (s / 60, s / 3600, s / 86_400);
    match () {
        () if s == 0 => format!("{ms}ms"),
        () if m == 0 => format!("{s}s"),
        () if h == 0 => format!("{m}m{}s", s % 60),
        () if d == 0 => format!("{h}h{}m", m % 60),
        () => format!("{d}d{}h", h % 24),
    }
}

/// How long ago `unix_ms` was; `None` for 0, which stands for "never", and for a time that has not come.
pub(crate) fn since(now_unix_ms: i64, unix_ms: i64) -> Option<String> {
    let age = now_unix_ms.checked_sub(unix_ms).and_then(|ms| u64::try_from(ms).ok())?;
    (unix_ms > 0).then(|| short(age))
}

/// RFC 3339 in UTC; `None` for 0 and for what is no time.
pub(crate) fn rfc3339(unix_ms: i64) -> Option<String> {
    let time = jiff::Timestamp::from_millisecond(unix_ms).ok()?;
    (unix_ms > 0).then(|| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_largest_units_are_shown() {
        let shown: Vec<String> =
            [0, 850, 42_900, 192_000, 18_060_000, 183_600_000].map(short).into_iter().collect();
        assert_eq!(shown, ["0ms", "850ms", "42s", "3m12s", "5h1m", "2d3h"]);
    }

    #[test]
    fn never_and_the_future_have_no_age() {
        assert_eq!(since(5_000, 0), None);
        assert_eq!(since(5_000, 6_000), None);
        assert_eq!(since(5_000, 3_000), Some("2s".into()));
        assert_eq!(rfc3339(0), None);
        assert_eq!(rfc3339(1_700_000_000_000).as_deref(), Some("2023-11-14T22:13:20Z"));
    }
}
