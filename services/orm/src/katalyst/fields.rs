//! Fields as Go writes them.

use std::str::FromStr;

use serde::{Deserialize, Deserializer};

/// What Go writes for a set that was never made.
const NIL: &str = "nil";

/// A map or list that Go may write as `null`.
pub(super) fn null_is_empty<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// A set in list format; `None` where it was never made or is empty.
pub(super) fn set<T: FromStr>(text: &str) -> Result<Option<T>, T::Err> {
    match text.trim() {
        "" | NIL => Ok(None),
        text => text.parse().map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxalyst_topology::CpuSet;

    #[test]
    fn nil_and_the_empty_text_are_no_set() {
        for text in ["nil", "", " "] {
            assert_eq!(set::<CpuSet>(text), Ok(None), "{text:?}");
        }
        assert_eq!(set::<CpuSet>("0-2,8"), Ok(Some("0-2,8".parse().unwrap())));
        assert!(set::<CpuSet>("null").is_err() && set::<CpuSet>("0-").is_err());
    }
}
