//! Kubernetes quantities as the strings that travel in JSON.

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};

/// Resource name ("cpu", "memory", …) to amount.
pub type ResourceList = BTreeMap<String, Quantity>;

/// An amount in Kubernetes' notation: `"2"`, `"1500m"`, `"16Gi"`.
///
/// The constructors give the canonical form (as the Go library prints it), so that equal amounts are equal strings and
/// an object built twice compares equal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Quantity(String);

/// Binary suffixes, each 1024 times the one before.
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

// === impl Quantity ===

impl Quantity {
    /// A plain count: CPUs, NUMA nodes.
    ///
    /// Thousands are folded into decimal suffixes (1000 is `"1k"`), as Kubernetes does.
    pub fn count(mut n: u64) -> Self {
        let mut suffixes = ["", "k", "M", "G", "T", "P", "E"].into_iter();
        let mut suffix = suffixes.next().unwrap_or_default();
        while n != 0 && n.is_multiple_of(1000) {
            let Some(next) = suffixes.next() else { break };
            n /= 1000;
            suffix = next;
        }
        Self(format!("{n}{suffix}"))
    }

    /// Thousandths of a CPU: 1500 is `"1500m"`, 2000 is `"2"`.
    pub fn milli(n: u64) -> Self {
        if n.is_multiple_of(1000) { Self::count(n / 1000) } else { Self(format!("{n}m")) }
    }

    /// Bytes with the largest binary suffix that loses nothing: 1048576 is `"1Mi"`, 1500 is `"1500"`.
    pub fn bytes(mut n: u64) -> Self {
        let mut suffixes = BINARY.into_iter();
        let mut suffix = suffixes.next().unwrap_or_default();
        while n != 0 && n.is_multiple_of(1024) {
            let Some(next) = suffixes.next() else { break };
            n /= 1024;
            suffix = next;
        }
        Self(format!("{n}{suffix}"))
    }

    /// The notation as it stands in JSON.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The amount in thousandths, rounded up; `None` if it is negative, out of range or no quantity at all.
    pub fn to_milli(&self) -> Option<u64> {
        scaled(&self.0, 1000)
    }

    /// The amount in units (bytes, pieces), rounded up; `None` if it is negative, out of range or no quantity at all.
    pub fn to_units(&self) -> Option<u64> {
        scaled(&self.0, 1)
    }
}

impl From<&str> for Quantity {
    /// Takes the notation as it is, unchecked.
    fn from(notation: &str) -> Self {
        Self(notation.to_owned())
    }
}

/// `text` times `unit`, rounded up as Kubernetes rounds.
fn scaled(text: &str, unit: u128) -> Option<u64> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    let (up, exponent) = multiplier(suffix)?;
    // value = digits * up * 10^exponent / 10^len(fraction)
    let exponent = exponent - i32::try_from(fraction.len()).ok()?;
    let power = 10u128.checked_pow(exponent.unsigned_abs())?;
    let value = digits.checked_mul(up)?.checked_mul(unit)?;
    let value = if exponent >= 0 { value.checked_mul(power)? } else { value.div_ceil(power) };
    u64::try_from(value).ok()
}

/// A suffix as a factor and a power of ten.
fn multiplier(suffix: &str) -> Option<(u128, i32)> {
    if let Some(power) = BINARY.iter().position(|known| *known == suffix) {
        return Some((1 << (10 * power), 0));
    }
    let decimal = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
    if let Some(power) = decimal.iter().position(|known| *known == suffix) {
        return Some((1, 3 * (i32::try_from(power).ok()? - 3)));
    }
    Some((1, suffix.strip_prefix(['e', 'E'])?.parse().ok()?))
}

impl<'de> Deserialize<'de> for Quantity {
    /// Accepts a bare integer too: Kubernetes does, and people write `cpu: 2`.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Notation {
            Text(String),
            Whole(i64),
        }
        Ok(match Notation::deserialize(deserializer)? {
            Notation::Text(text) => Self(text),
            Notation::Whole(n) => Self(n.to_string()),
        })
    }
}

impl JsonSchema for Quantity {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Quantity".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [{ "type": "integer" }, { "type": "string" }],
            "pattern": "^(\\+|-)?(([0-9]+(\\.[0-9]*)?)|(\\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\\+|-)?(([0-9]+(\\.[0-9]*)?)|(\\.[0-9]+))))?$",
            "x-kubernetes-int-or-string": true,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn amounts_take_their_canonical_form() {
        let cases = [
            (Quantity::count(0), "0"),
            (Quantity::count(64), "64"),
            (Quantity::count(2000), "2k"),
            (Quantity::milli(0), "0"),
            (Quantity::milli(1500), "1500m"),
            (Quantity::milli(2000), "2"),
            (Quantity::bytes(0), "0"),
            (Quantity::bytes(1500), "1500"),
            (Quantity::bytes(1 << 20), "1Mi"),
            (Quantity::bytes(3 << 29), "1536Mi"),
            (Quantity::bytes(1 << 63), "8Ei"),
        ];
        for (quantity, text) in cases {
            assert_eq!(quantity.as_str(), text);
        }
    }

    #[test]
    fn json_is_a_string_and_an_integer_is_read_too() {
        assert_eq!(serde_json::to_string(&Quantity::bytes(1 << 30)).unwrap(), "\"1Gi\"");
        assert_eq!(serde_json::from_str::<Quantity>("2").unwrap(), Quantity::count(2));
        assert!(serde_json::from_str::<Quantity>("[]").is_err());
    }

    #[test]
    fn notations_are_read_as_kubernetes_reads_them() {
        let cases = [
            ("2", Some(2000), Some(2)),
            ("500m", Some(500), Some(1)),
            ("0.5", Some(500), Some(1)),
            (".5", Some(500), Some(1)),
            ("1e3", Some(1_000_000), Some(1000)),
            (
                "2E",
                Some(2_000_000_000_000_000_000_000).and_then(|n: u128| n.try_into().ok()),
                Some(2_000_000_000_000_000_000),
            ),
            ("1.5Gi", Some(1_610_612_736_000), Some(1_610_612_736)),
            ("128974848", Some(128_974_848_000), Some(128_974_848)),
            ("100n", Some(1), Some(1)),
            ("", None, None),
            ("-1", None, None),
            ("1Zi", None, None),
            ("1.2.3", None, None),
            ("1e99", None, None),
        ];
        for (text, milli, units) in cases {
            let quantity = Quantity::from(text);
            assert_eq!((quantity.to_milli(), quantity.to_units()), (milli, units), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(n in 0..=u64::MAX / 1000) {
            prop_assert_eq!(Quantity::bytes(n).to_units(), Some(n));
            prop_assert_eq!(Quantity::count(n).to_units(), Some(n));
            prop_assert_eq!(Quantity::milli(n).to_milli(), Some(n));
        }

        #[test]
        fn no_text_breaks_the_reader(text in "[0-9.eEnumkKMGi+-]{0,40}") {
            let quantity = Quantity::from(text.as_str());
            let _ = (quantity.to_milli(), quantity.to_units());
        }

        #[test]
        fn bytes_lose_nothing(n: u64) {
            let text = Quantity::bytes(n).as_str().to_owned();
            let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
            let power = BINARY.iter().position(|s| *s == &text[digits.len()..]).unwrap();
            prop_assert_eq!(digits.parse::<u64>().unwrap() << (10 * power), n);
        }
    }
}
