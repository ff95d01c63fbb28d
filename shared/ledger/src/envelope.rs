//! How records and the manifest lie in sled: pure.
//!
//! ```text
//! record    version u16 | generation u64 | value | crc32c of key and all before u32
//! manifest  version u16 | generation u64 | chain u32 | count u64 | digest u64 | crc32c of all before u32
//! ```
//! The digest is a sum over keys, generations and values: a single record of an older state, sound in itself, changes it.

use crate::contents::{Contents, Entry};
use crate::record::{VERSION, readable};
use crate::wire::{Fields, seal, unseal};

/// Key of the manifest in sled; no record's key starts so.
pub(crate) const MANIFEST_KEY: &[u8] = b"m";
const RECORD_PREFIX: u8 = b'r';

/// What sled should hold, written in the same batch as what it describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub(crate) generation: u64,
    pub(crate) chain: u32,
    count: u64,
    digest: u64,
}

/// Key of a record in sled.
pub(crate) fn record_key(key: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(key.len() + 1);
    out.push(RECORD_PREFIX);
    out.extend_from_slice(key.as_bytes());
    out
}

/// The record's own key; `None` for a foreign one.
pub(crate) fn own_key(key: &[u8]) -> Option<&str> {
    key.split_first().filter(|(p, _)| **p == RECORD_PREFIX).and_then(|(_, k)| std::str::from_utf8(k).ok())
}

pub(crate) fn wrap(key: &str, entry: &Entry) -> Vec<u8> {
    let mut out = Vec::with_capacity(entry.value.len() + 14);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&entry.generation.to_le_bytes());
    out.extend_from_slice(&entry.value);
    let crc = crc32c::crc32c_append(crc32c::crc32c(key.as_bytes()), &out);
    out.extend_from_slice(&crc.to_le_bytes());
    out
}

pub(crate) fn unwrap(key: &str, bytes: &[u8]) -> Option<Entry> {
    let (inner, crc) = bytes.split_last_chunk::<4>()?;
    if crc32c::crc32c_append(crc32c::crc32c(key.as_bytes()), inner) != u32::from_le_bytes(*crc) {
        return None;
    }
    let mut fields = Fields(inner);
    fields.u16().filter(|v| readable(*v))?;
    let generation = fields.u64()?;
    Some(Entry { generation, value: fields.0.to_vec() })
}

// === impl Manifest ===

impl Manifest {
    pub(crate) fn of(contents: &Contents) -> Self {
        Self {
            generation: contents.generation,
            chain: contents.chain,
            count: contents.entries.len() as u64,
            digest: contents.digest(),
        }
    }

    pub(crate) fn encode(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(34);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&self.generation.to_le_bytes());
        out.extend_from_slice(&self.chain.to_le_bytes());
        out.extend_from_slice(&self.count.to_le_bytes());
        out.extend_from_slice(&self.digest.to_le_bytes());
        seal(&mut out, 0);
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(unseal(bytes)?);
        fields.u16().filter(|v| readable(*v))?;
        let (generation, chain) = (fields.u64()?, fields.u32()?);
        let (count, digest) = (fields.u64()?, fields.u64()?);
        Some(Self { generation, chain, count, digest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::tests::contents;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn envelopes_read_back_only_under_their_own_key(generation: u64, value in proptest::collection::vec(any::<u8>(), 0..30)) {
            let entry = Entry { generation, value };
            let bytes = wrap("pod/a", &entry);
            prop_assert_eq!(unwrap("pod/b", &bytes), None);
            prop_assert_eq!(unwrap("pod/a", &bytes), Some(entry));
        }

        #[test]
        fn no_bytes_make_the_readers_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = (unwrap("k", &bytes), Manifest::decode(&bytes), own_key(&bytes).map(str::len));
            seal(&mut bytes, 0);
            let _ = (unwrap("", &bytes), Manifest::decode(&bytes));
        }

        #[test]
        fn a_manifest_reads_back_and_tells_one_older_value(contents in contents()) {
            let manifest = Manifest::of(&contents);
            prop_assert_eq!(Manifest::decode(&manifest.encode()), Some(manifest));
            let mut entries = contents.entries;
            if let Some(entry) = entries.values_mut().next() {
                entry.generation ^= 1;
                let older = Contents::new(contents.generation, contents.chain, entries);
                prop_assert_ne!(Manifest::of(&older), manifest);
            }
        }
    }
}
