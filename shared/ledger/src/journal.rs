//! The journal file: append with fdatasync, and reading back with an eye for damage.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::disk::{self, DiskError, at, write_whole};
use crate::fault::{Step, reach, reach_with, sync_data};
use crate::record::{HEAD_LEN, HEADER_LEN, Header, Parsed, RECORD_MAGIC, Record};

/// The journal that is being written.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
    /// Bytes that are sound and acknowledged; what lies beyond is not part of the journal.
    len: u64,
    /// A failed append could not be taken back yet: the file may be longer than `len`.
    overhang: bool,
}

/// What a journal file holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Scan {
    /// `None`: damaged.
    pub(crate) header: Option<Header>,
    /// Every sound record, also behind a damaged place.
    pub(crate) records: Vec<Record>,
    /// Length of the sound part at the front.
    pub(crate) sound_len: u64,
    /// The file ends within a record.
    pub(crate) torn: bool,
    /// Offsets of damage and what is damaged there.
    pub(crate) flaws: Vec<(usize, &'static str)>,
    /// At most so many records lie in damage at the end, behind which nothing sound follows.
    pub(crate) unread: u64,
}

// === impl Journal ===

impl Journal {
    /// A new journal that goes on from `header`; durable, and the newest from now on.
    pub(crate) fn create(path: &Path, header: Header) -> Result<Self, DiskError> {
        write_whole(path, &header.encode())?;
        Self::open(path, HEADER_LEN as u64)
    }

    /// The journal at `path`, of which the first `len` bytes are sound; the rest (a torn tail) is cut off.
    pub(crate) fn open(path: &Path, len: u64) -> Result<Self, DiskError> {
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(at("opening", path))?;
        let actual = file.metadata().map_err(at("examining", path))?.len();
        let mut journal = Self { path: path.to_owned(), file, len, overhang: actual != len };
        journal.cut_overhang()?;
        Ok(journal)
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the journal is still the file at its path. What is appended to a removed file is lost with the process.
    pub(crate) fn is_in_place(&self) -> bool {
        disk::is_at(&self.file, &self.path)
    }

    /// Appends one record; durable once this returns, and wholly absent if it fails.
    pub(crate) fn append(&mut self, record: &[u8]) -> Result<(), DiskError> {
        self.cut_overhang()?;
        reach_with(Step::HalfAppended, || {
            let _ = self.file.write_all_at(record.get(..record.len() / 2).unwrap_or_default(), self.len);
        });
        let appended = self
            .file
            .write_all_at(record, self.len)
            .map_err(at("appending to", &self.path))
            .inspect(|()| reach(Step::Appended))
            .and_then(|()| sync_data(&self.file).map_err(at("syncing", &self.path)));
        match appended {
            Ok(()) => {
                reach(Step::AppendSynced);
                self.len += record.len() as u64;
            }
            Err(_) => {
                self.overhang = true;
                // If this fails too, the next append begins with it.
                let _ = self.cut_overhang();
            }
        }
        appended
    }

    fn cut_overhang(&mut self) -> Result<(), DiskError> {
        if self.overhang {
            self.file
                .set_len(self.len)
                .and_then(|()| sync_data(&self.file))
                .map_err(at("cutting an unfinished record off", &self.path))?;
            self.overhang = false;
            reach(Step::TailCut);
        }
        Ok(())
    }
}

// === impl Scan ===

impl Scan {
    /// A journal whose bytes the disk does not give.
    pub(crate) fn unreadable() -> Self {
        Self {
            header: None,
            records: Vec::new(),
            sound_len: 0,
            torn: false,
            flaws: vec![(0, "a file that cannot be read")],
            unread: 0,
        }
    }

    /// Reads a whole journal. `Err`: the format version that this one cannot read.
    pub(crate) fn of(bytes: &[u8]) -> Result<Self, u16> {
        let mut scan = Self {
            header: None,
            records: Vec::new(),
            sound_len: 0,
            torn: false,
            flaws: Vec::new(),
            unread: 0,
        };
        match Header::decode(bytes) {
            Ok(header) => {
                scan.header = Some(header);
                scan.sound_len = HEADER_LEN as u64;
            }
            Err(Some(version)) => return Err(version),
            Err(None) => scan.flaws.push((0, "the journal's header")),
        }
        let mut offset = HEADER_LEN;
        while offset < bytes.len() {
            match Record::parse(bytes, offset) {
                Parsed::Record(record, len) => {
                    scan.records.push(record);
                    offset += len;
                    if scan.flaws.is_empty() {
                        scan.sound_len = offset as u64;
                    }
                }
                Parsed::Unreadable(version) => return Err(version),
                Parsed::Torn => {
                    scan.torn = true;
                    break;
                }
                Parsed::Damaged(what) => {
                    scan.flaws.push((offset, what));
                    let Some(next) = next_record(bytes, offset + 1) else {
                        scan.unread = ((bytes.len() - offset) / HEAD_LEN) as u64;
                        break;
                    };
                    offset = next;
                }
            }
        }
        Ok(scan)
    }

