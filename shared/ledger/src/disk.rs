//! Files that are whole or absent, whatever moment the power goes.

use std::fs::{File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::fault::{Step, reach, reach_with};

/// Of a file that is not whole yet.
const DRAFT_EXTENSION: &str = "new";

/// A failed operation on a file: what was being done, to what, and what came back.
#[derive(Debug, thiserror::Error)]
#[error("{doing} {}: {source}", path.display())]
pub struct DiskError {
    /// The operation, as a participle: "writing", "syncing".
    pub doing: &'static str,
    /// The file or folder.
    pub path: PathBuf,
    /// What the kernel said.
    pub source: io::Error,
}

/// Names the operation and the path in an I/O error.
pub(crate) fn at<'a>(doing: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> DiskError + 'a {
    move |source| DiskError { doing, path: path.to_owned(), source }
}

/// Whether the file at `path` is this open one.
pub(crate) fn is_at(file: &File, path: &Path) -> bool {
    let same = |a: &Metadata, b: &Metadata| a.dev() == b.dev() && a.ino() == b.ino();
    matches!((file.metadata(), std::fs::metadata(path)), (Ok(a), Ok(b)) if same(&a, &b))
}

/// Makes creations, renames and removals in `dir` durable.
pub(crate) fn sync_dir(dir: &Path) -> Result<(), DiskError> {
    File::open(dir).and_then(|d| d.sync_all()).map_err(at("syncing the folder", dir))
}

/// Removes what a process left behind that ended within [`write_whole`].
pub(crate) fn remove_drafts(dir: &Path) -> Result<(), DiskError> {
    for entry in std::fs::read_dir(dir).map_err(at("listing", dir))? {
        let path = entry.map_err(at("listing", dir))?.path();
        if path.extension().is_some_and(|e| e == DRAFT_EXTENSION) {
            std::fs::remove_file(&path).map_err(at("removing", &path))?;
        }
    }
    Ok(())
}

/// Writes `bytes` as `path`, which is either as before or whole, and is durable once this returns.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), DiskError> {
    let draft = path.with_extension(DRAFT_EXTENSION);
    reach_with(Step::DraftHalfWritten, || {
        let _ = std::fs::write(&draft, bytes.get(..bytes.len() / 2).unwrap_or_default());
    });
    let written = File::create(&draft)
        .and_then(|mut f| {
            f.write_all(bytes).inspect(|()| reach(Step::DraftWritten)).and_then(|()| f.sync_data())
        })
        .inspect(|()| reach(Step::DraftSynced))
        .map_err(at("writing", &draft))
        .and_then(|()| std::fs::rename(&draft, path).map_err(at("renaming", &draft)));
    if written.is_err() {
        let _ = std::fs::remove_file(&draft);
    }
    written?;
    reach(Step::DraftRenamed);
    path.parent().map_or(Ok(()), sync_dir)
}
