//! A runtime's version as it tells it: pure.

/// Major, minor and patch of "v2.1.9", "2.2.0-rc.1+unknown", "1.7"; none of what is no version.
pub fn triple(version: &str) -> Option<(u64, u64, u64)> {
    let numbers = version.trim().trim_start_matches('v');
    let numbers = numbers.split(['-', '+', '~', ' ']).next()?;
    let mut numbers = numbers.split('.').map(str::parse);
    let major = numbers.next()?.ok()?;
    let minor = numbers.next()?.ok()?;
    let patch = numbers.next().unwrap_or(Ok(0)).ok()?;
    Some((major, minor, patch))
}