    /// Generation and checksum at the end of the sound records; `None` without a header.
    pub(crate) fn end(&self) -> Option<Header> {
        let last = self.records.last().map(|r| Header { generation: r.generation, chain: r.checksum });
        last.or(self.header)
    }
}

/// The first sound record at or after `from`.
fn next_record(bytes: &[u8], from: usize) -> Option<usize> {
    let candidates = bytes.get(from..)?.windows(RECORD_MAGIC.len()).enumerate();
    candidates
        .filter(|(_, window)| *window == RECORD_MAGIC)
        .map(|(at, _)| from + at)
        .find(|at| matches!(Record::parse(bytes, *at), Parsed::Record(..)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Change;
    use proptest::prelude::*;

    /// A journal of `n` records from generation 1 on, and where each record starts.
    fn journal(n: u64) -> (Vec<u8>, Vec<usize>) {
        let mut bytes = Header { generation: 0, chain: 0 }.encode();
        let (mut chain, mut starts) = (0, Vec::new());
        for generation in 1..=n {
            starts.push(bytes.len());
            let change = Change::Put(format!("k{generation}"), vec![3; 20]);
            let (record, encoded) = Record::encode(generation, chain, vec![change]).unwrap();
            chain = record.checksum;
            bytes.extend_from_slice(&encoded);
        }
        (bytes, starts)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]

        #[test]
        fn whatever_happens_to_the_bytes_only_records_that_were_written_are_read(
            damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
            cut in proptest::option::of(any::<prop::sample::Index>()),
            tail in proptest::collection::vec(any::<u8>(), 0..70),
        ) {
            let (sound, _) = journal(6);
            let written = Scan::of(&sound).unwrap().records;
            let mut bytes = sound.clone();
            bytes.truncate(cut.map_or(bytes.len(), |cut| cut.index(sound.len())));
            bytes.extend_from_slice(&tail);
            for (at, value) in damage {
                if !bytes.is_empty() {
                    let at = at.index(bytes.len());
                    bytes[at] = value;
                }
            }
            let scan = Scan::of(&bytes).unwrap();
            prop_assert!(scan.records.iter().all(|record| written.contains(record)));
            prop_assert!(scan.sound_len <= bytes.len() as u64);
            let whole = bytes.starts_with(&sound);
            prop_assert!(!whole || scan.records == written);
            let told = scan.torn || !scan.flaws.is_empty();
            prop_assert!(bytes == sound || told || sound.starts_with(&bytes), "{:?}", scan);
        }
    }

    #[test]
    fn a_damaged_record_hides_no_sound_one() {
        let (sound, starts) = journal(4);
        for at in starts[1]..starts[2] {
            let mut bytes = sound.clone();
            bytes[at] ^= 0x40;
            let scan = Scan::of(&bytes).unwrap();
            let generations: Vec<u64> = scan.records.iter().map(|r| r.generation).collect();
            assert_eq!(generations, [1, 3, 4], "byte {at}");
            assert_eq!((scan.flaws.len(), scan.torn), (1, false));
            assert_eq!(scan.sound_len, starts[1] as u64);
        }
    }

    #[test]
    fn a_cut_tail_is_torn_and_costs_the_last_record_only() {
        let (sound, starts) = journal(3);
        for len in starts[2] + 1..sound.len() {
            let scan = Scan::of(&sound[..len]).unwrap();
            assert_eq!((scan.records.len(), scan.torn, scan.flaws.len()), (2, true, 0));
            assert_eq!(scan.sound_len, starts[2] as u64);
        }
    }

    #[test]
    fn what_was_not_acknowledged_is_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let (sound, starts) = journal(2);
        std::fs::write(&path, &sound).unwrap();
        let mut journal = Journal::open(&path, starts[1] as u64).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), starts[1] as u64);
        journal.append(&sound[starts[1]..]).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), sound);
    }

    /// A journal as version 1 wrote it. It never changes: later versions read it, or say that they do not.
    const GOLDEN: &[u8] = include_bytes!("../testdata/journal-v1.bin");

    fn golden_changes() -> [Vec<Change>; 3] {
        [
            vec![
                Change::Put("pod/1b4e".into(), b"cpus=0-3".to_vec()),
                Change::Put("pool/share".into(), vec![]),
            ],
            vec![Change::Delete("pod/1b4e".into())],
            vec![Change::Put("pod/\u{e9}".into(), (0..=255).collect())],
        ]
    }

    #[test]
    fn the_golden_journal_reads_as_it_was_written() {
        let scan = Scan::of(GOLDEN).unwrap();
        assert_eq!(scan.header, Some(Header { generation: 41, chain: 0x1234_5678 }));
        assert_eq!((scan.sound_len, scan.torn, scan.flaws), (GOLDEN.len() as u64, false, vec![]));
        let changes: Vec<_> = scan.records.iter().map(|r| r.changes.clone()).collect();
        assert_eq!(changes, golden_changes());
        assert_eq!(scan.records.iter().map(|r| r.generation).collect::<Vec<_>>(), [42, 43, 44]);
    }

    #[test]
    fn this_version_writes_the_golden_journal() {
        let mut bytes = Header { generation: 41, chain: 0x1234_5678 }.encode();
        let mut chain = 0x1234_5678;
        for (generation, changes) in (42..).zip(golden_changes()) {
            let (record, encoded) = Record::encode(generation, chain, changes).unwrap();
            chain = record.checksum;
            bytes.extend_from_slice(&encoded);
        }
        assert_eq!(bytes, GOLDEN);
    }
}
