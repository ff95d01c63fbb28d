//! Quantities as Kubernetes writes them: `2`, `1500m`, `0.5`, `4Gi`, `1e3`.

use oxalyst_units::{Bytes, MilliCpu};

/// Text that is no quantity.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no quantity of {what}: write {example}")]
pub(crate) struct QuantityError {
    pub(crate) text: String,
    pub(crate) what: &'static str,
    pub(crate) example: &'static str,
}

/// CPUs, rounded up to a thousandth.
pub(crate) fn cpu(text: &str) -> Result<MilliCpu, QuantityError> {
    let error = || QuantityError { text: text.to_owned(), what: "CPU", example: "2, 0.5 or 1500m" };
    thousandths(text).and_then(|thousandths| u64::try_from(thousandths).ok()).map(MilliCpu).ok_or_else(error)
}

/// Bytes, rounded up to a whole one.
pub(crate) fn memory(text: &str) -> Result<Bytes, QuantityError> {
    let error = || QuantityError {
        text: text.to_owned(),
        what: "memory",
        example: "4Gi, 512Mi or a number of bytes",
    };
    let bytes = thousandths(text).map(|thousandths| thousandths.div_ceil(1000));
    bytes.and_then(|bytes| u64::try_from(bytes).ok()).map(Bytes).ok_or_else(error)
}

/// Thousandths of the unit, rounded up. 128 bits hold every 64-bit amount in them.
fn thousandths(text: &str) -> Option<u128> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at_checked(end)?;
    let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && decimals.is_empty() || decimals.len() > 18 || whole.len() > 20 {
        return None;
    }
    let scale = 10u128.pow(u32::try_from(decimals.len()).ok()?);
    let digits: u128 = format!("0{whole}{decimals}").parse().ok()?;
    let (by, over) = factor(suffix)?;
    let amount = digits.checked_mul(by)?.checked_mul(1000)?;
    Some(amount.div_ceil(scale.checked_mul(over)?))
}

/// What the suffix multiplies by, and divides by.
fn factor(suffix: &str) -> Option<(u128, u128)> {
    let power = |base: u128, exponent| base.checked_pow(exponent);
    if let Some(exponent) = suffix.strip_prefix(['e', 'E']).filter(|rest| !rest.is_empty()) {
        let exponent: i32 = exponent.parse().ok().filter(|exponent| (-18..=18).contains(exponent))?;
        let scale = power(10, exponent.unsigned_abs())?;
        return Some(if exponent < 0 { (1, scale) } else { (scale, 1) });
    }
    Some(match suffix {
        "n" => (1, power(10, 9)?),
        "u" => (1, power(10, 6)?),
        "m" => (1, 1000),
        "" => (1, 1),
        "k" => (1000, 1),
        "M" => (power(1000, 2)?, 1),
        "G" => (power(1000, 3)?, 1),
        "T" => (power(1000, 4)?, 1),
        "P" => (power(1000, 5)?, 1),
        "E" => (power(1000, 6)?, 1),
        "Ki" => (1024, 1),
        "Mi" => (power(1024, 2)?, 1),
        "Gi" => (power(1024, 3)?, 1),
        "Ti" => (power(1024, 4)?, 1),
        "Pi" => (power(1024, 5)?, 1),
        "Ei" => (power(1024, 6)?, 1),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_read_in_every_spelling() {
        let milli = |text| cpu(text).unwrap().0;
        assert_eq!(
            ["2", "1500m", "0.5", ".5", "1e1", "2.0005", "100u"].map(milli),
            [2000, 1500, 500, 500, 10_000, 2001, 1]
        );
    }

    #[test]
    fn memory_is_read_in_every_spelling() {
        let bytes = |text| memory(text).unwrap().0;
        assert_eq!(
            ["4Gi", "512Mi", "1.5Gi", "1000", "2k", "1e3", "100m"].map(bytes),
            [4 << 30, 512 << 20, 3 << 29, 1000, 2000, 1000, 1]
        );
    }

    #[test]
    fn what_is_no_quantity_is_told() {
        for text in ["", "m", "-1", "2cores", "1.2.3", "99999999999999999999", "Gi", "1e99", "1e", "²"] {
            assert!(cpu(text).is_err(), "{text}");
            assert!(memory(text).is_err(), "{text}");
        }
        assert_eq!(
            cpu("two").unwrap_err().to_string(),
            "\"two\" is no quantity of CPU: write 2, 0.5 or 1500m"
        );
    }
}
