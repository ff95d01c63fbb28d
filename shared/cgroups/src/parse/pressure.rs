use super::{ParseError, lines, number};

/// A PSI file: `cpu.pressure` and its like, or `/proc/pressure/*`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressure {
    /// At least one task stalled.
    pub some: Option<Stall>,
    /// All of them stalled at once.
    pub full: Option<Stall>,
}

/// Share of time stalled, 0..=1 (the kernel writes percent), and the total.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stall {
    /// Over the last 10 s.
    pub avg10: f64,
    /// Over the last 60 s.
    pub avg60: f64,
    /// Over the last 300 s.
    pub avg300: f64,
    /// Since the beginning, microseconds.
    pub total_us: u64,
}

/// Parses a PSI file.
///
/// # Errors
/// [`ParseError`] for a `some` or `full` line that lacks a field or holds what is no number.
pub fn pressure(bytes: &[u8]) -> Result<Pressure, ParseError> {
    let mut pressure = Pressure::default();
    for (line, text) in lines(bytes) {
        let mut words = text.split(u8::is_ascii_whitespace).filter(|w| !w.is_empty());
        let field = match words.next() {
            Some(b"some") => &mut pressure.some,
            Some(b"full") => &mut pressure.full,
            _ => continue,
        };
        let stall = stall(words);
        *field = Some(stall.ok_or_else(|| ParseError::new(line, "avg10=… avg60=… avg300=… total=…", text))?);
    }
    Ok(pressure)
}

fn stall<'a>(words: impl Iterator<Item = &'a [u8]>) -> Option<Stall> {
    let (mut avg10, mut avg60, mut avg300, mut total) = (None, None, None, None);
    for word in words {
        let equals = word.iter().position(|b| *b == b'=')?;
        let (key, value) = (word.get(..equals)?, word.get(equals + 1..)?);
        match key {
            b"avg10" => avg10 = Some(ratio(value)?),
            b"avg60" => avg60 = Some(ratio(value)?),
            b"avg300" => avg300 = Some(ratio(value)?),
            b"total" => total = Some(number(value)?),
            _ => {}
        }
    }
    Some(Stall { avg10: avg10?, avg60: avg60?, avg300: avg300?, total_us: total? })
}

/// "12.34" percent as 0.1234.
fn ratio(value: &[u8]) -> Option<f64> {
    let percent: f64 = std::str::from_utf8(value).ok()?.parse().ok()?;
    // The kernel writes two decimals: rounding to them keeps 0.94 from becoming 0.00939….
    (0.0..=100.0).contains(&percent).then(|| (percent * 100.0).round() / 10_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_becomes_a_ratio() {
        let text = b"some avg10=12.50 avg60=3.00 avg300=0.75 total=123456\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
        let p = pressure(text).unwrap();
        assert_eq!(p.some, Some(Stall { avg10: 0.125, avg60: 0.03, avg300: 0.0075, total_us: 123_456 }));
        assert_eq!(p.full, Some(Stall::default()));
    }

    #[test]
    fn a_kernel_without_full_for_the_cpu_says_nothing_of_it() {
        let p = pressure(b"some avg10=0.00 avg60=0.00 avg300=0.00 total=5\n").unwrap();
        assert_eq!(p.full, None);
    }

    #[test]
    fn broken_lines_are_errors_with_their_number() {
        for bad in [
            "some\n",
            "some avg10=x avg60=0 avg300=0 total=0\n",
            "some avg10=NaN avg60=0 avg300=0 total=0\n",
            "some avg10=0 avg60=0 avg300=0\n",
            "some avg10=101 avg60=0 avg300=0 total=0\n",
        ] {
            assert_eq!(pressure(bad.as_bytes()).unwrap_err().line, 1, "{bad}");
        }
    }
}
