//! The snapshot's format: the whole contents at one generation, in one file, pure.
//!
//! `magic "OXALSNAP" | version u16 | 0 u16 | generation u64 | chain u32 | protobuf body | crc32c of all before u32`

use prost::Message;

use crate::contents::{Contents, Entry};
use crate::record::{VERSION, readable};
use crate::wire::{Fields, seal, unseal};

const MAGIC: [u8; 8] = *b"OXALSNAP";

#[derive(Clone, PartialEq, Message)]
struct Body {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<BodyEntry>,
}

#[derive(Clone, PartialEq, Message)]
struct BodyEntry {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
    #[prost(uint64, tag = "3")]
    generation: u64,
}

pub(crate) fn encode(contents: &Contents) -> Vec<u8> {
    let entry = |(key, entry): (&String, &Entry)| BodyEntry {
        key: key.clone(),
        value: entry.value.clone(),
        generation: entry.generation,
    };
    let body = Body { entries: contents.entries.iter().map(entry).collect() };
    let mut out = Vec::with_capacity(28 + body.encoded_len());
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&[0; 2]);
    out.extend_from_slice(&contents.generation.to_le_bytes());
    out.extend_from_slice(&contents.chain.to_le_bytes());
    out.extend_from_slice(&body.encode_to_vec());
    seal(&mut out, 0);
    out
}

/// The contents, or the version that cannot be read (`None`: it is damaged).
pub(crate) fn decode(bytes: &[u8]) -> Result<Contents, Option<u16>> {
    let mut fields = Fields(unseal(bytes).ok_or(None)?);
    if fields.array::<8>() != Some(MAGIC) {
        return Err(None);
    }
    let version = fields.u16().ok_or(None)?;
    if !readable(version) {
        return Err(Some(version));
    }
    fields.u16();
    let generation = fields.u64().ok_or(None)?;
    let chain = fields.u32().ok_or(None)?;
    let body = Body::decode(fields.0).map_err(|_| None)?;
    let entries = body
        .entries
        .into_iter()
        .map(|e| (e.key, Entry { generation: e.generation, value: e.value }))
        .collect();
    Ok(Contents::new(generation, chain, entries))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) fn contents() -> impl Strategy<Value = Contents> {
        let entry = (any::<u64>(), proptest::collection::vec(any::<u8>(), 0..40))
            .prop_map(|(generation, value)| Entry { generation, value });
        let entries = proptest::collection::btree_map("[a-z/]{0,9}", entry, 0..6);
        (any::<u64>(), any::<u32>(), entries)
            .prop_map(|(generation, chain, entries)| Contents::new(generation, chain, entries))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn a_snapshot_reads_back_as_written(contents in contents()) {
            prop_assert_eq!(decode(&encode(&contents)), Ok(contents));
        }

        #[test]
        fn no_bytes_make_the_reader_panic(body in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = decode(&body);
            let mut sealed = encode(&Contents::default());
            sealed.truncate(sealed.len() - 4);
            sealed.extend_from_slice(&body);
            seal(&mut sealed, 0);
            let _ = decode(&sealed);
        }

        #[test]
        fn a_flipped_bit_is_noticed(contents in contents(), at in any::<prop::sample::Index>(), bit in 0..8u8) {
            let mut bytes = encode(&contents);
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            prop_assert_eq!(decode(&bytes), Err(None));
        }
    }
}
