//! The journal's format: pure encoding and decoding, no files.
//!
//! A journal is a header of 28 bytes and then records, all little-endian:
//!
//! ```text
//! header  magic "OXALJRNL" | version u16 | 0 u16 | generation it starts from u64 | chain u32 | crc32c u32
//! record  magic "OXR!" | version u16 | 0 u16 | generation u64 | previous record's checksum u32
//!         | body length u32 | crc32c of the body u32 | crc32c of the 28 bytes before it u32 | body
//! ```
//!
//! The last field of a record's head is the record's checksum: it covers the body's checksum and the checksum of the
//! record before, so it stands for the whole history. The head has a checksum apart from the body's, so that a damaged
//! length is not mistaken for a record that a power cut left unfinished. The body is a protobuf message.

use prost::Message;

use crate::Change;
use crate::wire::{Fields, seal, unseal};

/// The format written here. This version reads itself and, once there is a 2, the one before.
pub(crate) const VERSION: u16 = 1;
const OLDEST_VERSION: u16 = 1;
const JOURNAL_MAGIC: [u8; 8] = *b"OXALJRNL";
pub(crate) const RECORD_MAGIC: [u8; 4] = *b"OXR!";
pub(crate) const HEADER_LEN: usize = 28;
pub(crate) const HEAD_LEN: usize = 32;
/// No change set is larger; keeps a damaged length from asking for all memory.
pub(crate) const MAX_BODY: usize = 16 << 20;
/// What a disk writes at least at once.
const SECTOR: usize = 512;

/// The first bytes of a journal: from where it goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) generation: u64,
    pub(crate) chain: u32,
}

/// One change set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) generation: u64,
    pub(crate) previous: u32,
    pub(crate) checksum: u32,
    pub(crate) changes: Vec<Change>,
}

/// What stands at an offset of a journal.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Parsed {
    /// A sound record and its length in bytes.
    Record(Record, usize),
    /// The journal ends here in the midst of a record: its writer lost power and had not acknowledged it.
    Torn,
    /// A sound head of a format this version cannot read.
    Unreadable(u16),
    /// Anything else.
    Damaged(&'static str),
}

#[derive(Clone, PartialEq, Message)]
struct ChangeSet {
    #[prost(message, repeated, tag = "1")]
    changes: Vec<KeyChange>,
}

#[derive(Clone, PartialEq, Message)]
struct KeyChange {
    #[prost(string, tag = "1")]
    key: String,
    /// Absent: the key is deleted.
    #[prost(bytes = "vec", optional, tag = "2")]
    value: Option<Vec<u8>>,
}

/// Whether this version reads `version`.
pub(crate) fn readable(version: u16) -> bool {
    (OLDEST_VERSION..=VERSION).contains(&version)
}

// === impl Header ===

impl Header {
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_LEN);
        out.extend_from_slice(&JOURNAL_MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&self.generation.to_le_bytes());
        out.extend_from_slice(&self.chain.to_le_bytes());
        seal(&mut out, 0);
        out
    }

    /// The header, or the version that cannot be read (`None`: it is damaged).
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Option<u16>> {
        let inner = bytes.get(..HEADER_LEN).and_then(unseal).ok_or(None)?;
        let mut fields = Fields(inner);
        if fields.array::<8>() != Some(JOURNAL_MAGIC) {
            return Err(None);
        }
        let version = fields.u16().ok_or(None)?;
        if !readable(version) {
            return Err(Some(version));
        }
        fields.u16();
        let generation = fields.u64().ok_or(None)?;
        let chain = fields.u32().ok_or(None)?;
        Ok(Self { generation, chain })
    }
}

// === impl Record ===

impl Record {
    /// The record that follows (`generation - 1`, `previous`), and its bytes. `Err` tells the size of a body that is
    /// larger than [`MAX_BODY`].
    pub(crate) fn encode(
        generation: u64,
        previous: u32,
        changes: Vec<Change>,
    ) -> Result<(Self, Vec<u8>), usize> {
        let set = ChangeSet { changes: changes.iter().map(KeyChange::from).collect() };
        let body_len = set.encoded_len();
        let len = u32::try_from(body_len).ok().filter(|_| body_len <= MAX_BODY).ok_or(body_len)?;
        let body = set.encode_to_vec();
        let mut out = Vec::with_capacity(HEAD_LEN + body_len);
        out.extend_from_slice(&RECORD_MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&generation.to_le_bytes());
        out.extend_from_slice(&previous.to_le_bytes());
        out.extend_from_slice(&len.to_le_bytes());
        out.extend_from_slice(&crc32c::crc32c(&body).to_le_bytes());
        let checksum = seal(&mut out, 0);
        out.extend_from_slice(&body);
        Ok((Self { generation, previous, checksum, changes }, out))
    }

    /// What stands at `offset` of the journal `bytes`.
    pub(crate) fn parse(bytes: &[u8], offset: usize) -> Parsed {
        let rest = bytes.get(offset..).unwrap_or_default();
        if rest.len() < HEAD_LEN || rest.iter().all(|b| *b == 0) {
            return Parsed::Torn;
        }
        parse_whole(bytes, offset, rest).unwrap_or(Parsed::Damaged("the head of a record"))
    }
}

