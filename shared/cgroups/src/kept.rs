use std::fs::File;
use std::io;
use std::path::Path;

use rustix::io::Errno;

use crate::error::Error;

/// Grows a buffer in steps of this many bytes: larger than any file that is read every pass.
const STEP: usize = 16 * 1024;
/// No file of the kernel is longer: the longest, of a machine with a thousand CPUs, have a few MiB.
pub const LONGEST: usize = 16 << 20;

/// Reads the whole of `file` from its beginning into `buffer` and returns the filled part.
///
/// `buffer` only ever grows, up to 16 MiB, and is meant to be used again for the next file; its old contents are not cleared.
/// A read that leaves room is the end: kernfs and seq files render the whole content at offset 0 into a buffer that
/// has room for it, so a second call that returns nothing would only double the cost. `path` is for the error alone.
///
/// # Errors
/// [`Error::Io`] with operation "read"; [`Error::is_gone`] tells whether the cgroup was removed. [`Error::TooLong`].
pub fn read_into<'b>(file: &File, path: &Path, buffer: &'b mut Vec<u8>) -> Result<&'b [u8], Error> {
    if buffer.is_empty() {
        buffer.resize(STEP, 0);
    }
    let mut filled = 0usize;
    loop {
        let room = buffer.get_mut(filled..).unwrap_or_default();
        let (wanted, offset) = (room.len(), u64::try_from(filled).unwrap_or(u64::MAX));
        // Straight to the kernel: the C library's pread is a cancellation point, which costs as much as a small parser.
        match rustix::io::pread(file, &mut *room, offset) {
            Ok(n) => {
                filled += n;
                if n < wanted {
                    return Ok(buffer.get(..filled).unwrap_or_default());
                }
                if filled >= LONGEST {
                    // What was taken for it is of no use to any other file.
                    buffer.truncate(STEP);
                    buffer.shrink_to_fit();
                    return Err(Error::TooLong { path: path.to_path_buf(), longest: LONGEST });
                }
                buffer.resize(filled + filled.clamp(STEP, LONGEST), 0);
            }
            Err(Errno::INTR) => {}
            Err(e) => return Err(Error::io("read", path, e.into())),
        }
    }
}

/// Whether an error means that the cgroup behind a file is gone: an open descriptor of a removed cgroup answers
/// ENODEV for ever, a path answers ENOENT.
pub fn is_dead(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error().map(Errno::from_raw_os_error),
        Some(Errno::NODEV | Errno::NOENT | Errno::NOTDIR)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_end_is_given_up_and_its_room_given_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("memory.stat");
        let file = File::options().create_new(true).read(true).write(true).open(&path).unwrap();
        file.set_len(1 << 30).unwrap();
        let mut buffer = Vec::new();
        let error = read_into(&file, &path, &mut buffer).unwrap_err().to_string();
        assert!(error.contains("memory.stat") && error.contains("16777216"), "{error}");
        assert!(buffer.capacity() < LONGEST);
        file.set_len(LONGEST as u64 - 1).unwrap();
        assert_eq!(read_into(&file, &path, &mut buffer).unwrap().len(), LONGEST - 1);
    }

    #[test]
    fn a_file_longer_than_the_buffer_is_read_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("memory.stat");
        let content: Vec<u8> = (0..3 * STEP + 17).map(|i| b'a' + (i % 26) as u8).collect();
        std::fs::write(&path, &content).unwrap();
        let mut buffer = Vec::new();
        let file = File::open(&path).unwrap();
        assert_eq!(read_into(&file, &path, &mut buffer).unwrap(), content);
    }

    #[test]
    fn a_reused_buffer_shows_nothing_of_the_file_before() {
        let dir = tempfile::tempdir().unwrap();
        let (long, short) = (dir.path().join("long"), dir.path().join("short"));
        std::fs::write(&long, "a long content\n").unwrap();
        std::fs::write(&short, "42\n").unwrap();
        let mut buffer = Vec::new();
        read_into(&File::open(&long).unwrap(), &long, &mut buffer).unwrap();
        assert_eq!(read_into(&File::open(&short).unwrap(), &short, &mut buffer).unwrap(), b"42\n");
    }

    #[test]
    fn each_read_sees_the_present_content() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cpuacct.usage");
        std::fs::write(&path, "1\n").unwrap();
        let file = File::open(&path).unwrap();
        let mut buffer = Vec::new();
        assert_eq!(read_into(&file, &path, &mut buffer).unwrap(), b"1\n");
        std::fs::write(&path, "22\n").unwrap();
        assert_eq!(read_into(&file, &path, &mut buffer).unwrap(), b"22\n");
    }

    #[test]
    fn a_folder_in_place_of_a_file_is_an_error_with_its_path() {
        let dir = tempfile::tempdir().unwrap();
        let file = File::open(dir.path()).unwrap();
        let error = read_into(&file, dir.path(), &mut Vec::new()).unwrap_err();
        assert!(error.to_string().starts_with(&format!("read {}", dir.path().display())), "{error}");
        assert!(!error.is_gone());
    }
}
