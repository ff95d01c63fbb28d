//! Recordings as files.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use oxalyst_planner::decision::{Recording, RecordingError};

/// A file that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordedError {
    #[error("{}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is there already: name another file, or remove it", .0.display())]
    Exists(PathBuf),
    #[error("writing {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("{}: {source}", path.display())]
    Recording { path: PathBuf, source: RecordingError },
}

pub(crate) fn read(path: &Path) -> Result<Recording, RecordedError> {
    let bytes =
        std::fs::read(path).map_err(|source| RecordedError::Read { path: path.to_owned(), source })?;
    Recording::decode(&bytes).map_err(|source| wrong(path, source))
}

/// Writes a file that is not there yet: a recording is worth keeping.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), RecordedError> {
    let failed = |source| RecordedError::Write { path: path.to_owned(), source };
    let mut file =
        OpenOptions::new().write(true).create_new(true).open(path).map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => RecordedError::Exists(path.to_owned()),
            _ => failed(source),
        })?;
    file.write_all(bytes).and_then(|()| file.sync_data()).map_err(failed)
}

pub(crate) fn wrong(path: &Path, source: RecordingError) -> RecordedError {
    RecordedError::Recording { path: path.to_owned(), source }
}
