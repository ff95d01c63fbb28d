//! The mark in the store: how far the journal has come, in a small file of its own. The lock file, beside the store, holds another.
//!
//! They are written after each commit and not synced, so they cost next to nothing, and a process that is killed leaves them whole. A
//! journal that ends before one of them was shortened, also where sled does not know yet of the records that are gone and where
//! what is left looks like an append that was never finished. The one beside the store tells a whole store of an earlier time.
//!
//! Both are there, durably, before the store has its name: one that is missing was removed. They are written before sled is, and
//! synced before sled is made durable and a journal is cut: one that is behind either is of an earlier time. One that
//! lags behind the journal alone says nothing.
//!
//! `generation u64 | chain u32 | crc32c of both u32`

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::contents::Contents;
use crate::disk::{DiskError, at, write_whole};
use crate::lock::{Former, Lock};
use crate::record::Header;
use crate::wire::{Fields, seal, unseal};

const NAME: &str = "mark";

/// What a mark says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Said {
    /// So far the journal had come at least.
    End(Header),
    /// There is none and need not be: the version before this one did not always have one.
    Nothing,
    /// There should be one.
    Flaw(&'static str),
}

/// The mark of the journal that is being written.
#[derive(Debug)]
pub(crate) struct Mark {
    path: PathBuf,
    /// Opened with the first commit; a failing disk may delay that.
    file: Option<File>,
}

/// What both say: the one beside the store, and the one in it.
pub(crate) fn read(dir: &Path, lock: &Lock) -> [Said; 2] {
    let beside = match lock.former() {
        Former::Marked(end) => Said::End(end),
        Former::Unmarked => Said::Nothing,
        Former::New => Said::Flaw("is missing"),
        Former::Broken => Said::Flaw("is broken"),
    };
    let within = match std::fs::read(dir.join(NAME)) {
        Ok(bytes) => decode(&bytes).map_or(Said::Flaw("is broken"), Said::End),
        Err(error) if error.kind() == ErrorKind::NotFound => match beside {
            Said::Nothing => Said::Nothing,
            _ => Said::Flaw("is missing"),
        },
        Err(_) => Said::Flaw("cannot be read"),
    };
    [beside, within]
}

/// Puts a whole and durable mark in the place of whatever is there.
pub(crate) fn create(dir: &Path, contents: &Contents) -> Result<(), DiskError> {
    let path = dir.join(NAME);
    if path.is_dir() {
        std::fs::remove_dir_all(&path).map_err(at("removing", &path))?;
    }
    write_whole(&path, &encode(contents.end()))
}

// === impl Mark ===

impl Mark {
    pub(crate) fn new(dir: &Path) -> Self {
        Self { path: dir.join(NAME), file: None }
    }

    /// The journal has come to `contents`, durably. What fails here costs a witness, not a commit.
    pub(crate) fn set(&mut self, contents: &Contents) {
        if self.file.is_none() {
            let file = OpenOptions::new().write(true).create(true).truncate(false).open(&self.path);
            self.file = file.ok();
        }
        if let Some(file) = &self.file
            && file.write_all_at(&encode(contents.end()), 0).is_err()
        {
            self.file = None;
        }
    }

    /// Makes it durable, as sled is made durable.
    pub(crate) fn sync(&self) {
        if let Some(file) = &self.file {
            // A disk that fails here is one whose damage may well be told of.
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
