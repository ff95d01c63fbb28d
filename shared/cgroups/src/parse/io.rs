use super::{ParseError, lines, number};

/// Block I/O of a cgroup and its descendants, summed over devices: counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoStat {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
}

/// Parses `io.stat` (v2). No line is no I/O so far.
///
/// # Errors
/// [`ParseError`] for a known key without a number.
pub fn io_stat(bytes: &[u8]) -> Result<IoStat, ParseError> {
    let mut stat = IoStat::default();
    for (line, text) in lines(bytes) {
        for word in text.split(u8::is_ascii_whitespace).skip(1) {
            let Some(equals) = word.iter().position(|b| *b == b'=') else { continue };
            let (key, value) = word.split_at(equals);
            let sum = match key {
                b"rbytes" => &mut stat.read_bytes,
                b"wbytes" => &mut stat.written_bytes,
                b"rios" => &mut stat.reads,
                b"wios" => &mut stat.writes,
                _ => continue,
            };
            let value = value.get(1..).and_then(number);
            let value = value.ok_or_else(|| ParseError::new(line, "major:minor key=number …", text))?;
            *sum = sum.saturating_add(value);
        }
    }
    Ok(stat)
}

/// Parses `blkio.throttle.io_service_bytes_recursive`, `blkio.throttle.io_serviced_recursive` or their like of a scheduler
/// (v1): reads and writes, summed over devices. `None` if it tells of no device: then nothing is counted there (the throttle's
/// files of newer kernels count nothing before a limit is set, a scheduler's nothing of devices that another serves), or
/// nothing was transferred so far; which of them it does not say.
///
/// # Errors
/// [`ParseError`] for a line of reads or writes without a number.
pub fn blkio(bytes: &[u8]) -> Result<Option<(u64, u64)>, ParseError> {
    let (mut read, mut written, mut told) = (0u64, 0u64, false);
    for (line, text) in lines(bytes) {
        let mut words = text.split(u8::is_ascii_whitespace).filter(|w| !w.is_empty()).skip(1);
        let sum = match words.next() {
            Some(b"Read") => &mut read,
            Some(b"Write") => &mut written,
            _ => continue,
        };
        let value = words.next().and_then(number);
        *sum =
            sum.saturating_add(value.ok_or_else(|| ParseError::new(line, "major:minor Read number", text))?);
        told = true;
    }
    Ok(told.then_some((read, written)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_summed_in_both_versions() {
        let v2 = b"254:0 rbytes=1000 wbytes=20 rios=3 wios=4 dbytes=0 dios=0\n7:0 rbytes=5 wbytes=0 rios=1 wios=0\n8:0\n";
        let stat = io_stat(v2).unwrap();
        assert_eq!(stat, IoStat { read_bytes: 1005, written_bytes: 20, reads: 4, writes: 4 });
        let v1 = b"254:0 Read 1000\n254:0 Write 20\n254:0 Sync 1\n254:0 Total 1020\n7:0 Read 5\nTotal 1025\n";
        assert_eq!(blkio(v1), Ok(Some((1005, 20))));
    }

    #[test]
    fn on_v2_no_line_is_no_io_on_v1_it_tells_nothing_and_a_broken_one_is_an_error() {
        assert_eq!(io_stat(b""), Ok(IoStat::default()));
        assert_eq!(io_stat(b"8:0 rbytes=1\n8:1 rbytes=x\n").unwrap_err().line, 2);
        assert_eq!(blkio(b"Total 0\n"), Ok(None));
        assert_eq!(blkio(b"8:0 Read 0\n8:0 Write 0\nTotal 0\n"), Ok(Some((0, 0))));
        assert_eq!(blkio(b"8:0 Read\n").unwrap_err().line, 1);
    }
}
