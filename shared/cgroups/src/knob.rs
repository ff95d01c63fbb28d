//! One value in one file of a cgroup, written only where it differs and read back.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::kept::read_into;

/// The text of a file without what surrounds it.
///
/// # Errors
/// [`Error::Io`]; [`Error::is_gone`] where there is no such file.
pub fn read_text(path: &Path) -> Result<String, Error> {
    let file = File::open(path).map_err(|e| Error::io("open", path, e))?;
    let mut buffer = Vec::new();
    let bytes = read_into(&file, path, &mut buffer)?;
    Ok(String::from_utf8_lossy(bytes.trim_ascii()).into_owned())
}

/// Hands the whole text to the kernel in one call.
///
/// # Errors
/// [`Error::Io`] with what the kernel answered. The file is never made.
pub fn write_text(path: &Path, text: &str) -> Result<(), Error> {
    // Truncates as a shell's `>` does: kernfs has no length to cut, an imitated file has.
    let file =
        OpenOptions::new().write(true).truncate(true).open(path).map_err(|e| Error::io("open", path, e))?;
    file.write_all_at(format!("{text}\n").as_bytes(), 0).map_err(|e| Error::io("write", path, e))
}

/// Writes `text` unless `holds` says of what is there that it is as wanted; then reads it back. True if it was written.
///
/// # Errors
/// [`Error::Io`]; [`Error::NotHeld`] where the kernel took it and says something else.
pub fn write_verified(path: &Path, text: &str, holds: impl Fn(&str) -> bool) -> Result<bool, Error> {
    if holds(&read_text(path)?) {
        return Ok(false);
    }
    write_text(path, text)?;
    let now = read_text(path)?;
    match holds(&now) {
        true => Ok(true),
        false => Err(not_held(path, text, &now)),
    }
}

/// Whether something may be written in this folder: not where it is mounted read-only, or is somebody else's. Nothing is written.
///
/// # Errors
/// What the kernel answers.
pub fn is_writable(folder: &Path) -> std::io::Result<()> {
    rustix::fs::access(folder, rustix::fs::Access::WRITE_OK).map_err(std::io::Error::from)
}

pub(crate) fn not_held(path: &Path, wanted: &str, now: &str) -> Error {
    Error::NotHeld { path: PathBuf::from(path), wanted: wanted.to_owned(), now: now.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_written_once_and_only_where_it_differs() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cpu.weight");
        std::fs::write(&path, "100\n").unwrap();
        assert!(write_verified(&path, "50", |now| now == "50").unwrap());
        assert!(!write_verified(&path, "50", |now| now == "50").unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "50\n");
    }

    #[test]
    fn a_folder_that_takes_nothing_says_why() {
        let dir = tempfile::tempdir().unwrap();
        is_writable(dir.path()).unwrap();
        let error = is_writable(&dir.path().join("absent")).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    }

    #[test]
    fn what_the_kernel_took_and_does_not_say_is_an_error_that_names_both() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cpu.weight");
        std::fs::write(&path, "100\n").unwrap();
        let error = write_verified(&path, "50", |_| false).unwrap_err().to_string();
        assert!(error.contains("50") && error.contains("cpu.weight"), "{error}");
        assert!(write_verified(&dir.path().join("absent"), "1", |_| false).unwrap_err().is_gone());
        assert!(!dir.path().join("absent").exists());
    }
}