fn parse_whole(bytes: &[u8], offset: usize, rest: &[u8]) -> Option<Parsed> {
    let (head, _) = rest.split_at_checked(HEAD_LEN)?;
    let (inner, checksum) = head.split_last_chunk::<4>()?;
    unseal(head)?;
    let mut fields = Fields(inner);
    if fields.array::<4>()? != RECORD_MAGIC {
        return None;
    }
    let version = fields.u16()?;
    if !readable(version) {
        return Some(Parsed::Unreadable(version));
    }
    fields.u16()?;
    let (generation, previous) = (fields.u64()?, fields.u32()?);
    let (body_len, body_crc) = (fields.u32()? as usize, fields.u32()?);
    if body_len > MAX_BODY {
        return None;
    }
    let end = HEAD_LEN + body_len;
    let Some(body) = rest.get(HEAD_LEN..end) else { return Some(Parsed::Torn) };
    if crc32c::crc32c(body) != body_crc {
        let last = offset + end == bytes.len();
        return Some(match last && ends_in_unwritten_sector(bytes, offset) {
            true => Parsed::Torn,
            false => Parsed::Damaged("the body of a record"),
        });
    }
    let Ok(set) = ChangeSet::decode(body) else { return Some(Parsed::Damaged("the message in a record")) };
    let changes = set.changes.into_iter().map(Change::from).collect();
    let checksum = u32::from_le_bytes(*checksum);
    Some(Parsed::Record(Record { generation, previous, checksum, changes }, end))
}

/// A power cut may leave the length of a file grown and its last sectors unwritten, which then read as zeros.
fn ends_in_unwritten_sector(bytes: &[u8], record: usize) -> bool {
    let boundary = bytes.len().saturating_sub(1) / SECTOR * SECTOR;
    boundary > record && bytes.get(boundary..).is_some_and(|tail| tail.iter().all(|b| *b == 0))
}

// === impl KeyChange ===

impl From<&Change> for KeyChange {
    fn from(change: &Change) -> Self {
        match change {
            Change::Put(key, value) => Self { key: key.clone(), value: Some(value.clone()) },
            Change::Delete(key) => Self { key: key.clone(), value: None },
        }
    }
}

// === impl Change ===

impl From<KeyChange> for Change {
    fn from(change: KeyChange) -> Self {
        match change.value {
            Some(value) => Self::Put(change.key, value),
            None => Self::Delete(change.key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn changes() -> impl Strategy<Value = Vec<Change>> {
        let change = (".{0,12}", proptest::option::of(proptest::collection::vec(any::<u8>(), 0..900)))
            .prop_map(|(key, value)| Change::from(KeyChange { key, value }));
        proptest::collection::vec(change, 0..4)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn a_record_reads_back_as_written(generation: u64, previous: u32, changes in changes(), offset in 0..600usize) {
            let (record, bytes) = Record::encode(generation, previous, changes).unwrap();
            let mut journal = vec![7; offset];
            journal.extend_from_slice(&bytes);
            prop_assert_eq!(Record::parse(&journal, offset), Parsed::Record(record, bytes.len()));
        }

        #[test]
        fn every_cut_of_a_record_is_a_torn_tail(generation: u64, changes in changes(), cut in any::<prop::sample::Index>()) {
            let (_, bytes) = Record::encode(generation, 1, changes).unwrap();
            let cut = cut.index(bytes.len());
            prop_assert_eq!(Record::parse(&bytes[..cut], 0), Parsed::Torn);
        }

        #[test]
        fn a_flipped_bit_is_damage_and_never_a_torn_tail(changes in changes(), at in any::<prop::sample::Index>(), bit in 0..8u8) {
            let (_, mut bytes) = Record::encode(5, 1, changes).unwrap();
            let at = at.index(bytes.len());
            // A body that ends in zeros from a sector's start on is the one case that looks unwritten.
            prop_assume!(!ends_in_unwritten_sector(&bytes, 0));
            bytes[at] ^= 1 << bit;
            prop_assume!(!ends_in_unwritten_sector(&bytes, 0));
            prop_assert!(matches!(Record::parse(&bytes, 0), Parsed::Damaged(_)));
        }

        #[test]
        fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), offset in 0..250usize) {
            let _ = Record::parse(&bytes, offset);
            let _ = Header::decode(&bytes);
        }

        #[test]
        fn a_header_reads_back_as_written(generation: u64, chain: u32) {
            let header = Header { generation, chain };
            prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
        }
    }

    #[test]
    fn an_unwritten_last_sector_is_a_torn_tail() {
        let put = Change::Put("k".into(), vec![9; 700]);
        let (_, mut bytes) = Record::encode(1, 0, vec![put]).unwrap();
        bytes[512..].fill(0);
        assert_eq!(Record::parse(&bytes, 0), Parsed::Torn);
        bytes.push(1);
        assert!(matches!(Record::parse(&bytes, 0), Parsed::Damaged(_)));
    }

    #[test]
    fn a_newer_format_is_named_and_not_taken_for_damage() {
        let (_, mut bytes) = Record::encode(1, 0, vec![]).unwrap();
        bytes[4..6].copy_from_slice(&(VERSION + 1).to_le_bytes());
        bytes.truncate(HEAD_LEN - 4);
        seal(&mut bytes, 0);
        assert_eq!(Record::parse(&bytes, 0), Parsed::Unreadable(VERSION + 1));
        let mut header = Header { generation: 1, chain: 2 }.encode();
        header[8..10].copy_from_slice(&9u16.to_le_bytes());
        header.truncate(HEADER_LEN - 4);
        seal(&mut header, 0);
        assert_eq!(Header::decode(&header), Err(Some(9)));
    }
}
