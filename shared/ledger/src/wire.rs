//! Little-endian fields in, little-endian fields out.

/// Reads fields off the front of a slice; `None` past its end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

// === impl Fields ===

impl<'a> Fields<'a> {
    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

/// Appends the CRC32C of all that is in `out` from `from` on.
pub(crate) fn seal(out: &mut Vec<u8>, from: usize) -> u32 {
    let crc = crc32c::crc32c(out.get(from..).unwrap_or_default());
    out.extend_from_slice(&crc.to_le_bytes());
    crc
}

/// What stands before a CRC32C at the end of `bytes`, if that CRC is right.
pub(crate) fn unseal(bytes: &[u8]) -> Option<&[u8]> {
    let (inner, crc) = bytes.split_last_chunk::<4>()?;
    (crc32c::crc32c(inner) == u32::from_le_bytes(*crc)).then_some(inner)
}
