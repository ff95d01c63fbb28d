//! The state of a ledger at one generation, in memory.

use std::collections::BTreeMap;

use crate::Change;
use crate::record::{Header, Record};

/// Everything a ledger holds at one generation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Contents {
    /// Number of the last change set; 0 before the first.
    pub(crate) generation: u64,
    /// Checksum of the journal record that made this generation; it stands for the whole history up to here.
    pub(crate) chain: u32,
    pub(crate) entries: BTreeMap<String, Entry>,
    /// A sum over keys, generations and values, independent of their order; kept up with each change.
    digest: u64,
}

/// A value and the generation that wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) generation: u64,
    pub(crate) value: Vec<u8>,
}

// === impl Contents ===

impl Contents {
    pub(crate) fn new(generation: u64, chain: u32, entries: BTreeMap<String, Entry>) -> Self {
        let digest = entries.iter().fold(0, |sum: u64, (key, entry)| sum.wrapping_add(entry.digest(key)));
        Self { generation, chain, entries, digest }
    }

    /// The changes that would alter something, one for each key (the last one said), in order of keys.
    pub(crate) fn effective(&self, changes: &[Change]) -> Vec<Change> {
        let mut last: BTreeMap<&str, &Change> = BTreeMap::new();
        for change in changes {
            last.insert(change.key(), change);
        }
        last.into_values()
            .filter(|change| match change {
                Change::Put(key, value) => self.entries.get(key).is_none_or(|e| e.value != *value),
                Change::Delete(key) => self.entries.contains_key(key),
            })
            .cloned()
            .collect()
    }

    /// Takes the next step of the history.
    pub(crate) fn apply(&mut self, record: &Record) {
        self.generation = record.generation;
        self.chain = record.checksum;
        for change in &record.changes {
            let old = match change {
                Change::Put(key, value) => {
                    let entry = Entry { generation: record.generation, value: value.clone() };
                    self.digest = self.digest.wrapping_add(entry.digest(key));
                    self.entries.insert(key.clone(), entry)
                }
                Change::Delete(key) => self.entries.remove(key),
            };
            if let Some(old) = old {
                self.digest = self.digest.wrapping_sub(old.digest(change.key()));
            }
        }
    }

    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }

    /// What a mark says of a journal that has come to here.
    pub(crate) fn end(&self) -> Header {
        Header { generation: self.generation, chain: self.chain }
    }

    /// The same under a generation after `told`, which others may have heard of: it never comes to mean something else.
    pub(crate) fn pass(&mut self, told: u64) {
        self.chain = crc32c::crc32c_append(self.chain, &told.to_le_bytes());
        self.generation = told.saturating_add(1);
    }
}

// === impl Entry ===

impl Entry {
    fn digest(&self, key: &str) -> u64 {
        let key_crc = crc32c::crc32c(key.as_bytes());
        let crc = crc32c::crc32c_append(key_crc, &self.generation.to_le_bytes());
        let crc = crc32c::crc32c_append(crc, &self.value);
        (u64::from(key_crc) << 32) | u64::from(crc)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn change() -> impl Strategy<Value = Change> {
        ("[a-c]", proptest::option::of(0..3u8)).prop_map(|(key, value)| match value {
            Some(v) => Change::Put(key, vec![v]),
            None => Change::Delete(key),
        })
    }

    proptest! {
        #[test]
        fn the_kept_digest_is_that_of_the_entries(sets in proptest::collection::vec(proptest::collection::vec(change(), 0..4), 0..8)) {
            let mut contents = Contents::default();
            for set in sets {
                let changes = contents.effective(&set);
                let generation = contents.generation + 1;
                let (record, _) = Record::encode(generation, contents.chain, changes).unwrap();
                contents.apply(&record);
                let anew = Contents::new(contents.generation, contents.chain, contents.entries.clone());
                prop_assert_eq!(&contents, &anew);
            }
        }

        #[test]
        fn effective_changes_lead_to_the_same_values(set in proptest::collection::vec(change(), 0..6)) {
            let (record, _) = Record::encode(1, 0, set.clone()).unwrap();
            let mut all = Contents::default();
            all.apply(&record);
            let mut few = Contents::default();
            let (record, _) = Record::encode(1, 0, few.effective(&set)).unwrap();
            few.apply(&record);
            prop_assert_eq!(&few.entries, &all.entries);
            prop_assert_eq!(all.effective(&few.effective(&set)), vec![]);
        }
    }
}
