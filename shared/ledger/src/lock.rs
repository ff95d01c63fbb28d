//! One process owns the folder: `flock` on a file that holds the owner's process id and a mark, how far the journal has come.
//!
//! `process id, space, generation, space, chain, space, crc32c of all before, newline`: text of a fixed length, so that each writing
//! is one call within one sector. The version before this one wrote the process id and a newline, which no part of the above is.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::OpenError;
use crate::disk::{self, DiskError, at};
use crate::fault::{Step, reach};
use crate::record::Header;

const LEN: usize = 50;

/// Held until dropped, and by the kernel no longer than the process lives.
#[derive(Debug)]
pub(crate) struct Lock {
    path: PathBuf,
    file: File,
    former: Former,
}

/// What the file says of the ledger. Only an owner writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Former {
    /// Nothing: nobody has come to build a store, or the file is another than the owner's.
    New,
    /// The last owner was of the version before, which kept no mark here.
    Unmarked,
    /// How far the journal had come at least.
    Marked(Header),
    /// It cannot be understood.
    Broken,
}

// === impl Lock ===

impl Lock {
    pub(crate) fn take(path: &Path) -> Result<Self, OpenError> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(at("opening the lock file", path))?;
        let locked = flock(&file, FlockOperation::NonBlockingLockExclusive);
        let mut bytes = Vec::new();
        // One byte more than there may be tells that there is too much.
        let read = Read::by_ref(&mut file).take(LEN as u64 + 1).read_to_end(&mut bytes);
        match locked {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(OpenError::Locked { path: path.to_owned(), pid: owner(&bytes) });
            }
            Err(errno) => return Err(at("locking", path)(errno.into()).into()),
        }
        let former = if read.is_ok() { Former::of(&bytes) } else { Former::Broken };
        let lock = Self { path: path.to_owned(), file, former };
        // Only for people and the error above; a full disk must not keep the owner from its ledger.
        let _ = lock.sign(bytes.len());
        Ok(lock)
    }

    /// Writes who owns it, and nothing else that the file says is changed: whatever the process does not live to see.
    fn sign(&self, len: usize) -> io::Result<()> {
        let pid = std::process::id();
        match self.former {
            Former::Marked(end) => self.file.write_all_at(&text(pid, end), 0),
            // In one call and no shorter than before, so that it is of that version's form all the time.
            Former::Unmarked => {
                let width = len.saturating_sub(1);
                self.file.write_all_at(format!("{pid:<width$}\n").as_bytes(), 0)
            }
            Former::New => {
                self.file.set_len(0)?;
                self.file.write_all_at(pid.to_string().as_bytes(), 0)
            }
            // What it holds may be of use to somebody.
            Former::Broken => Ok(()),
        }
    }

    pub(crate) fn former(&self) -> Former {
        self.former
    }

    /// Whether some change set may have been acknowledged by an owner.
    pub(crate) fn tells_of_commits(&self) -> bool {
        match self.former {
            Former::New => false,
            Former::Marked(end) => end.generation > 0,
            Former::Unmarked | Former::Broken => true,
        }
    }

    /// The journal has come to `end`, durably. What fails here costs a witness, not a commit.
    pub(crate) fn set(&mut self, end: Header) {
        // Where there is no mark yet, beginning with one is for `establish`.
        if matches!(self.former, Former::Marked(_)) {
            let _ = self.file.write_all_at(&text(std::process::id(), end), 0);
            self.former = Former::Marked(end);
        }
    }

    /// Makes the mark durable, as sled is made durable.
    pub(crate) fn sync(&self) {
        // A disk that fails here is one whose damage may well be told of.
        let _ = self.file.sync_data();
    }

    /// Whatever the file says, from now on it says this, durably.
    pub(crate) fn establish(&mut self, end: Header) -> Result<(), DiskError> {
        let written = self
            .file
            .write_all_at(&text(std::process::id(), end), 0)
            .and_then(|()| self.file.set_len(LEN as u64))
            .inspect(|()| reach(Step::LockWritten))
            .and_then(|()| self.file.sync_data());
        written.map_err(at("writing the lock file", &self.path))?;
        self.former = Former::Marked(end);
        Ok(())
    }

    /// Whether the lock is still the file at its path. If not, it keeps nobody out.
    pub(crate) fn is_in_place(&self) -> bool {
        disk::is_at(&self.file, &self.path)
    }
}

