//! The mark: how far the journal has come, in a small file of its own.
//!
//! It is written after each commit and not synced, so it costs next to nothing, and a process that is killed leaves it whole. A
//! journal that ends before its mark was shortened, also where sled does not know yet of the records that are gone and where what
//! is left looks like an append that was never finished. A mark that lags behind says nothing.
//!
//! `generation u64 | chain u32 | crc32c of both u32`

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::contents::Contents;
use crate::record::Header;
use crate::wire::{Fields, seal, unseal};

const NAME: &str = "mark";

/// The mark of the journal that is being written.
#[derive(Debug)]
pub(crate) struct Mark {
    path: PathBuf,
    /// Opened with the first commit; a failing disk may delay that.
    file: Option<File>,
}

// === impl Mark ===

impl Mark {
    pub(crate) fn new(dir: &Path) -> Self {
        Self { path: dir.join(NAME), file: None }
    }

    /// What the mark in `dir` says. Absent or damaged it says nothing: the journal's own checksums stand by themselves.
    pub(crate) fn read(dir: &Path) -> Option<Header> {
        decode(&std::fs::read(dir.join(NAME)).ok()?)
    }

    /// The journal has come to `contents`, durably. What fails here costs a witness, not a commit.
    pub(crate) fn set(&mut self, contents: &Contents) {
        if self.file.is_none() {
            let file = OpenOptions::new().write(true).create(true).truncate(false).open(&self.path);
            self.file = file.ok();
        }
        let bytes = encode(Header { generation: contents.generation, chain: contents.chain });
        if let Some(file) = &self.file
            && file.write_all_at(&bytes, 0).is_err()
        {
            self.file = None;
        }
    }

    /// Makes it durable, as sled is made durable.
    pub(crate) fn sync(&self) {
        if let Some(file) = &self.file {
            // It then lags behind after a power cut, which is no harm.
            let _ = file.sync_data();
        }
    }
}

fn encode(end: Header) -> Vec<u8> {
    let mut out = Vec::with_capacity(16);
    out.extend_from_slice(&end.generation.to_le_bytes());
    out.extend_from_slice(&end.chain.to_le_bytes());
    seal(&mut out, 0);
    out
}

fn decode(bytes: &[u8]) -> Option<Header> {
    let mut fields = Fields(unseal(bytes)?);
    let end = Header { generation: fields.u64()?, chain: fields.u32()? };
    fields.0.is_empty().then_some(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_mark_reads_back_and_a_damaged_one_says_nothing(generation: u64, chain: u32, at in 0..16usize, bit in 0..8u8) {
            let end = Header { generation, chain };
            let mut bytes = encode(end);
            prop_assert_eq!(decode(&bytes), Some(end));
            bytes[at] ^= 1 << bit;
            prop_assert_eq!(decode(&bytes), None);
            prop_assert_eq!(decode(&bytes[..at]), None);
        }
    }
}
