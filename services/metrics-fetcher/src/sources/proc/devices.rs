//! `/proc/diskstats` and `/proc/net/dev`.

use oxalyst_cgroups::parse::{ParseError, lines, number};

/// Bytes of a sector in `/proc/diskstats`, whatever the device has.
const SECTOR: u64 = 512;

/// One block device since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    /// Reads completed.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes completed.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Milliseconds with I/O under way.
    pub busy_ms: u64,
}

/// One network interface since it came up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// bytes, packets, errs, drop, fifo, frame, compressed, multicast.
    pub received: [u64; 8],
    /// bytes, packets, errs, drop, fifo, colls, carrier, compressed.
    pub sent: [u64; 8],
}

/// Parses `/proc/diskstats`; `each` gets every device and partition by its name.
///
/// # Errors
/// [`ParseError`] for a line with too few numbers.
pub fn diskstats(bytes: &[u8], mut each: impl FnMut(&str, Disk)) -> Result<(), ParseError> {
    for (line, text) in lines(bytes) {
        let (name, disk) = disk(text)
            .ok_or_else(|| ParseError::new(line, "major minor name and ten numbers or more", text))?;
        each(name, disk);
    }
    Ok(())
}

fn disk(text: &[u8]) -> Option<(&str, Disk)> {
    let mut words = text.split(u8::is_ascii_whitespace).filter(|w| !w.is_empty()).skip(2);
    let name = std::str::from_utf8(words.next()?).ok()?;
    let mut numbers = words.map(number);
    let mut next = || numbers.next().flatten();
    let (reads, _merged, read, _ms) = (next()?, next()?, next()?, next()?);
    let (writes, _merged, written, _ms) = (next()?, next()?, next()?, next()?);
    let (_in_flight, busy_ms) = (next()?, next()?);
    let (read_bytes, written_bytes) = (read.saturating_mul(SECTOR), written.saturating_mul(SECTOR));
    Some((name, Disk { reads, read_bytes, writes, written_bytes, busy_ms }))
}

/// Parses `/proc/net/dev`; `each` gets every interface by its name.
///
/// # Errors
/// [`ParseError`] for an interface with too few numbers.
pub fn net_dev(bytes: &[u8], mut each: impl FnMut(&str, Interface)) -> Result<(), ParseError> {
    for (line, text) in lines(bytes) {
        // The head has no colon.
        let Some(colon) = text.iter().rposition(|b| *b == b':') else { continue };
        let (name, rest) = text.split_at(colon);
        let mut numbers =
            rest.get(1..).unwrap_or_default().split(u8::is_ascii_whitespace).filter(|w| !w.is_empty());
        let mut interface = Interface::default();
        for field in interface.received.iter_mut().chain(&mut interface.sent) {
            let number = numbers.next().and_then(number);
            *field = number.ok_or_else(|| ParseError::new(line, "name: and sixteen numbers", text))?;
        }
        if let Ok(name) = std::str::from_utf8(name) {
            each(name, interface);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_are_bytes() {
        let mut seen = Vec::new();
        diskstats(b" 254 0 vda 10 0 80 5 20 0 160 7 0 9 12 0 0 0 0\n", |name, d| {
            seen.push((name.to_owned(), d))
        })
        .unwrap();
        let disk = Disk { reads: 10, read_bytes: 80 * 512, writes: 20, written_bytes: 160 * 512, busy_ms: 9 };
        assert_eq!(seen, [("vda".to_owned(), disk)]);
        assert_eq!(diskstats(b"254 0 vda 10\n", |_, _| {}).unwrap_err().line, 1);
    }

    #[test]
    fn any_interface_is_told_not_only_those_called_eth() {
        let text = b"Inter-| Receive | Transmit\n face |bytes |bytes\n  ens3: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n bond0:1 0 0 0 0 0 0 0 2 0 0 0 0 0 0 0\n";
        let mut seen = Vec::new();
        net_dev(text, |name, i| seen.push((name.to_owned(), i.received[0], i.sent[0]))).unwrap();
        assert_eq!(seen, [("ens3".to_owned(), 1, 9), ("bond0".to_owned(), 1, 2)]);
        assert!(net_dev(b"eth0: 1 2\n", |_, _| {}).is_err());
    }
}
