//! The files in their folder.

use std::io;
use std::path::Path;

use super::{CPU_STATE, Fault, MEMORY_STATE, ORM_CHECKPOINT};

/// Bytes of the three files; `None` where a file is absent or cannot be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// `cpu_plugin_state`.
    pub cpu_state: Option<Vec<u8>>,
    /// `memory_plugin_state`.
    pub memory_state: Option<Vec<u8>>,
    /// `kubelet_qrm_checkpoint`.
    pub orm_checkpoint: Option<Vec<u8>>,
}

/// Reads what there is, and tells what there is not. Blocks.
pub fn read(dir: &Path) -> (Files, Vec<Fault>) {
    let mut faults = Vec::new();
    let mut file = |name: &'static str| match regular(&dir.join(name)) {
        Ok(bytes) => Some(bytes),
        Err(e) => {
            faults.push(match e.kind() {
                io::ErrorKind::NotFound => Fault::Missing { file: name },
                _ => Fault::Unreadable { file: name, why: e.to_string() },
            });
            None
        }
    };
    let files = Files {
        cpu_state: file(CPU_STATE),
        memory_state: file(MEMORY_STATE),
        orm_checkpoint: file(ORM_CHECKPOINT),
    };
    (files, faults)
}

/// The bytes of a regular file: anything else, such as a named pipe, might be waited for without end.
fn regular(path: &Path) -> io::Result<Vec<u8>> {
    if std::fs::metadata(path)?.is_file() {
        std::fs::read(path)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_regular_file_is_told_and_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let made = std::process::Command::new("mkfifo").arg(dir.path().join(CPU_STATE)).status().unwrap();
        assert!(made.success());
        std::fs::create_dir(dir.path().join(ORM_CHECKPOINT)).unwrap();
        std::fs::write(dir.path().join(MEMORY_STATE), "{}").unwrap();
        let (files, faults) = read(dir.path());
        assert_eq!((files.cpu_state, files.orm_checkpoint), (None, None));
        assert_eq!(files.memory_state.as_deref(), Some(&b"{}"[..]));
        assert_eq!(faults.len(), 2, "{faults:?}");
    }
}