// === impl Former ===

impl Former {
    fn of(bytes: &[u8]) -> Self {
        if let Some(end) = decode(bytes) {
            return Self::Marked(end);
        }
        let is_number = |digits: &[u8]| !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
        match bytes.strip_suffix(b"\n") {
            Some(line) if is_number(line.trim_ascii_end()) => Self::Unmarked,
            None if bytes.is_empty() || is_number(bytes) => Self::New,
            _ => Self::Broken,
        }
    }
}

fn owner(bytes: &[u8]) -> Option<u32> {
    std::str::from_utf8(bytes).ok()?.split_ascii_whitespace().next()?.parse().ok()
}

fn text(pid: u32, end: Header) -> Vec<u8> {
    let mut text = format!("{pid:<10} {:>20} {:08x} ", end.generation, end.chain).into_bytes();
    let crc = crc32c::crc32c(&text);
    text.extend_from_slice(format!("{crc:08x}\n").as_bytes());
    text
}

fn decode(bytes: &[u8]) -> Option<Header> {
    let mut words = std::str::from_utf8(bytes).ok()?.split_ascii_whitespace();
    let (pid, generation, chain) = (words.next()?, words.next()?, words.next()?);
    let end = Header { generation: generation.parse().ok()?, chain: u32::from_str_radix(chain, 16).ok()? };
    // To the last space.
    (text(pid.parse().ok()?, end) == bytes).then_some(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::{Duration, Instant};

    /// Another test that starts a process just now holds a copy of our lock until it executes.
    fn taken(path: &Path) -> Lock {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            match Lock::take(path) {
                Err(OpenError::Locked { .. }) if Instant::now() < end => std::thread::yield_now(),
                lock => return lock.unwrap(),
            }
        }
    }

    #[test]
    fn a_second_owner_is_told_the_first_ones_pid_until_it_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        for marked in [false, true] {
            let mut first = taken(&path);
            if marked {
                first.establish(Header { generation: 7, chain: 8 }).unwrap();
            }
            match Lock::take(&path) {
                Err(OpenError::Locked { pid, .. }) => assert_eq!(pid, Some(std::process::id())),
                other => panic!("{other:?}"),
            }
        }
        taken(&path);
    }

    #[test]
    fn what_the_owner_before_left_is_told_apart_and_kept_until_there_is_something_to_say() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let end = Header { generation: 12, chain: 0xab };
        let whole = text(u32::MAX, end);
        assert_eq!(whole.len(), LEN);
        let cases: [(&[u8], Former); 10] = [
            (b"", Former::New),
            (b"4711", Former::New),
            (b"4711\n", Former::Unmarked),
            (b"4711   \n", Former::Unmarked),
            (b"1\n", Former::Unmarked),
            (b"\n", Former::Broken),
            (b"rubbish", Former::Broken),
            (&[0xff; 500], Former::Broken),
            (&whole, Former::Marked(end)),
            (&[&whole[..], b"\n"].concat(), Former::Broken),
        ];
        for (bytes, former) in cases {
            std::fs::write(&path, bytes).unwrap();
            // As often as it is taken.
            for _ in 0..3 {
                assert_eq!(taken(&path).former(), former, "{:?}", bytes.escape_ascii().to_string());
            }
            let mut lock = taken(&path);
            lock.set(Header { generation: 13, chain: 1 });
            assert_eq!(matches!(lock.former(), Former::Marked(_)), matches!(former, Former::Marked(_)));
            lock.establish(end).unwrap();
            drop(lock);
            assert_eq!(taken(&path).former(), Former::Marked(end));
        }
    }

    proptest! {
        #[test]
        fn no_part_of_a_marked_file_and_no_change_in_it_passes_for_a_whole_one_or_the_version_befores(
            pid: u32, generation: u64, chain: u32, at in 0..LEN, bit in 0..8u8,
        ) {
            let whole = text(pid, Header { generation, chain });
            prop_assert_eq!(Former::of(&whole), Former::Marked(Header { generation, chain }));
            let cut = Former::of(&whole[..at]);
            prop_assert!([Former::New, Former::Broken].contains(&cut), "{:?}", cut);
            let mut changed = whole;
            changed[at] ^= 1 << bit;
            prop_assert_eq!(Former::of(&changed), Former::Broken);
        }
    }
}
