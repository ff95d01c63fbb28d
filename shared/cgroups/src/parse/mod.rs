//! Contents of cgroup and PSI files, parsed as bytes without allocating.
//!
//! Unknown keys and unknown lines are passed over: kernels add them. A known key with a value that is none is an
//! error that carries the line; a known key that is absent is `None`.

mod cpu;
mod io;
mod memory;
mod numa;
mod pressure;

use std::fmt;

pub use cpu::{CpuMax, CpuStat, cpu_max, cpu_quota, cpu_stat, cpuacct_usage, cpuacct_usage_percpu};
pub use io::{IoStat, blkio, io_stat};
pub use memory::{
    Limit, MemoryStat, OomEvents, Reclaim, memory_limit, memory_stat_v1, memory_stat_v2, memory_usage,
    oom_events,
};
pub use numa::{NumaMemory, numa_stat};
pub use pressure::{Pressure, Stall, pressure};

/// Longest part of an offending line that an error keeps, in bytes.
const KEPT: usize = 96;

/// A line that no kernel writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseError {
    /// Counted from 1.
    pub line: usize,
    /// What was expected there.
    pub expected: &'static str,
    /// The line, shortened to 96 bytes, with what is not printable escaped.
    pub text: String,
}

/// One `key value` line.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    /// Before the first blank.
    pub key: &'a [u8],
    /// After it, without blanks around.
    pub value: &'a [u8],
    line: usize,
    text: &'a [u8],
}

// === impl ParseError ===

impl ParseError {
    /// An error about `text`, line number `line` of its file.
    pub fn new(line: usize, expected: &'static str, text: &[u8]) -> Self {
        let kept = text.get(..KEPT).unwrap_or(text);
        Self { line, expected, text: kept.escape_ascii().to_string() }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: expected {}, found \"{}\"", self.line, self.expected, self.text)
    }
}

impl std::error::Error for ParseError {}

// === impl Entry ===

impl Entry<'_> {
    /// The value as a number.
    ///
    /// # Errors
    /// [`ParseError`] with this line.
    pub fn number(&self) -> Result<u64, ParseError> {
        number(self.value).ok_or_else(|| self.unexpected("an unsigned number"))
    }

    /// An error about this line.
    pub fn unexpected(&self, expected: &'static str) -> ParseError {
        ParseError::new(self.line, expected, self.text)
    }
}

/// The `key value` lines of a flat keyed file; lines without a value are passed over.
pub fn entries(bytes: &[u8]) -> Entries<'_> {
    Entries { rest: bytes, line: 0 }
}

/// Iterator of [`entries`].
///
/// Written out by hand: `memory.stat` of every container is read in every pass, and this is most of what a pass costs
/// beside the kernel's own work. Each byte is looked at once.
#[derive(Debug, Clone)]
pub struct Entries<'a> {
    rest: &'a [u8],
    line: usize,
}

// === impl Entries ===

impl<'a> Iterator for Entries<'a> {
    type Item = Entry<'a>;

    fn next(&mut self) -> Option<Entry<'a>> {
        while !self.rest.is_empty() {
            self.line += 1;
            let whole = self.rest;
            let blank = whole.iter().position(|b| *b <= b' ').unwrap_or(whole.len());
            let (key, after) = whole.split_at_checked(blank)?;
            let length = after.iter().position(|b| *b == b'\n').unwrap_or(after.len());
            let (value, rest) = after.split_at_checked(length)?;
            self.rest = rest.get(1..).unwrap_or_default();
            let value = value.trim_ascii();
            if !key.is_empty() && !value.is_empty() {
                let text = whole.get(..blank + length).unwrap_or(key);
                return Some(Entry { key, value, line: self.line, text });
            }
        }
        None
    }
}

/// A file that holds one number.
///
/// # Errors
/// [`ParseError`] with the first line.
pub fn single(bytes: &[u8]) -> Result<u64, ParseError> {
    number(bytes.trim_ascii()).ok_or_else(|| first_line(bytes, "an unsigned number"))
}

/// The lines that are not blank, counted from 1, without blanks around.
pub fn lines(bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    bytes
        .split(|b| *b == b'\n')
        .enumerate()
        .map(|(i, l)| (i + 1, l.trim_ascii()))
        .filter(|(_, l)| !l.is_empty())
}

fn first_line(bytes: &[u8], expected: &'static str) -> ParseError {
    let (line, text) = lines(bytes).next().unwrap_or((1, &[]));
    ParseError::new(line, expected, text)
}

/// Decimal digits alone: no sign, no blanks, no overflow.
pub fn number(bytes: &[u8]) -> Option<u64> {
    if bytes.is_empty() {
        return None;
    }
    bytes.iter().try_fold(0u64, |n, b| {
        let digit = b.is_ascii_digit().then(|| u64::from(b - b'0'))?;
        n.checked_mul(10)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_number_and_nothing_else() {
        assert_eq!(single(b"42\n"), Ok(42));
        assert_eq!(single(b"18446744073709551615\n"), Ok(u64::MAX));
        for bad in ["", "\n", "-1\n", "4 2\n", "max\n", "18446744073709551616\n", "1.5", "0x10"] {
            assert!(single(bad.as_bytes()).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_error_shows_the_line_escaped_and_shortened() {
        let error = single(b"\n\xff\x00oops\n").unwrap_err();
        assert_eq!(error.to_string(), "line 2: expected an unsigned number, found \"\\xff\\x00oops\"");
        let error = single(&[b'x'; 4096]).unwrap_err();
        assert_eq!(error.text.len(), KEPT);
    }

    proptest::proptest! {
        #[test]
        fn nothing_panics_on_arbitrary_bytes(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..512)) {
            let _ = (single(&bytes), cpu_stat(&bytes), cpuacct_usage(&bytes), memory_usage(&bytes));
            let _ = (memory_limit(&bytes), memory_stat_v1(&bytes), memory_stat_v2(&bytes), pressure(&bytes));
            let _ = (cpu_max(&bytes), cpu_quota(&bytes), io_stat(&bytes), blkio(&bytes), oom_events(&bytes));
            let _ = cpuacct_usage_percpu(&bytes, |_, _| {});
            let _ = (numa_stat(false, 4096, &bytes, &mut Vec::new()), numa_stat(true, 4096, &bytes, &mut Vec::new()));
        }

        #[test]
        fn nothing_panics_on_numa_and_io_files_gone_wrong(
            text in "((total|anon|file|unevictable|hierarchical_total|[0-9]{1,3}:[0-9]{1,3}|Read|Write)[ =]{0,2}(N?[0-9]{0,22}|rbytes=[0-9]{0,22}|max) ?\n?){0,12}"
        ) {
            let bytes = text.as_bytes();
            let _ = (io_stat(bytes), blkio(bytes), numa_stat(false, 4096, bytes, &mut Vec::new()), numa_stat(true, 4096, bytes, &mut Vec::new()));
        }

        #[test]
        fn nothing_panics_on_bytes_near_the_grammar(
            text in "((some|full|nr_periods|usage_usec|total_rss|anon|max|[a-z_]{1,9})[ =]{0,2}([0-9.]{0,22}|avg10=[0-9.]{0,9}) ?\n?){0,12}"
        ) {
            let bytes = text.as_bytes();
            let _ = (cpu_stat(bytes), memory_limit(bytes), memory_stat_v1(bytes), memory_stat_v2(bytes), pressure(bytes));
        }

        #[test]
        fn every_number_is_read_back(n in proptest::num::u64::ANY) {
            proptest::prop_assert_eq!(single(format!("{n}\n").as_bytes()), Ok(n));
        }
    }
}
