//! The least that a pass can cost: bare reads of the same files through descriptors that stay open.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// Larger than any of the files.
const BUFFER: usize = 64 * 1024;

/// Open descriptors of a set of files.
#[derive(Debug)]
pub struct Floor {
    files: Vec<File>,
    buffer: Vec<u8>,
}

// === impl Floor ===

impl Floor {
    /// Opens what can be opened of `paths` (see [`super::Pass::files`]).
    pub fn open(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        let files = paths.into_iter().filter_map(|p| File::open(p).ok()).collect();
        Self { files, buffer: vec![0; BUFFER] }
    }

    /// How many files are open.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Reads each file once from its beginning; the bytes read.
    ///
    /// # Errors
    /// Whatever the kernel answers; a file of a removed cgroup answers ENODEV.
    pub fn read(&mut self) -> io::Result<usize> {
        let mut bytes = 0;
        for file in &self.files {
            bytes += file.read_at(&mut self.buffer, 0)?;
        }
        Ok(bytes)
    }
}
